package verbs

import "context"

// sleep waits without an event, if the provider can (driver.Sleeper) and this goroutine is
// the only one that waits on the channel. It gives nothing if it cannot, or was woken for
// something else than a completion: the caller goes on in the usual way.
func (cq *CQ) sleep(ctx context.Context, dst []WC) (int, error) {
	if cq.sleeper == nil || !cq.ch.lone(cq) {
		return 0, nil
	}
	defer cq.ch.unlone()
	// Who has something to tell finds the queue in ch.alone from here on, or has told it
	// before, and then it is seen now.
	if n, err := cq.Poll(dst); n > 0 || err != nil || cq.nudge.Load() {
		return n, err
	}
	cq.stats.sleeps.Add(1)
	if !cq.sleeper.Sleep(ctx) {
		cq.stats.sleeps.Add(^uint64(0))
		return 0, nil
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	n, err := cq.Poll(dst)
	if n > 0 {
		cq.stats.wakeups.Add(1)
	}
	return n, err
}

// lone says that a goroutine is about to sleep for cq without an event; false: it must not.
func (ch *CompChannel) lone(cq *CQ) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.parked > 0 || ch.events > 0 || ch.consumer != nil || ch.closed() {
		return false
	}
	ch.parked++
	ch.alone = cq
	return true
}

func (ch *CompChannel) unlone() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.parked--
	ch.alone = nil
}

// rouse wakes who sleeps without an event: for cq, or if that is nil for any queue. ch.mu
// is held.
func (ch *CompChannel) rouse(cq *CQ) {
	if a := ch.alone; a != nil && (cq == nil || a == cq) {
		a.sleeper.Rouse()
	}
}
