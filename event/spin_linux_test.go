package event_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/internal/scripted"
)

// TestC259_SpinClock: a device that takes long for each look is looked at once in a spin that
// is shorter, and not some times before the clock is; and one that can look for a while in a
// call is asked for that.
func TestC259_SpinClock(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		const most, look = 50 * time.Microsecond, 100 * time.Microsecond
		var slow atomic.Bool
		r := newRig(t, &scripted.Config{Descriptors: true, Gate: func(op string, _ uint64) {
			for start := time.Now(); slow.Load() && op == "after poll" && time.Since(start) < look; {
				runtime.Gosched()
			}
		}})
		l := newLoop(t, event.Config{Backend: b, Recheck: -1, Spin: event.Spin{Max: most}})
		n := r.line(nil)
		_, got := n.watch(l)
		n.give(1)
		until(t, l, "a completion", func() bool { return len(*got) == 1 })
		slow.Store(true)
		polls, longer, spins := r.p.Count("poll"), r.p.Count("poll for"), l.Stats().Spins
		turnFor(t, l, 5*time.Millisecond)
		slow.Store(false)
		if k := l.Stats().Spins - spins; k != 1 {
			t.Fatalf("%d spins", k)
		}
		// One of the spin, one after arming.
		if k := r.p.Count("poll") - polls; k > 2 {
			t.Errorf("%d looks of %v in a turn that spins for %v", k, look, most)
		}
		want := 1
		if runtime.GOMAXPROCS(0) == 1 {
			want = 0
		}
		if k := r.p.Count("poll for") - longer; k != want {
			t.Errorf("the provider was asked %d times to look for a while, want %d", k, want)
		}
	})
}

// turnFor is a turn in which nothing happens.
func turnFor(t testing.TB, l *event.Loop, d time.Duration) {
	t.Helper()
	if n, err := l.Turn(d); n != 0 || err != nil {
		t.Errorf("turn: %d calls, %v", n, err)
	}
}
