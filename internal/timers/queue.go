// Package timers keeps many timers on one of the runtime. A runtime timer that is set to an
// earlier time makes Go look through all timers of a processor, so ten thousand of them, one for
// each connection, would cost each wake-up of any other tens of microseconds
// (docs/performance.md).
package timers

import (
	"sync"
	"time"
)

// Timer is one entry of a Queue: a function to be called at a time. Its owner keeps it; Set
// and Stop do not allocate once the queue has grown.
type Timer struct {
	F    func(now time.Duration)
	when time.Duration
	pos  int // place in the heap + 1; 0: not in it
}

// Queue is all timers of a device, or of the connections on it, on one runtime timer, which is
// armed only while an entry waits.
type Queue struct {
	Start time.Time // what times are counted from; set before first use

	mu     sync.Mutex
	heap   []*Timer
	rt     *time.Timer
	armed  bool
	at     time.Duration // when rt fires, if armed
	closed bool
}

// Now gives the time since Start.
func (q *Queue) Now() time.Duration { return time.Since(q.Start) }

// Set makes t due at the given time, instead of when it was due before. The function
// runs without locks, on a goroutine of its own. It may be set again while it runs.
func (q *Queue) Set(t *Timer, at time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	t.when = at
	if t.pos == 0 {
		q.heap = append(q.heap, t)
		t.pos = len(q.heap)
		q.up(len(q.heap) - 1)
	} else if !q.up(t.pos - 1) {
		q.down(t.pos - 1)
	}
	q.arm()
}

// Stop takes t out. A function that has been started meanwhile is not waited for.
func (q *Queue) Stop(t *Timer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.pos == 0 {
		return
	}
	q.remove(t.pos - 1)
	if len(q.heap) == 0 && q.armed {
		q.rt.Stop()
		q.armed = false
	}
}

// Idle reports whether no timer is set.
func (q *Queue) Idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.heap) == 0 && !q.armed
}

// Close takes all timers out, for good: Set does nothing from now on.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, t := range q.heap {
		t.pos = 0
	}
	q.heap = nil
	if q.rt != nil {
		q.rt.Stop()
	}
	q.armed = false
}

// arm sees that the runtime timer fires no later than the first entry is due. Firing
// early is harmless, so a timer that has moved away costs nothing.
func (q *Queue) arm() {
	if len(q.heap) == 0 || q.armed && q.at <= q.heap[0].when {
		return
	}
	q.armed, q.at = true, q.heap[0].when
	d := q.at - q.Now()
	if q.rt == nil {
		q.rt = time.AfterFunc(d, q.fire)
		return
	}
	q.rt.Reset(d)
}

// fire runs what is due.
func (q *Queue) fire() {
	q.mu.Lock()
	q.armed = false
	for !q.closed && len(q.heap) > 0 {
		now := q.Now()
		t := q.heap[0]
		if t.when > now {
			break
		}
		q.remove(0)
		q.mu.Unlock()
		t.F(now)
		q.mu.Lock()
	}
	if !q.closed {
		q.arm()
	}
	q.mu.Unlock()
}

func (q *Queue) swap(i, j int) {
	q.heap[i], q.heap[j] = q.heap[j], q.heap[i]
	q.heap[i].pos, q.heap[j].pos = i+1, j+1
}

func (q *Queue) up(i int) (moved bool) {
	for i > 0 {
		p := (i - 1) / 2
		if q.heap[p].when <= q.heap[i].when {
			break
		}
		q.swap(i, p)
		i, moved = p, true
	}
	return moved
}

func (q *Queue) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(q.heap) {
			return
		}
		if c+1 < len(q.heap) && q.heap[c+1].when < q.heap[c].when {
			c++
		}
		if q.heap[i].when <= q.heap[c].when {
			return
		}
		q.swap(i, c)
		i = c
	}
}

func (q *Queue) remove(i int) {
	t := q.heap[i]
	last := len(q.heap) - 1
	if i != last {
		q.swap(i, last)
	}
	q.heap[last] = nil
	q.heap = q.heap[:last]
	if i != last && !q.up(i) {
		q.down(i)
	}
	t.pos = 0
}
