package transport

import (
	"encoding/binary"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// receiveResponse takes a packet of the peer's responder (IBTA Vol 1 §9.7.5.1, §9.7.7).
func (q *QP) receiveResponse(now time.Duration, p *wire.Packet) {
	r := &q.req
	if q.state == ib.StateRTR {
		q.drop(DropState)
		return
	}
	s := r.una.near(p.PSN)
	if s >= r.max {
		q.drop(DropUnsent)
		return
	}
	if p.Opcode != wire.RCAcknowledge {
		q.receiveData(now, p, s)
		return
	}
	switch syn := p.AETH.Syndrome; syn.Kind() {
	case wire.AckOK:
		if s < r.una {
			q.drop(DropOld)
			return
		}
		if q.acknowledge(now, s+1) {
			q.lossReported(now) // an implied NAK (§9.7.5.1.2)
		}
	case wire.AckRNR:
		q.receiveRNR(now, s, syn)
	case wire.AckNAK:
		q.receiveNAK(now, s, syn)
	default:
		q.drop(DropSyndrome)
	}
}

// receiveNAK takes a negative acknowledgement of packet s: everything before it is
// acknowledged (§9.7.5.2).
func (q *QP) receiveNAK(now time.Duration, s seq, syn wire.Syndrome) {
	r := &q.req
	var st ib.Status
	switch syn {
	case wire.NAKSequence:
		q.stats.NAKsReceived++
	case wire.NAKInvalid:
		st = ib.StatusRemInvReq
	case wire.NAKAccess:
		st = ib.StatusRemAccess
	case wire.NAKOperation:
		st = ib.StatusRemOp
	default: // reserved, or of the reliable datagram
		q.drop(DropSyndrome)
		return
	}
	if s < r.una {
		// The peer may have refused to repeat a part of a READ that has come meanwhile. It is
		// mute from then on, so the rest will not come.
		if st != ib.StatusSuccess && q.reading(s) {
			q.failSend(st, uint32(syn))
			return
		}
		q.drop(DropOld)
		return
	}
	if q.acknowledge(now, s) {
		// Responses of READs before it were lost. The peer gave them before the NAK, so
		// asking again can do no harm. But of a READ that has failed nothing more will come,
		// as the peer is in the error state.
		if st == ib.StatusSuccess || s >= q.sq.wqe(q.sq.head).end() {
			q.lossReported(now)
			return
		}
	}
	if st != ib.StatusSuccess {
		q.failSend(st, uint32(syn))
		return
	}
	q.lossReported(now)
}

// reading says whether packet s is one of the READ that is being answered.
func (q *QP) reading(s seq) bool {
	if q.sq.head == q.sq.next {
		return false
	}
	return requests[q.sq.slot(q.sq.head).Opcode].reads && s >= q.sq.wqe(q.sq.head).first
}

// receiveRNR takes the report that packet s found no receive (§9.7.5.2.8). The wait
// begins with the first such report.
func (q *QP) receiveRNR(now time.Duration, s seq, syn wire.Syndrome) {
	r, t := &q.req, &q.retry
	if s < r.una {
		q.drop(DropOld)
		return
	}
	if t.rnrUntil != never {
		q.drop(DropSyndrome)
		return
	}
	q.stats.RNRsReceived++
	if q.acknowledge(now, s) {
		q.lossReported(now)
		return
	}
	if t.rnrLeft == 0 {
		q.failSend(ib.StatusRNRRetryExc, uint32(syn))
		return
	}
	if t.rnrLeft != 7 {
		t.rnrLeft--
	}
	q.goBack()
	r.cautious = true // one packet, until the peer takes it
	t.stop()
	t.rnrUntil = now + syn.RNRTime()
}

// acknowledge takes everything before to as received by the peer. It stops at a READ or
// atomic whose response did not come: that such an acknowledgement passes over it says
// that the response was lost, which is the result.
func (q *QP) acknowledge(now time.Duration, to seq) (implied bool) {
	r, s := &q.req, &q.sq
	was := r.una
	var cost uint64
	for r.una < to && s.head != s.next {
		w := s.wqe(s.head)
		if requests[s.slot(s.head).Opcode].reads {
			implied = true
			to = r.una
			break
		}
		if w.end() > to {
			cost += q.cost(w, r.una, min(to, r.send))
			break
		}
		cost += q.cost(w, r.una, min(w.end(), r.send))
		r.una = w.end()
		q.finishSend(ib.StatusSuccess, 0)
	}
	r.una = max(r.una, to)
	if r.una != was {
		q.moved(now, cost)
	}
	return implied
}

// moved puts the requester right after una has moved on; cost is what was in flight of
// the packets that it passed.
func (q *QP) moved(now time.Duration, cost uint64) {
	r := &q.req
	r.inflight -= cost
	r.send = max(r.send, r.una)
	if int32(r.cur-q.sq.head) < 0 {
		r.cur = q.sq.head
	}
	for r.askHead != r.askTail && r.oldestAsked().end <= r.una {
		r.askHead++
	}
	q.progressed(now, cost)
	q.noteDrained()
}

// receiveData takes a READ response or the answer to an atomic, with number s. Only the
// one that is next in order is used: any other is a copy, or shows that one is missing
// (§9.7.7.1).
func (q *QP) receiveData(now time.Duration, p *wire.Packet, s seq) {
	r := &q.req
	if s < r.una {
		q.drop(DropOld)
		return
	}
	if q.acknowledge(now, s) {
		q.drop(DropOutOfOrder)
		q.lossReported(now)
		return
	}
	// Now s is una, and belongs to the oldest request.
	i := q.sq.head
	w, slot := q.sq.wqe(i), q.sq.slot(i)
	atomic := p.Opcode == wire.RCAtomicAck
	if !requests[slot.Opcode].reads || atomic == (slot.Opcode == ib.OpRead) {
		q.failSend(ib.StatusBadResp, uint32(p.Opcode))
		return
	}
	if p.Opcode != wire.RCReadRespMiddle && p.AETH.Syndrome.Kind() != wire.AckOK {
		q.drop(DropSyndrome)
		return
	}
	off := uint32(s-w.first) * q.mtu
	data := p.Payload
	if atomic {
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], p.AtomicAck) // a number of this side
		data = b[:]
	} else if !q.fitsRead(p.Opcode, w, s, uint32(len(data))) {
		q.failSend(ib.StatusBadResp, uint32(p.Opcode))
		return
	}
	if r.scatteredOf != i {
		r.scattered, r.scatteredOf = cursor{}, i
	}
	if f := q.scatter(slot.SGL, &r.scattered, off, data); f != mem.OK {
		q.failSend(ib.StatusLocProt, uint32(f))
		return
	}
	var cost uint64
	if s < r.send {
		cost = q.cost(w, s, s+1)
	}
	r.una = s + 1
	if r.una == w.end() {
		r.reads--
		q.finishSend(ib.StatusSuccess, 0)
	}
	q.moved(now, cost)
}

// fitsRead checks length and place of a READ response (C-140). Every packet but the
// last of the whole READ is full. Where in its READ request a packet stands is known
// unless the request was repeated from another place: then responses to both may come.
func (q *QP) fitsRead(op wire.Opcode, w *wqe, s seq, n uint32) bool {
	if n != min(q.mtu, w.len-uint32(s-w.first)*q.mtu) {
		return false
	}
	c := op.Flags()
	if s+1 == w.end() && c&wire.IsEnd == 0 {
		return false
	}
	if s < q.req.relaxed || q.req.askHead == q.req.askTail {
		return true
	}
	a := q.req.oldestAsked()
	return (s == a.start) == (c&wire.IsStart != 0) && (s+1 == a.end) == (c&wire.IsEnd != 0)
}
