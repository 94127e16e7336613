package verbs

import (
	"errors"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Poll fills dst with completions that are there and gives their number
// (ibv_poll_cq); fewer than len(dst) means that there are no more. It never blocks and
// does not allocate. The error is not that of a request (see WC.Err): it means that the
// queue itself is broken or closed, and comes when no completion is left.
//
// After a queue pair's Close no Poll gives a completion of it; but dst may have some from
// before: who closes one because of a completion must pass over the others of the batch.
//
// On devices of the kernel a goroutine that polls and posts without end lets others run every
// few milliseconds (runtime.Gosched, in these calls): else Go's monitor takes its processor
// away in the middle of calls of C, again and again.
func (cq *CQ) Poll(dst []WC) (int, error) {
	if cq == nil || cq.d == nil {
		return 0, errNil
	}
	cq.mu.Lock()
	n, err := cq.take(dst)
	bad := cq.broken != nil && !cq.failed
	cq.polls++
	calls := cq.polls
	cq.mu.Unlock()
	if bad {
		return cq.follow(dst, n)
	}
	if calls%keepPolls == 0 && cq.spinner != nil {
		cq.spin.pace.Keep()
	}
	return n, err
}

// keepPolls is how often Poll looks at the clock, to let others run, if it calls C.
const keepPolls = 64

// follow is what happens when the provider says that the queue is broken: its queue pairs
// fail, and what they lost is completed. dst has n completions already.
func (cq *CQ) follow(dst []WC, n int) (int, error) {
	cq.mu.Lock()
	cause := cq.broken
	cq.mu.Unlock()
	report := opError("poll", cq.dev, cq.describe(), cause)
	cq.mu.Lock()
	cq.report = report
	cq.mu.Unlock()
	if errors.Is(cause, ErrDeviceGone) {
		cq.mu.Lock()
		cq.failed = true
		cq.mu.Unlock()
		cq.dev.notice(cause)
	} else {
		cq.overran(cause)
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	m, err := cq.take(dst[n:])
	if n+m > 0 {
		return n + m, nil
	}
	return 0, err
}

// take fills dst. The error comes only without a completion. cq.mu is held.
func (cq *CQ) take(dst []WC) (int, error) {
	if cq.shut {
		return 0, ErrClosed
	}
	n := 0
	for {
		if cq.staged.len() > 0 {
			n += cq.staged.take(dst[n:])
		}
		if n == len(dst) {
			return n, nil
		}
		if len(cq.pending) == 0 && !cq.fetch() {
			if n == 0 && cq.broken != nil {
				return 0, cq.brokenErr()
			}
			return n, nil
		}
		n += cq.convert(dst[n:])
	}
}

func (cq *CQ) brokenErr() error {
	if cq.report != nil {
		return cq.report
	}
	return cq.broken
}

// fetch asks the provider; false: there is nothing. cq.mu is held.
func (cq *CQ) fetch() bool {
	if cq.broken != nil {
		return false
	}
	p, err := cq.d.Poll()
	if err != nil {
		cq.broken = err
	}
	cq.pending = p
	return len(p) > 0
}

// convert turns what the provider gave into completions. cq.mu is held.
func (cq *CQ) convert(dst []WC) int {
	p := cq.pending
	n, i := 0, 0
	for ; i < len(p) && n < len(dst); i++ {
		if cq.finish(&p[i], &dst[n]) {
			n++
		}
	}
	cq.pending = p[i:]
	return n
}

// keep moves everything that the provider has to the staging area, so that it is counted
// as complete before somebody asks for it. cq.mu is held.
func (cq *CQ) keep() {
	var w WC
	for len(cq.pending) > 0 || cq.fetch() {
		for i := range cq.pending {
			if cq.finish(&cq.pending[i], &w) {
				cq.stage(w)
			}
		}
		cq.pending = nil
	}
}

// stage adds a completion that the next Poll gives first. cq.mu is held.
func (cq *CQ) stage(w WC) {
	if !cq.shut {
		cq.staged.push(w)
	}
}

// finish takes the entry of a request out of its queue pair's memory and fills in w. It
// reports whether the completion is for the caller: not if it is stale or double, if the
// library asked for it, or if the queue pair is being closed. cq.mu is held.
func (cq *CQ) finish(e *driver.WC, w *WC) bool {
	index := uint32(e.ID>>indexShift) & (maxIndex - 1)
	var qp *QP
	var s *shadow
	switch e.ID >> kindShift {
	case kindSend:
		if qp = cq.dev.qps.get(index); qp == nil || qp.sendCQ != cq {
			return false
		}
		s = &qp.sq
	case kindRecv:
		if qp = cq.dev.qps.get(index); qp == nil || qp.recvCQ != cq {
			return false
		}
		s = &qp.rq
	default:
		return cq.finishShared(e, w, index)
	}
	ent, ok := s.retire(e.ID)
	if !ok {
		return false
	}
	give := !qp.silent && ent.f&entryBeacon == 0 && (e.Status != ib.StatusSuccess || ent.f&entrySignaled != 0)
	if give {
		fill(w, e, qp, ent)
	}
	if e.Status != ib.StatusSuccess && ent.f&entryBeacon == 0 {
		qp.failedBy(e, ent)
	}
	if s.detours.Load() != 0 {
		if s == &qp.rq && e.Status == ib.StatusSuccess {
			qp.received()
		}
		cq.flushLocal(qp, s)
	}
	return give
}

// fill makes a completion of the provider's. What is not valid in a failed one, or of a
// send, is zero.
func fill(w *WC, e *driver.WC, qp *QP, ent entry) {
	w.ID = ent.id
	w.QP = qp
	w.VendorErr = e.VendorErr
	w.Status = e.Status
	w.Opcode = ent.op
	w.Synthetic = false
	w.Imm, w.InvRKey, w.Flags = 0, 0, 0
	w.SrcQPN, w.SL, w.PathBits, w.SLID, w.PKeyIndex = 0, 0, 0, 0, 0
	if e.Status != ib.StatusSuccess {
		w.ByteLen = 0
		return
	}
	w.ByteLen = e.ByteLen
	if !ent.op.IsRecv() {
		return
	}
	w.Opcode = e.Opcode
	w.Flags = e.Flags
	w.Imm = e.Imm
	if e.Flags&ib.WithInv != 0 {
		w.Imm, w.InvRKey = 0, ib.RKey(e.Imm)
	}
	w.SrcQPN, w.SL, w.PathBits, w.SLID, w.PKeyIndex = e.SrcQPN, e.SL, e.PathBits, e.SLID, e.PKeyIndex
}

// flushLocal completes the requests that were posted in the error state, as far as all
// before them are complete. cq.mu is held.
func (cq *CQ) flushLocal(qp *QP, s *shadow) {
	for s.localNext() {
		cq.synthesize(qp, s.pop())
	}
}

// flushAll completes all that is outstanding in a queue. The queue pair's lock and cq.mu
// are held.
func (cq *CQ) flushAll(qp *QP, s *shadow) {
	for s.outstanding() > 0 {
		cq.synthesize(qp, s.pop())
	}
}

// synthesize gives a completion that the device does not. cq.mu is held.
func (cq *CQ) synthesize(qp *QP, e entry) {
	if qp.silent || e.done || e.f&entryBeacon != 0 {
		return
	}
	cq.stage(WC{ID: e.id, QP: qp, Status: ib.StatusWRFlush, Opcode: e.op, Synthetic: true})
}
