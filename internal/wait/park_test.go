package wait

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

func parkWant(t *testing.T, p *Parker, ctx context.Context, limit time.Duration, want Wake, wantErr error) {
	t.Helper()
	w, err := p.Park(ctx, limit)
	if !errors.Is(err, wantErr) || wantErr == nil && err != nil || err == nil && w != want {
		t.Errorf("Park: %v, %v; want %v, %v", w, err, want, wantErr)
	}
}

func TestPark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		p := NewParker(q, q.take)
		bg := context.Background()
		q.put(1)
		parkWant(t, p, bg, 0, Found, nil)

		// The limit, twice, the second one shorter than what the timer runs for.
		for _, d := range []time.Duration{time.Second, time.Minute, time.Second} {
			start := time.Now()
			if d == time.Minute {
				go func() {
					time.Sleep(time.Millisecond)
					q.put(1)
				}()
				parkWant(t, p, bg, d, Found, nil)
				continue
			}
			parkWant(t, p, bg, d, Expired, nil)
			if got := time.Since(start); got != d {
				t.Errorf("expired after %v, want %v", got, d)
			}
		}
		// A timer that fires for a sleep that has ended wakes nobody.
		go func() {
			time.Sleep(3 * time.Minute)
			q.put(1)
		}()
		parkWant(t, p, bg, 0, Found, nil)

		p.Kick()
		parkWant(t, p, bg, 0, Kicked, nil)
		go func() {
			synctest.Wait()
			p.Kick()
		}()
		parkWant(t, p, bg, 0, Kicked, nil)

		// The deadline wins over what is there, which stays.
		past, cancel := context.WithTimeout(bg, -time.Second)
		defer cancel()
		q.put(1)
		parkWant(t, p, past, 0, Kicked, context.DeadlineExceeded)
		parkWant(t, p, bg, 0, Found, nil)

		short, cancel2 := context.WithTimeout(bg, time.Second)
		defer cancel2()
		parkWant(t, p, short, 0, Kicked, context.DeadlineExceeded)

		go func() {
			synctest.Wait()
			p.Close()
			p.Close()
		}()
		parkWant(t, p, bg, time.Hour, Kicked, net.ErrClosed)
		parkWant(t, p, bg, 0, Kicked, net.ErrClosed)
	})
}

func TestParkError(t *testing.T) {
	t.Parallel()
	q := newQueue()
	q.err = driver.ErrDeviceGone
	p := NewParker(q, q.take)
	defer p.Close()
	parkWant(t, p, t.Context(), 0, Kicked, driver.ErrDeviceGone)
}

func TestParkAllocs(t *testing.T) {
	q := newQueue()
	try := false
	p := NewParker(q, func() bool { try = !try; return !try }) // sleeps once a Park
	defer p.Close()
	q.put(1)
	bg := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		if w, err := p.Park(bg, time.Hour); w != Found || err != nil {
			t.Fatal(w, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
