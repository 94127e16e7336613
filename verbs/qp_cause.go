package verbs

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cause says why a queue pair left the working states. It is written without
// allocating, as that happens while completions are polled.
type cause struct {
	kind causeKind
	err  error           // causeError, or made of failed when it is asked for
	wc   CompletionError // causeFlush, causeCompletion
}

type causeKind uint8

const (
	causeNone       causeKind = iota
	causeFlush                // a flushed completion came first: something better may follow
	causeCompletion           // a completion that failed
	causeError
)

// destination is the peer, as far as it is known.
type destination struct {
	qpn ib.QPN
	gid ib.GID
}

// setCause remembers an error, if it is the first. weak: it is no news if completions
// have been flushed already.
func (qp *QP) setCause(err error, weak bool) {
	qp.causeMu.Lock()
	defer qp.causeMu.Unlock()
	if qp.cause.kind == causeNone || qp.cause.kind == causeFlush && !weak {
		qp.cause = cause{kind: causeError, err: err}
	}
}

func (qp *QP) clearCause() {
	qp.causeMu.Lock()
	defer qp.causeMu.Unlock()
	qp.cause = cause{}
}

// Err gives the first cause that took the queue pair out of the working states: a
// completion (*CompletionError), an asynchronous event, the connection manager (io.EOF:
// the peer disconnected), a call (ErrFailed), or Close (net.ErrClosed). It is nil before,
// and again after a Modify to RESET, or from SQE to RTS.
func (qp *QP) Err() error {
	if qp == nil || qp.name == nil {
		return errNil
	}
	qp.causeMu.Lock()
	defer qp.causeMu.Unlock()
	c := &qp.cause
	if c.err == nil && c.kind != causeNone {
		w := c.wc
		if qp.dest.qpn != 0 {
			w.Remote = fmt.Sprintf("QP %v at %v", qp.dest.qpn, qp.dest.gid.Addr())
		}
		c.err = &w
	}
	return c.err
}

// failedBy follows a failed completion. It does not allocate. The lock of its CQ is
// held.
func (qp *QP) failedBy(e *driver.WC, ent entry) {
	next := ib.StateError
	if qp.typ != ib.RC {
		switch {
		case ent.op.IsRecv() && e.Status == ib.StatusLocLen:
			return // a datagram that was too long: the queue pair lives
		case !ent.op.IsRecv() && e.Status != ib.StatusWRFlush:
			next = ib.StateSQE
		}
	}
	qp.causeMu.Lock()
	kind := causeCompletion
	if e.Status == ib.StatusWRFlush {
		kind = causeFlush
	}
	if k := qp.cause.kind; k == causeNone || k == causeFlush && kind != causeFlush {
		qp.cause = cause{kind: kind, wc: CompletionError{ID: ent.id, Opcode: ent.op, Status: e.Status, VendorErr: e.VendorErr, QPN: qp.num}}
	}
	qp.causeMu.Unlock()
	qp.left(next)
}

// left says that the device has moved the queue pair to an error state.
func (qp *QP) left(next ib.QPState) {
	for {
		s := ib.QPState(qp.state.Load())
		if s == ib.StateError || s == next || next == ib.StateSQE && s == ib.StateReset {
			return
		}
		if next == ib.StateError && s == ib.StateSQE {
			// A flush in SQE is of the send queue only.
			return
		}
		if qp.state.CompareAndSwap(uint32(s), uint32(next)) {
			qp.timer.Reset(time.Duration(qp.dev.flushLimit.Load()))
			if next == ib.StateError {
				qp.entered()
			}
			return
		}
	}
}

// lost follows an asynchronous event that ends the queue pair.
func (qp *QP) lost(err error) {
	qp.setCause(err, false)
	qp.left(ib.StateError)
}

// lose ends the queue pair because what it lives on is gone, its device or a CQ. What is
// outstanding completes now: nothing of it will come from the device.
func (qp *QP) lose(err error) {
	qp.setCause(err, false)
	qp.mu.Lock()
	if errors.Is(err, ErrDeviceGone) {
		qp.told = true
		qp.state.Store(uint32(ib.StateError))
		qp.entered()
	}
	if qp.tell() == nil {
		qp.withCQs(func() {
			qp.keep()
			qp.sendCQ.flushAll(qp, &qp.sq)
			qp.recvCQ.flushAll(qp, &qp.rq)
		})
	}
	qp.mu.Unlock()
	qp.wakeCQs()
}
