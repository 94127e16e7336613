package verbs

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/internal/gosched"
)

// Consumer is the claim of an event loop on a completion channel, see
// CompChannel.Consume. It gives a loop what CQ.Wait does for a goroutine, in steps none
// of which blocks: take events, poll the queues that they name until they are empty, Arm
// each of those, and sleep on FD only if no Arm said that there is more.
//
// Lost, Grace, Lossless, Pending and LookFor are there for package event, and may change with
// it; a loop does without them.
//
// Methods may be called from any goroutine. They allocate nothing unless they fail. A nil or
// zero Consumer, and a nil or zero CQ, gives syscall.EINVAL, or that there is nothing.
type Consumer struct {
	ch   *CompChannel
	news func(*CQ)
}

// Consume makes the caller the only consumer of the channel. Until Consumer.Close, the
// channel's Event and TryEvent, and Arm, Wait, Next and Completions of its CQs, give
// ErrOneConsumer, and so does a second Consume; while a goroutine is in one of them,
// Consume does. CQ.Poll is still allowed to everybody.
//
// news is called when there is something that the channel's descriptor does not tell: a
// CQ has completions that the library made, or was closed; nil means that the channel was
// closed. It is called by whatever goroutine, at any time, with locks of this package
// held: it must not block, and must not call this package.
func (ch *CompChannel) Consume(news func(*CQ)) (*Consumer, error) {
	if ch == nil {
		return nil, opError(opChannel, nil, "", errNil)
	}
	if err := ch.op(opChannel); err != nil {
		return nil, err
	}
	defer ch.leave()
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.parked > 0 || ch.events > 0 || ch.consumer != nil {
		return nil, ErrOneConsumer
	}
	c := &Consumer{ch: ch, news: news}
	ch.consumer = c
	return c, nil
}

// ok says that the claim was made by Consume, made that the queue was by CreateCQ.
func (c *Consumer) ok() bool { return c != nil && c.ch != nil }
func (cq *CQ) made() bool    { return cq != nil && cq.name != nil }

// Close ends the claim. The queues stay armed; whoever comes next finds their events. No
// call of news begins after it.
func (c *Consumer) Close() {
	if !c.ok() {
		return
	}
	c.ch.mu.Lock()
	defer c.ch.mu.Unlock()
	if c.ch.consumer == c {
		c.ch.consumer = nil
	}
}

// FD gives the provider's own descriptor, which is readable while TryEvent has an event of
// the device, or an error. (CompChannel.FD also shows the library's events, which news
// tells here, and is two descriptors more.) It is borrowed.
func (c *Consumer) FD() (int, error) {
	if !c.ok() {
		return -1, opError(opChannel, nil, "", errNil)
	}
	if err := c.ch.op(opChannel); err != nil {
		return -1, err
	}
	defer c.ch.leave()
	fd, err := c.ch.d.FD()
	return fd, c.ch.fail(opChannel, err)
}

// TryEvent is CompChannel.TryEvent for the consumer. After Close it gives none.
func (c *Consumer) TryEvent() (cq *CQ, ok bool, err error) {
	if !c.ok() {
		return nil, false, opError(opChannel, nil, "", errNil)
	}
	ch := c.ch
	if err := ch.op(opChannel); err != nil {
		return nil, false, err
	}
	defer ch.leave()
	ch.mu.Lock()
	if ch.consumer == c {
		cq, err = ch.one()
	}
	ch.mu.Unlock()
	if err != nil {
		return nil, false, ch.fail(opChannel, err)
	}
	return cq, cq != nil, nil
}

// Look reports whether there are completions, or an error, without taking them and without
// arming.
func (c *Consumer) Look(cq *CQ) bool {
	if !cq.made() {
		return false
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return cq.shut || cq.staged.len() > 0 || len(cq.pending) > 0 || cq.fetch() || cq.broken != nil
}

// LookFor is Look for who goes on looking: a provider whose looks cost more to call than to
// do looks for a while, a few microseconds and at most d.
func (c *Consumer) LookFor(cq *CQ, d time.Duration) bool {
	if !cq.made() {
		return false
	}
	cq.spin.single.Store(gosched.Processors() == 1)
	p := cq.slow()
	if p == nil {
		return c.Look(cq)
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.fetchFor(p, min(d, spinCall))
	return cq.shut || cq.staged.len() > 0 || len(cq.pending) > 0 || cq.broken != nil
}

// Arm is CQ.Arm for any completion, but asks the device only if the event of an earlier
// Arm has come: a queue that is armed stays so, and need not be armed again because its
// neighbours had something.
func (c *Consumer) Arm(cq *CQ) (ready bool, err error) {
	if !c.ok() || !cq.made() {
		return false, errNil
	}
	return cq.armAndLook(armedAny, false)
}

// Pending calls yield for each CQ of the channel's device that completions must come to, as
// sends are outstanding. (Receives may wait for ever.) A loop that looks again now and
// then, as an event may have been lost, need not do so for other queues often.
func (c *Consumer) Pending(yield func(*CQ)) {
	if !c.ok() {
		return
	}
	for _, qp := range c.ch.dev.qps.all() {
		if qp.sq.outstanding() > 0 {
			yield(qp.sendCQ)
		}
	}
}

// Lossless reports whether no event can be lost, as the provider queues them in Go: a
// kernel drops one if it has no memory for it.
func (c *Consumer) Lossless() bool { return c.ok() && c.ch.waits }

// Grace is how long after its completion an event may come.
func (c *Consumer) Grace(cq *CQ) time.Duration {
	if !cq.made() {
		return 0
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return rescueGrace + cq.period
}

// Lost says that completions were found without the event that the CQ is armed for, and
// that it has not come within Grace. If it has not indeed, the loss is counted
// (CQStats.Rescued), and the next Arm asks the device again.
func (c *Consumer) Lost(cq *CQ) bool {
	if !cq.made() || !cq.armed.CompareAndSwap(armedAny, unarmed) {
		return false
	}
	cq.stats.rescued.Add(1)
	return true
}

// armAndLook arms, always or unless an event for any completion is still to come, and
// says whether there are completions.
func (cq *CQ) armAndLook(state uint32, always bool) (ready bool, err error) {
	cq.mu.Lock()
	switch {
	case cq.shut:
		err = ErrClosed
	case cq.broken != nil:
		err = cq.brokenErr()
	case always || cq.armed.Load() != armedAny:
		err = cq.arm(state)
	}
	if cq.staged.len() > 0 || len(cq.pending) > 0 {
		ready = true
	} else if err == nil {
		ready = cq.fetch() || cq.broken != nil
	}
	cq.mu.Unlock()
	if ready && !errors.Is(err, ErrClosed) {
		return true, nil // Poll has the error behind them
	}
	if err != nil {
		cq.dev.notice(err)
	}
	return ready, err
}

// OnClose has f called, in a goroutine of its own, when the device is closed, so that
// there will be no event any more, and when it is found to be gone, which the descriptor
// need not show. It is for event loops. stop ends that; f may be running.
func (a *AsyncEvents) OnClose(f func()) (stop func()) {
	if a == nil || a.dev == nil {
		return func() {}
	}
	closed := a.src.OnClose(f)
	gone := context.AfterFunc(a.dead, f)
	return func() { closed(); gone() }
}
