package softroce

import (
	"context"
	"net"
	"sync"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// compChannel queues the events of completion queues, one for each time that one of
// them was armed. A queue is in the list once, with the number of its events, so the
// channel needs memory for queues and not for events.
type compChannel struct {
	ctx      *deviceContext
	notifier notifier
	leader   leader

	mu         sync.Mutex
	first, end *cq // list through cq.nextFired
	last       error
}

var (
	_ driver.CompChannel = (*compChannel)(nil)
	_ driver.Waiter      = (*compChannel)(nil)
)

// post adds an event of c. Called with c.mu held.
func (ch *compChannel) post(c *cq) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.last != nil {
		return
	}
	if c.fired++; c.fired > 1 {
		return // it is in the list
	}
	ch.append(c)
	ch.notifier.set()
}

func (ch *compChannel) append(c *cq) {
	if ch.first == nil {
		ch.first = c
	} else {
		ch.end.nextFired = c
	}
	ch.end = c
}

// forget drops the events of a queue that is being closed.
func (ch *compChannel) forget(c *cq) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if c.fired == 0 {
		return
	}
	var prev *cq
	for p := ch.first; p != nil; prev, p = p, p.nextFired {
		if p != c {
			continue
		}
		if prev == nil {
			ch.first = c.nextFired
		} else {
			prev.nextFired = c.nextFired
		}
		if ch.end == c {
			ch.end = prev
		}
		break
	}
	c.fired, c.nextFired = 0, nil
	ch.settle()
}

// settle lowers the level if nothing is left.
func (ch *compChannel) settle() {
	if ch.first == nil && ch.last == nil {
		ch.notifier.clear()
	}
}

// Next takes one event and gives the handle of its queue. It never blocks.
func (ch *compChannel) Next() (uint64, bool, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	c := ch.first
	if c == nil {
		return 0, false, ch.last
	}
	ch.first, c.nextFired = c.nextFired, nil
	if ch.first == nil {
		ch.end = nil
	}
	if c.fired--; c.fired > 0 {
		ch.append(c)
	}
	ch.settle()
	return c.handle, true, nil
}

// terminate lets err follow the last event.
func (ch *compChannel) terminate(err error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.last == nil {
		ch.last = err
		ch.notifier.set()
	}
}

// FD gives a descriptor that is readable exactly while Next has an event.
func (ch *compChannel) FD() (int, error) { return ch.notifier.descriptor() }

// Wait waits until Next has an event or an error, or ctx ends. If it can, it sleeps on
// the socket and handles what arrives itself; see role.
func (ch *compChannel) Wait(ctx context.Context) error {
	if ch.notifier.level() {
		return nil
	}
	w := &ch.ctx.d.waiting
	defer w.Add(-1)
	if w.Add(1) == 1 && ch.leader.mu.TryLock() {
		if e := ch.leader.from.Load(); e != nil {
			done, err := e.lead(ctx, &ch.leader, &ch.notifier)
			ch.leader.mu.Unlock()
			if done {
				return err
			}
		} else {
			ch.leader.mu.Unlock()
		}
	}
	if e := ch.leader.from.Load(); e != nil && e.role.conn != nil && e.role.claim() {
		e.handBack() // whoever left it vacant is among those that wait: nobody would read
	}
	return ch.notifier.wait(ctx)
}

// Close wakes who waits. Queues that still name the channel fire no more.
func (ch *compChannel) Close() error {
	ch.mu.Lock()
	for c := ch.first; c != nil; {
		next := c.nextFired
		c.fired, c.nextFired = 0, nil
		c = next
	}
	ch.first, ch.end, ch.last = nil, nil, net.ErrClosed
	ch.mu.Unlock()
	ch.notifier.close()
	ch.leader.mu.Lock()
	ch.leader.unwatch()
	ch.leader.mu.Unlock()
	ch.ctx.drop(ch)
	return nil
}
