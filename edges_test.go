package rdma_test

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/softroce"
)

// TestC291_KeepAliveNever: the longest time that can be said is one without questions, and
// not one that is over at once.
func TestC291_KeepAliveNever(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		l.server.KeepAlive, l.client.KeepAlive = -1, math.MaxInt64
		s, c := l.pair(t)
		defer closeBoth(s, c)
		quiet := func(what string) {
			t.Helper()
			time.Sleep(time.Minute)
			before := l.fabric.Stats().Sent
			time.Sleep(time.Hour)
			if n := l.fabric.Stats().Sent - before; n > 0 {
				t.Errorf("%s: %d packets while nobody said anything", what, n)
			}
		}
		quiet("Config.KeepAlive")
		k := net.KeepAliveConfig{Enable: true, Idle: math.MaxInt64, Interval: math.MaxInt64, Count: math.MaxInt}
		if err := c.SetKeepAliveConfig(k); err != nil {
			t.Fatal(err)
		}
		quiet("SetKeepAliveConfig")
		// A question that may wait for ever for its answer does not end the connection.
		k.Idle = time.Second
		if err := c.SetKeepAliveConfig(k); err != nil {
			t.Fatal(err)
		}
		heal := l.fabric.Cut(clientAddr, serverAddr)
		time.Sleep(1200 * time.Millisecond)
		heal()
		writes(t, c, []byte("up"))
		reads(t, s, []byte("up"))
	})
}

// TestC290_LingerLong: more seconds than a Duration has are a long time, and not a reset.
func TestC290_LingerLong(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		if err := c.SetLinger(math.MaxInt); err != nil {
			t.Fatal(err)
		}
		writes(t, c, []byte("last"))
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		if b, err := io.ReadAll(s); string(b) != "last" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		s.Close() // rsockets waits for that
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// TestC286_LocalWildcard: an address without an IP is the system's choice in either family.
func TestC286_LocalWildcard(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		ln := l.listen(t)
		defer ln.Close()
		for _, a := range []net.Addr{&net.TCPAddr{}, (*net.TCPAddr)(nil), &net.TCPAddr{IP: net.IPv6unspecified}, &net.TCPAddr{IP: net.IPv4zero}} {
			d := l.dialer()
			d.LocalAddr = a
			c, err := d.Dial("rdma", ln.Addr().String())
			if err != nil {
				t.Fatalf("from %v: %v", a, err)
			}
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if got := c.LocalAddr().(rdma.Addr); got.Addr() != clientAddr || got.String() != s.RemoteAddr().String() {
				t.Errorf("from %v: %v, and the peer sees %v", a, got, s.RemoteAddr())
			}
			closeBoth(s, c)
		}
	})
}

