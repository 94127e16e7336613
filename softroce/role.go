package softroce

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/internal/timers"
)

// Who reads a socket.
//
// One goroutine at a time has the role of the reader. At first it is the endpoint's own
// goroutine. But to hand what it has read to the goroutine that waits for it costs more
// than the rest of a small message: the runtime wakes a thread for each. So if a single
// goroutine waits for completions, it takes the role itself and sleeps on the socket.
//
// Between two waits the role is vacant and nobody reads; acknowledgements that are owed
// travel with what the goroutine posts meanwhile. A goroutine that polls takes the role
// for a moment. If nobody has taken it for a while (grace), the endpoint's own goroutine
// has it again. That costs what arrived meanwhile some time; so if it happens, the next
// attempts are left out.
//
// Only completions that arrive by the socket can end a sleep on it. Whatever else sets
// the level of the notifier interrupts it.
type role struct {
	conn    netio.Interruptible // nil: the role stays with the endpoint's goroutine
	state   atomic.Uint32
	since   atomic.Int64  // when it became vacant
	back    chan struct{} // cap 1: the endpoint's goroutine is to take the role
	expired atomic.Bool   // why: nobody took it in time
	timer   timers.Timer
	armed   atomic.Bool
	grace   atomic.Int64 // now, see minGrace
	polled  atomic.Int64 // when a goroutine that polls last wanted the role

	looks atomic.Int32 // in a row by those who poll

	// Of the endpoint's goroutine: how many occasions it leaves out.
	skip, penalty int
}

const (
	roleTaken uint32 = iota
	roleVacant
)

const (
	// minGrace to maxGrace is how long the role may be vacant. It bounds the delay of an
	// acknowledgement, and of everything else that arrives, if the goroutine that was
	// waiting does something else now. It grows while it is never used up, as the timer
	// wakes a thread even if it finds nothing to do, and a deadline before the kernel's
	// next tick must be programmed in the clock at each sleep: with 2 ms a round trip
	// took a fifth longer than with 10 ms.
	minGrace = 400 * time.Microsecond
	maxGrace = 10 * time.Millisecond

	// polling is how long ago somebody who polls has polled.
	polling = 50 * time.Microsecond

	maxPenalty = 1024

	// hushAfter is how many looks in a row show that somebody goes on polling.
	hushAfter = 16
)

func (e *endpoint) initRole() {
	e.role.conn, _ = e.conn.(netio.Interruptible)
	e.role.back = make(chan struct{}, 1)
	e.role.grace.Store(int64(minGrace))
	e.role.timer.F = e.onGrace
}

// claim takes a vacant role.
func (r *role) claim() bool {
	return r.state.Load() == roleVacant && r.state.CompareAndSwap(roleVacant, roleTaken)
}

// vacate gives the role up without saying to whom.
func (e *endpoint) vacate() {
	r := &e.role
	now := e.d.now()
	r.since.Store(int64(now))
	r.state.Store(roleVacant)
	if !r.armed.Swap(true) {
		grace := time.Duration(r.grace.Load())
		if e.foreign() {
			grace = minGrace
		}
		e.d.schedule(&r.timer, now+grace)
	}
}

// handBack gives the role to the endpoint's goroutine.
func (e *endpoint) handBack() {
	select {
	case e.role.back <- struct{}{}:
	default:
	}
}

// onGrace ends a vacancy that was too long.
func (e *endpoint) onGrace(now time.Duration) {
	r := &e.role
	r.armed.Store(false)
	g := time.Duration(r.grace.Load())
	due := time.Duration(r.since.Load()) + g
	if r.state.Load() != roleVacant || due > now {
		r.grace.Store(int64(min(g+g/4, maxGrace)))
	}
	if r.state.Load() != roleVacant {
		return // who has it arms the timer again
	}
	if due > now {
		if !r.armed.Swap(true) {
			e.d.schedule(&r.timer, due)
		}
		return
	}
	if r.claim() {
		r.grace.Store(int64(minGrace))
		r.expired.Store(true)
		e.handBack()
	}
}

