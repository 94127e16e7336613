package rdma_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// TestC267_PeerCloses: what it wrote, the end, and then nothing can be written.
func TestC267_PeerCloses(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		writes(t, s, []byte("abc"))
		done := make(chan struct{})
		go func() { s.Close(); close(done) }()
		reads(t, c, []byte("abc"))
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Error(n, err)
		}
		var err error
		for range 2 {
			_, err = c.Write([]byte("x"))
			time.Sleep(time.Second)
		}
		for range 3 {
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Error("write:", err)
			}
			_, err = c.Write([]byte("x"))
		}
		c.Close()
		<-done
	})
}

// TestC268_PeerClosesUnread: the peer throws away what we wrote; reading ends, and writing
// fails: as over if the peer had said its end before ours came, as reset if ours was on its way.
func TestC268_PeerClosesUnread(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		writes(t, c, make([]byte, 3000))
		l.comes(t, "the first byte is there, of which others are behind", func() bool {
			n, _ := s.TryRead(make([]byte, 1))
			return n == 1
		})
		closed := make(chan struct{})
		go func() { s.Close(); close(closed) }()
		defer func() { c.Close(); <-closed }()
		n, err := c.Read(make([]byte, 1))
		if n != 0 || err != io.EOF {
			t.Error(n, err)
		}
		for range 3 {
			_, err = c.Write([]byte("x"))
			time.Sleep(l.of(time.Second, 200*time.Millisecond))
		}
		if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			t.Error("write:", err)
		}
	})
}

// TestC270_PeerVanishes: the network is cut. An idle connection ends within the time of
// keep-alive, one that writes within that of the retries, with ETIMEDOUT; Close returns.
func TestC270_PeerVanishes(t *testing.T) {
	for _, writing := range []bool{false, true} {
		each(t, func(t *testing.T, l *rig) {
			l.client.KeepAlive, l.server.KeepAlive = 10*time.Second, -1
			s, c := l.pair(t)
			writes(t, s, []byte("alive"))
			reads(t, c, []byte("alive"))
			l.fabric.Loss(netip.Addr{}, netip.Addr{}, 1)
			start := time.Now()
			if writing {
				c.Write([]byte("lost"))
			}
			_, err := c.Read(make([]byte, 1))
			isErr(t, "Read", err, syscall.ETIMEDOUT)
			var ne net.Error
			if !errors.As(err, &ne) || !ne.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%v is not a time-out of the network", err)
			}
			if took := time.Since(start); took > 40*time.Second {
				t.Errorf("noticed after %v", took)
			}
			start = time.Now()
			c.Close()
			s.Close()
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("closing took %v", took)
			}
		})
	}
}

// TestC291_KeepAlive: an idle connection stays up, whatever the periods: its peer is asked as
// often as they say, and not at all if that is off.
func TestC291_KeepAlive(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		if err := s.SetKeepAlive(false); err != nil { // its questions would be signs of life
			t.Fatal(err)
		}
		for _, f := range []struct {
			set  func() error
			idle time.Duration // zero: off
		}{
			{func() error { return c.SetKeepAlive(true) }, 15 * time.Second},
			{func() error { return c.SetKeepAlivePeriod(time.Second) }, time.Second},
			{func() error {
				return c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 2})
			}, 2 * time.Second},
			{func() error { return c.SetKeepAlive(false) }, 0},
		} {
			if err := f.set(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Second)
			before := l.fabric.Stats().Sent
			time.Sleep(10 * time.Minute)
			sent := l.fabric.Stats().Sent - before
			// A question and its answer, and an acknowledgement of each, are at most four packets.
			if f.idle == 0 {
				if sent != 0 {
					t.Errorf("%d packets in ten minutes without keep-alive", sent)
				}
			} else if asked := int(10 * time.Minute / f.idle); sent < 2*asked-4 || sent > 4*asked+4 {
				t.Errorf("%d packets in ten minutes for a question each %v", sent, f.idle)
			}
			writes(t, c, []byte("up"))
			reads(t, s, []byte("up"))
		}
		isErr(t, "negative", c.SetKeepAlivePeriod(-1), syscall.EINVAL)
	})
}

