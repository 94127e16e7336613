package wait

import (
	"math/rand/v2"
	"testing"
	"time"
)

const us = time.Microsecond

func TestSpinnerPolicies(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		max      time.Duration
		adaptive bool
		want     time.Duration
	}{
		{0, false, 0}, {-1, false, 0}, {time.Minute, false, time.Minute},
		{0, true, DefaultSpin}, {-1, true, DefaultSpin}, {30 * us, true, 30 * us},
	} {
		var s Spinner
		s.Set(x.max, x.adaptive)
		if x.adaptive { // it learns first, and then would look longer
			if b := s.Budget(); b != 0 {
				t.Errorf("%v: budget %v before anything is known", x.max, b)
			}
			for range samples {
				s.Miss(0, x.want*3/4)
			}
		}
		if b := s.Budget(); b != x.want || s.Learns() != x.adaptive {
			t.Errorf("%v, adaptive %v: budget %v", x.max, x.adaptive, b)
		}
		if !x.adaptive {
			s.Hit(0)
			s.Miss(time.Hour, 0)
			if b := s.Budget(); b != x.want {
				t.Errorf("%v has learned %v", x.max, b)
			}
		}
	}
	if (&Spinner{}).Budget() != 0 {
		t.Error("the zero Spinner spins")
	}
}

// world is what a Spinner lives in: answers that come some time after the wait has begun,
// and a sleep that takes longer than the answer.
type world struct {
	s     Spinner
	wake  time.Duration
	waits int
	spun  time.Duration // processor time
	waste time.Duration // of that: in vain
	all   time.Duration // of all waits
	total time.Duration // of those for something near
	least time.Duration // what it would be if spinning cost nothing and were endless
	far   time.Duration // waits for what takes longer than this are not in total
	steal func() time.Duration
}

func newWorld() *world {
	w := &world{wake: 30 * us, far: time.Millisecond}
	w.s.Set(0, true)
	return w
}

// answer is a wait for something that comes after d.
func (w *world) answer(d time.Duration) {
	w.waits++
	b := w.s.Budget()
	took := d
	if b > 0 && w.steal != nil {
		took += w.steal()
	}
	switch {
	case b > 0 && d <= b:
		w.s.Hit(took)
		w.spun += d
	default:
		took += w.wake
		w.spun += b
		w.waste += b
		w.s.Miss(b, took)
	}
	w.all += took
	if d <= w.far {
		w.total += took
		w.least += d
	}
}

// mean is the mean time by which the near waits took longer than they had to.
func (w *world) mean() time.Duration { return (w.total - w.least) / time.Duration(w.waits) }

func TestSpinnerPingPong(t *testing.T) {
	t.Parallel()
	const seed = 7
	r := rand.New(rand.NewPCG(seed, seed))
	for _, d := range []time.Duration{5 * us, 40 * us, 90 * us} {
		w := newWorld()
		for range 10_000 {
			w.answer(d - d/8 + time.Duration(r.Int64N(int64(d/4))))
		}
		if w.mean() > w.wake/10 {
			t.Errorf("seed %d, answers after %v: %v lost a wait, of %v", seed, d, w.mean(), w.wake)
		}
		if b := w.s.Budget(); b < d || b > max(3*d, DefaultSpin) || d == 5*us && b > w.wake+2*d {
			t.Errorf("answers after %v: budget %v", d, b)
		}
	}
}

// Answers out of reach: nothing is spent on them but rare tries.
func TestSpinnerOutOfReach(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{160 * us, 400 * us, 5 * time.Millisecond, time.Second} {
		w := newWorld()
		for range 10_000 {
			w.answer(d)
		}
		if w.spun > 40*DefaultSpin && w.spun > w.all/80 {
			t.Errorf("answers after %v: %v of %v spun in vain", d, w.spun, w.all)
		}
	}
}

