package rdma_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestC280_ListenerClose: Accept is woken and fails, accepted connections live on, queued
// ones and new dialers are turned away.
func TestC280_ListenerClose(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		var accepted atomic.Int32
		l.server.Trace = &rdma.Trace{Accepted: func(*rdma.Conn) { accepted.Add(1) }}
		ln := l.listen(t)
		s, c := l.connect(t, ln)
		defer closeBoth(s, c)
		queued, err := l.dialer().Dial("rdma", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer queued.Close()
		l.comes(t, "Accept has another", func() bool { return accepted.Load() == 2 })
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
		isErr(t, "second Close", ln.Close(), net.ErrClosed)
		_, err = ln.Accept()
		var op *net.OpError
		if !errors.Is(err, net.ErrClosed) || !errors.As(err, &op) || op.Op != "accept" {
			t.Error(err)
		}
		isErr(t, "SetDeadline", ln.SetDeadline(time.Now()), net.ErrClosed)
		queued.SetReadDeadline(time.Now().Add(time.Minute))
		want := error(syscall.ECONNRESET)
		if l.client.Compatible {
			want = io.EOF // rsockets has no word for a reset
		}
		_, err = queued.Read(make([]byte, 1))
		isErr(t, "a queued connection", err, want)
		_, err = l.dialer().Dial("rdma", ln.Addr().String())
		isErr(t, "dial", err, syscall.ECONNREFUSED)
		writes(t, s, []byte("lives"))
		reads(t, c, []byte("lives"))
	})
	each(t, func(t *testing.T, l *rig) {
		ln := l.listen(t)
		done := make(chan error, 3)
		for range 3 {
			go func() { _, err := ln.Accept(); done <- err }()
		}
		l.comes(t, "nobody connects", func() bool { return len(done) == 0 })
		ln.Close()
		for range 3 {
			isErr(t, "Accept", <-done, net.ErrClosed)
		}
	})
}

// TestC281_AcceptDeadline: past, future, cleared, shortened.
func TestC281_AcceptDeadline(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		ln := l.listen(t)
		defer ln.Close()
		ln.SetDeadline(time.Now().Add(-1))
		_, err := ln.Accept()
		var ne net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
			t.Error(err)
		}
		start := time.Now()
		ln.SetDeadline(start.Add(time.Hour))
		done := make(chan error, 1)
		go func() { _, err := ln.Accept(); done <- err }()
		synctest.Wait()
		ln.SetDeadline(time.Time{})
		time.Sleep(2 * time.Hour)
		ln.SetDeadline(start.Add(3 * time.Hour))
		isErr(t, "Accept", <-done, os.ErrDeadlineExceeded)
		if took := time.Since(start); took != 3*time.Hour {
			t.Error("took", took)
		}
		ln.SetDeadline(time.Time{})
		s, c := l.connect(t, ln)
		closeBoth(s, c)
	})
}

// TestC282_AbortedHandshakes: dialers that give up at any time do not show in Accept.
func TestC282_AbortedHandshakes(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		l.server.HandshakeTimeout = 5 * time.Second
		var refused atomic.Int32
		l.server.Trace = &rdma.Trace{Refused: func(netip.AddrPort, error) { refused.Add(1) }}
		ln := l.listen(t)
		defer ln.Close()
		// The dialer's packets are lost from the n-th on.
		for n := 1; n <= 3; n++ {
			rule := l.fabric.Rule(rdmatest.Rule{From: clientAddr, Nth: n, Count: -1, Drop: true})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			c, err := l.dialer().DialContext(ctx, "rdma", ln.Addr().String())
			cancel()
			if err == nil {
				c.(*rdma.Conn).SetLinger(0)
				c.Close()
			}
			time.Sleep(2 * time.Minute)
			rule.Remove()
		}
		c, err := l.dialer().Dial("rdma", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		writes(t, c, []byte("good"))
		for {
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if s.RemoteAddr().String() == c.LocalAddr().String() {
				reads(t, s, []byte("good"))
				closeBoth(s, c)
				break
			}
			// One whose handshake was complete, and whose dialer vanished then.
			if _, err := s.Read(make([]byte, 1)); err == nil {
				t.Error("a dead dialer has sent something")
			}
			s.Close()
		}
		if refused.Load() == 0 {
			t.Error("no handshake was refused")
		}
		time.Sleep(time.Minute)
	})
}

