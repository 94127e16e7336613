package event

import (
	"context"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
)

// Loop dispatches to handlers, one after the other, in the goroutine that is in Run or
// Turn, which is one at a time. All other methods may be called from any goroutine, and
// from handlers, and do not block unless they say so. A Loop is made by New: methods of a nil
// or zero one give an error that wraps syscall.EINVAL, or do nothing.
type Loop struct {
	cfg     Config
	stats   counters
	start   time.Time
	set     *set
	backend backend
	wakeFD  int // an eventfd: there is something that no other descriptor shows
	timerFD int
	wake    entry
	timer   entry

	// addMu is held while completion channels are claimed and given back, with calls of
	// package verbs. Lock order: addMu, the locks of verbs, mu, set.mu.
	addMu sync.Mutex

	mu       sync.Mutex
	cond     *sync.Cond // a turn or a call has ended, while somebody waits for that
	busy     bool       // somebody is in Run or Turn
	closed   bool
	released bool // the descriptors are closed
	stopped  bool // Stop was called, and no Run or Turn has ended for it yet
	woken    bool // somebody wants Run to look at its context
	sleeping bool // the backend is about to wait, or does
	nested   bool // FD was called
	raised   bool // wakeFD is readable
	inbox    []*Watch
	lost     []*channel // closed by somebody
	calls    []func()   // of Do
	cqs      map[*verbs.CQ]*Watch
	channels map[*verbs.CompChannel]*channel
	watches  map[*Watch]struct{}
	seq      uint64 // of the last watch
	timers   timerHeap

	// Times of now; 0: none.
	deadline  int64 // of the turn
	recheckAt int64 // of the next re-check
	fires     int64 // of timerFD
	spinEnd   int64 // of the spin that the loop is in

	mail    atomic.Bool // there is something in inbox, lost or calls, or a flag was set
	running atomic.Pointer[Watch]
	closers atomic.Int32 // goroutines that wait for a call or a turn to end

	turnState
}

// New makes a loop; a nil cfg means the defaults. It costs an epoll, an eventfd and a timer
// descriptor, with the backend Epoll one more for Go's poller, and one more from the first
// watch with an empty mask on.
func New(cfg *Config) (*Loop, error) {
	c, err := cfg.check()
	if err != nil {
		return nil, err
	}
	limit := 0
	if c.Backend == Select {
		limit = unix.FDSetSize
	}
	l := &Loop{
		cfg: c, start: time.Now(), wakeFD: -1, timerFD: -1, watches: map[*Watch]struct{}{},
		cqs: map[*verbs.CQ]*Watch{}, channels: map[*verbs.CompChannel]*channel{},
	}
	l.cond = sync.NewCond(&l.mu)
	l.recheck.period = int64(min(max(c.Recheck, 0), recheckMost))
	if l.set, err = newSet(limit); err != nil {
		return nil, opError("new loop", "", err)
	}
	l.backend = newBackend(c.Backend, l.set)
	if err := l.open(); err != nil {
		l.released = true
		l.release()
		return nil, opError("new loop", "", err)
	}
	return l, nil
}

// open makes the loop's own descriptors.
func (l *Loop) open() (err error) {
	if l.wakeFD, err = unix.Eventfd(); err != nil {
		return err
	}
	l.wake = entry{fd: l.wakeFD, want: unix.PollIn, do: toWake}
	if _, err = l.set.add(&l.wake); err != nil {
		return err
	}
	if l.timerFD, err = unix.Timerfd(); err != nil {
		return err
	}
	l.timer = entry{fd: l.timerFD, want: unix.PollIn, do: toTimer}
	_, err = l.set.add(&l.timer)
	return err
}

// begin enters Run or Turn.
func (l *Loop) begin(op string) error {
	if l == nil || l.set == nil {
		return errNil(op)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return opError(op, "", ErrClosed)
	case l.busy:
		return opError(op, "", ErrBusy)
	}
	l.busy = true
	l.woken = false // meant for a Run that has ended
	return nil
}

// end leaves it, by a panic of a handler too.
func (l *Loop) end() {
	l.rescue()
	l.mu.Lock()
	l.busy, l.sleeping, l.deadline = false, false, 0
	if l.nested && !l.closed {
		// What is left over makes FD readable.
		l.recheckAt = l.recheck.next()
		l.retime()
		if l.leftOver() {
			l.raise()
		}
	}
	if l.closed && !l.released {
		l.released = true
		l.release()
	}
	l.cond.Broadcast()
	l.mu.Unlock()
}

// Run dispatches until ctx ends (it gives ctx's error), Stop is called (nil), the loop is
// closed (ErrClosed), or a source fails that has no Watch.OnError (an *OpError). It may be
// called again then. It blocks; the goroutine holds no thread while it waits, if the
// backend is Epoll. A panic of a handler passes through, and the loop can be run again.
func (l *Loop) Run(ctx context.Context) error {
	if err := l.begin("run"); err != nil {
		return err
	}
	defer l.end()
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, l.wakeUp)()
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := l.turn(-1); err != nil {
			return err
		}
		if over, err := l.over("run"); over {
			return err
		}
	}
}

