package softroce

import "context"

// Sleep waits on the socket from which the queue's completions come, if this goroutine is
// the only one that waits and can have the role of the reader (role.go). It handles what
// arrives, and comes back when an entry is there: no event is made, queued and taken.
func (c *cq) Sleep(ctx context.Context) (slept bool) {
	e := c.from.Load()
	if e == nil {
		return false
	}
	w := &c.d.waiting
	if w.Add(1) == 1 && c.sleeper.mu.TryLock() {
		slept, _ = e.lead(ctx, &c.sleeper, (*sleepingCQ)(c))
		c.sleeper.mu.Unlock()
	}
	w.Add(-1)
	c.empty.Store(0)
	c.roused.Store(false)
	return slept
}

// Rouse ends Sleep.
func (c *cq) Rouse() {
	c.roused.Store(true)
	c.sleeper.interrupt()
}

// sleepingCQ is a queue as the condition that ends Sleep.
type sleepingCQ cq

func (c *sleepingCQ) level() bool {
	return c.ready.Load() > 0 || c.state.Load() != cqUp || c.roused.Load()
}
