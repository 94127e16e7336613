package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// replay remembers the last READs and atomics of the peer, max_dest_rd_atomic of them
// (IBTA Vol 1 §9.7.5.1.3, "responder resources"): to send their responses, part by
// part, and to send them again when the peer did not get them. A READ is executed when
// its response is made, from memory as it is then.
type replay struct {
	res        []resource
	head, tail uint64 // oldest, and next to be used; taken modulo len(res)
	sending    uint64 // oldest with a response to send, if pending is not 0
	pending    int    // how many have one
}

// resource is one READ or atomic. cur, end and run count packets of the response.
type resource struct {
	first  seq
	addr   uint64 // READ
	result uint64 // atomic: what was there
	rkey   ib.RKey
	len    uint32
	n      uint32
	cur    uint32 // next to be sent; end: nothing is to be sent
	end    uint32
	run    uint32 // first of the response that is being sent
	stop   uint32 // bytes up to the end of packet end-1
	msn    uint32
	atomic bool
	done   bool // all of the response was sent once
}

func (r *replay) at(i uint64) *resource { return &r.res[i%uint64(len(r.res))] }

// resize makes room for n, keeping the youngest.
func (r *replay) resize(n int) {
	if n == len(r.res) {
		return
	}
	res := make([]resource, n)
	for r.tail-r.head > uint64(n) {
		if x := r.at(r.head); x.cur != x.end {
			r.pending--
		}
		r.head++
	}
	for i := r.head; i < r.tail; i++ {
		res[i%uint64(n)] = *r.at(i)
	}
	r.res = res
	r.sending = max(r.sending, r.head)
	r.seek()
}

// add gives the place for a new READ or atomic. It fails if the peer has more of them
// outstanding than was agreed. If the oldest is only being repeated, the peer has its
// response by now: else it would not go on.
func (r *replay) add() *resource {
	if len(r.res) == 0 {
		return nil
	}
	if r.tail-r.head == uint64(len(r.res)) {
		if x := r.at(r.head); x.cur != x.end {
			if !x.done {
				return nil
			}
			x.end = x.cur
			r.pending--
			r.seek()
		}
		r.head++
	}
	r.tail++
	return r.at(r.tail - 1)
}

// seek moves sending to the oldest that has something to send.
func (r *replay) seek() {
	if r.pending == 0 {
		return
	}
	for x := r.at(r.sending); x.cur == x.end; x = r.at(r.sending) {
		r.sending++
	}
}

// send lets packets a to b of the response of number i be sent, up to byte stop, together
// with what is still to be sent of it.
func (r *replay) send(i uint64, a, b, stop uint32) {
	x := r.at(i)
	if x.cur == x.end {
		if r.pending == 0 || i < r.sending {
			r.sending = i
		}
		r.pending++
		x.end, x.stop = b, stop
	} else {
		a = min(a, x.cur)
		x.end, x.stop = max(b, x.end), max(stop, x.stop)
	}
	x.cur, x.run = a, a
}

// receiveRead takes a READ request (§9.7.4.1.4): key and range are checked at once, the
// response is made by Transmit.
func (q *QP) receiveRead(p *wire.Packet) {
	r := &q.resp
	h := &p.RETH
	if q.attr.Access&ib.RemoteRead == 0 || h.Len > MaxMessage || len(p.Payload) != 0 {
		q.refuse(wire.NAKInvalid, 0, true)
		return
	}
	if h.Len != 0 {
		if f := q.cfg.Memory.Check(uint32(h.RKey), q.cfg.Domain, h.Addr, int(h.Len), ib.RemoteRead); f != mem.OK {
			q.refuse(wire.NAKAccess, 0, true)
			return
		}
	}
	x := r.replay.add()
	if x == nil {
		q.refuse(wire.NAKInvalid, 0, true) // more than max_dest_rd_atomic (C-110)
		return
	}
	n := q.packets(h.Len)
	*x = resource{first: r.expected, addr: h.Addr, rkey: h.RKey, len: h.Len, n: n}
	q.acceptRead(x, n)
}

// acceptRead moves on behind a READ or atomic. Its response is its acknowledgement.
func (q *QP) acceptRead(x *resource, n uint32) {
	r := &q.resp
	r.expected += seq(n)
	r.msn++
	x.msn = r.msn
	r.replay.send(r.replay.tail-1, 0, n, x.len)
	if r.ack == owesAck {
		r.ack = owesNothing
	}
}