// TestC291_KeepAliveShort: periods shorter than an answer takes, where nobody is in a call that
// looks for it, end no healthy connection.
func TestC291_KeepAliveShort(t *testing.T) {
	for _, k := range []net.KeepAliveConfig{
		{Enable: true, Idle: time.Millisecond, Interval: time.Millisecond, Count: 3},
		{Enable: true, Idle: time.Nanosecond, Interval: time.Nanosecond, Count: 1},
	} {
		pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
			for _, x := range []*rdma.Conn{s, c} {
				if err := x.SetKeepAliveConfig(k); err != nil {
					t.Fatal(err)
				}
			}
			for range 50 {
				writes(t, c, []byte("there"))
				reads(t, s, []byte("there"))
				writes(t, s, []byte("back"))
				reads(t, c, []byte("back"))
				time.Sleep(25 * time.Millisecond)
			}
		})
	}
}

// TestC291_DeadHost: a host that vanishes while the connection is idle is found within
// Idle + Interval × Count, and the time that the retries of the question take: those of the
// device if that is sooner.
func TestC291_DeadHost(t *testing.T) {
	for _, k := range []net.KeepAliveConfig{
		{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 2},
		{Enable: true, Idle: 30 * time.Second, Interval: 100 * time.Millisecond, Count: 1},
		{Enable: true, Idle: 5 * time.Minute, Interval: time.Hour, Count: 9},
	} {
		each(t, func(t *testing.T, l *rig) {
			l.server.KeepAlive = -1
			s, c := l.pair(t)
			defer s.Close()
			if err := c.SetKeepAliveConfig(k); err != nil {
				t.Fatal(err)
			}
			writes(t, s, []byte("alive"))
			reads(t, c, []byte("alive"))
			time.Sleep(time.Millisecond)
			l.fabric.Loss(netip.Addr{}, netip.Addr{}, 1)
			start := time.Now()
			_, err := c.Read(make([]byte, 1))
			isErr(t, "Read", err, syscall.ETIMEDOUT)
			const retries = 20 * time.Second
			most := k.Idle + min(k.Interval*time.Duration(k.Count), retries)
			if took := time.Since(start); took < k.Idle-time.Second || took > most {
				t.Errorf("Idle %v, %d × %v: found after %v, not within %v", k.Idle, k.Count, k.Interval, took, most)
			}
			c.Close()
		})
	}
}

// TestC290_Linger: a time of zero resets; a peer that does not read bounds Close.
func TestC290_Linger(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		if err := c.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Error("reset took", took)
		}
		want := error(syscall.ECONNRESET)
		if l.client.Compatible {
			want = io.EOF // rsockets has no word for a reset
		}
		_, err := s.Read(make([]byte, 1))
		isErr(t, "Read", err, want)
	})
	each(t, func(t *testing.T, l *rig) {
		l.client.Linger = l.of(3*time.Second, time.Second)
		s, c := l.pair(t)
		defer s.Close()
		l.fill(t, c)
		wrote := c.Stats().BytesWritten
		start := time.Now()
		c.Close()
		if took := time.Since(start); took > 5*time.Second {
			t.Error("Close took", took)
		}
		// rsockets has no word for that. A machine that stood still while it was filled may
		// have had room for all of it.
		n, err := io.Copy(io.Discard, s)
		if err == nil && !l.client.Compatible && (l.fabric != nil || uint64(n) < wrote) {
			t.Errorf("the stream was cut after %d of %d bytes, and its reader was not told", n, wrote)
		}
	})
}

// TestC290_SlowReader: Close delivers what was written, megabytes too, to a peer that takes its
// time, as long as that is within Linger.
func TestC290_SlowReader(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		l.client.Linger, l.client.SendBuf = time.Minute, 4<<20
		s, c := l.pair(t)
		size := l.times(4<<20, 2<<20)
		writes(t, c, pattern(size, 3))
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		want, b := pattern(size, 3), make([]byte, 32<<10)
		got := 0
		for {
			n, err := s.Read(b)
			if string(b[:n]) != string(want[got:got+n]) {
				t.Fatalf("wrong bytes at %d", got)
			}
			got += n
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("after %d bytes: %v", got, err)
			}
			time.Sleep(l.of(100*time.Millisecond, 10*time.Millisecond))
		}
		if got != size {
			t.Errorf("%d of %d bytes, and then the end", got, size)
		}
		s.Close()
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// TestKeepAlivePeriodTCP: a period must be positive whatever carries the connection; a
// negative one is no way to turn keep-alive off.
func TestKeepAlivePeriodTCP(t *testing.T) {
	c, peer := overTCP(t)
	defer closeBoth(c, peer)
	for _, d := range []time.Duration{0, -1} {
		isErr(t, d.String(), c.SetKeepAlivePeriod(d), syscall.EINVAL)
	}
	if err := c.SetKeepAlivePeriod(time.Second); err != nil {
		t.Error(err)
	}
}
