package rdma

import (
	"io"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestLent: the buffers of a connection are small at first, large while its peer sends much,
// and within Config.RecvBuf. A peer of rsockets may write them.
func TestLent(t *testing.T) {
	for _, c := range []struct {
		compatible  bool
		recvBuf     int
		recvQueue   int
		first, lent int // bytes
	}{
		{true, 0, 0, 16 << 10, 256 << 10}, {true, 4 << 10, 0, 4 << 10, 0}, {true, 64 << 10, 0, 16 << 10, 64 << 10}, {true, 1 << 20, 0, 16 << 10, 1 << 20},
		{true, 16 << 20, 0, 16 << 10, 8 << 20},
		{false, 0, 0, 0, 1 << 20}, {false, 4 << 10, 0, 0, 0}, {false, 64 << 10, 0, 0, 64 << 10}, {false, 16 << 20, 0, 0, 20 * 64 << 10},
		{false, 64 << 20, 4096, 0, 499 * 64 << 10}, // the counters of the protocol
	} {
		synctest.Test(t, func(t *testing.T) {
			fabric := newTestNet(t)
			cfg := &Config{Provider: fabric.Host(netip.MustParseAddr("10.0.0.1")), Compatible: c.compatible, RecvBuf: c.recvBuf, RecvQueue: c.recvQueue}
			ln, err := (&ListenConfig{Config: cfg}).Listen(t.Context(), "rdma", "10.0.0.1:7471")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			peer, err := (&Dialer{Config: &Config{Provider: fabric.Host(netip.MustParseAddr("10.0.0.2")), Compatible: c.compatible}}).Dial("rdma", "10.0.0.1:7471")
			if err != nil {
				t.Fatal(err)
			}
			a, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			s := a.(*Conn)
			now := func() (first, lent int) {
				s.mu.Lock()
				defer s.mu.Unlock()
				for _, l := range s.mem.lent {
					if (l.mr != nil) != c.compatible {
						t.Errorf("memory that the peer may write: %v", l.mr != nil)
					}
					lent += len(l.b)
				}
				return len(s.mem.ring.b) &^ 4095, lent
			}
			if first, lent := now(); first != c.first || lent != 0 {
				t.Errorf("compatible %v, RecvBuf %d: %d bytes at first, and %d lent", c.compatible, c.recvBuf, first, lent)
			}
			const n = 12 << 20
			go func() {
				peer.Write(make([]byte, n))
				peer.(*Conn).CloseWrite()
			}()
			most := 0
			for got := 0; ; {
				b := make([]byte, 100_000)
				k, err := s.Read(b)
				got += k
				_, lent := now()
				most = max(most, lent)
				if err == io.EOF && got == n {
					break
				}
				if err != nil {
					t.Fatal(got, err)
				}
			}
			if most != c.lent {
				t.Errorf("compatible %v, RecvBuf %d: at most %d bytes were lent, want %d", c.compatible, c.recvBuf, most, c.lent)
			}
			done := make(chan struct{})
			go func() { peer.Close(); close(done) }()
			s.Close()
			<-done
			time.Sleep(time.Minute) // the fabric sees what is left over
		})
	}
}

// TestLentWhenAccepted: whatever a peer sends, its connection stays small until somebody has
// accepted it; and then it is large at once.
func TestLentWhenAccepted(t *testing.T) {
	for _, compatible := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fabric := newTestNet(t)
			cfg := &Config{Provider: fabric.Host(netip.MustParseAddr("10.0.0.1")), Compatible: compatible}
			n, err := (&ListenConfig{Config: cfg}).Listen(t.Context(), "rdma", "10.0.0.1:7471")
			if err != nil {
				t.Fatal(err)
			}
			ln := n.(*Listener)
			defer ln.Close()
			peer, err := (&Dialer{Config: &Config{Provider: fabric.Host(netip.MustParseAddr("10.0.0.2")), Compatible: compatible}}).Dial("rdma", "10.0.0.1:7471")
			if err != nil {
				t.Fatal(err)
			}
			const size = 3 << 20
			go func() {
				peer.Write(make([]byte, size))
				peer.(*Conn).CloseWrite()
			}()
			time.Sleep(time.Hour)
			lent := func() int64 {
				ln.mu.Lock()
				defer ln.mu.Unlock()
				for _, h := range ln.hubs {
					return h.lent.Load()
				}
				return -1
			}
			if n := lent(); n != 0 {
				t.Errorf("compatible %v: %d bytes were lent before anybody accepted", compatible, n)
			}
			a, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if n := lent(); n == 0 {
				t.Errorf("compatible %v: nothing is lent to a peer that waits", compatible)
			}
			start := time.Now()
			if n, err := io.Copy(io.Discard, a); n != size || err != nil {
				t.Errorf("compatible %v: %d bytes, %v", compatible, n, err)
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("compatible %v: it took %v", compatible, took)
			}
			done := make(chan struct{})
			go func() { peer.Close(); close(done) }()
			a.Close()
			<-done
			time.Sleep(time.Minute)
		})
	}
}

// TestSendBufferGoesBack: a large send buffer goes back a second after the last write, or as
// soon as the peer has taken what was written, whatever the times of keep-alive.
func TestSendBufferGoesBack(t *testing.T) {
	for _, compatible := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fabric := newTestNet(t)
			cfg := func(host string) *Config {
				return &Config{Provider: fabric.Host(netip.MustParseAddr(host)), Compatible: compatible, KeepAlive: -1, RecvBuf: 64 << 10}
			}
			ln, err := (&ListenConfig{Config: cfg("10.0.0.1")}).Listen(t.Context(), "rdma", "10.0.0.1:7471")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			a, err := (&Dialer{Config: cfg("10.0.0.2")}).Dial("rdma", "10.0.0.1:7471")
			if err != nil {
				t.Fatal(err)
			}
			c := a.(*Conn)
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			is := func(want int, when string) {
				t.Helper()
				synctest.Wait()
				c.mu.Lock()
				defer c.mu.Unlock()
				if n := len(c.mem.send.b); n != want {
					t.Errorf("compatible %v: a send buffer of %d bytes, want %d: %s", compatible, n, want, when)
				}
			}
			sleep := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
			write := func(n int) {
				t.Helper()
				if _, err := c.Write(make([]byte, n)); err != nil {
					t.Fatal(err)
				}
			}
			read := func(n int) {
				t.Helper()
				if _, err := io.CopyN(io.Discard, s, int64(n)); err != nil {
					t.Fatal(err)
				}
			}
			const all = defaultSendBuf
			for range 3 {
				write(100_000)
				read(100_000)
				sleep(500 * time.Millisecond)
				write(100)
				read(100)
				sleep(900 * time.Millisecond)
				is(all, "it was used less than a second ago")
				sleep(200 * time.Millisecond)
				is(0, "it was not used for a second")
			}
			// Nobody reads: it is in use for as long as that takes.
			write(all)
			sleep(time.Hour)
			is(all, "the peer has not read")
			read(all)
			sleep(time.Second)
			is(0, "the peer has read everything")
			done := make(chan struct{})
			go func() { c.Close(); close(done) }()
			s.Close()
			<-done
			time.Sleep(time.Minute)
		})
	}
}
