package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// responder executes the peer's requests in the order of their numbers (IBTA Vol 1
// §9.7.4) and owes it responses: those of READs and atomics in their order, and one
// acknowledgement, which comes after them and stands for all before it (coalescing,
// §9.7.5.1.2).
type responder struct {
	expected seq
	msn      uint32     // messages completed
	in       wire.Flags // wire.IsSend or wire.IsWrite inside a message, else 0
	got      uint32     // bytes of it so far
	taken    bool       // the oldest receive is being filled
	heard    bool       // COMM_EST was raised
	reported bool       // the gap at expected was reported
	closing  bool       // ERR because of the peer's request: the NAK is still owed
	starved  bool       // requests filled the last output
	burst    uint32     // bytes of READ responses sent without a pause
	resume   time.Duration

	// The WRITE that is being received.
	addr uint64
	rkey ib.RKey
	left uint32

	scattered cursor

	// plain is the packet behind the last one of a SEND or WRITE: acknowledgements name that
	// one, with its message number. One that names a READ says that the response was lost
	// (§9.7.5.1.2), but Linux' Soft-RoCE takes it for the response, and completes the READ
	// without its data.
	plain    seq
	plainMSN uint32

	ack    debt
	nak    wire.Syndrome
	nakSeq seq

	replay replay
}

// debt is what the peer is owed beside responses to READs and atomics.
type debt uint8

const (
	owesNothing debt = iota
	owesAck
	owesNAK // or an RNR NAK
)

func (r *responder) reset() {
	res := r.replay.res
	*r = responder{resume: never}
	r.replay.res = res
}

func (r *responder) owes() bool { return r.replay.pending != 0 || r.ack != owesNothing }

// withdraw leaves of what the peer is owed only the acknowledgement of what was
// executed before the oldest unanswered READ: what was delivered was delivered, but
// nothing more is read from memory.
func (r *responder) withdraw() {
	if r.closing {
		return
	}
	if r.replay.pending != 0 {
		x := r.replay.at(r.replay.sending)
		r.ack = owesNothing
		if x.cur == 0 && x.run == 0 {
			r.ack = owesAck
			r.expected = x.first
			if r.plain > x.first {
				r.plain, r.plainMSN = x.first, x.msn-1
			}
		}
		r.replay.abandon()
	}
	if r.ack == owesNAK {
		r.ack = owesNothing
	}
}

// receiveRequest takes a packet of the peer's requester.
func (q *QP) receiveRequest(p *wire.Packet, c wire.Flags) {
	r := &q.resp
	if q.state == ib.StateRTR && !r.heard {
		// §11.6.3.1.2: the peer is there although the connection manager has not said so.
		r.heard = true
		q.event(ib.EventCommEst)
	}
	s := r.expected.near(p.PSN)
	switch {
	case s > r.expected:
		// Something before it was lost: reported once (§9.7.5.1.4, C9-114).
		if r.reported {
			q.drop(DropGap)
			return
		}
		r.reported = true
		q.owe(wire.NAKSequence, r.expected)
		return
	case s < r.expected:
		q.receiveDuplicate(p, c, s)
		return
	}
	if r.reported || r.ack == owesNAK {
		// The report is out of date. If it was sent, the peer hears at once that the gap is
		// closed, perhaps by a packet that was only late: Linux' Soft-RoCE can stop for good
		// between a report and such a packet, until it is acknowledged.
		r.ack = owesAck
	}
	r.reported = false
	if r.in != 0 && (c&r.in == 0 || c&wire.IsStart != 0) || r.in == 0 && c&wire.IsStart == 0 {
		q.refuse(wire.NAKInvalid, ib.StatusRemInvReq, true) // §9.7.4.1.2, C9-75
		return
	}
	switch {
	case c&wire.IsSend != 0:
		q.receiveSend(p, c)
	case c&wire.IsWrite != 0:
		q.receiveWrite(p, c)
	case p.Opcode == wire.RCReadRequest:
		q.receiveRead(p)
	case c&wire.IsAtomic != 0:
		q.receiveAtomic(p)
	default:
		q.refuse(wire.NAKInvalid, 0, true) // FLUSH and others that are not offered (§9.7.4.1.3)
	}
}

