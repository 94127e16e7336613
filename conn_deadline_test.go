package rdma_test

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// TestC271_PastDeadline: calls fail at once, with data waiting too; clearing brings it all
// back.
func TestC271_PastDeadline(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		writes(t, s, []byte("and waiting"))
		got := make([]byte, len("and "))
		l.comes(t, "data are there", func() bool { n, _ := c.TryRead(got); return n == len(got) })
		c.SetDeadline(time.Now().Add(-time.Second))
		for _, f := range []func([]byte) (int, error){c.Read, c.Write, c.TryRead, c.TryWrite} {
			n, err := f(make([]byte, 10))
			var ne net.Error
			if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
				t.Error(n, err)
			}
		}
		c.SetDeadline(time.Time{})
		reads(t, c, []byte("waiting"))
		writes(t, c, []byte("x"))
	})
}

// TestC272_MovedDeadlines: to shorten wakes, to extend and to clear do not.
func TestC272_MovedDeadlines(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		hour := l.of(time.Hour, 600*time.Millisecond)
		full := func() (err error) {
			for err == nil {
				_, err = c.Write(make([]byte, 64<<10))
			}
			return err
		}
		l.fill(t, c)
		for _, d := range []struct {
			name string
			call func() error
			set  func(time.Time) error
		}{
			{"read", func() error { _, err := c.Read(make([]byte, 1)); return err }, c.SetReadDeadline},
			{"write", full, c.SetWriteDeadline},
			{"both", full, c.SetDeadline},
		} {
			done := make(chan error, 1)
			start := time.Now()
			d.set(start.Add(hour))
			go func() { done <- d.call() }()
			l.comes(t, "the call waits", asleep(c, 1))
			d.set(start.Add(2 * hour))
			time.Sleep(time.Until(start.Add(hour + hour/4)))
			d.set(time.Time{})
			time.Sleep(time.Until(start.Add(2*hour + hour/4)))
			l.comes(t, "the call still waits", func() bool { return len(done) == 0 })
			last := 2*hour + hour/4 + hour/60
			d.set(start.Add(last))
			isErr(t, d.name, <-done, os.ErrDeadlineExceeded)
			if took := time.Since(start); took < last || took > last+l.of(0, 10*time.Second) {
				t.Errorf("%s: woken after %v", d.name, took)
			}
			d.set(time.Time{})
			go func() { done <- d.call() }()
			l.comes(t, "the call waits again", asleep(c, 1))
			d.set(time.Now())
			isErr(t, d.name, <-done, os.ErrDeadlineExceeded)
			d.set(time.Time{})
		}
	})
}

// TestC273_DeadlineAccuracy: never early, and not late.
func TestC273_DeadlineAccuracy(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		for d := time.Nanosecond; d <= 10*time.Second; d *= 3 {
			start := time.Now()
			c.SetReadDeadline(start.Add(d))
			_, err := c.Read(make([]byte, 1))
			isErr(t, "Read", err, os.ErrDeadlineExceeded)
			if took := time.Since(start); took != d {
				t.Errorf("%v took %v", d, took)
			}
		}
	})
}

// Setting deadlines races with calls, in real time.
func TestC272_DeadlineRace(t *testing.T) {
	pairsNow(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		var wg sync.WaitGroup
		stop := time.Now().Add(time.Second)
		for i := range 8 {
			wg.Go(func() {
				for n := 0; time.Now().Before(stop); n++ {
					c.SetDeadline(time.Now().Add(time.Duration(n%5-1) * time.Millisecond))
				}
			})
			wg.Go(func() {
				b := make([]byte, 100+i)
				for time.Now().Before(stop) {
					if _, err := c.Read(b); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error(err)
						return
					}
				}
			})
			wg.Go(func() {
				for time.Now().Before(stop) {
					s.SetWriteDeadline(time.Now().Add(time.Millisecond))
					if _, err := s.Write(make([]byte, 3000)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}
