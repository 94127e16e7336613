package softroce

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
		q := &timerQueue{start: time.Now()}
		const n = 500
		ts := make([]*timer, n)
		want := make([]time.Duration, n) // 0: stopped
		fired := make([]time.Duration, n)
		for i := range ts {
			ts[i] = &timer{f: func(now time.Duration) { fired[i] = now }}
		}
		for range 5 * n {
			i := r.IntN(n)
			if r.IntN(4) == 0 {
				q.stop(ts[i])
				want[i] = 0
				continue
			}
			want[i] = time.Duration(1 + r.Int64N(int64(time.Second)))
			q.set(ts[i], want[i])
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for i := range ts {
			if fired[i] != want[i] {
				t.Errorf("seed %d, timer %d: fired at %v, want %v", seed, i, fired[i], want[i])
			}
		}
		if !q.idle() {
			t.Error("not idle when everything has fired")
		}
	})
}

func TestTimerMovesEarlierAndLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &timerQueue{start: time.Now()}
		var fired []time.Duration
		a := &timer{f: func(now time.Duration) { fired = append(fired, now) }}
		q.set(a, 100*time.Millisecond)
		q.set(a, 300*time.Millisecond) // the runtime's timer stays early and looks again
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if len(fired) != 0 {
			t.Fatalf("fired at %v", fired)
		}
		q.set(a, 250*time.Millisecond)
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
		q := &timerQueue{start: time.Now()}
		n := 0
		b := &timer{f: func(time.Duration) { t.Error("a stopped timer fired") }}
		a := &timer{}
		a.f = func(now time.Duration) {
			q.stop(b)
			if n++; n < 10 {
				q.set(a, now+time.Millisecond)
				q.set(b, now+2*time.Millisecond)
			}
		}
		q.set(a, 0)
		time.Sleep(time.Second)
		synctest.Wait()
		if n != 10 || !q.idle() {
			t.Errorf("fired %d times, want 10; idle %v", n, q.idle())
		}
	})
}

func TestTimerStopLeavesNothingArmed(t *testing.T) {
	t.Parallel()
	q := &timerQueue{start: time.Now()}
	a := &timer{f: func(time.Duration) {}}
	q.set(a, time.Hour)
	if q.idle() {
		t.Error("idle with a timer set")
	}
	q.stop(a)
	q.stop(a)
	if !q.idle() {
		t.Error("not idle after stop")
	}
	q.set(a, time.Hour)
	q.close()
	q.set(a, time.Hour)
	if !q.idle() {
		t.Error("not idle after close")
	}
}

func TestTimersDoNotAllocate(t *testing.T) {
	q := &timerQueue{start: time.Now()}
	defer q.close()
	ts := make([]timer, 64)
	for i := range ts {
		ts[i].f = func(time.Duration) {}
		q.set(&ts[i], time.Hour+time.Duration(i))
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		i++
		q.set(&ts[i%64], time.Hour-time.Duration(i))
		q.stop(&ts[(i+7)%64])
		q.set(&ts[(i+7)%64], time.Hour)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
