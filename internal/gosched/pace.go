// Package gosched is how goroutines that do not leave their thread to Go's scheduler live with it:
// those that look for something again and again (Pace), those that call C for long (Pace.Keep), and
// those that sleep in a system call of their own (Naps).
package gosched

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// Pace lets other goroutines run while one does not leave its thread to the scheduler, because it
// looks for something again and again, or always finds something. There is one for each source, and
// several goroutines may use it.
//
// With one processor others have their turn after each look. With more they have it if one of them
// is waiting for a processor, which is asked every paceAsk; to offer the processor without that
// wakes a thread that looks for work, and takes from another process the processor on which that may
// be about to answer.
//
// And they have it every paceKeep, whoever waits. Go's monitor believes that who has not passed the
// scheduler for 10 ms computes. If it then finds him in a call of C or of the system, it takes the
// processor away, gives it to another thread, and looks again after 20 µs, then 50 times more.
type Pace struct {
	ask  atomic.Int64 // when it is time to ask
	last atomic.Int64 // when others had their last turn
}

const (
	paceAsk   = 100 * time.Microsecond
	paceKeep  = 5 * time.Millisecond
	paceLooks = 1024 // looks between two questions at most, as time may stand still
)

// started is where the time of Now begins.
var started = time.Now()

// Now gives a time for Pace.
func Now() int64 { return int64(time.Since(started)) }

// Processors gives their number as Pace.Turn wants it; to ask costs more than a look.
func Processors() int { return runtime.GOMAXPROCS(0) }

// Turn is called after the i-th look of a spin, at a time of Now. It may let others run.
func (p *Pace) Turn(processors, i int, now int64) {
	if processors == 1 {
		runtime.Gosched()
		return
	}
	if now < p.ask.Load() && i%paceLooks != 0 {
		return
	}
	p.turn(now, othersWait())
}

// turn lets others run if somebody waits, or if it is time.
func (p *Pace) turn(now int64, wait bool) {
	if wait {
		p.ask.Store(0) // after the next look
	} else {
		p.ask.Store(now + int64(paceAsk))
	}
	if wait || p.due(now) {
		runtime.Gosched()
		p.last.Store(now)
	}
}

func (p *Pace) due(now int64) bool { return now-p.last.Load() >= int64(paceKeep) }

// Keep is called by who does not spin, but may go on for long without a sleep.
func (p *Pace) Keep() {
	if now := Now(); p.due(now) {
		runtime.Gosched()
		p.last.Store(now)
	}
}

// Slept says that who spins or not has slept, and so passed the scheduler.
func (p *Pace) Slept() { p.last.Store(Now()) }

// runnable is how many goroutines wait for a processor, as the runtime counts them.
var runnable = struct {
	sync.Mutex
	sample []metrics.Sample
}{sample: []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}}

// othersWait says whether a goroutine waits for a processor. It takes 0.1 µs.
func othersWait() bool {
	if !runnable.TryLock() {
		return false // who spins elsewhere is asking
	}
	defer runnable.Unlock()
	metrics.Read(runnable.sample)
	v := runnable.sample[0].Value
	return v.Kind() != metrics.KindUint64 || v.Uint64() > 0
}
