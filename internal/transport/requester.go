package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// requester turns posted requests into packets (IBTA Vol 1 §9.7.3, §9.7.5.1). Every
// packet is made from its sequence number, its request and memory; nothing that was sent
// is kept. So to send again is to move send back.
type requester struct {
	una  seq // oldest that is not acknowledged
	send seq // next to be sent
	max  seq // above everything ever sent: acknowledgements from here on are forged
	next seq // first of the next request to be started

	cur      uint32 // index of the request that has send; sq.next if there is none
	reads    uint32 // READs and atomics started and not complete
	inflight uint64 // cost of what is in una .. send

	// What was asked of the peer since the last go-back: one span for each READ request
	// and atomic that waits for its response, of which there are at most max_rd_atomic.
	asked            []span
	askHead, askTail uint32
	relaxed          seq // below it responses to older requests may come
	sinceAck         int // packets since the last with AckReq
	cautious         bool
	gathered         cursor
	gatheredOf       uint32
	scattered        cursor
	scatteredOf      uint32
	_                [0]func() // not comparable
}

// span is a range of sequence numbers, end excluded.
type span struct{ start, end seq }

func (r *requester) reset() {
	asked := r.asked
	*r = requester{asked: asked}
}

func (r *requester) begin(p ib.PSN) {
	s := firstSeq(p)
	r.una, r.send, r.max, r.next, r.relaxed = s, s, s, s, s
}

// outstanding reports whether the peer owes an answer.
func (r *requester) outstanding() bool { return r.una != r.send }

func (r *requester) askedNow() uint32 { return r.askTail - r.askHead }

func (r *requester) ask(s span) {
	r.asked[r.askTail&uint32(len(r.asked)-1)] = s
	r.askTail++
}

func (r *requester) oldestAsked() *span { return &r.asked[r.askHead&uint32(len(r.asked)-1)] }

// sendable reports whether transmitRequests would probably send something.
func (q *QP) sendable() bool {
	r := &q.req
	if q.state != ib.StateRTS && q.state != ib.StateSQD || q.retry.rnrUntil != never {
		return false
	}
	if q.retry.probe {
		return true
	}
	i := r.cur
	if i == q.sq.next {
		if q.state != ib.StateRTS || i == q.sq.tail || !q.mayStart() {
			return false
		}
	}
	if p := q.sq.slot(i); int(p.Opcode) < len(requests) && requests[p.Opcode].reads && r.askedNow() >= uint32(q.attr.MaxRDAtomic) {
		return false
	}
	return r.inflight == 0 || !r.cautious && r.inflight+packetOverhead <= q.cc.limit()
}

// transmitRequests sends as much of the send queue as window, fences and out allow.
func (q *QP) transmitRequests(now time.Duration, out *Output) (more bool) {
	r := &q.req
	if q.state != ib.StateRTS && q.state != ib.StateSQD || q.retry.rnrUntil != never {
		return false
	}
	if q.retry.probe && q.sendProbe(out) {
		return true
	}
	more = q.sendWindow(now, out)
	if r.outstanding() {
		q.arm(now)
	}
	return more
}

// sendWindow sends requests until the window is full, or something must be waited for.
func (q *QP) sendWindow(now time.Duration, out *Output) (more bool) {
	r := &q.req
	limit := q.cc.limit()
	psns := q.cc.psns()
	for {
		if r.cur == q.sq.next {
			if !q.start() {
				break
			}
			continue
		}
		w := q.sq.wqe(r.cur)
		if r.send >= w.end() {
			r.cur++
			continue
		}
		p := q.sq.slot(r.cur)
		op := &requests[p.Opcode]
		n := uint32(1) // packets that this one takes of the window
		if op.reads {
			if r.askedNow() >= uint32(q.attr.MaxRDAtomic) {
				break // IBTA Vol 1 §9.7.3.1: outstanding READs are bounded
			}
			if p.Opcode == ib.OpRead {
				n = q.readPart(w, r.send)
			}
		}
		cost := q.cost(w, r.send, r.send+seq(n))
		if r.inflight != 0 && (r.cautious || r.inflight+cost > limit || uint64(r.send-r.una)+uint64(n) > psns) {
			break
		}
		payload := q.payload(p, w, r.send)
		if !q.begin(out, payload) {
			return true
		}
		last := r.send+seq(n) == w.end()
		r.sinceAck++
		ack := last || r.sinceAck >= ackEvery || r.cautious || op.reads ||
			r.inflight+cost+uint64(q.mtu)+packetOverhead > limit || uint64(r.send-r.una)+2 > psns
		if f := q.emit(out, r.cur, r.send, n, ack); f != mem.OK {
			// The memory vanished since the check. What was sent before must be
			// complete first, so that this request can fail in its turn.
			if r.cur == q.sq.head {
				q.failSend(ib.StatusLocProt, uint32(f))
			}
			break
		}
		if r.send < r.max {
			q.stats.Retransmits++
		}
		if ack {
			r.sinceAck = 0
			q.timeRoundTrip(now, r.send)
		}
		if op.reads {
			r.ask(span{r.send, r.send + seq(n)})
		}
		r.inflight += cost
		r.send += seq(n)
		r.max = max(r.max, r.send)
	}
	return false
}

