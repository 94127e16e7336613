package verbs

import (
	"context"
	"iter"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wait"
)

// Wait is Poll that waits for at least one completion. It arms, looks again, and
// parks, in the only order that loses no wake-up; it spins before, as SetSpin says. It
// gives nothing, and no error, after Wake only, or if dst is empty: then it does not wait. If
// ctx has ended Wait gives its error, even if there are completions: none is lost, and
// no memory changes hands. It allocates only if it has to park with a cancellable ctx.
//
// While a goroutine is parked here, the CQ's channel belongs to the waits of its CQs:
// CompChannel.Event and Arm give ErrOneConsumer.
func (cq *CQ) Wait(ctx context.Context, dst []WC) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	n, err := cq.first(dst)
	if n > 0 || err != nil || len(dst) == 0 {
		if cq != nil && cq.spinner != nil { // calls of C, perhaps without a sleep in between for long
			cq.spin.pace.Keep()
		}
		return n, err
	}
	return cq.wait(ctx, dst)
}

// Next is Wait for one.
func (cq *CQ) Next(ctx context.Context) (WC, error) {
	var dst [1]WC
	for {
		n, err := cq.Wait(ctx, dst[:])
		if n > 0 || err != nil {
			return dst[0], err
		}
	}
}

// Completions waits for one completion after the other. The last pair carries the
// error that ended it. Breaking out loses nothing: what the body has not seen is
// given by the next Poll, Wait or Completions.
func (cq *CQ) Completions(ctx context.Context) iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) { cq.completions(ctx, yield) }
}

// completions takes one at a time: what the body closes is not given to it afterwards,
// and what it leaves is where everybody finds it.
func (cq *CQ) completions(ctx context.Context, yield func(WC, error) bool) {
	for {
		wc, err := cq.Next(ctx)
		if !yield(wc, err) || err != nil {
			return
		}
	}
}

// wait is Wait for a queue that was found empty.
func (cq *CQ) wait(ctx context.Context, dst []WC) (int, error) {
	if !cq.spin.on.Load() {
		return cq.park(ctx, dst)
	}
	start := time.Now()
	var spun time.Duration
	if d := cq.spin.budget(); d > 0 {
		n, err := cq.spinFor(ctx, d, start, dst)
		if n > 0 || err != nil {
			cq.spin.spun(start, 0, false, n > 0)
			return n, err
		}
		spun = max(time.Since(start), d) // time may stand still
	}
	n, err := cq.park(ctx, dst)
	cq.spin.spun(start, spun, true, n > 0)
	return n, err
}

// park arms and sleeps until there is something.
func (cq *CQ) park(ctx context.Context, dst []WC) (int, error) {
	if !cq.enter() {
		return 0, ErrClosed
	}
	defer cq.leave()
	if n, err := cq.sleep(ctx, dst); n > 0 || err != nil {
		return n, err
	}
	w, err := cq.ch.enlist(cq)
	if err != nil {
		return 0, err
	}
	defer cq.ch.delist(w)
	limit := max(time.Duration(cq.dev.recheck.Load()), 0)
	for {
		if n, err := cq.armAndPoll(dst); n > 0 || err != nil || cq.nudged() {
			return n, err
		}
		cq.stats.sleeps.Add(1)
		why, err := cq.ch.sleep(ctx, w, limit)
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err != nil {
			// The channel is closed, or the device is gone: then there are completions of
			// what it left.
			cq.dev.notice(err)
			if n, perr := cq.Poll(dst); n > 0 || perr != nil {
				return n, perr
			}
			return 0, opError("wait", cq.dev, cq.describe(), err)
		}
		n, err := cq.Poll(dst)
		switch {
		case why == wait.Found:
			cq.stats.wakeups.Add(1)
			if n == 0 {
				cq.stats.empty.Add(1)
			}
		case why == wait.Expired && n > 0:
			cq.rescued()
		case why == wait.Expired:
			limit = cq.recheckAfter(limit)
		}
		if n > 0 || err != nil || cq.nudged() {
			return n, err
		}
	}
}