// yields reports whether the endpoint's goroutine, having woken somebody, leaves the
// role to whom it woke. It is the one that calls.
func (e *endpoint) yields() bool {
	r := &e.role
	if r.conn == nil {
		return false
	}
	if at := r.polled.Load(); at != 0 && e.d.now()-time.Duration(at) < polling {
		return true
	}
	if !e.woke || e.d.waiting.Load() != 1 || e.foreign() {
		return false
	}
	if r.skip > 0 {
		r.skip--
		return false
	}
	return true
}

// stand waits for the role to come back to the endpoint's goroutine.
func (e *endpoint) stand() {
	r := &e.role
	<-r.back
	if r.expired.Swap(false) {
		r.penalty = min(2*r.penalty+1, maxPenalty)
		r.skip = r.penalty
	} else {
		r.penalty = 0
	}
}

// leader is what a queue or a channel needs to wait on a socket.
type leader struct {
	mu   sync.Mutex      // held by who waits
	done <-chan struct{} // of the context whose end interrupts
	stop func() bool
	from atomic.Pointer[endpoint] // of a channel: where its last event came from
	at   atomic.Pointer[endpoint] // where somebody sleeps now, to be interrupted
}

// watch sees that the end of ctx interrupts. Waits with the same ctx, one after the
// other, cost nothing. The channel says whether it is the same: a ctx may be one that
// is used again after its end.
func (l *leader) watch(ctx context.Context) {
	done := ctx.Done()
	if l.done == done {
		return
	}
	l.unwatch()
	if done != nil {
		l.done = done
		l.stop = context.AfterFunc(ctx, l.interrupt)
	}
}

func (l *leader) unwatch() {
	if l.stop != nil {
		l.stop()
	}
	l.done, l.stop = nil, nil
}

// interrupt wakes who sleeps on a socket.
func (l *leader) interrupt() {
	if e := l.at.Load(); e != nil {
		e.role.conn.Interrupt()
	}
}

// lead waits for a condition on the socket itself, if the role of the reader can be
// had. It reports false if it cannot: the caller then waits for an event.
func (e *endpoint) lead(ctx context.Context, l *leader, until condition) (done bool, err error) {
	if e.role.conn == nil || e.foreign() || !e.role.claim() {
		return false, nil
	}
	l.watch(ctx)
	e.settle()
	e.role.looks.Store(0)
	for {
		l.at.Store(e)
		if until.level() {
			break
		}
		if err = ctx.Err(); err != nil {
			break
		}
		if e.foreign() {
			l.at.Store(nil)
			e.handBack()
			return false, nil
		}
		n, failed := e.conn.Read(e.ms)
		l.at.Store(nil)
		switch {
		case failed == nil:
			e.turn(n, until)
		case errors.Is(failed, os.ErrDeadlineExceeded):
			e.role.conn.Resume()
		default: // closed, or it ails: the endpoint's goroutine sees to it
			e.handBack()
			return false, nil
		}
	}
	l.at.Store(nil)
	if e.d.waiting.Load() > 1 || e.foreign() {
		e.handBack() // others sleep, and want to be woken
	} else {
		e.vacate()
	}
	return true, err
}

// progress handles what is in the socket for a goroutine that polls a queue, and goes on
// looking there for a time if nothing is.
func (e *endpoint) progress(c *cq, d time.Duration) {
	r := &e.role
	if !r.claim() {
		r.polled.Store(int64(e.d.now()))
		return
	}
	if r.looks.Add(1) > hushAfter || d > 0 {
		r.conn.Hush()
	}
	for end := time.Duration(0); ; {
		if n, err := e.conn.TryRead(e.ms); n > 0 {
			e.turn(n, c)
		} else {
			e.settle()
			if err != nil {
				break
			}
		}
		if d <= 0 || c.level() {
			break
		}
		if now := e.d.now(); end == 0 {
			end = now + d
		} else if now >= end {
			break
		}
	}
	e.vacate()
}
