package event_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
)

func TestTimer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		order := &recorder{}
		start := time.Now()
		l.After(0, func() { order.add("now") })
		late := l.After(2*time.Millisecond, func() { order.add("late") })
		l.After(time.Millisecond, func() { order.add("soon") })
		never := l.After(math.MaxInt64, func() { t.Error("never") })
		stopped := l.After(time.Millisecond, func() { t.Error("stopped") })
		if !stopped.Stop() || stopped.Stop() {
			t.Error("Stop of one that runs, then of one that does not")
		}
		until(t, l, "timers", func() bool { return len(order.log) == 3 })
		if d := time.Since(start); d < time.Millisecond {
			t.Errorf("too early, %v", d)
		}
		if !slices.Equal(order.log, []string{"now", "soon", "late"}) {
			t.Error(order.log)
		}
		if late.Stop() || !never.Stop() {
			t.Error("Stop")
		}
		// Its own, again and again; once a turn, even if it is due at once.
		n := 0
		var own *event.Timer
		own = l.After(0, func() {
			if n++; n < 5 {
				own.Reset(0)
			}
		})
		for range 5 {
			turn(t, l, 1)
		}
		turn(t, l, 0)
		// Moved while it runs.
		moved := l.After(time.Hour, func() { n = 0 })
		moved.Reset(time.Millisecond)
		until(t, l, "the timer that was moved", func() bool { return n == 0 })
		// Set by another goroutine while the loop sleeps for longer.
		l.After(time.Hour, func() {})
		go l.After(time.Millisecond, func() { n = 7 })
		if k, err := l.Turn(-1); k != 1 || err != nil || n != 7 {
			t.Error(k, err, n)
		}
		go moved.Reset(time.Millisecond)
		if k, err := l.Turn(-1); k != 1 || err != nil || n != 0 {
			t.Error(k, err, n)
		}
	})
}

// TestTimerOrder: random settings, moves and stops give what a sorted list gives.
func TestTimerOrder(t *testing.T) {
	t.Parallel()
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, seed))
	l := newLoop(t, event.Config{})
	type entry struct {
		when time.Duration
		seq  int
		id   int
	}
	var want []entry
	var got []int
	var timers []*event.Timer
	seq := 0
	drop := func(id int) bool {
		n := len(want)
		want = slices.DeleteFunc(want, func(e entry) bool { return e.id == id })
		return len(want) < n
	}
	for range 2000 {
		// Far enough apart that the clock of the machine does not decide.
		when := time.Duration(1+rnd.IntN(50)) * time.Hour
		seq++
		switch id := rnd.IntN(len(timers) + 1); {
		case id == len(timers):
			timers = append(timers, l.After(when, func() { got = append(got, id) }))
			want = append(want, entry{when, seq, id})
		case rnd.IntN(3) == 0:
			if timers[id].Stop() != drop(id) {
				t.Fatalf("seed %d: Stop of %d", seed, id)
			}
		default:
			timers[id].Reset(when)
			drop(id)
			want = append(want, entry{when, seq, id})
		}
	}
	slices.SortFunc(want, func(a, b entry) int {
		if a.when != b.when {
			return int(a.when - b.when)
		}
		return a.seq - b.seq
	})
	event.Pass(l, 100*time.Hour)
	turn(t, l, len(want))
	for i, e := range want {
		if got[i] != e.id {
			t.Fatalf("seed %d: call %d is of timer %d, want %d", seed, i, got[i], e.id)
		}
	}
}
