package event_test

import (
	"os"
	"testing"

	"github.com/verbena-rdma/verbena/event"
)

func threads(t *testing.T) int {
	t.Helper()
	return len(get[[]os.DirEntry](t)(os.ReadDir("/proc/self/task")))
}

// TestC251_IdleLoopsHoldNoThread: a hundred loops that wait in Go's poller need no thread of
// their own.
func TestC251_IdleLoopsHoldNoThread(t *testing.T) {
	// Not in parallel, as it counts the threads of the process.
	const loops = 100
	before := threads(t)
	awake := make(chan bool)
	var slept [loops]uint64 // until its last function was called
	var all []*event.Loop
	for range loops {
		l := newLoop(t, event.Config{})
		running(t, l)
		all = append(all, l)
	}
	for range 3 {
		for i, l := range all {
			l.Do(func() { slept[i] = l.Stats().Sleeps; awake <- true })
		}
		for range loops {
			arrive(t, awake, "a function")
		}
	}
	for i, l := range all {
		waitFor(t, "the sleep", func() bool { return l.Stats().Sleeps > slept[i] })
	}
	if n := threads(t) - before; n > 20 {
		t.Errorf("%d threads more for %d loops", n, loops)
	}
}