// receiveAtomic executes an atomic operation at once and keeps its result.
func (q *QP) receiveAtomic(p *wire.Packet) {
	r := &q.resp
	h := &p.Atomic
	if q.attr.Access&ib.RemoteAtomic == 0 || h.Addr&7 != 0 || len(p.Payload) != 0 {
		q.refuse(wire.NAKInvalid, 0, true) // C9-94 for the alignment
		return
	}
	if f := q.cfg.Memory.Check(uint32(h.RKey), q.cfg.Domain, h.Addr, 8, ib.RemoteAtomic); f != mem.OK {
		q.refuse(wire.NAKAccess, 0, true)
		return
	}
	x := r.replay.add()
	if x == nil {
		q.refuse(wire.NAKInvalid, 0, true)
		return
	}
	var old uint64
	var f mem.Fault
	if p.Opcode == wire.RCCompareSwap {
		old, f = q.cfg.Memory.CompareSwap(uint32(h.RKey), q.cfg.Domain, h.Addr, h.Compare, h.Swap)
	} else {
		old, f = q.cfg.Memory.FetchAdd(uint32(h.RKey), q.cfg.Domain, h.Addr, h.Swap)
	}
	if f != mem.OK {
		r.replay.tail--
		q.refuse(wire.NAKAccess, 0, true)
		return
	}
	*x = resource{first: r.expected, result: old, n: 1, atomic: true}
	q.acceptRead(x, 1)
}

// repeat answers a READ or atomic again. A READ may begin anywhere in the range of the
// original (§9.7.5.1.3, C9-105 and C9-106). What is still going to be sent anyhow is not sent
// twice.
func (q *QP) repeat(p *wire.Packet, s seq) {
	r := &q.resp.replay
	for i := r.tail; i > r.head; {
		i--
		x := r.at(i)
		if s < x.first || s >= x.first+seq(x.n) {
			continue
		}
		a := uint32(s - x.first)
		b, stop := a+1, uint32(0)
		if p.Opcode == wire.RCReadRequest {
			off := a * q.mtu
			if x.atomic || p.RETH.RKey != x.rkey || p.RETH.Addr != x.addr+uint64(off) || p.RETH.Len > x.len-off {
				break
			}
			b, stop = a+q.packets(p.RETH.Len), off+p.RETH.Len
		} else if !x.atomic {
			break
		}
		if x.cur != x.end && x.cur <= a && b <= x.end && stop <= x.stop {
			return
		}
		q.stats.ReadsRepeated++
		r.send(i, a, b, stop)
		return
	}
	q.drop(DropReplay)
}

// emitResponse sends the next packet of the oldest response. If the memory is gone, the
// peer gets a NAK in its place (§9.7.5.2.6).
func (q *QP) emitResponse(out *Output) (ok bool) {
	r := &q.resp.replay
	x := r.at(r.sending)
	t := &q.tx
	t.AckReq, t.Solicited = false, false
	t.PSN = (x.first + seq(x.cur)).psn()
	t.AETH = wire.AETH{Syndrome: wire.AckNoLimit, MSN: x.msn & uint32(ib.PSNMask)}
	if x.atomic {
		if !q.begin(out, 0) {
			return false
		}
		t.Opcode, t.AtomicAck = wire.RCAtomicAck, x.result
		q.end(out, t.AppendHeaders(out.Buf, 0), 0)
		q.responded(x)
		return true
	}
	off := x.cur * q.mtu
	n := min(q.mtu, x.stop-off)
	if !q.begin(out, n) {
		return false
	}
	first, last := x.cur == x.run, x.cur+1 == x.end
	switch {
	case first && last:
		t.Opcode = wire.RCReadRespOnly
	case first:
		t.Opcode = wire.RCReadRespFirst
	case last:
		t.Opcode = wire.RCReadRespLast
	default:
		t.Opcode = wire.RCReadRespMiddle
	}
	b := t.AppendHeaders(out.Buf, int(n))
	if n != 0 {
		m, src, f := q.cfg.Memory.Acquire(uint32(x.rkey), q.cfg.Domain, x.addr+uint64(off), int(n), ib.RemoteRead)
		if f != mem.OK {
			q.vanished(x)
			return true
		}
		b = append(b, src...)
		m.Release()
	}
	q.end(out, b, n)
	q.resp.burst += n
	q.responded(x)
	return true
}

func (q *QP) responded(x *resource) {
	r := &q.resp.replay
	if x.cur++; x.cur == x.end {
		x.done = x.done || x.end == x.n
		r.pending--
		r.seek()
	}
}

// vanished ends the queue pair because the memory of a READ went away under it. Nothing
// that the peer asked for later is answered any more.
func (q *QP) vanished(x *resource) {
	r := &q.resp
	r.replay.abandon()
	q.refuseAt(x.first+seq(x.cur), wire.NAKAccess, ib.StatusRemOp, true)
}

// abandon forgets all responses that are to be sent.
func (r *replay) abandon() {
	for i := r.head; i < r.tail; i++ {
		x := r.at(i)
		x.end = x.cur
	}
	r.pending = 0
}
