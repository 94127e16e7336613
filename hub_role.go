package rdma

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Who looks at the completion queue of a hub.
//
// One goroutine at a time has the role. It polls the queue, sleeps on it, and hands what
// it finds to the connections, waking whoever waits there. To wake a goroutine costs more
// than a small message, so who blocks in a call takes the role itself if it is vacant: a
// request and its answer then need no other goroutine.
//
// When it has what it wanted it leaves, and the role is vacant until the next one blocks.
// If that takes too long (grace) the hub's own goroutine has the role, and keeps it until
// a batch concerns a single waiter, which is then likely to be the next who blocks. What
// arrives for others while the role is vacant waits for the grace to pass, so it is short
// while others wait; and after it has passed in vain, the next occasions are left out.
type role struct {
	h       *hub
	held    atomic.Bool
	leader  atomic.Pointer[waiter] // who has it and may be asleep; nil: the hub's goroutine, or nobody
	follow  atomic.Int32           // goroutines that wait for one that has the role
	since   atomic.Int64           // when it became vacant
	back    chan struct{}          // cap 1: the hub's goroutine has the role
	ended   chan struct{}
	stop    atomic.Bool
	served  atomic.Bool // the hub's goroutine has it
	wanted  atomic.Bool // by recall, while somebody else had it
	timer   *time.Timer
	mu      sync.Mutex   // setting the timer
	fires   atomic.Int64 // when it does; 0: it is not set
	grace   atomic.Int64 // while nobody else waits
	expired atomic.Bool  // the role came back as nobody took it in time
	skip    atomic.Int32 // occasions to leave it vacant that are left out
	penalty int32        // of the hub's goroutine
}

const (
	// minGrace to maxGrace is how long the role may be vacant if nobody waits for a
	// completion; it grows while it is not used up, as a timer that is always near costs a
	// wake-up each time (docs/performance.md). sharedGrace is that if somebody waits.
	minGrace    = 400 * time.Microsecond
	maxGrace    = 10 * time.Millisecond
	sharedGrace = time.Millisecond

	maxPenalty = 1024
)

// epoch makes times of the monotonic clock into numbers.
var epoch = time.Now()

func (r *role) init(h *hub) {
	r.h = h
	r.back = make(chan struct{}, 1)
	r.ended = make(chan struct{})
	r.grace.Store(int64(minGrace))
	r.timer = time.AfterFunc(time.Hour, r.onGrace)
	r.timer.Stop()
	r.held.Store(true)
	r.back <- struct{}{} // the hub's goroutine begins
}

// claim takes a vacant role.
func (r *role) claim() bool { return !r.held.Load() && r.held.CompareAndSwap(false, true) }

// handBack gives the role, which the caller has, to the hub's goroutine.
func (r *role) handBack() { r.back <- struct{}{} }

// vacate gives the role, which the caller has, to whoever comes first; to the hub's goroutine
// if that is needed, also if the caller cannot have known it.
func (r *role) vacate() {
	now := time.Since(epoch)
	r.since.Store(int64(now))
	r.held.Store(false)
	if r.h.fds.Load() > 0 || r.stop.Load() || r.wanted.Load() { // looked at behind held: see recall
		r.recall()
		return
	}
	r.arm(now, now+r.limit())
}

// arm has onGrace called at a time, or before. The timer is usually set to an earlier time
// already, by who had the role before; it has to be moved only if others wait since.
func (r *role) arm(now, at time.Duration) {
	if f := r.fires.Load(); f != 0 && f <= int64(at) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.fires.Load(); f == 0 || f > int64(at) {
		r.fires.Store(int64(at))
		r.timer.Reset(at - now)
	}
}

// limit is how long the role may be vacant now.
func (r *role) limit() time.Duration {
	g := time.Duration(r.grace.Load())
	if r.follow.Load() > 0 {
		g = min(g, sharedGrace)
	}
	return g
}

// join makes the caller one of those who wait for the one that has the role, until it takes
// itself off follow. It gives false if the role is vacant now: who left it may not have seen
// the caller, and would have left it for long.
func (r *role) join() bool {
	r.follow.Add(1)
	if r.held.Load() {
		return true
	}
	r.follow.Add(-1)
	return false
}