// TestC297_UnmapWithoutPeer: who has closed gives no answer, and none is waited for, be it
// gone before or during the call.
func TestC297_UnmapWithoutPeer(t *testing.T) {
	for name, before := range map[string]bool{"before": true, "during": false} {
		t.Run(name, func(t *testing.T) {
			if onKernel(t) != nil {
				t.Parallel()
			}
			each(t, func(t *testing.T, l *rig) {
				l.server.Maps = 1
				s, c := l.pair(t)
				mr, err := c.PD().Alloc(4096, ib.LocalWrite|ib.RemoteWrite)
				if err != nil {
					t.Fatal(err)
				}
				defer mr.Close()
				if _, err := c.Map(mr, 0); err != nil {
					t.Fatal(err)
				}
				writes(t, c, []byte("mapped"))
				reads(t, s, []byte("mapped"))
				closed := make(chan error, 1)
				go func() { closed <- s.Close() }()
				if before {
					time.Sleep(l.of(10*time.Second, 0))
					l.comes(t, "the end is there", func() bool { _, err := c.TryRead(make([]byte, 1)); return err == io.EOF })
				}
				if err := c.Unmap(mr); err != nil {
					t.Error(err)
				}
				c.Close()
				if err := <-closed; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestC297_ListenerWrites: Config.Maps counts on the side of the listener as well.
func TestC297_ListenerWrites(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		l.server.Maps = 1
		s, c := l.pair(t)
		defer closeBoth(s, c)
		mr, err := c.PD().Alloc(4096, ib.LocalWrite|ib.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer mr.Close()
		if _, err := c.Map(mr, 0); err != nil {
			t.Fatal(err)
		}
		writes(t, c, []byte("mapped"))
		reads(t, s, []byte("mapped"))
		if n, err := s.MapWrite([]byte("there"), 10); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		writes(t, s, []byte("done"))
		reads(t, c, []byte("done"))
		if got := string(mr.Bytes()[10:15]); got != "there" {
			t.Errorf("%q", got)
		}
	})
}

// TestC283_PortTaken: a port that is taken is EADDRINUSE also if one of the listeners has all
// addresses, and is nothing for which TCP takes the place of RDMA.
func TestC283_PortTaken(t *testing.T) {
	p := onLoopback(t)
	host, _, _ := net.SplitHostPort(p.address)
	for _, first := range []string{"", host} {
		lc := &rdma.ListenConfig{Config: &rdma.Config{Provider: p.server}}
		ln, err := lc.Listen(t.Context(), "rdma", first+":0")
		if err != nil {
			t.Fatal(err)
		}
		port := strconv.Itoa(int(ln.Addr().(rdma.Addr).Port()))
		for _, second := range []string{"", "0.0.0.0", host} {
			for _, fallback := range []rdma.Fallback{rdma.NoFallback, rdma.TCPFallback} {
				lc.Config.Fallback = fallback
				again, err := lc.Listen(t.Context(), "rdma", net.JoinHostPort(second, port))
				if err == nil {
					again.Close()
				}
				if !errors.Is(err, syscall.EADDRINUSE) {
					t.Errorf("%q beside %q, fallback %d: %v", second, first, fallback, err)
				}
			}
		}
		ln.Close()
	}
	lc := &rdma.ListenConfig{Config: &rdma.Config{Provider: p.server}}
	_, err := lc.Listen(t.Context(), "rdma", "203.0.113.1:7471")
	isErr(t, "not ours", err, syscall.EADDRNOTAVAIL)
}

// TestTraceStalls: a call that has to wait counts once, however often it is woken, and is
// told of, gathered or not and failed or not.
func TestTraceStalls(t *testing.T) {
	for _, traced := range []bool{true, false} {
		each(t, func(t *testing.T, l *rig) {
			told := 0
			if traced {
				l.client.Trace = &rdma.Trace{CreditStall: func(*rdma.Conn, time.Duration) { told++ }}
			}
			s, c := l.pair(t)
			defer closeBoth(s, c)
			const n = 8 << 20
			read := make(chan error, 1)
			go func() {
				_, err := io.ReadFull(s, make([]byte, 2*n))
				read <- err
			}()
			writes(t, c, make([]byte, n))
			v := net.Buffers{make([]byte, n/2), make([]byte, n/2)}
			if got, err := c.WriteBuffers(&v); got != n || err != nil {
				t.Fatal(got, err)
			}
			if err := <-read; err != nil {
				t.Fatal(err)
			}
			c.SetWriteDeadline(time.Now().Add(time.Second))
			_, err := c.Write(make([]byte, n))
			isErr(t, "nobody reads", err, os.ErrDeadlineExceeded)
			if got := c.Stats().CreditStalls; got != 3 || traced && told != 3 {
				t.Errorf("%d counted and %d told, want 3", got, told)
			}
			go io.Copy(io.Discard, s)
		})
	}
}

// TestTraceClosed: the cause of an end is none if it was Close, however that ended, and else
// what calls give.
func TestTraceClosed(t *testing.T) {
	for _, how := range []struct {
		name string
		want error
		end  func(l *rig, s, c *rdma.Conn)
	}{
		{"in order", nil, func(_ *rig, _, c *rdma.Conn) { c.Close() }},
		{"reset", nil, func(_ *rig, _, c *rdma.Conn) { c.SetLinger(0); c.Close() }},
		{"not in time", nil, func(l *rig, _, c *rdma.Conn) {
			l.fabric.Cut(serverAddr, clientAddr)
			c.SetLinger(1)
			c.Close()
		}},
		{"lost while it closes", nil, func(l *rig, _, c *rdma.Conn) {
			l.fabric.Cut(serverAddr, clientAddr)
			c.SetLinger(3600)
			c.Close()
		}},
		{"disconnected while it closes", nil, func(l *rig, s, c *rdma.Conn) {
			const sendOnlyImm = 5
			l.fabric.Rule(rdmatest.Rule{From: clientAddr, Opcodes: []uint8{sendOnlyImm}, Drop: true})
			done := make(chan struct{})
			go func() { c.Close(); close(done) }()
			synctest.Wait()
			s.SetLinger(0)
			l.fabric.Rule(rdmatest.Rule{From: serverAddr, Opcodes: []uint8{sendOnlyImm}, Drop: true})
			s.Close()
			<-done
		}},
		{"by the peer", syscall.ECONNRESET, func(_ *rig, s, _ *rdma.Conn) { s.SetLinger(0); s.Close() }},
		{"silence", syscall.ETIMEDOUT, func(l *rig, _, c *rdma.Conn) {
			l.fabric.Cut(serverAddr, clientAddr)
			c.Read(make([]byte, 1))
		}},
	} {
		t.Run(how.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				causes := make(chan error, 4)
				l := &rig{place: onFabric(t)}
				l.client.Trace = &rdma.Trace{Closed: func(_ *rdma.Conn, cause error) { causes <- cause }}
				s, c := l.pair(t)
				defer closeBoth(s, c)
				how.end(l, s, c)
				if got := <-causes; got != how.want && (how.want == nil || !errors.Is(got, how.want)) {
					t.Errorf("%v, want %v", got, how.want)
				}
			})
		})
	}
}

// TestTraceClosedTCP: Closed follows Accepted and Connected whatever carries the connection.
func TestTraceClosedTCP(t *testing.T) {
	p := onLoopback(t)
	var accepted, closed atomic.Int32
	cfg := &rdma.Config{Provider: p.server, Fallback: rdma.TCPFallback, Trace: &rdma.Trace{
		Accepted: func(*rdma.Conn) { accepted.Add(1) },
		Closed:   func(*rdma.Conn, error) { closed.Add(1) },
	}}
	ln, err := (&rdma.ListenConfig{Config: cfg}).Listen(t.Context(), "rdma", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.Close()
	if accepted.Load() != 1 || closed.Load() != 1 {
		t.Errorf("%d accepted, %d closed", accepted.Load(), closed.Load())
	}
}

// TestC300_RDMAEnds: a listener on both networks whose device goes away serves TCP, and says
// that there is nothing else any more.
func TestC300_RDMAEnds(t *testing.T) {
	p := onLoopback(t)
	fell := make(chan error, 4)
	cfg := &rdma.Config{Provider: p.server, Fallback: rdma.TCPFallback, Trace: &rdma.Trace{
		FellBack: func(_ string, why error) { fell <- why },
	}}
	ln, err := (&rdma.ListenConfig{Config: cfg}).Listen(t.Context(), "rdma", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p.server.(*softroce.Provider).RemoveDevice()
	if why := <-fell; why == nil {
		t.Error("no reason")
	}
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
