package verbs

// Wake ends a Wait that is in progress, or else the next one that would sleep: it gives
// neither completions nor an error. Next and Completions go on. It is for programs in
// which the goroutine that waits does so for others too, and has to be told of things
// that are no completions. Of several goroutines in Wait it ends one. It does not block,
// and may be called by anyone; calls that nobody has answered yet count as one.
func (cq *CQ) Wake() {
	if cq == nil || cq.ch == nil {
		return
	}
	cq.nudge.Store(true)
	ch := cq.ch
	ch.mu.Lock()
	ch.wakeAll(cq)
	kick := ch.leader != nil && ch.leader.woken
	ch.mu.Unlock()
	if kick {
		ch.park.Kick()
	}
}

// nudged reports whether Wake was called since it was last asked.
func (cq *CQ) nudged() bool { return cq.nudge.Load() && cq.nudge.CompareAndSwap(true, false) }
