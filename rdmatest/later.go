package rdmatest

import (
	"container/heap"
	"time"
)

// laterQueue runs functions at their time, those of one time in the order in which
// they came. One timer serves all, so nothing runs at the same time. The fabric's
// lock guards it.
type laterQueue struct {
	items laterHeap
	seq   uint64
	timer *time.Timer
}

type laterItem struct {
	at  time.Time
	seq uint64
	f   func()
}

type laterHeap []laterItem

func (h laterHeap) Len() int { return len(h) }
func (h laterHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}
func (h laterHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *laterHeap) Push(x any)   { *h = append(*h, x.(laterItem)) }
func (h *laterHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = laterItem{}
	*h = old[:len(old)-1]
	return x
}

// push has f called at a time, with the fabric's lock held.
func (q *laterQueue) push(fab *Fabric, at time.Time, f func()) {
	q.seq++
	heap.Push(&q.items, laterItem{at, q.seq, f})
	if q.items[0].seq == q.seq {
		q.arm(fab)
	}
}

func (q *laterQueue) arm(fab *Fabric) {
	wait := max(time.Until(q.items[0].at), 0)
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, fab.runLater)
		return
	}
	q.timer.Reset(wait)
}

func (q *laterQueue) stop() {
	q.items = nil
	if q.timer != nil {
		q.timer.Stop()
	}
}

// runLater runs what is due.
func (f *Fabric) runLater() {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := &f.later
	for len(q.items) > 0 && !f.closed {
		if time.Until(q.items[0].at) > 0 {
			q.arm(f)
			return
		}
		heap.Pop(&q.items).(laterItem).f()
	}
}

// behindItem is a datagram that lets others of its way go first.
type behindItem struct {
	d    *datagram
	left int
}

// putBehind keeps d back until n others have passed, or behindFor.
func (f *Fabric) putBehind(way route, d *datagram, n int) {
	it := &behindItem{d, n}
	f.behind[way] = append(f.behind[way], it)
	f.later.push(f, time.Now().Add(behindFor), func() {
		if it.d != nil {
			f.deliver(it.take(), true)
		}
	})
}

// take gives the datagram, once.
func (it *behindItem) take() *datagram {
	d := it.d
	it.d = nil
	return d
}

// countBehind says that a datagram has passed.
func (f *Fabric) countBehind(way route) {
	items := f.behind[way]
	if len(items) == 0 {
		return
	}
	kept := items[:0]
	for _, it := range items {
		switch {
		case it.d == nil: // the time was up
		case it.left <= 1:
			f.deliver(it.take(), true)
		default:
			it.left--
			kept = append(kept, it)
		}
	}
	clear(items[len(kept):])
	f.behind[way] = kept
}