// Turn dispatches what is there and gives the number of handler calls. If there is nothing
// it waits: at most d; not at all if d is zero; without limit if d is negative. It ends
// without a call when d is over, and when Stop is called. The errors are those of Run.
//
// It is for programs that have a loop of their own; what Run does is Turn(-1) again and
// again. Turn(0) never blocks.
func (l *Loop) Turn(d time.Duration) (int, error) {
	if err := l.begin("turn"); err != nil {
		return 0, err
	}
	defer l.end()
	n, err := l.turn(d)
	if err != nil {
		return n, err
	}
	_, err = l.over("turn")
	return n, err
}

// over reports whether Stop or Close was called.
func (l *Loop) over(op string) (bool, error) {
	if !l.mail.Load() {
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return true, opError(op, "", ErrClosed)
	}
	stopped := l.stopped
	l.stopped = false
	l.remail()
	return stopped, nil
}

// remail sets mail anew. mu is held.
func (l *Loop) remail() {
	l.mail.Store(len(l.inbox)+len(l.lost)+len(l.calls) > 0 || l.stopped || l.woken || l.closed)
}

// Do has f called by the loop soon, after all functions that Do was given before. It may be
// called by any goroutine; the loop wakes up for it. After Close f is not called, nor is one
// that is nil. What is left when a handler panics, or when Run ends, is called in the next turn.
func (l *Loop) Do(f func()) {
	if l == nil || l.set == nil || f == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.calls = append(l.calls, f)
		l.note()
	}
}

// Stop ends the Run or Turn that is in progress, after the turn, or else the next one.
func (l *Loop) Stop() {
	if l == nil || l.set == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.note()
}

// wakeUp has Run look at its context.
func (l *Loop) wakeUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.woken = true
	l.note()
}

// note says that there is mail. mu is held.
func (l *Loop) note() {
	l.mail.Store(true)
	if l.sleeping || l.nested {
		l.raise()
	}
}

// raise makes wakeFD readable. mu is held.
func (l *Loop) raise() {
	if !l.raised && !l.released {
		l.raised = true
		_ = unix.EventfdSignal(l.wakeFD) // it cannot fail on an eventfd
	}
}

// FD gives a descriptor that is readable exactly while Turn(0) would find something, timers
// included. It is for nesting the loop in a foreign select, poll or epoll, or in another
// Loop (with File): call Turn(0) while it is readable. It is the loop's: do nothing but
// wait with it. From the first FD on, each turn arms all that has to be armed before it
// returns, which costs a little, and does not spin.
//
// A descriptor that is watched may be readable for nothing, as is allowed to all: then FD
// is too, and Turn(0) gives 0. The kernel permits nests of five epoll descriptors, of
// which a Loop is one, and Go's poller another.
func (l *Loop) FD() (int, error) {
	if l == nil || l.set == nil {
		return -1, errNil("descriptor")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return -1, opError("descriptor", "", ErrClosed)
	}
	if !l.nested {
		l.nested = true
		l.retime()
		if l.mail.Load() || !l.busy && l.leftOver() {
			l.raise()
		}
	}
	return l.set.ep, nil
}

// Close ends the watches, the timers and the loop, and Run with ErrClosed. The sources stay
// open: their owners close them. It waits for a turn that another goroutine is in, unless
// it is called by a handler of this or another loop. It is idempotent.
func (l *Loop) Close() error {
	if l == nil || l.set == nil {
		return errNil("close")
	}
	l.mu.Lock()
	l.closed = true
	l.calls = nil
	l.timers.stopAll()
	all := slices.SortedFunc(maps.Keys(l.watches), bySeq)
	l.note()
	wait := l.busy
	last := !l.busy && !l.released
	l.released = l.released || last
	l.mu.Unlock()
	for _, w := range all {
		w.detach()
	}
	if last {
		l.release()
	}
	if !wait || inHandler() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.busy {
		l.cond.Wait()
	}
	return nil
}

// release closes the loop's own descriptors, once, when nobody is in a turn.
func (l *Loop) release() {
	l.backend.close()
	if l.wakeFD >= 0 {
		unix.Close(l.wakeFD)
	}
	if l.timerFD >= 0 {
		unix.Close(l.timerFD)
	}
	l.set.close()
}

// inHandler reports whether the caller runs in a handler of some loop. Who closes something
// in a handler must not wait for a handler: for its own for ever, and for that of another
// loop perhaps too, as that may wait for this one.
func inHandler() bool {
	var pcs [64]uintptr
	for skip := 2; ; {
		n := runtime.Callers(skip, pcs[:])
		frames := runtime.CallersFrames(pcs[:n])
		for {
			f, more := frames.Next()
			if f.Function == turnFunction {
				return true
			}
			if !more {
				break
			}
		}
		if n < len(pcs) {
			return false
		}
		skip += n
	}
}

// turnFunction is in the stack of every handler.
var turnFunction = runtime.FuncForPC(reflect.ValueOf((*Loop).turn).Pointer()).Name()

// now gives the time since the loop was made, in nanoseconds.
func (l *Loop) now() int64 { return int64(time.Since(l.start)) }
