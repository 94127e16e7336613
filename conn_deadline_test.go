package rdma_test

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// TestC271_PastDeadline: calls fail at once, with data waiting too; clearing brings it all
// back.
func TestC271_PastDeadline(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		writes(t, s, []byte("waiting"))
		synctest.Wait()
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
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		full := func() (err error) {
			for err == nil {
				_, err = c.Write(make([]byte, 64<<10))
			}
			return err
		}
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
			d.set(start.Add(time.Hour))
			go func() { done <- d.call() }()
			synctest.Wait()
			d.set(start.Add(2 * time.Hour))
			time.Sleep(time.Until(start.Add(90 * time.Minute)))
			d.set(time.Time{})
			time.Sleep(time.Until(start.Add(150 * time.Minute)))
			synctest.Wait()
			select {
			case err := <-done:
				t.Fatalf("%s: woken by an extension after %v: %v", d.name, time.Since(start), err)
			default:
			}
			d.set(start.Add(151 * time.Minute))
			isErr(t, d.name, <-done, os.ErrDeadlineExceeded)
			if took := time.Since(start); took != 151*time.Minute {
				t.Errorf("%s: woken after %v", d.name, took)
			}
			d.set(time.Time{})
			go func() { done <- d.call() }()
			synctest.Wait()
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
