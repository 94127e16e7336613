package wait

import (
	"runtime"
	"sync/atomic"
	"testing"
)

func TestPace(t *testing.T) {
	t.Parallel()
	const us = 1000
	for _, x := range []struct{ every, took, want int64 }{
		{0, 0, 5 * us}, {5 * us, 200, 10 * us}, {800 * us, 200, 1000 * us}, {1000 * us, 200, 1000 * us}, // nobody needs it
		{1000 * us, 5 * us, 0}, {1000 * us, 1 << 40, 0}, {0, 50 * us, 0}, // somebody did
	} {
		if got := nextPace(x.every, x.took); got != x.want {
			t.Errorf("a turn of %d ns after %d: the next after %d, want %d", x.took, x.every, got, x.want)
		}
	}
}

// TestC259_Due: others have their turn after each look on one processor, at the latest after
// some looks on more, whatever the clock says, and when the time has come.
func TestC259_Due(t *testing.T) {
	t.Parallel()
	const most = int64(paceMost)
	for _, x := range []struct {
		name             string
		processors, look int
		every, now       int64
		want             bool
	}{
		{"one processor", 1, 1, most, 0, true},
		{"nobody needs it yet", 2, 1, most, most - 1, false},
		{"time stands still", 2, paceLooks - 1, most, 0, false},
		{"time stands still", 2, paceLooks, most, 0, true},
		{"time stands still", 2, 2 * paceLooks, most, 0, true},
		{"the time has come", 2, 1, most, most, true},
		{"they need it", 2, 1, 0, 0, true},
	} {
		var p Pace
		p.every.Store(x.every)
		if got := p.due(x.processors, x.look, x.now); got != x.want {
			t.Errorf("%s, %d processors, look %d: due %v, want %v", x.name, x.processors, x.look, got, x.want)
		}
	}
}

// TestC259_Turns: a turn lets others run. It is not parallel, as it changes the number of
// processors, so that only a turn does. The scheduler may hand one turn in 61 back to the one
// who gave it, never two in succession.
func TestC259_Turns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, processors := range []int{1, 2} {
		for range 100 {
			var ran atomic.Bool
			go func() { ran.Store(true) }()
			var p Pace
			for i := 1; i <= 2*paceLooks && !ran.Load(); i++ {
				p.Turn(processors, i, 0)
			}
			if !ran.Load() {
				t.Fatalf("%d processors: nobody ran in %d looks", processors, 2*paceLooks)
			}
		}
	}
}
