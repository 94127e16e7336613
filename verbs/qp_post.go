package verbs

import (
	"errors"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// postBatch is how many requests one call of the driver posts.
const postBatch = 64

// keepBytes is how much is posted between two looks at the clock, to let others run: a post
// to Soft-RoCE takes a part of a millisecond for so much.
const keepBytes = 64 << 10

// PostSend posts a request (ibv_post_send). It never blocks, copies the request,
// and does not allocate, not even if it fails. The memory that it names belongs to the
// device until its completion has been polled, inline data excepted.
//
// In the error state a request is taken, and completes with StatusWRFlush behind all
// before it: so a loop that answers what it receives meets the end where the completions
// tell it.
func (qp *QP) PostSend(wr SendWR) error {
	if qp == nil || qp.d == nil {
		return errNil
	}
	qp.mu.Lock()
	var err error
	if wr.Opcode == ib.OpBindMW {
		err = qp.postBind(&wr)
	} else {
		err = qp.postOne(&wr)
	}
	qp.posted(qp.sendCQ, err)
	return err
}

// PostSendList posts requests in order, in one call of the driver for up to 64. It
// gives the number posted; if that is less than len(wrs), the error is that of
// wrs[n].
func (qp *QP) PostSendList(wrs []SendWR) (n int, err error) {
	if qp == nil || qp.d == nil {
		return 0, errNil
	}
	qp.mu.Lock()
	n, err = qp.postSends(wrs)
	qp.posted(qp.sendCQ, err)
	return n, err
}

// PostRecv posts a receive request (ibv_post_recv). With an SRQ it fails: post there.
// See PostSend.
func (qp *QP) PostRecv(wr RecvWR) error {
	one := [1]RecvWR{wr}
	_, err := qp.PostRecvList(one[:])
	return err
}

// PostRecvList posts receive requests in order; see PostSendList.
func (qp *QP) PostRecvList(wrs []RecvWR) (n int, err error) {
	if qp == nil || qp.d == nil {
		return 0, errNil
	}
	qp.mu.Lock()
	n, err = qp.postRecvs(wrs)
	qp.posted(qp.recvCQ, err)
	return n, err
}

// posted ends a post: it gives qp.mu back and does what must not be done under it. err
// is that of the post.
func (qp *QP) posted(cq *CQ, err error) {
	staged, keep := qp.staged, qp.weight >= keepBytes
	qp.staged = false
	if keep {
		qp.weight = 0
	}
	qp.mu.Unlock()
	if staged {
		cq.wake()
	}
	if keep && cq.spinner != nil {
		cq.spin.pace.Keep() // as Poll does
	}
	if err == ErrDeviceGone {
		qp.dev.notice(err)
	}
}

// sends reports whether requests may be given to the device. If not, err is nil in the
// error states: then they are taken and flushed, except after the device is gone, where a
// post fails whoever noticed it first. qp.mu is held.
func (qp *QP) sends() (ok bool, err error) {
	if qp.closing || qp.sendCQ.closed() || qp.recvCQ.closed() {
		return false, ErrClosed
	}
	switch ib.QPState(qp.state.Load()) {
	case ib.StateRTS, ib.StateSQD:
		return true, nil
	case ib.StateError, ib.StateSQE:
		if qp.dev.isGone() {
			return false, ErrDeviceGone
		}
		return false, nil
	}
	return false, ErrState
}

// postOne is PostSend with qp.mu held: what postSends does, for one.
func (qp *QP) postOne(wr *SendWR) error {
	ok, err := qp.sends()
	if !ok {
		if err == nil {
			err = qp.flushSend(wr)
			qp.flushed(qp.sendCQ, &qp.sq)
		}
		return err
	}
	s := &qp.sq
	slots := qp.d.SendSlots()
	if len(slots) == 0 || s.room() == 0 {
		return ErrQueueFull
	}
	plain := s.plain
	if err := qp.writeSend(&slots[0], wr, s.head.Load()); err != nil {
		return err
	}
	s.publish(1)
	if posted, err := qp.d.CommitSend(1); posted < 1 {
		s.plain = plain
		s.retract(1, 0)
		return postErr(err)
	}
	return nil
}

// postSends is PostSendList with qp.mu held.
func (qp *QP) postSends(wrs []SendWR) (n int, err error) {
	for n < len(wrs) {
		ok, err := qp.sends()
		if !ok {
			for ; err == nil && n < len(wrs); n++ {
				if err = qp.flushSend(&wrs[n]); err != nil {
					break
				}
			}
			qp.flushed(qp.sendCQ, &qp.sq)
			return n, err
		}
		if wrs[n].Opcode == ib.OpBindMW {
			if err := qp.postBind(&wrs[n]); err != nil {
				return n, err
			}
			n++
			continue
		}
		s := &qp.sq
		slots := qp.d.SendSlots()
		k := min(len(slots), len(wrs)-n, s.room(), postBatch)
		if k == 0 {
			return n, ErrQueueFull
		}
		head, plain := s.head.Load(), s.plain
		var bad error
		for i := range k {
			if wrs[n+i].Opcode == ib.OpBindMW {
				k = i
				break
			}
			if bad = qp.writeSend(&slots[i], &wrs[n+i], head+uint64(i)); bad != nil {
				k = i
				break
			}
		}
		if k > 0 {
			s.publish(k)
			posted, err := qp.d.CommitSend(k)
			if posted < k {
				s.plain = plain
				for i := range posted {
					s.count(head + uint64(i))
				}
				s.retract(k, posted)
				return n + posted, postErr(err)
			}
			n += k
		}
		if bad != nil {
			return n, bad
		}
	}
	return n, nil
}

// count says that the device will complete a request, or not.
func (s *shadow) count(seq uint64) {
	if s.ents[seq&s.mask].f&entryCQE != 0 {
		s.plain = 0
	} else {
		s.plain++
	}
}

// postErr gives the error of a provider's post.
func postErr(err error) error {
	switch {
	case err == syscall.ENOMEM || err == syscall.EAGAIN || err == nil:
		return ErrQueueFull
	case errors.Is(err, ErrDeviceGone):
		return ErrDeviceGone
	}
	return err
}

// writeSend checks a request and writes it into a slot, with its entry. On error nothing
// is left of it.
func (qp *QP) writeSend(slot *driver.SendSlot, wr *SendWR, seq uint64) error {
	if wr.Opcode >= ib.Opcode(len(ops)) {
		return ErrBadOpcode
	}
	op := &ops[wr.Opcode]
	if op.types&(1<<qp.typ) == 0 {
		return ErrBadOpcode
	}
	s := &qp.sq
	flags := wr.Flags
	sgl, data := slot.SGL[:0], slot.Data[:0]
	total := uint64(0)
	switch {
	case op.f&(opNoLocal|opBind) != 0:
		flags &^= ib.Inline
	case flags&ib.Inline != 0 || len(wr.Data) > 0:
		if op.f&opReads != 0 {
			return ErrBadOpcode
		}
		flags |= ib.Inline
		var err error
		if data, err = qp.inline(data, wr); err != nil {
			return err
		}
		total = uint64(len(data))
	default:
		if wr.Local.len != 0 {
			if err := wr.Local.check(qp.pd, op.f&opReads != 0); err != nil {
				return err
			}
			if cap(sgl) == 0 {
				return ErrTooManySGE
			}
			sgl = append(sgl, driver.SGE{Addr: wr.Local.addr, Len: wr.Local.len, LKey: wr.Local.lkey})
			total = uint64(wr.Local.len)
		}
		for i := range wr.More {
			l := &wr.More[i]
			if l.len == 0 {
				continue // IBTA Vol 1 §10.7.2.1: no memory, no check
			}
			if err := l.check(qp.pd, op.f&opReads != 0); err != nil {
				return err
			}
			if len(sgl) == cap(sgl) {
				return ErrTooManySGE
			}
			sgl = append(sgl, driver.SGE{Addr: l.addr, Len: l.len, LKey: l.lkey})
			total += uint64(l.len)
		}
	}
	if total > qp.maxMessage {
		return ErrTooLong
	}
	qp.weight += total
	switch {
	case op.f&opBind != 0:
		if err := qp.writeBind(slot, wr); err != nil {
			return err
		}
	case op.f&opRemote != 0:
		switch {
		case op.f&opAtomic != 0 && (total != 8 || wr.Remote.Addr%8 != 0):
			return ErrAtomic
		case total > uint64(wr.Remote.Len):
			return ErrRemoteLen
		case op.f&opReads != 0 && qp.readDepth == 0:
			return ErrReadDepth
		}
		slot.Addr, slot.RKey = wr.Remote.Addr, wr.Remote.RKey
		slot.Compare, slot.Swap = wr.Compare, wr.Swap
	default:
		slot.RKey = wr.InvRKey
	}
	if qp.typ == ib.UD || wr.AH != nil {
		if err := qp.address(slot, wr, seq); err != nil {
			return err
		}
	}
	f := entryFlags(0)
	switch {
	case flags&ib.Signaled != 0 || qp.cfg.SignalAll:
		f = entrySignaled | entryCQE
	case s.plain+1 >= qp.plainMax:
		// Else the queue could fill up with requests whose places no completion gives back.
		flags |= ib.Signaled
		f = entryCQE
	}
	slot.ID = s.number(seq)
	slot.SGL, slot.Data = sgl, data
	slot.Imm = wr.Imm
	slot.Opcode = wr.Opcode
	slot.Flags = flags
	s.put(seq, wr.ID, op.wc, f)
	s.count(seq)
	return nil
}

// address writes where a datagram goes.
func (qp *QP) address(slot *driver.SendSlot, wr *SendWR, seq uint64) error {
	switch {
	case qp.typ != ib.UD || wr.AH == nil || wr.AH.name == nil:
		return ErrNoAH
	case wr.AH.pd != qp.pd:
		return ErrPDMismatch
	case !wr.AH.adopt():
		return ErrClosed
	}
	qp.sq.ahs[seq&qp.sq.mask] = wr.AH.self
	slot.AH, slot.QPN, slot.QKey = wr.AH.handle, wr.QPN, wr.QKey
	return nil
}

// inline copies the data of a request.
func (qp *QP) inline(dst []byte, wr *SendWR) ([]byte, error) {
	limit := min(cap(dst), qp.cfg.MaxInline)
	if len(wr.Data) > limit {
		return dst, ErrInlineSize
	}
	dst = append(dst, wr.Data...)
	for i := -1; i < len(wr.More); i++ {
		l := &wr.Local
		if i >= 0 {
			l = &wr.More[i]
		}
		if l.len == 0 {
			continue
		}
		if err := l.check(qp.pd, false); err != nil {
			return dst, err
		}
		off := l.addr - l.mr.base
		if off > uint64(len(l.mr.b)) || uint64(l.len) > uint64(len(l.mr.b))-off {
			return dst, ErrAccess // numbers, or memory of another device: nothing to copy
		}
		if int(l.len) > limit-len(dst) {
			return dst, ErrInlineSize
		}
		m := l.mr.self
		if !m.enter() { // Close frees the memory, and waits for who copies
			return dst, ErrClosed
		}
		dst = append(dst, m.b[off:off+uint64(l.len)]...)
		m.leave()
	}
	return dst, nil
}

// check says whether a piece of memory may be used in a domain, for reading or for
// writing.
func (l *SGE) check(pd *PD, write bool) error {
	m := l.mr
	switch {
	case m == nil:
		return ErrAccess
	case m.pd != pd:
		return ErrPDMismatch
	case write && m.access&ib.LocalWrite == 0:
		return ErrAccess
	case m.closed():
		return ErrClosed
	}
	return nil
}

// flushSend takes a request in the error state: it does not reach the device, and is
// completed as soon as all before it are.
func (qp *QP) flushSend(wr *SendWR) error {
	s := &qp.sq
	if wr.Opcode >= ib.Opcode(len(ops)) || ops[wr.Opcode].types&(1<<qp.typ) == 0 {
		return ErrBadOpcode
	}
	if s.room() == 0 {
		return ErrQueueFull
	}
	s.put(s.head.Load(), wr.ID, ops[wr.Opcode].wc, entrySignaled|entryLocal)
	s.detours.Add(1)
	s.publish(1)
	return nil
}

// flushed completes what was posted in the error state, if it is its turn: behind what the device
// has completed by now, of other queues as well, as if the device did it.
func (qp *QP) flushed(cq *CQ, s *shadow) {
	cq.mu.Lock()
	if s.localNext() {
		cq.keep()
	}
	cq.flushLocal(qp, s)
	qp.staged = qp.staged || cq.staged.len() > 0
	cq.mu.Unlock()
}

// postRecvs is PostRecvList with qp.mu held.
func (qp *QP) postRecvs(wrs []RecvWR) (n int, err error) {
	for n < len(wrs) {
		switch {
		case qp.closing || qp.sendCQ.closed() || qp.recvCQ.closed():
			return n, ErrClosed
		case qp.srq != nil:
			return n, ErrSRQ
		}
		switch ib.QPState(qp.state.Load()) {
		case ib.StateReset:
			return n, ErrState
		case ib.StateError:
			if qp.dev.isGone() {
				return n, ErrDeviceGone
			}
			return qp.flushRecvs(wrs, n)
		}
		s := &qp.rq
		slots := qp.d.RecvSlots()
		k := min(len(slots), len(wrs)-n, s.room(), postBatch)
		if k == 0 {
			return n, ErrQueueFull
		}
		head := s.head.Load()
		var bad error
		for i := range k {
			seq := head + uint64(i)
			wr := &wrs[n+i]
			if bad = writeRecv(&slots[i], wr, qp.pd); bad != nil {
				k = i
				break
			}
			slots[i].ID = s.number(seq)
			s.put(seq, wr.ID, ib.WCRecv, entrySignaled|entryCQE)
		}
		if k > 0 {
			s.publish(k)
			posted, err := qp.d.CommitRecv(k)
			if posted < k {
				s.retract(k, posted)
				return n + posted, postErr(err)
			}
			n += k
		}
		if bad != nil {
			return n, bad
		}
	}
	return n, nil
}

func (qp *QP) flushRecvs(wrs []RecvWR, n int) (int, error) {
	s := &qp.rq
	var bad error
	for ; n < len(wrs); n++ {
		if s.room() == 0 {
			bad = ErrQueueFull
			break
		}
		s.put(s.head.Load(), wrs[n].ID, ib.WCRecv, entrySignaled|entryLocal)
		s.detours.Add(1)
		s.publish(1)
	}
	qp.flushed(qp.recvCQ, s)
	return n, bad
}

// writeRecv checks the memory of a receive request and writes it into a slot.
func writeRecv(slot *driver.RecvSlot, wr *RecvWR, pd *PD) error {
	sgl := slot.SGL[:0]
	if wr.Local.len != 0 {
		if err := wr.Local.check(pd, true); err != nil {
			return err
		}
		if cap(sgl) == 0 {
			return ErrTooManySGE
		}
		sgl = append(sgl, driver.SGE{Addr: wr.Local.addr, Len: wr.Local.len, LKey: wr.Local.lkey})
	}
	for i := range wr.More {
		l := &wr.More[i]
		if l.len == 0 {
			continue
		}
		if err := l.check(pd, true); err != nil {
			return err
		}
		if len(sgl) == cap(sgl) {
			return ErrTooManySGE
		}
		sgl = append(sgl, driver.SGE{Addr: l.addr, Len: l.len, LKey: l.lkey})
	}
	slot.SGL = sgl
	return nil
}

// SendRoom and RecvRoom give how many more requests the queues take now.
// Unsignaled requests give their room back with the next that the device completes: at
// the latest each half of the queue there is one, whose completion the library keeps for
// itself. Completions give room back when they are polled.
func (qp *QP) SendRoom() int {
	if qp == nil || qp.d == nil {
		return 0
	}
	return qp.sq.room()
}

// RecvRoom: see SendRoom. With an SRQ it is 0.
func (qp *QP) RecvRoom() int {
	if qp == nil || qp.d == nil {
		return 0
	}
	return qp.rq.room()
}

// Outstanding gives the requests that were posted and are not complete. Completions that
// wait to be polled count as outstanding, unless the library has looked at them.
func (qp *QP) Outstanding() (send, recv int) {
	if qp == nil || qp.d == nil {
		return 0, 0
	}
	return max(qp.sq.outstanding()-int(qp.beacons.Load()), 0), qp.rq.outstanding()
}