// mayStart reports whether the next request need not wait for earlier ones: a fenced
// one for READs and atomics (IBTA Vol 1 §10.8.3.3), LOCAL_INV and BIND_MW for all.
func (q *QP) mayStart() bool {
	p := q.sq.slot(q.sq.next)
	if p.Flags&ib.Fence != 0 && q.req.reads != 0 {
		return false
	}
	return !ofKeys(p.Opcode) || q.sq.head == q.sq.next
}

// start gives the next posted request its sequence numbers. A request that cannot be
// done fails here before anything of it is sent, but only when all before it are
// complete. It reports whether to go on.
func (q *QP) start() bool {
	s, r := &q.sq, &q.req
	if q.state != ib.StateRTS || s.next == s.tail || !q.mayStart() {
		return false
	}
	p := s.slot(s.next)
	n, st, f := q.examine(p)
	if st != ib.StatusSuccess {
		if s.head == s.next {
			s.next++
			q.failSend(st, uint32(f))
		}
		return false
	}
	w := s.wqe(s.next)
	w.first, w.len = r.next, n
	s.next++
	if ofKeys(p.Opcode) {
		w.n = 0
		if st, f := q.changeKeys(p); f != mem.OK {
			q.failSend(st, uint32(f))
			return false
		}
		r.cur++
		q.finishSend(ib.StatusSuccess, 0)
		q.noteDrained()
		return true
	}
	w.n = q.packets(n)
	r.next += seq(w.n)
	if requests[p.Opcode].reads {
		r.reads++
		n := q.cc.readPackets(q.mtu, q.attr.MaxRDAtomic)
		w.parts = [2]parts{{0, n}, {0, n}}
	}
	return true
}

// changeKeys invalidates a key, or binds a window.
func (q *QP) changeKeys(p *driver.SendSlot) (ib.Status, mem.Fault) {
	if p.Opcode == ib.OpBindMW {
		return ib.StatusMWBind, q.cfg.Bind(p)
	}
	return ib.StatusLocQPOp, q.cfg.Memory.Invalidate(p.RKey, q.cfg.Domain)
}

// readPart gives the packets that the READ request at s asks for. A long READ is asked
// for in parts, as the window allows, with the sequence numbers of the one READ. For the
// peer each part is a READ of its own, and what is asked for again must not leave it
// (§9.7.5.1.3). So every request goes to the end of its part, and only what was never
// asked for is cut in another way: when the window has changed, and all that was cut in
// the way before the last has arrived.
func (q *QP) readPart(w *wqe, s seq) uint32 {
	r := &q.req
	at := uint32(s - w.first)
	c := &w.parts
	if s == r.max && r.una >= w.first+seq(c[1].base) {
		if n := q.cc.readPackets(q.mtu, q.attr.MaxRDAtomic); n != c[1].size {
			c[0], c[1] = c[1], parts{at, n}
		}
	}
	p, end := c[1], w.n
	if at < p.base {
		p, end = c[0], p.base
	}
	return min(end-at, p.size-(at-p.base)%p.size)
}

// partStart gives the first packet of the part of a READ in which packet s lies.
func (q *QP) partStart(w *wqe, s seq) seq {
	at := uint32(s - w.first)
	p := w.parts[1]
	if at < p.base {
		p = w.parts[0]
	}
	return s - seq((at-p.base)%p.size)
}

// packets gives the number of packets of a message of n bytes (IBTA Vol 1 §9.7.2).
func (q *QP) packets(n uint32) uint32 {
	if n <= q.mtu {
		return 1
	}
	return (n-1)/q.mtu + 1
}