// Data that come before the handshake is complete are read in order.
func TestC292_EarlyData(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		ln := l.listen(t)
		defer ln.Close()
		for range l.times(5, 2) {
			c, err := l.dialer().Dial("rdma", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			want := pattern(5000, 3)
			writes(t, c, want)
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			reads(t, s, want)
			closeBoth(s, c)
		}
	})
}

// A backlog that is full delays dialers, and loses none that can wait.
func TestC308_Backlog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &rig{place: onFabric(t)}
		cfg := rdma.Config{Provider: l.place.server}
		n, err := (&rdma.ListenConfig{Backlog: 4, Config: &cfg}).Listen(t.Context(), "rdma", l.address)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		const dialers = 50
		done := make(chan error, dialers)
		for range dialers {
			go func() {
				d := l.dialer()
				d.Timeout = 10 * time.Minute
				c, err := d.Dial("rdma", n.Addr().String())
				if err == nil {
					_, err = c.Read(make([]byte, 1))
					c.Close()
				}
				done <- err
			}()
		}
		for range dialers {
			s, err := n.Accept()
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			writes(t, s, []byte("x"))
			go func() { s.Read(make([]byte, 1)); s.Close() }()
		}
		for range dialers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
	})
}

// TestC286_Wildcard: the address of a wildcard listener can be dialled: it is this host. A
// kernel's device is reached by its addresses, of both families if the network has both.
func TestC286_Wildcard(t *testing.T) {
	for network, hosts := range map[string][]string{"rdma": {"", "4", "6"}, "rdma4": {"", "4"}, "rdma6": {"6"}} {
		cfg := &rdma.Config{}
		lab := onKernel(t)
		switch {
		case lab != nil:
			cfg.Provider = lab.server
		case network == "rdma6":
			continue // the fabric's host has one address
		default:
			cfg.Provider = rdmatest.NewFabric(t, 0).Host(netip.MustParseAddr("127.0.0.1"))
		}
		ln, err := (&rdma.ListenConfig{Config: cfg}).Listen(t.Context(), network, ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		ap, err := netip.ParseAddrPort(ln.Addr().String())
		if err != nil || !ap.Addr().IsUnspecified() || ap.Port() == 0 {
			t.Fatal(ln.Addr(), err)
		}
		for _, host := range hosts {
			to := ln.Addr().String()
			switch {
			case (lab != nil) != (host != ""):
				continue
			case host == "4":
				to = netip.AddrPortFrom(lab.from, ap.Port()).String()
			case host == "6":
				to = net.JoinHostPort(onKernel6(t, lab)["global"][0], strconv.Itoa(int(ap.Port())))
			}
			c, err := (&rdma.Dialer{Config: cfg, Timeout: 10 * time.Second}).Dial("rdma", to)
			if err != nil {
				t.Fatal(err)
			}
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if s.LocalAddr().String() != c.RemoteAddr().String() || s.RemoteAddr().String() != c.LocalAddr().String() {
				t.Errorf("%v to %v, and the peer says %v to %v", c.LocalAddr(), c.RemoteAddr(), s.RemoteAddr(), s.LocalAddr())
			}
			closeBoth(s, c)
		}
	}
}

// TestC283_ListenErrors: each is a *net.OpError.
func TestC283_ListenErrors(t *testing.T) {
	p := onFabric(t)
	lc := &rdma.ListenConfig{Config: &rdma.Config{Provider: p.server}}
	ln, err := lc.Listen(t.Context(), "rdma", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, c := range []struct {
		network, address string
		is               error
	}{
		{"rdma", ln.Addr().String(), syscall.EADDRINUSE},
		{"rdma", "10.9.9.9:1234", syscall.EADDRNOTAVAIL},
		{"udp", ":0", nil},
		{"rdma", "nonsense", nil},
	} {
		_, err := lc.Listen(t.Context(), c.network, c.address)
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "listen" || op.Net != c.network || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%v: %v", c, err)
		}
	}
	for _, cfg := range []*rdma.Config{{SendBuf: -1}, {RecvBuf: 1 << 40}, {RecvQueue: 1 << 20}, {HandshakeTimeout: -1}, {Fallback: 9}, {Maps: 1000}} {
		_, err := (&rdma.ListenConfig{Config: cfg}).Listen(t.Context(), "rdma", ":0")
		isErr(t, "Config", err, syscall.EINVAL)
		_, err = (&rdma.Dialer{Config: cfg}).Dial("rdma", "127.0.0.1:1")
		isErr(t, "Config", err, syscall.EINVAL)
	}
}
