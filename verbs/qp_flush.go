package verbs

import (
	"context"
	"errors"
	"runtime"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// Fail moves to the error state: everything outstanding comes back through the CQs,
// behind what was complete before. It is allowed in every state and idempotent.
func (qp *QP) Fail() error { return qp.failAs("fail qp", ErrFailed, true) }

// FailWith is Fail that says why: the cause is what Err gives, if it is the first. It is
// set before the device is told, so before any flush can be polled. Package cm ends
// connections with it.
func (qp *QP) FailWith(cause error) error {
	if cause == nil {
		return qp.Fail()
	}
	return qp.failAs("fail qp", cause, false)
}

func (qp *QP) failAs(op string, cause error, weak bool) error {
	return qp.control(op, func() error {
		qp.setCause(cause, weak)
		return qp.tell()
	})
}

// tell moves the device's queue pair to the error state, once. qp.mu is held.
func (qp *QP) tell() error {
	if !qp.told && !qp.inReset {
		if err := qp.d.Modify(&QPAttr{State: ib.StateError}, ib.AttrState); err != nil {
			if !errors.Is(err, ErrDeviceGone) {
				return err
			}
			qp.state.Store(uint32(ib.StateError))
			qp.entered()
			return err
		}
	}
	qp.told = true
	qp.state.Store(uint32(ib.StateError))
	qp.entered()
	if qp.sq.outstanding()+qp.rq.outstanding() > 0 {
		qp.timer.Reset(time.Duration(qp.dev.flushLimit.Load()))
	}
	return nil
}

// withCQs runs f with the locks of both CQs, which are taken in one order everywhere.
// qp.mu is held.
func (qp *QP) withCQs(f func()) {
	a, b := qp.sendCQ, qp.recvCQ
	if a.handle > b.handle {
		a, b = b, a
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a != b {
		b.mu.Lock()
		defer b.mu.Unlock()
	}
	f()
}

// keep takes what the device has completed into the staging areas. The locks of both
// CQs are held.
func (qp *QP) keep() {
	qp.sendCQ.keep()
	if qp.recvCQ != qp.sendCQ {
		qp.recvCQ.keep()
	}
}

func (qp *QP) wakeCQs() {
	qp.sendCQ.wake()
	if qp.recvCQ != qp.sendCQ {
		qp.recvCQ.wake()
	}
}

// Drain fails the queue pair and waits until nothing is outstanding. The
// completions stay in the CQs for their consumer; Drain does not need it to run, and
// may be called by it. A device that did not flush once is not waited for again.
func (qp *QP) Drain(ctx context.Context) error {
	const op = "drain qp"
	if err := qp.failAs(op, ErrFailed, true); err != nil && !errors.Is(err, ErrDeviceGone) {
		return err
	}
	if !qp.enter() {
		return opError(op, qp.dev, qp.name(), ErrClosed)
	}
	defer qp.leave()
	return qp.flush(ctx, op, qp.closed)
}

// flush waits until nothing is outstanding. The device has been told to fail the queue
// pair. It ends early when ctx does, or stop says so.
func (qp *QP) flush(ctx context.Context, op string, stop func() bool) error {
	limit := time.Duration(qp.dev.flushLimit.Load())
	start := time.Now()
	pause := 10 * time.Microsecond
	for pass := 0; ; pass++ {
		left, news := qp.settle(time.Since(start) >= limit)
		if news {
			qp.wakeCQs()
		}
		if left == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if stop != nil && stop() {
			return opError(op, qp.dev, qp.name(), ErrClosed)
		}
		if pass < 10 { // most devices take microseconds
			runtime.Gosched()
			continue
		}
		t := time.NewTimer(min(pause, max(limit-time.Since(start), 0)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		pause = min(2*pause, 5*time.Millisecond)
	}
}

// news reports whether something waits in the staging areas. The locks of both CQs are
// held.
func (qp *QP) news() bool { return qp.sendCQ.staged.len()+qp.recvCQ.staged.len() > 0 }

// settle takes what has been flushed and gives the number of requests that are still
// outstanding. giveUp: the device has had its time, so the library completes them.
func (qp *QP) settle(giveUp bool) (left int, news bool) {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	qp.withCQs(func() {
		qp.keep()
		s, r := &qp.sq, &qp.rq
		left = s.outstanding() + r.outstanding()
		switch {
		case left == 0:
		case giveUp || qp.dev.lazy.Load() || qp.dev.isGone() || qp.sendCQ.broken != nil || qp.recvCQ.broken != nil:
			if giveUp {
				qp.dev.lazy.Store(true)
			}
			qp.sendCQ.flushAll(qp, s)
			qp.recvCQ.flushAll(qp, r)
			left = 0
		default:
			if must, trailing := s.wanted(); must == 0 && trailing > 0 {
				qp.beacon()
			}
		}
		news = qp.news()
	})
	return left, news
}

// beacon posts a signaled request behind unsignaled ones, which give no completion if
// they succeeded: when it is flushed, they are through. There is room: the unsignaled
// ones are at most half of the queue. qp.mu is held.
func (qp *QP) beacon() {
	s := &qp.sq
	slots := qp.d.SendSlots()
	if len(slots) == 0 || s.outstanding() >= len(s.ents) {
		return
	}
	seq := s.head.Load()
	p := &slots[0]
	p.ID = s.number(seq)
	p.SGL, p.Data = p.SGL[:0], p.Data[:0]
	p.Opcode, p.Flags = ib.OpSend, ib.Signaled
	if s.ahs != nil { // any handle will do: it is not sent
		ah := s.ahs[(seq-1)&s.mask]
		if ah == nil {
			return
		}
		p.AH = ah.handle
	}
	s.put(seq, 0, ib.WCSend, entryCQE|entryBeacon)
	qp.beacons.Add(1)
	s.publish(1)
	if posted, _ := qp.d.CommitSend(1); posted == 0 {
		s.retract(1, 0)
		qp.beacons.Add(-1)
	}
}

// flushLate runs when the device has had its time after the queue pair failed: signaled
// requests and receives that it has not completed are completed by the library. (Unsignaled
// ones may have succeeded; who wants to know, drains.)
func (qp *QP) flushLate() {
	if !qp.enter() {
		return
	}
	defer qp.leave()
	qp.mu.Lock()
	sendOnly := qp.State() == ib.StateSQE
	if !sendOnly && qp.State() != ib.StateError {
		qp.mu.Unlock()
		return
	}
	if !sendOnly && !qp.told {
		// Only a completion or an event says that it failed. It is told, so that the memory
		// is the caller's again, and gets its time from now on.
		err := qp.tell()
		qp.mu.Unlock()
		qp.dev.notice(err)
		return
	}
	news := false
	qp.withCQs(func() {
		qp.keep()
		must, _ := qp.sq.wanted()
		if !sendOnly {
			must += qp.rq.outstanding()
		}
		if must > 0 {
			qp.dev.lazy.Store(true)
			qp.sendCQ.flushAll(qp, &qp.sq)
			if !sendOnly {
				qp.recvCQ.flushAll(qp, &qp.rq)
			}
		}
		news = qp.news()
	})
	qp.mu.Unlock()
	if news {
		qp.wakeCQs()
	}
}

// Close fails, drains and destroys the queue pair (ibv_destroy_qp). When it returns
// the memory of its requests is the caller's again, and no completion of it will be
// given: to see them, Drain first. A device answers within microseconds, or, if it
// is one of those that never flush, once after a second; so event loops may call it.
func (qp *QP) Close() error {
	if qp == nil || qp.name == nil {
		return opError("close qp", nil, "", errNil)
	}
	return qp.close(qp.silence, qp.destroy)
}

// silence ends posts and completions.
func (qp *QP) silence() {
	qp.setCause(ErrClosed, true)
	qp.mu.Lock()
	defer qp.mu.Unlock()
	qp.closing = true
	qp.withCQs(func() {
		qp.silent = true
		qp.sendCQ.staged.drop(qp)
		qp.recvCQ.staged.drop(qp)
	})
}

// destroy runs when no call is in progress.
func (qp *QP) destroy() error {
	qp.mu.Lock()
	err := qp.tell()
	qp.mu.Unlock()
	qp.dev.notice(err)
	if err == nil || errors.Is(err, ErrDeviceGone) {
		qp.flush(context.Background(), "close qp", nil)
	}
	qp.timer.Stop()
	qp.mu.Lock()
	// Also after an error above: once it is destroyed, the device does not touch the
	// memory.
	qp.leaveGroups()
	err = qp.d.Close()
	qp.withCQs(func() {
		qp.keep()
		qp.sendCQ.flushAll(qp, &qp.sq)
		qp.recvCQ.flushAll(qp, &qp.rq)
		qp.dev.qps.release(qp.index, max(qp.sq.head.Load(), qp.rq.head.Load())+1)
	})
	qp.mu.Unlock()
	qp.dev.nums.remove(qp)
	if err != nil && qp.dev.isGone() && (errors.Is(err, ErrDeviceGone) || errors.Is(err, syscall.EIO)) {
		err = nil // the device took it along
	}
	return qp.fail("close qp", err)
}

// release lets go what the queue pair kept.
func (qp *QP) release() error {
	err := qp.unhold()
	if e := qp.pd.drop(); err == nil {
		err = e
	}
	return err
}
