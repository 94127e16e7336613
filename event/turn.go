package event

import (
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/gosched"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
)

// turnState belongs to the goroutine that is in Run or Turn; beside that it is read with mu
// held while nobody is.
type turnState struct {
	n       int      // handler calls in this turn
	ready   queue    // watches to be served
	hot     []*Watch // served, and neither armed nor known to be empty
	doing   []func() // of Do, taken over
	done    int      // of doing, called
	lostNow []*channel
	hits    []hit
	failure error // of a source without OnError
	swept   int64 // when the descriptors of users were looked after last
	sweepAt int   // and where to go on
	some    [64]*entry
	recheck recheck
	pace    gosched.Pace // of spins
}

// leftOver reports whether the next turn has something to do. mu is held, and nobody is in
// a turn.
func (l *Loop) leftOver() bool {
	return l.ready.n > 0 || len(l.hot) > 0 || l.done < len(l.doing) || l.mail.Load()
}

// turn is Turn without its entrance. Its name is in the stack of every handler, see
// inHandler.
//
//go:noinline
func (l *Loop) turn(limit time.Duration) (int, error) {
	l.stats.turns.Add(1)
	l.n = 0
	var deadline int64
	if limit > 0 {
		deadline = l.now() + int64(limit)
	}
	for {
		slept, err := l.gather(limit != 0, deadline)
		if err != nil {
			return l.n, opError("wait", "", err)
		}
		l.dispatch()
		if l.n > 0 {
			l.stats.calls.Add(uint64(l.n))
		} else if slept {
			l.stats.empty.Add(1)
		}
		if err := l.failure; err != nil {
			l.failure = nil
			return l.n, err
		}
		if l.n > 0 || limit == 0 || l.interrupted() || deadline > 0 && l.now() >= deadline {
			break
		}
	}
	if l.settled() {
		return l.n, nil
	}
	before := l.n
	l.prepareHot() // so that FD tells the truth
	l.stats.calls.Add(uint64(l.n - before))
	if err := l.failure; err != nil {
		l.failure = nil
		return l.n, err
	}
	return l.n, nil
}

// settled reports whether the turn may end as it is.
func (l *Loop) settled() bool {
	if len(l.hot) == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.nested || l.closed
}

// interrupted reports whether the turn must not sleep again.
func (l *Loop) interrupted() bool {
	if !l.mail.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	woken := l.woken
	l.woken = false
	l.remail()
	return woken || l.stopped || l.closed
}

// gather finds out what is to be done. Before it sleeps it spins, arms, and looks again.
func (l *Loop) gather(block bool, deadline int64) (slept bool, err error) {
	l.take()
	if block && !l.pending() && !l.spin(deadline) {
		l.prepareHot()
		if l.n == 0 && !l.pending() { // it may have called OnError
			if slept, err = l.sleep(deadline); slept || err != nil {
				return slept, err
			}
		}
	}
	// Those that had something before may have more, armed or not.
	for i, w := range l.hot {
		l.enqueue(w)
		l.hot[i] = nil
	}
	l.hot = l.hot[:0]
	l.hits, err = l.backend.wait(false, l.hits)
	l.collect()
	return false, err
}

// take takes over what others have sent.
func (l *Loop) take() {
	if !l.mail.Load() {
		l.lower()
		return
	}
	l.mu.Lock()
	l.quiet()
	for i, w := range l.inbox {
		w.posted = false
		l.enqueue(w)
		l.inbox[i] = nil
	}
	l.inbox = l.inbox[:0]
	if l.done == len(l.doing) {
		clear(l.doing)
		l.calls, l.doing, l.done = l.doing[:0], l.calls, 0
	} else if len(l.calls) > 0 {
		// A handler panicked; what is left of that turn comes first.
		l.doing = append(l.doing, l.calls...)
		clear(l.calls)
		l.calls = l.calls[:0]
	}
	l.lost, l.lostNow = l.lostNow[:0], l.lost
	l.remail()
	l.mu.Unlock()
	for i, ch := range l.lostNow {
		ch.drain()
		l.lostNow[i] = nil
	}
	l.lostNow = l.lostNow[:0]
}

// lower takes back what end or FD have raised.
func (l *Loop) lower() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quiet()
}

// quiet makes wakeFD unreadable. mu is held.
func (l *Loop) quiet() {
	if l.raised {
		l.raised = false
		_, _ = unix.EventfdDrain(l.wakeFD) // it cannot fail on an eventfd
	}
}

// pending reports whether there is something to do without asking the system.
func (l *Loop) pending() bool {
	if l.ready.n > 0 || l.done < len(l.doing) || l.failure != nil || l.mail.Load() {
		return true
	}
	return l.recheck.any() && l.recheck.due(l.now())
}

// sleep waits for the system, unless something has come meanwhile.
func (l *Loop) sleep(deadline int64) (slept bool, err error) {
	l.mu.Lock()
	if l.mail.Load() || len(l.timers.t) > 0 && l.timers.t[0].when <= l.now() {
		l.mu.Unlock()
		return false, nil
	}
	l.deadline = deadline
	l.recheckAt = l.recheck.next()
	l.retime()
	l.sleeping = true
	l.mu.Unlock()
	l.stats.sleeps.Add(1)
	l.hits, err = l.backend.wait(true, l.hits)
	l.mu.Lock()
	l.sleeping = false
	l.deadline = 0
	l.mu.Unlock()
	if len(l.hits) > 0 {
		l.stats.wakeups.Add(1)
	}
	l.take()
	l.collect()
	return true, err
}