// receiveDuplicate takes a request that was executed before (§9.7.5.1.3): SEND and
// WRITE are acknowledged again and not executed, READ is executed again, the result of
// an atomic is repeated.
func (q *QP) receiveDuplicate(p *wire.Packet, c wire.Flags, s seq) {
	q.stats.Duplicates++
	if p.Opcode == wire.RCReadRequest || c&wire.IsAtomic != 0 {
		q.repeat(p, s)
		return
	}
	if q.resp.ack == owesNothing {
		q.resp.ack = owesAck
	}
}

// owe makes a NAK for packet s the next thing that the peer gets after the responses
// to READs and atomics. It stands for an acknowledgement of all before s.
func (q *QP) owe(syn wire.Syndrome, s seq) {
	r := &q.resp
	r.ack, r.nak, r.nakSeq = owesNAK, syn, s
}

// accept moves on behind the packet that was executed, and n-1 more for a READ.
func (q *QP) accept(p *wire.Packet, n uint32, last bool) {
	r := &q.resp
	r.expected += seq(n)
	if last {
		r.msn++
	}
	r.plain, r.plainMSN = r.expected, r.msn
	if p.AckReq && r.ack == owesNothing {
		r.ack = owesAck
	}
}

// notReady answers a message that finds no receive (§9.7.5.2.8). Packets behind it are
// out of sequence, and known to be.
func (q *QP) notReady() {
	q.owe(wire.RNRNAK(q.attr.MinRNRTimer), q.resp.expected)
	q.resp.reported = true
}

// refuse ends the queue pair because of the packet that is expected: the peer gets a
// NAK with its number, and the receive in use, if there is one, gets st. An event tells
// what no completion tells.
func (q *QP) refuse(syn wire.Syndrome, st ib.Status, event bool) {
	q.refuseAt(q.resp.expected, syn, st, event)
}

// refuseAt is refuse for packet s.
func (q *QP) refuseAt(s seq, syn wire.Syndrome, st ib.Status, event bool) {
	r := &q.resp
	q.owe(syn, s)
	if r.taken {
		q.finishRecv(st, uint32(syn))
		r.taken = false
	}
	if event && !r.closing {
		// §11.6.3.2: errors that no completion of this side tells.
		switch syn {
		case wire.NAKInvalid:
			q.event(ib.EventQPReqErr)
		case wire.NAKAccess:
			q.event(ib.EventQPAccessErr)
		default:
			q.event(ib.EventQPFatal)
		}
	}
	r.closing = true
	q.enterError()
}

// fits checks the length of a packet's payload against its place in the message
// (§9.7.4.1.6, C9-92): FIRST and MIDDLE are full, LAST and ONLY are not more than full,
// and LAST is not empty.
func (q *QP) fits(c wire.Flags, n int) bool {
	m := int(q.mtu)
	switch {
	case c&wire.IsEnd == 0:
		return n == m
	case c&wire.IsStart == 0:
		return n >= 1 && n <= m
	default:
		return n <= m
	}
}

// receiveSend puts a packet of a SEND into the oldest receive.
func (q *QP) receiveSend(p *wire.Packet, c wire.Flags) {
	r := &q.resp
	if c&wire.IsStart != 0 {
		if q.rq.empty() {
			q.notReady()
			return
		}
		r.taken, r.got, r.scattered = true, 0, cursor{}
	}
	l := q.rq.first().SGL
	if n := len(p.Payload); n != 0 || !q.fits(c, n) {
		if !q.fits(c, n) || uint64(r.got)+uint64(n) > listLen(l) {
			q.refuse(wire.NAKInvalid, ib.StatusLocLen, false)
			return
		}
		if f := q.scatter(l, &r.scattered, r.got, p.Payload); f != mem.OK {
			q.refuse(wire.NAKOperation, ib.StatusLocProt, false)
			return
		}
		r.got += uint32(n)
	}
	if c&wire.IsEnd == 0 {
		r.in = wire.IsSend
		q.accept(p, 1, false)
		return
	}
	r.in = 0
	r.taken = false
	q.accept(p, 1, true)
	if c&wire.HasInv != 0 {
		if f := q.cfg.Memory.Invalidate(p.InvRKey, q.cfg.Domain); f != mem.OK {
			// The message arrived and is acknowledged; what it asked of this side's keys
			// was not possible (§9.9.3, responder class J; C-177).
			r.ack, r.closing = owesAck, true
			q.finishRecv(ib.StatusRemInvReq, uint32(f))
			q.enterError()
			return
		}
	}
	d := q.finishRecv(ib.StatusSuccess, 0)
	d.ByteLen = r.got
	d.Solicited = p.Solicited
	switch {
	case c&wire.HasImm != 0:
		d.Imm, d.Flags = p.Imm, ib.WithImm
	case c&wire.HasInv != 0:
		d.Imm, d.Flags = uint32(p.InvRKey), ib.WithInv
	}
}