// Silence: two spins, and no more. Then a source that becomes quick is noticed at once.
func TestSpinnerSilence(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for range 100 {
		w.answer(4 * us)
	}
	spun := w.spun
	for range 100 {
		w.answer(time.Hour)
	}
	if d := w.spun - spun; d > farMost*DefaultSpin {
		t.Errorf("%v spun in silence after quick answers", d)
	}
	// Whatever was learned: also without a single answer.
	silent := newWorld()
	for range 20_000 {
		silent.answer(time.Hour)
	}
	if most := (farMost + 20_000/farPeriod) * DefaultSpin; silent.spun > most {
		t.Errorf("%v spun in silence, limit %v", silent.spun, most)
	}
	// What was given up counts as silence.
	for range 10 {
		w.s.Miss(w.s.Budget(), 0)
	}
	if b := w.s.Budget(); b != 0 {
		t.Errorf("budget %v", b)
	}
	w.total, w.least, w.waits = 0, 0, 0
	for range 1000 {
		w.answer(4 * us)
	}
	if w.mean() > w.wake/4 {
		t.Errorf("%v lost a wait after a silence, of %v", w.mean(), w.wake)
	}
}

// Bursts of quick answers, with pauses: the pauses cost little, and the bursts are as
// quick as if there were none.
func TestSpinnerBursts(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for range 200 {
		for range 50 {
			w.answer(5 * us)
		}
		w.answer(20 * time.Millisecond)
	}
	if w.mean() > w.wake/10 {
		t.Errorf("%v lost a wait, of %v", w.mean(), w.wake)
	}
	if w.waste > 200*DefaultSpin {
		t.Errorf("%v spun in vain in 200 pauses", w.waste)
	}
}

// Quick and slow in turn: spinning may or may not pay, but it is never a loss.
func TestSpinnerAlternating(t *testing.T) {
	t.Parallel()
	const seed = 3
	r := rand.New(rand.NewPCG(seed, seed))
	for _, slow := range []time.Duration{300 * us, 5 * time.Millisecond} {
		w := newWorld()
		const rounds = 10_000
		for range rounds {
			w.answer(time.Duration(r.Int64N(int64(10 * us))))
			w.answer(slow)
		}
		if w.waste > rounds*w.wake {
			t.Errorf("seed %d: %v wasted, sleeping would have taken %v", seed, w.waste, rounds*w.wake)
		}
		if w.mean() > w.wake {
			t.Errorf("seed %d: %v lost a wait, sleeping %v", seed, w.mean(), w.wake)
		}
	}
}

// The processor is taken away from who spins, for as long as a time slice: then sleeping
// is better, and is done; and when the machine is idle again, that is noticed.
func TestSpinnerBusy(t *testing.T) {
	t.Parallel()
	const seed = 5
	r := rand.New(rand.NewPCG(seed, seed))
	w := newWorld()
	w.steal = func() time.Duration {
		if r.IntN(10) == 0 {
			return 4 * time.Millisecond
		}
		return 0
	}
	const waits = 20_000
	for range waits {
		w.answer(10 * us)
	}
	if limit := w.wake + w.wake/10; w.mean() > limit {
		t.Errorf("seed %d: %v lost a wait, sleeping %v", seed, w.mean(), w.wake)
	}
	w.steal = nil
	for range 2 * mostPeriod {
		w.answer(10 * us)
	}
	if w.s.Budget() == 0 {
		t.Error("does not spin on a machine that is idle again")
	}
	// Rarely enough it pays all the same.
	w.steal = func() time.Duration {
		if r.IntN(1000) == 0 {
			return 4 * time.Millisecond
		}
		return 0
	}
	w.total, w.least, w.waits = 0, 0, 0
	for range 10 * waits {
		w.answer(10 * us)
	}
	if w.mean() > w.wake/2 {
		t.Errorf("seed %d: %v lost a wait, sleeping %v", seed, w.mean(), w.wake)
	}
}

