package gosched

import (
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"
)

// TestC259_Ask: the runtime tells whether a goroutine waits for a processor, without allocating.
// It is not parallel, as others must not run.
func TestC259_Ask(t *testing.T) {
	metrics.Read(runnable.sample)
	if k := runnable.sample[0].Value.Kind(); k != metrics.KindUint64 {
		t.Fatalf("the runtime tells %v, no number", k)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var ran atomic.Bool
	go func() { ran.Store(true) }()
	if asked := othersWait(); !asked && !ran.Load() {
		t.Error("a goroutine has been started, and nobody waits")
	}
	for end := time.Now().Add(10 * time.Second); othersWait() || !ran.Load(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("somebody waits for ever")
		}
	}
	if n := testing.AllocsPerRun(100, func() { othersWait() }); n != 0 {
		t.Errorf("to ask allocates %v times", n)
	}
}

// TestC259_Pace: who asks is given the turn at once while somebody waits, and else after paceKeep.
func TestC259_Pace(t *testing.T) {
	t.Parallel()
	const ask, keep = int64(paceAsk), int64(paceKeep)
	var p Pace
	for _, x := range []struct {
		now, ask, last int64
		wait           bool
	}{
		{1, 1 + ask, 0, false},
		{1 + ask, 1 + 2*ask, 0, false},
		{2 + ask, 0, 2 + ask, true},
		{3 + ask, 0, 3 + ask, true},
		{4 + ask, 4 + 2*ask, 3 + ask, false},
		{3 + ask + keep - 1, 3 + 2*ask + keep - 1, 3 + ask, false},
		{3 + ask + keep, 3 + 2*ask + keep, 3 + ask + keep, false}, // the time has come
	} {
		p.turn(x.now, x.wait)
		if ask, last := p.ask.Load(), p.last.Load(); ask != x.ask || last != x.last {
			t.Errorf("at %d, somebody waits %v: the next question at %d, last turn at %d, want %d, %d", x.now, x.wait, ask, last, x.ask, x.last)
		}
	}
}

// TestC259_Turns: a turn lets others run, and at the latest after some looks they have one,
// whatever the clock says. It is not parallel, as it changes the number of processors, so that only
// a turn does. The scheduler may hand one turn in 61 back to the one who gave it, never two in
// succession.
func TestC259_Turns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, processors := range []int{1, 2} {
		for range 100 {
			var ran atomic.Bool
			go func() { ran.Store(true) }()
			var p Pace
			p.ask.Store(1 << 62)
			for i := 1; i <= 2*paceLooks && !ran.Load(); i++ {
				p.Turn(processors, i, 0)
			}
			if !ran.Load() {
				t.Fatalf("%d processors: nobody ran in %d looks", processors, 2*paceLooks)
			}
		}
	}
}

// TestC259_Keep: who never sleeps lets others run after some time.
func TestC259_Keep(t *testing.T) {
	t.Parallel()
	var p Pace
	p.last.Store(Now() - int64(paceKeep))
	before := Now()
	if p.Keep(); p.last.Load() < before {
		t.Error("it was time, and others had no turn")
	}
	last := Now() + int64(time.Hour)
	p.last.Store(last)
	if p.Keep(); p.last.Load() != last {
		t.Error("others had a turn, and it was not time")
	}
	if p.Slept(); p.last.Load() == last {
		t.Error("who slept has had a turn")
	}
}
