package timers

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

func TestTimersFireInOrderAndOnTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const seed = 7
		r := rand.New(rand.NewPCG(seed, seed))
		q := &Queue{Start: time.Now()}
		const n = 500
		ts := make([]*Timer, n)
		want := make([]time.Duration, n) // 0: stopped
		fired := make([]time.Duration, n)
		for i := range ts {
			ts[i] = &Timer{F: func(now time.Duration) { fired[i] = now }}
		}
		for range 5 * n {
			i := r.IntN(n)
			if r.IntN(4) == 0 {
				q.Stop(ts[i])
				want[i] = 0
				continue
			}
			want[i] = time.Duration(1 + r.Int64N(int64(time.Second)))
			q.Set(ts[i], want[i])
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for i := range ts {
			if fired[i] != want[i] {
				t.Errorf("seed %d, timer %d: fired at %v, want %v", seed, i, fired[i], want[i])
			}
		}
		if !q.Idle() {
			t.Error("not idle when everything has fired")
		}
	})
}

func TestTimerMovesEarlierAndLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &Queue{Start: time.Now()}
		var fired []time.Duration
		a := &Timer{F: func(now time.Duration) { fired = append(fired, now) }}
		q.Set(a, 100*time.Millisecond)
		q.Set(a, 300*time.Millisecond) // the runtime's timer stays early and looks again
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if len(fired) != 0 {
			t.Fatalf("fired at %v", fired)
		}
		q.Set(a, 250*time.Millisecond)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(fired) != 1 || fired[0] != 250*time.Millisecond {
			t.Fatalf("fired at %v, want 250ms", fired)
		}
	})
}

func TestTimerMaySetItselfAndOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &Queue{Start: time.Now()}
		n := 0
		b := &Timer{F: func(time.Duration) { t.Error("a stopped timer fired") }}
		a := &Timer{}
		a.F = func(now time.Duration) {
			q.Stop(b)
			if n++; n < 10 {
				q.Set(a, now+time.Millisecond)
				q.Set(b, now+2*time.Millisecond)
			}
		}
		q.Set(a, 0)
		time.Sleep(time.Second)
		synctest.Wait()
		if n != 10 || !q.Idle() {
			t.Errorf("fired %d times, want 10; idle %v", n, q.Idle())
		}
	})
}

func TestTimerStopLeavesNothingArmed(t *testing.T) {
	t.Parallel()
	q := &Queue{Start: time.Now()}
	a := &Timer{F: func(time.Duration) {}}
	q.Set(a, time.Hour)
	if q.Idle() {
		t.Error("idle with a timer set")
	}
	q.Stop(a)
	q.Stop(a)
	if !q.Idle() {
		t.Error("not idle after stop")
	}
	q.Set(a, time.Hour)
	q.Close()
	q.Set(a, time.Hour)
	if !q.Idle() {
		t.Error("not idle after close")
	}
}

func TestTimersDoNotAllocate(t *testing.T) {
	q := &Queue{Start: time.Now()}
	defer q.Close()
	ts := make([]Timer, 64)
	for i := range ts {
		ts[i].F = func(time.Duration) {}
		q.Set(&ts[i], time.Hour+time.Duration(i))
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		i++
		q.Set(&ts[i%64], time.Hour-time.Duration(i))
		q.Stop(&ts[(i+7)%64])
		q.Set(&ts[(i+7)%64], time.Hour)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
