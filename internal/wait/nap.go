package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A nap is a sleep in the notifier's own descriptor, in one system call, as a program in C
// sleeps: the thread is held, and so it is also the one that is woken. A goroutine that sleeps in
// Go's poller is woken by way of Go's scheduler. If its process has nothing else to do, that means
// that a thread looks for work at all processors, and that Go's monitor is woken with it: on an
// emulated machine nine switches of threads for an event where there need be two.
//
// Nobody may hold many threads, nor one for long. So naps are for waits that are expected to end
// soon, as those before them did; each lasts some milliseconds at most, then the sleep goes on in
// Go's poller; and at most half of Go's processors are in one. And it is not always better: if what
// is waited for comes from a goroutine of the same process, Go's scheduler passes the thread on,
// where a nap needs a second one. So both ways are measured, see napper.
const (
	napMost  = 4 * time.Millisecond // the longest; more would leave the scheduler for too long, see Pace
	napSlice = 2 * time.Millisecond // after which a context is looked at
)

// nap is the state of a Parker.
type nap struct {
	most  time.Duration // the longest; zero: there are none
	slice time.Duration
	in    bool // somebody naps; under Parker.mu
	napSystem

	// Of who is parked:
	napper
	polled bool // the last sleep was in Go's poller
	pace   Pace
}

// napPlaces is how many there may be. It is looked up now and then, as that costs as much as a
// look for an event.
var napPlaces atomic.Int32

// Nap allows naps, for a notifier whose descriptor says what try can take: it is readable exactly
// while try says true. It must be called before the first Park.
func (p *Parker) Nap() {
	if p.w == nil {
		p.nap.most, p.nap.slice = napMost, napSlice
	}
}

// wanted says whether the next sleep should begin with a nap.
func (n *nap) wanted(limit time.Duration) bool {
	return n.most > 0 && n.naps() && (limit <= 0 || limit > n.most)
}

// polledFor says that a sleep in Go's poller has ended after a time. found: it was not interrupted.
func (n *nap) polledFor(took time.Duration, found bool) {
	n.polled = true
	n.pace.Slept()
	switch {
	case took > n.most:
		n.far()
	case found:
		if n.slept(took) {
			napPlaces.Store(int32(runtime.GOMAXPROCS(0) / 2))
		}
	}
}
