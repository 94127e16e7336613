package rdma_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// place is where a test has its two ends.
type place struct {
	name           string
	server, client verbs.Provider
	address        string // where the server listens, port 0
	fabric         *rdmatest.Fabric
	from           netip.Addr // where the client comes from; not valid: the system's choice
}

var (
	serverAddr = netip.MustParseAddr("10.0.0.1")
	clientAddr = netip.MustParseAddr("10.0.0.2")
)

// onFabric gives two hosts of a network in memory.
func onFabric(t testing.TB) *place {
	f := rdmatest.NewFabric(t, 0)
	return &place{name: "fabric", server: f.Host(serverAddr), client: f.Host(clientAddr), address: serverAddr.String() + ":0", fabric: f}
}

// onLoopback gives an embedded device of its own, on a loopback address of its own; in the
// lab, a kernel's device.
func onLoopback(t testing.TB) *place {
	if p := onKernel(t); p != nil {
		return p
	}
	p, err := softroce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return &place{name: "loopback", server: p, client: p, address: ownLoopback() + ":0"}
}

var loopbacks atomic.Uint32

// ownLoopback gives a loopback address that no other process, and no other test, has: an
// embedded device has an address for itself.
func ownLoopback() string {
	n := uint32(os.Getpid())<<8 + loopbacks.Add(1)
	return netip.AddrFrom4([4]byte{127, 96 + byte(n>>16)&31, byte(n >> 8), byte(n)}).String()
}

// modes are the protocols.
var modes = []struct {
	name       string
	compatible bool
}{{"verbena", false}, {"rsockets", true}}

// rig is what a test wants of a pair.
type rig struct {
	*place
	server, client rdma.Config
}

// pair gives the two ends of a connection: of the listener and of the dialer.
func (l *rig) pair(t testing.TB) (s, c *rdma.Conn) {
	t.Helper()
	ln := l.listen(t)
	defer ln.Close()
	return l.connect(t, ln)
}

func (l *rig) listen(t testing.TB) *rdma.Listener {
	t.Helper()
	cfg := l.server
	cfg.Provider = l.place.server
	n, err := (&rdma.ListenConfig{Config: &cfg}).Listen(t.Context(), "rdma", l.address)
	if err != nil {
		t.Fatal(err)
	}
	return n.(*rdma.Listener)
}

func (l *rig) dialer() *rdma.Dialer {
	cfg := l.client
	cfg.Provider = l.place.client
	d := &rdma.Dialer{Config: &cfg, Timeout: 30 * time.Second}
	if l.from.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: l.from.AsSlice()}
	}
	return d
}

func (l *rig) connect(t testing.TB, ln *rdma.Listener) (s, c *rdma.Conn) {
	t.Helper()
	type result struct {
		c   *rdma.Conn
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		c, err := ln.AcceptRDMA()
		accepted <- result{c, err}
	}()
	n, err := l.dialer().Dial("rdma", ln.Addr().String())
	if err != nil {
		ln.Close()
		<-accepted
		t.Fatal(err)
	}
	r := <-accepted
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.c, n.(*rdma.Conn)
}

// overTCP gives a connection that TCP carries, and its other end.
func overTCP(t *testing.T) (*rdma.Conn, *net.TCPConn) {
	t.Helper()
	r := &rig{place: onLoopback(t), server: rdma.Config{Fallback: rdma.TCPFallback}}
	ln := r.listen(t)
	defer ln.Close()
	peer, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := ln.AcceptRDMA()
	if err != nil {
		t.Fatal(err)
	}
	return c, peer.(*net.TCPConn)
}

// each runs a test for both protocols, on the fabric, in virtual time; in the lab, on a
// kernel's device and in real time.
func each(t *testing.T, f func(t *testing.T, l *rig)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			if p := onKernel(t); p != nil {
				t.Parallel() // most of the time is waiting
				f(t, &rig{place: p, server: rdma.Config{Compatible: m.compatible}, client: rdma.Config{Compatible: m.compatible}})
				return
			}
			synctest.Test(t, func(t *testing.T) {
				f(t, &rig{place: onFabric(t), server: rdma.Config{Compatible: m.compatible}, client: rdma.Config{Compatible: m.compatible}})
			})
		})
	}
}

// pairs is each for a connected pair, which is closed at the end.
func pairs(t *testing.T, f func(t *testing.T, l *rig, s, c *rdma.Conn)) {
	t.Helper()
	each(t, func(t *testing.T, l *rig) {
		s, c := l.pair(t)
		defer closeBoth(s, c)
		f(t, l, s, c)
	})
}

// pairsNow is pairs in real time, for tests in which goroutines wait for locks: a bubble's
// time does not go on meanwhile.
func pairsNow(t *testing.T, f func(t *testing.T, l *rig, s, c *rdma.Conn)) {
	t.Helper()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			p := onKernel(t)
			if p == nil {
				p = onFabric(t)
			}
			l := &rig{place: p, server: rdma.Config{Compatible: m.compatible}, client: rdma.Config{Compatible: m.compatible}}
			s, c := l.pair(t)
			defer closeBoth(s, c)
			f(t, l, s, c)
		})
	}
}

// closeBoth closes two ends at the same time, as one waits for the other.
func closeBoth(a, b net.Conn) {
	done := make(chan struct{})
	go func() { a.Close(); close(done) }()
	b.Close()
	<-done
}

// pattern gives n bytes that say where they are.
func pattern(n, from int) []byte {
	b := make([]byte, n)
	for i := range b {
		x := from + i
		b[i] = byte(x ^ x>>8*31 ^ x>>16*7)
	}
	return b
}

// isErr reports a call that did not fail as it should.
func isErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// reads reads exactly want.
func reads(t testing.TB, c net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read %d of %d bytes, equal %v: %v", n, len(want), bytes.Equal(got[:n], want[:n]), err)
	}
}

// writes writes all of p.
func writes(t testing.TB, c net.Conn, p []byte) {
	t.Helper()
	if n, err := c.Write(p); n != len(p) || err != nil {
		t.Fatalf("wrote %d of %d bytes: %v", n, len(p), err)
	}
}