// receiveWrite puts a packet of a WRITE into memory. Key and range of the whole message
// are checked with its first packet, and those of each packet again when it is copied.
func (q *QP) receiveWrite(p *wire.Packet, c wire.Flags) {
	r := &q.resp
	n := uint32(len(p.Payload))
	if c&wire.IsStart != 0 {
		if q.attr.Access&ib.RemoteWrite == 0 || p.RETH.Len > MaxMessage {
			q.refuse(wire.NAKInvalid, 0, true)
			return
		}
		r.addr, r.rkey, r.left, r.got = p.RETH.Addr, p.RETH.RKey, p.RETH.Len, 0
	}
	// What was announced and what comes must agree (C9-100).
	if !q.fits(c, int(n)) || n > r.left || (n == r.left) != (c&wire.IsEnd != 0) {
		q.refuse(wire.NAKInvalid, 0, true)
		return
	}
	if c&wire.HasImm != 0 && q.rq.empty() {
		q.notReady()
		return
	}
	if r.left != 0 {
		if c&wire.IsFirst != 0 {
			if f := q.cfg.Memory.Check(uint32(r.rkey), q.cfg.Domain, r.addr, int(r.left), ib.RemoteWrite); f != mem.OK {
				q.refuse(wire.NAKAccess, 0, true)
				return
			}
		}
		m, dst, f := q.cfg.Memory.Acquire(uint32(r.rkey), q.cfg.Domain, r.addr, int(n), ib.RemoteWrite)
		if f != mem.OK {
			q.refuse(wire.NAKAccess, 0, true)
			return
		}
		copy(dst, p.Payload)
		m.Release()
		r.addr += uint64(n)
		r.left -= n
		r.got += n
	}
	if c&wire.IsEnd == 0 {
		r.in = wire.IsWrite
		q.accept(p, 1, false)
		return
	}
	r.in = 0
	q.accept(p, 1, true)
	if c&wire.HasImm != 0 {
		d := q.finishRecv(ib.StatusSuccess, 0)
		d.Opcode = ib.WCRecvWriteImm
		d.ByteLen = r.got
		d.Imm, d.Flags = p.Imm, ib.WithImm
		d.Solicited = p.Solicited
	}
}

// transmitResponses sends what the peer is owed, in the order of its requests. A long
// READ response is cut by pauses, so that the owner can do something else, and a peer
// that asks for gigabytes gets them at a bounded rate.
func (q *QP) transmitResponses(now time.Duration, out *Output) (more bool) {
	r := &q.resp
	if !r.owes() && !q.cc.owesCNP {
		return false
	}
	switch q.state {
	case ib.StateRTR, ib.StateRTS, ib.StateSQD:
	case ib.StateError:
		q.cc.owesCNP = false
	default:
		return false
	}
	for r.replay.pending != 0 {
		if r.resume != never {
			return false
		}
		if uint64(r.burst) >= max(maxBurst, q.cc.peer) {
			r.resume = now + burstPause
			return false
		}
		if !q.emitResponse(out) {
			return true
		}
	}
	r.burst = 0
	if r.ack != owesNothing {
		if !q.begin(out, 0) {
			return true
		}
		t := &q.tx
		t.Opcode, t.AckReq, t.Solicited = wire.RCAcknowledge, false, false
		t.AETH = wire.AETH{Syndrome: wire.AckNoLimit, MSN: r.msn & uint32(ib.PSNMask)}
		if r.ack == owesAck {
			t.PSN = (r.plain - 1).psn()
			t.AETH.MSN = r.plainMSN & uint32(ib.PSNMask)
			q.stats.AcksSent++
		} else {
			t.PSN = r.nakSeq.psn()
			t.AETH.Syndrome = r.nak
			if r.nak.Kind() == wire.AckRNR {
				q.stats.RNRsSent++
			} else {
				q.stats.NAKsSent++
			}
		}
		q.end(out, t.AppendHeaders(out.Buf, 0), 0)
		r.ack = owesNothing
		r.closing = false
	}
	if q.cc.owesCNP && !q.emitCNP(out) {
		return true
	}
	return false
}
