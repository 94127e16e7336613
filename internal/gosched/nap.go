package gosched

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A nap is a sleep in the descriptor itself that is waited for, in one system call, as a program in
// C sleeps: the thread is held, and so it is also the one that is woken. A goroutine that sleeps in
// Go's poller is woken by way of Go's scheduler. If its process has nothing else to do, that means
// that a thread looks for work at all processors, and that Go's monitor is woken with it: on an
// emulated machine nine switches of threads for an event where there need be two.
//
// Nobody may hold many threads, nor one for long. So naps are for waits that are expected to end
// soon, as those before them did; each lasts some milliseconds at most, then the sleep goes on in
// Go's poller; and at most half of Go's processors are in one. And it is not always better: if what
// is waited for comes from a goroutine of the same process, Go's scheduler passes the thread on,
// where a nap needs a second one. So both ways are measured, see napper.

// NapMost is the longest time of a nap. It consists of slices: after each a context is looked at,
// and the scheduler has its turn (Keep), as more would leave it for too long, see Pace.
const (
	NapMost   = NapSlices * NapSlice
	NapSlices = 2
	NapSlice  = 4 * time.Millisecond
)

// Naps says for one source whether sleeps are naps, and learns from what became of them. The zero
// value is ready. One goroutine at a time uses it.
type Naps struct {
	napper
	polled bool // the last sleep was in Go's poller
	pace   Pace
	start  int64 // of a nap whose time matters
}

var (
	// napping counts the naps of the process.
	napping atomic.Int32

	// napPlaces is how many there may be. It is looked up now and then, as that costs as much as a
	// look for an event.
	napPlaces atomic.Int32
)

// Wanted says whether naps are expected to pay.
func (n *Naps) Wanted() bool { return n.naps() }

// Begin says whether the next sleep is to be a nap. If it is, End or Cancel must be called.
func (n *Naps) Begin() bool {
	if !n.naps() {
		return false
	}
	if napping.Add(1) > napPlaces.Load() {
		napping.Add(-1)
		return false
	}
	n.Keep()
	if n.polled {
		// A thread that was woken in Go's poller may have been the one that sleeps there for the
		// whole process, and it is about to sleep elsewhere. A goroutine more, which does nothing,
		// has Go wake another thread, and that goes to sleep in the poller.
		n.polled = false
		go func() {}()
	}
	if n.start = 0; n.measured() {
		n.start = Now()
	}
	return true
}

// Keep is called between two slices of a nap.
func (n *Naps) Keep() { n.pace.Keep() }

// Cancel says that the nap did not begin after all.
func (*Naps) Cancel() { napping.Add(-1) }

// NapEnd says how a nap ended.
type NapEnd uint8

const (
	NapFound  NapEnd = iota // what it was for is there
	NapBroken               // somebody interrupted it
	NapVain                 // the time was over
)

// End says that a nap has ended.
func (n *Naps) End(how NapEnd) {
	napping.Add(-1)
	switch {
	case how == NapVain:
		n.tired()
	case how == NapBroken:
	case n.start != 0:
		n.napped(time.Duration(Now() - n.start))
	default:
		n.napped(0)
	}
}

// Polled says that a sleep in Go's poller has ended after a time. found: it was not interrupted.
func (n *Naps) Polled(took time.Duration, found bool) {
	n.polled = true
	n.pace.Slept()
	switch {
	case took > NapMost:
		n.far()
	case found:
		if n.slept(took) {
			napPlaces.Store(int32(runtime.GOMAXPROCS(0) / 2))
		}
	}
}

// Napping gives the number of naps in the process. It is for tests.
func Napping() int { return int(napping.Load()) }

// Prefer has the next sleeps be naps, as if naps had paid. It is for tests.
func (n *Naps) Prefer() {
	n.napper = napper{near: napNear, state: napStay, rest: 1 << 30}
	napPlaces.Store(int32(runtime.GOMAXPROCS(0) / 2))
}
