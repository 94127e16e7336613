package event

import (
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// Timer calls a function of a loop after a time. Its methods may be called from any
// goroutine and from handlers, its own too, and do not allocate. Those of a nil or zero Timer
// do nothing.
type Timer struct {
	l    *Loop
	f    func()
	when int64 // of Loop.now
	seq  uint64
	at   int // in the heap; -1: not running
}

// After calls f once after d; at once, in the next turn, if d is zero or less. Timers that
// are due are called in the order of their times, those of the same time in that of their
// setting. On a closed loop f is never called. A nil f gives a nil Timer.
func (l *Loop) After(d time.Duration, f func()) *Timer {
	if l == nil || l.set == nil || f == nil {
		return nil
	}
	t := &Timer{l: l, f: f, at: -1}
	t.Reset(d)
	return t
}

// Reset has the timer run for d from now, whether it was running or not.
func (t *Timer) Reset(d time.Duration) {
	if t == nil || t.l == nil {
		return
	}
	l := t.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	t.when = l.now() + int64(max(d, 0))
	if t.when < 0 {
		t.when = 1<<63 - 1 // it never comes
	}
	l.timers.set(t)
	l.retimeNow()
}

// Stop has the timer not run. It reports whether it was running: false means that f was
// called already, or that the timer was stopped. Called by another goroutine it does not
// wait for f.
func (t *Timer) Stop() bool {
	if t == nil || t.l == nil {
		return false
	}
	l := t.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.at < 0 {
		return false
	}
	l.timers.remove(t.at)
	l.retimeNow()
	return true
}

// runTimers calls what is due, but for timers that are set meanwhile.
func (l *Loop) runTimers() {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &l.timers
	if len(h.t) == 0 {
		return
	}
	now, last := l.now(), h.next
	for len(h.t) > 0 && h.t[0].when <= now && h.t[0].seq <= last {
		t := h.t[0]
		h.remove(0)
		l.n++
		l.call(t.f)
	}
}

// call calls f without mu, which is held.
func (l *Loop) call(f func()) {
	l.mu.Unlock()
	defer l.mu.Lock()
	f()
}

// retimeNow follows a change of the timers. mu is held.
func (l *Loop) retimeNow() {
	if l.sleeping || l.nested {
		l.retime()
	}
	if h := l.timers.t; len(h) > 0 && h[0].when < l.spinEnd {
		l.mail.Store(true) // a spin looks at nothing else
	}
}

// retime sets timerFD to the next time at which the loop has to look. Unless FD must be
// exact, one that is set too early is left: to wake up for nothing is cheaper than to set it
// with each sleep. mu is held.
func (l *Loop) retime() {
	if l.released {
		return
	}
	need := l.recheckAt
	if l.deadline > 0 && (need == 0 || l.deadline < need) {
		need = l.deadline
	}
	if h := l.timers.t; len(h) > 0 && (need == 0 || h[0].when < need) {
		need = max(h[0].when, 1)
	}
	if need == l.fires || need == 0 && !l.nested || need > l.fires && l.fires > 0 && !l.nested {
		return
	}
	var d time.Duration
	if need > 0 {
		d = max(time.Duration(need-l.now()), 1)
	}
	l.fires = need
	_ = unix.TimerfdSet(l.timerFD, d) // it cannot fail for these values
}

// timerFired is called when timerFD is readable.
func (l *Loop) timerFired() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fires > l.now() {
		return // it was set again meanwhile
	}
	l.fires = 0
	_ = unix.TimerfdSet(l.timerFD, 0) // not readable any more
}

// timerHeap is a binary heap of timers that run.
type timerHeap struct {
	t    []*Timer
	next uint64
}

func (h *timerHeap) less(i, j int) bool {
	a, b := h.t[i], h.t[j]
	return a.when < b.when || a.when == b.when && a.seq < b.seq
}

func (h *timerHeap) swap(i, j int) {
	h.t[i], h.t[j] = h.t[j], h.t[i]
	h.t[i].at, h.t[j].at = i, j
}

// set gives t a place in the order of settings, and in the heap.
func (h *timerHeap) set(t *Timer) {
	h.next++
	t.seq = h.next
	if t.at < 0 {
		t.at = len(h.t)
		h.t = append(h.t, t)
	}
	h.fix(t.at)
}

func (h *timerHeap) remove(i int) {
	last := len(h.t) - 1
	if i != last {
		h.swap(i, last)
	}
	h.t[last].at = -1
	h.t[last] = nil
	h.t = h.t[:last]
	if i < last {
		h.fix(i)
	}
}

// fix moves what is at i to where it belongs.
func (h *timerHeap) fix(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		c := 2*i + 1
		if c+1 < len(h.t) && h.less(c+1, c) {
			c++
		}
		if c >= len(h.t) || !h.less(c, i) {
			return
		}
		h.swap(i, c)
		i = c
	}
}

// stopAll ends all timers.
func (h *timerHeap) stopAll() {
	for _, t := range h.t {
		t.at = -1
	}
	h.t = nil
}