// leave ends the role of one who has what it wanted.
func (r *role) leave() {
	if r.h.fds.Load() > 0 || r.stop.Load() {
		r.handBack() // a foreign loop waits, and nobody sees it wait
		return
	}
	if n := r.skip.Load(); n > 0 {
		r.skip.CompareAndSwap(n, n-1)
		r.handBack()
		return
	}
	r.vacate()
}

// onGrace looks whether the role has been vacant for too long.
func (r *role) onGrace() {
	r.mu.Lock()
	r.fires.Store(0)
	r.mu.Unlock()
	now := time.Since(epoch)
	due := time.Duration(r.since.Load()) + r.limit()
	if r.held.Load() || due > now {
		g := r.grace.Load()
		r.grace.Store(min(g+g/4, int64(maxGrace)))
	}
	if r.held.Load() {
		return // who has it arms the timer again
	}
	if due > now {
		r.arm(now, due)
		return
	}
	if r.claim() {
		r.grace.Store(int64(minGrace))
		r.expired.Store(true)
		r.handBack()
	}
}

// recall gives the hub's goroutine the role now, or as soon as who has it leaves.
func (r *role) recall() {
	if r.served.Load() {
		return
	}
	r.wanted.Store(true) // before held is looked at: see vacate
	if r.claim() {
		r.wanted.Store(false)
		r.handBack()
	}
}

// serve is the hub's goroutine.
func (h *hub) serve() {
	r := &h.role
	defer close(r.ended)
	for range r.back {
		r.served.Store(true)
		r.wanted.Store(false)
		if r.expired.Swap(false) {
			r.penalty = min(2*r.penalty+1, maxPenalty)
			r.skip.Store(r.penalty)
		} else {
			r.penalty = 0
		}
		for {
			woken, err := h.poll(nil, true)
			if err != nil {
				r.stop.Store(true)
				r.served.Store(false)
				r.timer.Stop()
				h.fail(err)
				return
			}
			if woken == 1 && h.fds.Load() == 0 && r.skip.Load() == 0 {
				r.served.Store(false)
				r.vacate()
				break
			}
			if n := r.skip.Load(); woken == 1 && n > 0 {
				r.skip.CompareAndSwap(n, n-1)
			}
		}
	}
}

// waiter is a goroutine that waits for a connection.
type waiter struct {
	fired atomic.Bool
	c     chan struct{} // cap 1
	next  *waiter       // of hub.free
}

// newWaiter gives a waiter that has not fired.
func (h *hub) newWaiter() *waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.free
	if w == nil {
		return &waiter{c: make(chan struct{}, 1)}
	}
	h.free, w.next = w.next, nil
	return w
}

// freeWaiter takes back one that nobody knows any more.
func (h *hub) freeWaiter(w *waiter) {
	select {
	case <-w.c:
	default:
	}
	w.fired.Store(false)
	h.mu.Lock()
	w.next, h.free = h.free, w
	h.mu.Unlock()
}

// wake ends the wait of w. self is the waiter of the caller if it has the role, or nil. It
// reports whether that woke another goroutine.
func (h *hub) wake(w, self *waiter) bool {
	if w.fired.Swap(true) || w == self {
		return false
	}
	select {
	case w.c <- struct{}{}:
	default:
	}
	if h.role.leader.Load() == w {
		h.cq.Wake()
	}
	return true
}

// wait blocks until w has fired. spin is how to wait for the queue, if that falls to this
// goroutine. The caller holds no lock.
func (h *hub) wait(w *waiter, spin verbs.Spin) {
	r := &h.role
	for !w.fired.Load() {
		if !r.claim() {
			if r.join() {
				<-w.c
				r.follow.Add(-1)
			}
			continue
		}
		if h.spin != spin { // connections of several policies take turns
			h.spin = spin
			h.cq.SetSpin(spin)
		}
		r.leader.Store(w)
		for !w.fired.Load() {
			if _, err := h.poll(w, true); err != nil {
				break
			}
		}
		r.leader.Store(nil)
		if err := h.err(); err != nil || !w.fired.Load() {
			r.handBack() // the hub's goroutine sees the error too
			if !w.fired.Load() {
				<-w.c // the end of the queue pair tells
			}
			return
		}
		r.leave()
	}
}
