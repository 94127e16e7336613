package rdma_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestC314_Kill: the peer process is killed. A connection that writes, or reads with
// keep-alive, ends with an error that says so, and no other.
func TestC314_Kill(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for retries, some seconds")
	}
	rdmatest.CheckLeaks(t)
	r := peerRole{Network: "rdma", Service: "echo"}
	p, other := startPeer(t, r), startPeer(t, r)
	c, d := dialPeer(t, r, p), dialPeer(t, r, other)
	for _, x := range []net.Conn{c, d} {
		writes(t, x, []byte("alive"))
		reads(t, x, []byte("alive"))
	}
	p.kill()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	var err error
	for err == nil {
		if _, err = c.Write([]byte("into the void")); err == nil {
			_, err = c.Read(make([]byte, 100))
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the kill: %v", err)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("a write to the dead succeeds")
	}
	start := time.Now()
	c.Close()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	writes(t, d, []byte("still"))
	reads(t, d, []byte("still"))
}

// TestC282_KilledDialers: a dialer whose process is killed when the listener has its request,
// or when it has the listener's reply, does not show in Accept, and the next one does.
func TestC282_KilledDialers(t *testing.T) {
	if onKernel(t) == nil { // there each provider keeps its devices open
		rdmatest.CheckLeaks(t)
	}
	for _, m := range modes {
		for _, after := range []string{"request", "reply"} {
			t.Run(m.name+"/"+after, func(t *testing.T) {
				t.Parallel()
				cfg := rdma.Config{Compatible: m.compatible}
				l := &rig{place: onLoopback(t), server: cfg, client: cfg}
				l.server.HandshakeTimeout = time.Second
				var refused atomic.Int32
				l.server.Trace = &rdma.Trace{Refused: func(netip.AddrPort, error) { refused.Add(1) }}
				requested, killed := make(chan struct{}), make(chan struct{})
				var first sync.Once
				l.place.server = &faulty{l.place.server, &faults{hook: func(op string) {
					if op == "create qp" && after == "request" { // the listener has not replied yet
						first.Do(func() { close(requested); <-killed })
					}
				}}}
				ln := l.listen(t)
				defer ln.Close()
				r := peerRole{Network: map[bool]string{false: "rdma", true: "rsockets"}[m.compatible], Service: after, Address: ln.Addr().String()}
				p := startPeer(t, r)
				if after == "request" {
					<-requested
				}
				p.kill()
				close(killed)
				l.comes(t, "the handshake has failed", func() bool { return refused.Load() == 1 })
				s, c := l.connect(t, ln)
				if s.RemoteAddr().String() != c.LocalAddr().String() {
					t.Errorf("Accept gives one from %v, and not from %v", s.RemoteAddr(), c.LocalAddr())
				}
				closeBoth(s, c)
			})
		}
	}
}

// peerDials dials to be killed: it says that it begins to, or that it has the reply to its
// request, upon which it does nothing.
func peerDials(r peerRole) error {
	d, err := dialerAs(r)
	if err != nil {
		return err
	}
	if r.Service == "reply" {
		d.Config.Provider = &faulty{d.Config.Provider, &faults{hook: func(op string) {
			if op == "establish" {
				fmt.Println("reply")
				time.Sleep(time.Hour)
			}
		}}}
	} else {
		fmt.Println("dials")
	}
	_, err = d.Dial("rdma", r.Address)
	return fmt.Errorf("it was to be killed before it could say %v", err)
}