// armAndPoll arms for any completion, unless an event is still to come, and polls: who
// then finds nothing may sleep.
func (cq *CQ) armAndPoll(dst []WC) (int, error) {
	cq.mu.Lock()
	var err error
	looked := false
	if !cq.shut && cq.broken == nil && cq.armed.Load() != armedAny {
		if looked = cq.armer != nil && len(cq.pending) == 0; looked {
			err = cq.armAndFetch()
		} else {
			err = cq.arm(armedAny)
		}
	}
	if err != nil {
		cq.mu.Unlock()
		cq.dev.notice(err)
		if n, perr := cq.Poll(dst); n > 0 || perr != nil {
			return n, perr
		}
		return 0, opError("arm", cq.dev, cq.describe(), err)
	}
	n := 0
	if !looked || cq.broken != nil || len(cq.pending) > 0 || cq.staged.len() > 0 {
		n, err = cq.take(dst)
	}
	bad := cq.broken != nil && !cq.failed
	cq.mu.Unlock()
	if bad {
		return cq.follow(dst, n)
	}
	return n, err
}

// arm asks the device for an event. The state is set first, as the event may come, and
// clear it, before the call returns. cq.mu is held.
func (cq *CQ) arm(state uint32) error {
	// Armed for any completion, a device stays so until its event.
	cq.armed.Store(max(state, cq.armed.Load()))
	err := cq.d.Arm(state == armedSolicited)
	if err != nil {
		cq.armed.Store(unarmed)
	}
	return err
}

// armAndFetch is arm for any completion, and fetch. cq.mu is held, and nothing is pending.
func (cq *CQ) armAndFetch() error {
	cq.armed.Store(armedAny)
	p, armed, err := cq.armer.ArmPoll()
	if armed != nil {
		cq.armed.Store(unarmed)
	}
	if err != nil {
		cq.broken = err
	}
	cq.pending = p
	return armed
}

// Arm asks for one event of the channel at the next completion (ibv_req_notify_cq)
// and looks again. ready means that there are completions now: poll, do not
// sleep. Not ready means that the descriptor will be readable after the next
// completion. It is for event loops; Wait does it itself. It neither blocks nor
// allocates.
//
// With ib.NotifySolicited the event comes only for a receive whose sender asked for it
// (ib.Solicited), and for a failure. Some devices leave out failures of sends, so do not
// arm a queue of sends that way.
func (cq *CQ) Arm(n ib.Notify) (ready bool, err error) {
	if cq == nil || cq.d == nil {
		return false, errNil
	}
	if err := cq.ch.claim(cq); err != nil {
		return false, err
	}
	state := armedAny
	if n == ib.NotifySolicited {
		state = armedSolicited
	}
	// Always, whatever it was armed for: an event may have been lost.
	return cq.armAndLook(state, true)
}

// rescueGrace is how long after its completion an event may come.
const rescueGrace = time.Millisecond

// rescued counts a wake-up that was lost: completions were found when the time was up,
// and no event is there, nor on its way.
func (cq *CQ) rescued() {
	cq.mu.Lock()
	grace := rescueGrace + cq.period
	cq.mu.Unlock()
	cq.ch.drain()
	if cq.armed.Load() == unarmed {
		return
	}
	time.Sleep(grace)
	cq.ch.drain()
	if cq.armed.CompareAndSwap(armedAny, unarmed) { // so that it is armed again
		cq.stats.rescued.Add(1)
	}
}

// recheckMost bounds the time between two looks, in periods.
const recheckMost = 64

// recheckAfter gives the time of the next look after one in vain. While sends are
// outstanding it stays the same, as their completions must come. Receives may wait for
// ever: on a descriptor the looks become rare, and a provider that waits in Go, which
// cannot lose an event for lack of the kernel's memory, is left alone. So nothing ticks
// while nothing happens.
func (cq *CQ) recheckAfter(last time.Duration) time.Duration {
	period := max(time.Duration(cq.dev.recheck.Load()), 0)
	for _, qp := range cq.dev.qps.all() {
		if qp.sendCQ == cq && qp.sq.outstanding() > 0 {
			return period
		}
	}
	if cq.ch.waits {
		return 0
	}
	return min(2*last, recheckMost*period)
}
