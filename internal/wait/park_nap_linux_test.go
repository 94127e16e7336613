package wait

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/gosched"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// napRig is a Parker whose naps last as long as a test likes. It is not for parallel tests, as
// all naps of the process share their places.
type napRig struct {
	*testing.T
	e eventfd
	p *Parker
}

func newNapRig(t *testing.T, slice time.Duration) *napRig {
	t.Helper()
	e := newEventfd(t)
	r := &napRig{T: t, e: e, p: NewParker(e, e.take)}
	r.p.Nap()
	r.p.nap.slice = slice
	t.Cleanup(r.p.Close)
	was := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(was) })
	return r
}

// near has the next waits nap.
func (r *napRig) near() { r.p.nap.Prefer() }

// park begins a wait, and returns when it is in a nap, or in Go's poller.
func (r *napRig) park(ctx context.Context, nap bool) (ended func(Wake, error)) {
	r.Helper()
	type end struct {
		why Wake
		err error
	}
	c := make(chan end, 1)
	go func() {
		why, err := r.p.Park(ctx, 0)
		c <- end{why, err}
	}()
	until(r.T, func() bool {
		r.p.mu.Lock()
		defer r.p.mu.Unlock()
		return r.p.parked && r.p.nap.in == nap
	})
	return func(why Wake, err error) {
		r.Helper()
		select {
		case got := <-c:
			if !errors.Is(got.err, err) || err == nil && (got.err != nil || got.why != why) {
				r.Errorf("Park: %v, %v; want %v, %v", got.why, got.err, why, err)
			}
		case <-time.After(10 * time.Second):
			r.Fatal("nothing ended the sleep")
		}
	}
}

func until(t *testing.T, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it did not come to that")
		}
	}
}

// TestNap: waits that follow short ones sleep in the descriptor, and all that ends a wait ends
// them. Nothing but an interruption could end these early.
func TestNap(t *testing.T) {
	r := newNapRig(t, time.Minute)
	bg := context.Background()
	ended := r.park(bg, false) // nothing is known
	unix.EventfdSignal(int(r.e))
	ended(Found, nil)
	r.near()
	for range 100 {
		ended = r.park(bg, true)
		unix.EventfdSignal(int(r.e))
		ended(Found, nil)
		ended = r.park(bg, true)
		if r.p.p.in {
			t.Error("Go's poller is woken with who naps")
		}
		r.p.Kick()
		ended(Kicked, nil)
		r.p.Kick()
		parkWant(t, r.p, bg, 0, Kicked, nil)
	}
	if n := gosched.Napping(); n != 0 {
		t.Errorf("%d are in a nap", n)
	}
	parkWant(t, r.p, bg, time.Microsecond, Expired, nil) // a limit that is shorter than a nap
	r.near()
	ended = r.park(bg, true)
	ev := r.p.nap.set[1].Fd
	r.p.Close()
	ended(Kicked, net.ErrClosed)
	if err := unix.EventfdSignal(int(ev)); err == nil {
		t.Error("the descriptor of naps is open after Close")
	}
	r.p.Kick()
	parkWant(t, r.p, bg, 0, Kicked, net.ErrClosed)

	r = newNapRig(t, time.Minute)
	r.near()
	ended = r.park(bg, true)
	unix.EventfdSignal(int(r.e))
	ended(Found, nil)
	ev = r.p.nap.set[1].Fd
	r.p.Close() // of who does not nap
	if err := unix.EventfdSignal(int(ev)); err == nil {
		t.Error("the descriptor of naps is open after Close")
	}
}

// TestNapLimit: a wait whose limit is within a nap, if beyond its first slice, has none.
func TestNapLimit(t *testing.T) {
	r := newNapRig(t, 10*time.Millisecond)
	r.near()
	parkWant(t, r.p, context.Background(), 15*time.Millisecond, Expired, nil)
	if r.p.nap.made {
		t.Error("there was a nap")
	}
}

// TestNapContext: the end of a context is seen after a slice; with a deadline that is near the
// sleep is in Go's poller, which keeps it to the microsecond.
func TestNapContext(t *testing.T) {
	r := newNapRig(t, 10*time.Millisecond)
	r.near()
	ctx, cancel := context.WithCancel(t.Context())
	ended := r.park(ctx, true)
	cancel()
	ended(Kicked, context.Canceled)
	r = newNapRig(t, time.Minute)
	r.near()
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended = r.park(ctx, false)
	unix.EventfdSignal(int(r.e))
	ended(Found, nil)
}

// TestNapEnds: a nap in vain goes on in Go's poller, and so do the next waits until some were
// short.
func TestNapEnds(t *testing.T) {
	r := newNapRig(t, 10*time.Millisecond)
	r.near()
	ended := r.park(t.Context(), false) // at some time
	r.p.mu.Lock()
	if !r.p.nap.made {
		t.Error("there was no nap")
	}
	r.p.mu.Unlock()
	start := time.Now()
	until(t, func() bool { return time.Since(start) > 3*r.p.nap.most() })
	unix.EventfdSignal(int(r.e))
	ended(Found, nil)
	if r.p.nap.Wanted() {
		t.Error("the next wait is expected to be short")
	}
}

// TestNapPlaces: only so many are in a nap at a time; others sleep in Go's poller. With one
// processor nobody naps.
func TestNapPlaces(t *testing.T) {
	a, b := newNapRig(t, time.Minute), newNapRig(t, time.Minute)
	a.near()
	b.near()
	one := a.park(t.Context(), true)
	two := b.park(t.Context(), false)
	unix.EventfdSignal(int(b.e))
	two(Found, nil)
	unix.EventfdSignal(int(a.e))
	one(Found, nil)
	runtime.GOMAXPROCS(1)
	c := newNapRig(t, time.Minute)
	runtime.GOMAXPROCS(1)
	c.near()
	three := c.park(t.Context(), false)
	unix.EventfdSignal(int(c.e))
	three(Found, nil)
}

// TestNapTurns: two goroutines wake each other as fast as they can; no wake-up is lost.
func TestNapTurns(t *testing.T) {
	a, b := newNapRig(t, gosched.NapSlice), newNapRig(t, gosched.NapSlice)
	const rounds = 2000
	var wg sync.WaitGroup
	turn := func(in, out *napRig) {
		for range rounds {
			for {
				why, err := in.p.Park(context.Background(), time.Minute)
				if err != nil || why == Expired {
					t.Errorf("%v, %v", why, err)
					return
				}
				if why == Found {
					break
				}
			}
			unix.EventfdSignal(int(out.e))
			in.p.Kick()
		}
	}
	wg.Go(func() { turn(a, b) })
	wg.Go(func() { turn(b, a) })
	unix.EventfdSignal(int(a.e))
	wg.Wait()
}

func TestNapAllocs(t *testing.T) {
	r := newNapRig(t, time.Minute)
	r.near()
	bg := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		unix.EventfdSignal(int(r.e))
		if w, err := r.p.Park(bg, time.Hour); w != Found || err != nil {
			t.Fatal(w, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !r.p.nap.made {
		t.Error("there was no nap")
	}
}
