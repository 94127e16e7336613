package softroce

import (
	"sync"
	"time"
)

// timer is one entry of a timerQueue: a function to be called at a time. Its owner
// keeps it; set and stop do not allocate once the queue has grown.
type timer struct {
	f    func(now time.Duration)
	when time.Duration
	pos  int // place in the heap + 1; 0: not in it
}

// timerQueue is all timers of a device on one runtime timer, which is armed only
// while an entry waits.
type timerQueue struct {
	start time.Time

	mu     sync.Mutex
	heap   []*timer
	rt     *time.Timer
	armed  bool
	at     time.Duration // when rt fires, if armed
	closed bool
}

func (q *timerQueue) now() time.Duration { return time.Since(q.start) }

// set makes t due at the given time, instead of when it was due before. The function
// runs without locks, on a goroutine of its own. It may be set again while it runs.
func (q *timerQueue) set(t *timer, at time.Duration) {
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

// stop takes t out. A function that has been started meanwhile is not waited for.
func (q *timerQueue) stop(t *timer) {
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

// idle reports whether no timer is set.
func (q *timerQueue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.heap) == 0 && !q.armed
}

func (q *timerQueue) close() {
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
func (q *timerQueue) arm() {
	if len(q.heap) == 0 || q.armed && q.at <= q.heap[0].when {
		return
	}
	q.armed, q.at = true, q.heap[0].when
	d := q.at - q.now()
	if q.rt == nil {
		q.rt = time.AfterFunc(d, q.fire)
		return
	}
	q.rt.Reset(d)
}

// fire runs what is due.
func (q *timerQueue) fire() {
	q.mu.Lock()
	q.armed = false
	for !q.closed && len(q.heap) > 0 {
		now := q.now()
		t := q.heap[0]
		if t.when > now {
			break
		}
		q.remove(0)
		q.mu.Unlock()
		t.f(now)
		q.mu.Lock()
	}
	if !q.closed {
		q.arm()
	}
	q.mu.Unlock()
}

func (q *timerQueue) swap(i, j int) {
	q.heap[i], q.heap[j] = q.heap[j], q.heap[i]
	q.heap[i].pos, q.heap[j].pos = i+1, j+1
}

func (q *timerQueue) up(i int) (moved bool) {
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

func (q *timerQueue) down(i int) {
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

func (q *timerQueue) remove(i int) {
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
