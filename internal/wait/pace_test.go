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

// TestC259_Turns: others have their turn after each look on one processor, at the latest after
// some looks on more, whatever the clock says, and when the time has come. It is not
// parallel, as it changes the number of processors, so that only a turn lets others run.
func TestC259_Turns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, x := range []struct {
		name              string
		processors, looks int
		every, now        int64
	}{
		{"one processor", 1, 1, int64(paceMost), 0},
		{"time stands still", 2, paceLooks, int64(paceMost), 0},
		{"the time has come", 2, 1, int64(paceMost), int64(paceMost)},
		{"they need it", 2, 1, 0, 0},
	} {
		var ran atomic.Bool
		go func() { ran.Store(true) }()
		var p Pace
		p.every.Store(x.every)
		for i := 1; i <= x.looks; i++ {
			p.Turn(x.processors, i, x.now)
		}
		if !ran.Load() {
			t.Errorf("%s: nobody ran in %d looks", x.name, x.looks)
		}
	}
}