// TestSpinnerSteps tells a Spinner what became of waits, one after the other, and has a
// look at the next budget.
func TestSpinnerSteps(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	type step struct {
		spun, total time.Duration // of a miss; no total, no spin: a hit after hit
		hit         time.Duration
		times       int
		budget      time.Duration // afterwards
	}
	hit := func(d time.Duration, n int, budget time.Duration) step { return step{hit: d, times: n, budget: budget} }
	miss := func(spun, total time.Duration, n int, budget time.Duration) step {
		return step{spun: spun, total: total, times: n, budget: budget}
	}
	learn := miss(0, 40*us, samples, 80*us)
	for _, x := range []struct {
		name  string
		steps []step
	}{
		{"sleeps at first", []step{miss(0, 40*us, samples-1, 0)}},
		{"then tries for twice as long as a sleep takes", []step{learn}},
		{"but not for longer than it may", []step{miss(0, 90*us, samples, 100*us)}},
		{"gives up what is far after two waits", []step{learn, miss(80*us, 2*ms, 2, 0), miss(0, time.Hour, 100, 0)}},
		{"and begins again when something is near", []step{learn, miss(80*us, 2*ms, 2, 0), miss(0, 40*us, 1, 80*us)}},
		{"an end without an answer is far", []step{learn, miss(80*us, -1, 2, 0)}},
		{"does not spin less than a sleep takes", []step{learn, hit(5*us, 100, 40*us)}},
		{"spins longer if answers vary", []step{learn, hit(10*us, 20, 40*us), hit(39*us, 20, 60*us)}},
		{"a try that finds nothing ends", []step{learn, miss(80*us, 130*us, tryWaits, 0)}},
		{"and the next is at a multiple of the number of waits, when the loss is a small part of the time", []step{
			learn, miss(80*us, 130*us, tryWaits, 0), miss(0, 40*us, 5*firstPeriod-tryWaits-samples-1, 0), miss(0, 40*us, 1, 80*us)}},
		{"but once the processor may be taken away", []step{
			learn, miss(5*ms, 5*ms, 1, 0), miss(0, 40*us, firstPeriod-samples-2, 0), miss(0, 40*us, 1, 80*us)}},
		{"while the second time makes the next try late", []step{
			learn, miss(5*ms, 5*ms, 1, 0), miss(0, 40*us, firstPeriod-samples-1, 80*us),
			miss(5*ms, 5*ms, 1, 0), miss(0, 40*us, 32*5000/40-100, 0), miss(0, 40*us, 200, 80*us)}},
		{"losing the processor ends it", []step{learn, hit(5*us, 4, 40*us), hit(5*ms, 1, 0)}},
		{"but not for long if it has paid", []step{
			learn, hit(5*us, 1000, 40*us), hit(5*ms, 1, 0), miss(0, 40*us, leastPeriod, 80*us)}},
		{"sleeps now and then to compare", []step{
			learn, hit(5*us, sampleEvery-samples, 0), miss(0, 40*us, samples-1, 0), miss(0, 40*us, 1, 40*us)}},
	} {
		var s Spinner
		s.Set(0, true)
		for i, st := range x.steps {
			for range st.times {
				if st.hit > 0 {
					s.Hit(st.hit)
				} else {
					s.Miss(st.spun, st.total)
				}
			}
			if b := s.Budget(); b < st.budget || b > st.budget+st.budget/5 {
				t.Errorf("%s: after step %d: budget %v, want %v", x.name, i, b, st.budget)
			}
		}
	}
}

// Whatever it is told, in whatever order, the budget stays in bounds.
func TestSpinnerBounds(t *testing.T) {
	t.Parallel()
	const seed = 9
	r := rand.New(rand.NewPCG(seed, seed))
	var s Spinner
	s.Set(50*us, true)
	odd := func() time.Duration {
		switch r.IntN(6) {
		case 0:
			return 0
		case 1:
			return -1 << 63
		case 2:
			return 1<<63 - 1
		}
		return time.Duration(r.Int64N(int64(100 * us)))
	}
	for i := range 200_000 {
		if b := s.Budget(); b < 0 || b > 50*us {
			t.Fatalf("seed %d, step %d: budget %v", seed, i, b)
		}
		if r.IntN(2) == 0 {
			s.Hit(odd())
		} else {
			s.Miss(odd(), odd())
		}
	}
}