// collect makes of ready descriptors watches that are to be served.
func (l *Loop) collect() {
	for i := range l.hits {
		e, got := l.hits[i].e, l.hits[i].got
		l.hits[i].e = nil
		switch e.do {
		case toWake:
		case toTimer:
			l.timerFired()
		case toChannel:
			e.ch.ready(got)
		case toWatch:
			l.found(e, got)
		}
	}
	l.hits = l.hits[:0]
}

// found is collect for the descriptor of a watch.
func (l *Loop) found(e *entry, got uint32) {
	e.w.got |= got
	l.enqueue(e.w)
}

// enqueue has a watch served.
func (l *Loop) enqueue(w *Watch) {
	if !w.queued {
		w.queued = true
		l.ready.push(w)
	}
}

// dispatch calls handlers: each source has its turn once.
func (l *Loop) dispatch() {
	l.runTimers()
	for l.done < len(l.doing) {
		f := l.doing[l.done]
		l.doing[l.done] = nil
		l.done++
		if !l.ended() {
			l.n++
			f()
		}
	}
	for range l.ready.n {
		w := l.ready.pop()
		w.queued = false
		l.serve(w)
	}
	l.tick()
}

// ended reports whether the loop was closed.
func (l *Loop) ended() bool {
	if !l.mail.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// serve lets a source do what it has.
func (l *Loop) serve(w *Watch) {
	l.running.Store(w)
	before := l.n
	var more bool
	if !w.closed.Load() {
		err := w.fault
		if err == nil && w.e.foreign && w.got != 0 && l.set.renew(&w.e) {
			err = ErrClosed // perhaps since it was found ready
		}
		if err == nil {
			more, err = w.src.serve(w, l.cfg.Batch)
		}
		switch {
		case w.closed.Load():
		case err != nil:
			l.fail(w, err)
		case more:
			l.enqueue(w)
		case w.arm == nil:
		case l.n > before:
			l.hot = append(l.hot, w)
		default:
			l.prepare(w)
		}
	}
	l.leave()
}

// leave ends a call of a watch.
func (l *Loop) leave() {
	l.running.Store(nil)
	if l.closers.Load() > 0 {
		l.mu.Lock()
		l.cond.Broadcast()
		l.mu.Unlock()
	}
}

// prepare arms a source. It is served if it has something now, else it can sleep.
func (l *Loop) prepare(w *Watch) {
	switch ready, err := w.arm.prepare(); {
	case w.closed.Load():
	case err != nil:
		l.fail(w, err)
	case ready:
		l.enqueue(w)
		if w.cq != nil {
			w.cq.waited() // it came between the last look of the spin and the arming
		}
	case w.cq != nil:
		w.cq.idle()
	}
}

// prepareHot arms all that was served and not armed since.
func (l *Loop) prepareHot() {
	for i, w := range l.hot {
		if !w.closed.Load() {
			l.running.Store(w)
			l.prepare(w)
			l.leave()
		}
		l.hot[i] = nil
	}
	l.hot = l.hot[:0]
}

// fail ends a watch whose source has failed.
func (l *Loop) fail(w *Watch, err error) {
	if !w.detach() {
		return // it was closed by its user
	}
	l.mu.Lock()
	h := w.onError
	l.mu.Unlock()
	if h != nil {
		l.n++
		h(err)
	} else if l.failure == nil {
		l.failure = opError("serve", w.src.name(), err)
	}
}

// rescue puts back what a panic has torn out of its turn.
func (l *Loop) rescue() {
	l.hot = slices.DeleteFunc(l.hot, func(w *Watch) bool { return w == nil })
	w := l.running.Load()
	if w == nil {
		return
	}
	l.leave()
	if !w.closed.Load() {
		l.enqueue(w)
	}
}

// gone reports whether a descriptor without anything to read says that there will be nothing
// ever: an error condition and no data.
func gone(got uint32) bool { return got&(unix.PollErr|unix.PollHup) != 0 && got&unix.PollIn == 0 }

// errGone is what such a descriptor of a device means.
var errGone = verbs.ErrDeviceGone

// queue is a ring of watches.
type queue struct {
	q       []*Watch // a power of two
	head, n int
}

func (q *queue) push(w *Watch) {
	if q.n == len(q.q) {
		q.grow()
	}
	q.q[(q.head+q.n)&(len(q.q)-1)] = w
	q.n++
}

func (q *queue) grow() {
	bigger := make([]*Watch, max(2*len(q.q), 16))
	for i := range q.n {
		bigger[i] = q.q[(q.head+i)&(len(q.q)-1)]
	}
	q.q, q.head = bigger, 0
}

func (q *queue) pop() *Watch {
	w := q.q[q.head]
	q.q[q.head] = nil
	q.head = (q.head + 1) & (len(q.q) - 1)
	q.n--
	return w
}
