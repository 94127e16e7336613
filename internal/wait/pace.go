package wait

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Pace lets other goroutines run while one looks for something again and again. With one
// processor it does so after each look. With more it does seldom as long as nobody needs it: to
// offer the processor wakes a thread that looks for work, and takes from another process the
// processor on which that may be about to answer; on an emulated machine that thread takes 100 µs.
// If somebody did run meanwhile, they have their turn after each look again. There is one for each
// source, and several goroutines may use it.
type Pace struct {
	every atomic.Int64 // nanoseconds between two turns of the others
	last  atomic.Int64 // when they had the last
}

const (
	paceLeast = 5 * time.Microsecond
	paceMost  = time.Millisecond
	paceLooks = 1024 // looks between two turns at most, as time may stand still

	// paceUsed is longer than a turn takes that nobody uses.
	paceUsed = 5 * time.Microsecond
)

// started is where the time of Now begins.
var started = time.Now()

// Now gives a time for Pace.
func Now() int64 { return int64(time.Since(started)) }

// Processors gives their number as Pace.Turn wants it; to ask costs more than a look.
func Processors() int { return runtime.GOMAXPROCS(0) }

// Turn is called after the i-th look of a spin, at a time of Now. It may let others run.
func (p *Pace) Turn(processors, i int, now int64) {
	if !p.due(processors, i, now) {
		return
	}
	runtime.Gosched()
	if processors == 1 {
		return
	}
	after := Now()
	p.last.Store(after)
	p.every.Store(nextPace(p.every.Load(), after-now))
}

// due tells whether the others have their turn after the i-th look of a spin.
func (p *Pace) due(processors, i int, now int64) bool {
	return processors == 1 || i%paceLooks == 0 || now-p.last.Load() >= p.every.Load()
}

// nextPace gives the time until the next turn of the others, after one that took so long.
func nextPace(every, took int64) int64 {
	if took >= int64(paceUsed) {
		return 0
	}
	return min(max(2*every, int64(paceLeast)), int64(paceMost))
}