// examine checks a request before its first packet and gives its length.
func (q *QP) examine(p *driver.SendSlot) (n uint32, st ib.Status, f mem.Fault) {
	if int(p.Opcode) >= len(requests) || !requests[p.Opcode].ok {
		return 0, ib.StatusLocQPOp, mem.OK
	}
	op := &requests[p.Opcode]
	if ofKeys(p.Opcode) {
		if p.Opcode == ib.OpBindMW && q.cfg.Bind == nil {
			return 0, ib.StatusLocQPOp, mem.OK
		}
		return 0, ib.StatusSuccess, mem.OK
	}
	if op.reads && q.attr.MaxRDAtomic == 0 {
		return 0, ib.StatusLocQPOp, mem.OK // it would wait for ever (C-126)
	}
	if inline(p) {
		return uint32(len(p.Data)), ib.StatusSuccess, mem.OK
	}
	l := listLen(p.SGL)
	if l > MaxMessage {
		return 0, ib.StatusLocLen, mem.OK
	}
	if p.Opcode == ib.OpCompareSwap || p.Opcode == ib.OpFetchAdd {
		if l != 8 {
			return 0, ib.StatusLocLen, mem.OK
		}
		if p.Addr&7 != 0 {
			return 0, ib.StatusLocQPOp, mem.OK
		}
	}
	var need ib.Access
	if op.writes {
		need = ib.LocalWrite
	} else if l <= uint64(q.mtu) {
		return uint32(l), ib.StatusSuccess, mem.OK // its only packet will show
	}
	if f := q.checkList(p.SGL, need); f != mem.OK {
		return 0, ib.StatusLocProt, f
	}
	return uint32(l), ib.StatusSuccess, mem.OK
}

// inline reports whether the message is in the slot. The flag means nothing for
// requests that write to local memory.
func inline(p *driver.SendSlot) bool {
	return p.Flags&ib.Inline != 0 && !requests[p.Opcode].writes
}

// payload gives the bytes that the packet s of w carries.
func (q *QP) payload(p *driver.SendSlot, w *wqe, s seq) uint32 {
	if requests[p.Opcode].reads {
		return 0
	}
	return min(q.mtu, w.len-uint32(s-w.first)*q.mtu)
}

// cost gives what the packets from a to b, of w or of its response, take of the
// window.
func (q *QP) cost(w *wqe, a, b seq) uint64 {
	if b <= a {
		return 0
	}
	mtu, l := uint64(q.mtu), uint64(w.len)
	return min(l, uint64(b-w.first)*mtu) - min(l, uint64(a-w.first)*mtu) + uint64(b-a)*packetOverhead
}

// emit appends the packet with number s of request i; a READ asks for n packets.
// Nothing is appended if memory cannot be read.
func (q *QP) emit(out *Output, i uint32, s seq, n uint32, ack bool) mem.Fault {
	p, w := q.sq.slot(i), q.sq.wqe(i)
	op := &requests[p.Opcode]
	t := &q.tx
	t.PSN = s.psn()
	t.AckReq = ack
	t.Solicited = false
	off := uint32(s-w.first) * q.mtu

	if op.reads {
		if p.Opcode == ib.OpRead {
			t.Opcode = wire.RCReadRequest
			t.RETH.Addr = p.Addr + uint64(off)
			t.RETH.RKey = p.RKey
			t.RETH.Len = uint32(min(uint64(w.len-off), uint64(n)*uint64(q.mtu)))
		} else {
			t.Opcode = op.only
			t.Atomic = wire.AtomicETH{Addr: p.Addr, RKey: p.RKey, Swap: p.Swap, Compare: p.Compare}
		}
		q.end(out, t.AppendHeaders(out.Buf, 0), 0)
		return mem.OK
	}

	last := s+1 == w.end()
	switch {
	case s != w.first && !last:
		t.Opcode = op.middle
	case s != w.first:
		t.Opcode = op.last
	case !last:
		t.Opcode = op.first
	default:
		t.Opcode = op.only
	}
	if s == w.first && (p.Opcode == ib.OpWrite || p.Opcode == ib.OpWriteImm) {
		t.RETH = wire.RETH{Addr: p.Addr, RKey: p.RKey, Len: w.len}
	}
	if last {
		t.Imm = p.Imm
		t.InvRKey = p.RKey
		t.Solicited = p.Flags&ib.Solicited != 0 && (p.Opcode != ib.OpWrite)
	}
	m := min(q.mtu, w.len-off)
	b := t.AppendHeaders(out.Buf, int(m))
	if inline(p) {
		b = append(b, p.Data[off:off+m]...)
	} else if m != 0 {
		if q.req.gatheredOf != i {
			q.req.gathered, q.req.gatheredOf = cursor{}, i
		}
		var f mem.Fault
		if b, f = q.gather(b, p.SGL, &q.req.gathered, off, m); f != mem.OK {
			return f
		}
	}
	q.end(out, b, m)
	return mem.OK
}
