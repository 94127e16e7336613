package transport

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// simEnd is one queue pair.
type simEnd struct {
	s       *sim
	i       int
	q       *QP
	peer    *simEnd
	table   *mem.Table
	buf     []byte
	mr      *mem.Region
	free    []int // slots of buf
	out     Output
	timerAt time.Duration // of the earliest timer event in the heap; 0: none
	flushAt bool

	toPost   int
	sends    []simSend
	sendHead int
	recvs    []int // slots, in order; -1: empty list
	recvHead int
	expect   []simMsg // what the peer's receives will get
	expHead  int
	dead     bool // closed, or broken by a removal somewhere

	counter uint64 // FETCH_ADDs that are known to be executed, of those on my word at the peer
	chase   uint64 // value that the posted CASes will leave
	posted  uint64 // FETCH_ADDs posted
}

type simSend struct {
	op     ib.Opcode
	flags  ib.SendFlags
	n      int
	rom    int // offset of the source
	local  int // slot here (READ, atomics), -1
	remote int // slot there (WRITE), -1
	imm    uint32
	want   uint64 // result of an atomic
}

// simMsg is a message that consumes a receive.
type simMsg struct {
	write bool // with immediate: no bytes in the receive
	n     int
	rom   int
	imm   uint32
	flag  ib.WCFlags
	se    bool
}

func (e *simEnd) receive(b []byte) {
	var p wire.Packet
	if err := p.Decode(b); err != nil {
		e.s.fail("%d: %v", e.i, err)
		return
	}
	if e.s.loud {
		e.s.note("%d receives %s", e.i, &flight{b: b})
	}
	e.q.Receive(e.s.now, &p)
	if e.s.lazy || e.s.lazyAck && e.q.AckPending() {
		e.take()
		if !e.flushAt {
			e.flushAt = true
			e.s.at(e.s.now+time.Duration(e.s.rng.IntN(20))*time.Microsecond, simEvent{kind: simFlush, end: e})
		}
		e.timer()
		return
	}
	e.pump()
}

// pump does what an owner does after each call.
func (e *simEnd) pump() {
	s := e.s
	e.take()
	for range 100000 {
		e.out.Buf, e.out.Ends = e.out.Buf[:0], e.out.Ends[:0]
		more := e.q.Transmit(s.now, &e.out)
		start := 0
		for _, n := range e.out.Ends {
			e.launch(bytes.Clone(e.out.Buf[start : n-wire.ICRCLen]))
			start = n
		}
		if !more {
			break
		}
		if len(e.out.Ends) == 0 {
			s.fail("%d: Transmit wants an empty output to be emptied", e.i)
			return
		}
	}
	if len(e.out.Buf) > s.outMax {
		s.fail("%d: output of %d bytes, the limit is %d", e.i, len(e.out.Buf), s.outMax)
	}
	e.take()
	e.timer()
	if b := e.q.broken(); b != "" {
		s.fail("%d: %s", e.i, b)
	}
}

func (e *simEnd) timer() {
	d, ok := e.q.Deadline()
	if !ok || e.timerAt != 0 && e.timerAt <= d {
		return
	}
	d = max(d, e.s.now+1)
	e.timerAt = d
	e.s.at(d, simEvent{kind: simTimer, end: e})
}

// launch sends a packet into the network.
func (e *simEnd) launch(b []byte) {
	s, r := e.s, e.s.rng
	s.total.packets++
	if s.loud {
		s.note("%d sends %s", e.i, &flight{b: b})
	}
	copies := 1
	if r.Float64() < s.dup {
		copies = 2
		s.total.repeated++
	}
	for range copies {
		if r.Float64() < s.loss {
			s.total.lost++
			s.note("  lost")
			continue
		}
		d := s.delay
		if s.jitter != 0 {
			d += time.Duration(r.Int64N(int64(s.jitter)))
		}
		if r.Float64() < s.late {
			d += time.Duration(r.Int64N(int64(s.behind)))
		}
		s.at(s.now+d, simEvent{kind: simPacket, end: e.peer, b: b})
	}
}

// work posts a few receives and sends, and comes back later.
func (e *simEnd) work() {
	r := e.s.rng
	for range 1 + r.IntN(4) {
		e.postRecv()
	}
	n := 0
	for range 1 + r.IntN(6) {
		if e.toPost > 0 && e.postSend() {
			n++
		}
	}
	e.pump()
	broken := e.q.State() == ib.StateError || e.peer.q.State() == ib.StateError
	if e.toPost > 0 || !broken && (e.peer.toPost > 0 || e.expHead < len(e.expect)) {
		e.s.at(e.s.now+time.Duration(1+r.IntN(400))*time.Microsecond, simEvent{kind: simWork, end: e})
	}
}

// takeSlot gives a free slot, or -1. The last ones are for receives, so that these never
// wait for anything else.
func (e *simEnd) takeSlot(recv bool) int {
	n := len(e.free)
	if n == 0 || n <= simRecvs && !recv {
		return -1
	}
	i := e.free[n-1]
	e.free = e.free[:n-1]
	return i
}

func (e *simEnd) giveSlot(i int) {
	if i >= 0 {
		p := e.slot(i)
		for j := range p {
			p[j] = poison
		}
		e.free = append(e.free, i)
	}
}

func (e *simEnd) slot(i int) []byte { return e.buf[simSlot0+i*simSlot:][:simSlot] }

// list names n bytes at off of the buffer in random pieces.
func (e *simEnd) list(l []driver.SGE, off, n int) []driver.SGE {
	r := e.s.rng
	pieces := 1 + r.IntN(4)
	for i := range pieces {
		m := n
		if i < pieces-1 {
			m = r.IntN(n + 1)
		}
		if m == 0 {
			l = append(l, driver.SGE{Addr: r.Uint64(), LKey: ib.LKey(r.Uint32())})
		} else {
			l = append(l, driver.SGE{Addr: simBase + uint64(off), Len: uint32(m), LKey: e.mr.LKey()})
		}
		off += m
		n -= m
	}
	return l
}

func (e *simEnd) postRecv() {
	ss := e.q.RecvSlots()
	if len(ss) == 0 || len(e.recvs)-e.recvHead >= simRecvs {
		return
	}
	i := e.takeSlot(true)
	if i < 0 {
		return
	}
	ss[0].ID = uint64(len(e.recvs))
	ss[0].SGL = e.list(ss[0].SGL, simSlot0+i*simSlot, simSlot)
	e.recvs = append(e.recvs, i)
	e.q.CommitRecv(1)
}

func (e *simEnd) length() int {
	r := e.s.rng
	m := e.q.attr.PathMTU.Bytes()
	switch r.IntN(6) {
	case 0:
		return 0
	case 1:
		return r.IntN(64)
	case 2:
		return min(max(0, m*(1+r.IntN(4))+r.IntN(3)-1), simSlot)
	case 3:
		return min(m, simSlot)
	}
	return r.IntN(simSlot + 1)
}

func (e *simEnd) postSend() bool {
	r := e.s.rng
	ss := e.q.SendSlots()
	if len(ss) == 0 {
		return false
	}
	p := &ss[0]
	x := simSend{
		op:    pick(r, ib.OpSend, ib.OpSend, ib.OpSendImm, ib.OpWrite, ib.OpWrite, ib.OpWriteImm, ib.OpRead, ib.OpRead, ib.OpCompareSwap, ib.OpFetchAdd),
		local: -1, remote: -1, imm: r.Uint32(),
	}
	x.n = e.length()
	x.rom = r.IntN(simROM - simSlot)
	if r.IntN(3) != 0 {
		x.flags |= ib.Signaled
	}
	if r.IntN(6) == 0 {
		x.flags |= ib.Fence
	}
	if r.IntN(6) == 0 {
		x.flags |= ib.Solicited
	}
	p.Addr, p.RKey, p.Imm = simBase+uint64(x.rom), e.peer.mr.RKey(), x.imm
	msg := simMsg{n: x.n, rom: x.rom, se: x.flags&ib.Solicited != 0}
	switch x.op {
	case ib.OpSend, ib.OpSendImm:
		if x.op == ib.OpSendImm {
			msg.imm, msg.flag = x.imm, ib.WithImm
		}
		e.peer.expect = append(e.peer.expect, msg)
	case ib.OpWrite, ib.OpWriteImm:
		if x.remote = e.peer.takeSlot(false); x.remote < 0 {
			return false
		}
		p.Addr = simBase + uint64(simSlot0+x.remote*simSlot)
		if x.n == 0 && r.IntN(2) == 0 {
			p.Addr, p.RKey = r.Uint64(), ib.RKey(r.Uint32()) // C-100
		}
		if x.op == ib.OpWriteImm {
			msg.write, msg.imm, msg.flag = true, x.imm, ib.WithImm
			e.peer.expect = append(e.peer.expect, msg)
		}
	case ib.OpRead:
		if x.local = e.takeSlot(false); x.local < 0 {
			return false
		}
	case ib.OpFetchAdd:
		if x.local = e.takeSlot(false); x.local < 0 {
			return false
		}
		x.n = 8
		p.Addr, p.Swap = simBase+simWords, 1
		x.want = e.posted
		e.posted++
	case ib.OpCompareSwap:
		if x.local = e.takeSlot(false); x.local < 0 {
			return false
		}
		x.n = 8
		p.Addr = simBase + simWords + 8
		x.want = e.chase
		p.Compare, p.Swap = e.chase, r.Uint64()
		if r.IntN(3) == 0 {
			p.Compare++ // does not match
		} else {
			e.chase = p.Swap
		}
	}
	inline := false
	switch {
	case x.local >= 0:
		p.SGL = e.list(p.SGL, simSlot0+x.local*simSlot, x.n)
	case x.n <= 64 && r.IntN(2) == 0:
		inline = true
		p.Data = append(p.Data, e.buf[x.rom:x.rom+x.n]...)
	default:
		p.SGL = e.list(p.SGL, x.rom, x.n)
	}
	p.ID, p.Opcode, p.Flags = uint64(len(e.sends)), x.op, x.flags
	if inline {
		p.Flags |= ib.Inline
	}
	e.s.note("%d posts %d: %v, %d bytes, flags %v", e.i, p.ID, x.op, x.n, p.Flags)
	e.sends = append(e.sends, x)
	e.toPost--
	e.s.total.requests++
	e.q.CommitSend(1)
	return true
}

// take looks at completions.
func (e *simEnd) take() {
	for _, c := range e.q.Completions() {
		if e.s.loud {
			e.s.note("%d completes %s", e.i, doneString(c))
		}
		if c.QPN != e.q.cfg.QPN {
			e.s.fail("%d: completion of queue pair %v", e.i, c.QPN)
		}
		if c.Recv {
			e.recvDone(&c)
		} else {
			e.sendDone(&c)
		}
	}
	e.q.Events()
}

func (e *simEnd) sendDone(c *Completion) {
	s := e.s
	// Unsignaled requests before it have succeeded silently.
	for ; e.sendHead < int(c.ID); e.sendHead++ {
		x := &e.sends[e.sendHead]
		if x.flags&ib.Signaled != 0 || e.q.cfg.SignalAll {
			s.fail("%d: request %d completes before %d", e.i, c.ID, e.sendHead)
			return
		}
		e.check(e.sendHead)
	}
	if int(c.ID) != e.sendHead || e.sendHead >= len(e.sends) {
		s.fail("%d: request %d completes, %d is next of %d", e.i, c.ID, e.sendHead, len(e.sends))
		return
	}
	x := &e.sends[e.sendHead]
	if c.Status != ib.StatusSuccess {
		if !e.dead {
			s.fail("%d: request %d fails: %v", e.i, c.ID, c.Status)
		}
		if c.Status == ib.StatusWRFlush {
			s.total.flushed++
		} else {
			s.total.failed++
		}
		e.sendHead++
		return
	}
	if x.flags&ib.Signaled == 0 && !e.q.cfg.SignalAll {
		s.fail("%d: unsignaled request %d completes", e.i, c.ID)
	}
	e.check(e.sendHead)
	e.sendHead++
}

// check looks at what a successful request has done, and gives its slots back.
func (e *simEnd) check(i int) {
	x := &e.sends[i]
	rom := simPattern[x.rom : x.rom+x.n]
	slot := func(where *simEnd, i int, want []byte) {
		p := where.slot(i)
		if !bytes.Equal(p[:len(want)], want) {
			e.s.fail("%d: request %d (%v): wrong bytes", e.i, i, x.op)
		}
		for _, b := range p[len(want):] {
			if b != poison {
				e.s.fail("%d: request %d (%v): bytes behind its %d are changed", e.i, i, x.op, len(want))
				return
			}
		}
		where.giveSlot(i)
	}
	switch x.op {
	case ib.OpRead:
		slot(e, x.local, rom)
	case ib.OpWrite, ib.OpWriteImm:
		slot(e.peer, x.remote, rom)
	case ib.OpFetchAdd, ib.OpCompareSwap:
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], x.want)
		slot(e, x.local, b[:])
		if x.op == ib.OpFetchAdd {
			e.counter++
		}
	}
}

func (e *simEnd) recvDone(c *Completion) {
	s := e.s
	if int(c.ID) != e.recvHead || e.recvHead >= len(e.recvs) {
		s.fail("%d: receive %d completes, %d is next of %d", e.i, c.ID, e.recvHead, len(e.recvs))
		return
	}
	i := e.recvs[e.recvHead]
	e.recvHead++
	if c.Status != ib.StatusSuccess {
		if !e.dead {
			s.fail("%d: receive %d fails: %v", e.i, c.ID, c.Status)
		}
		return
	}
	if e.expHead == len(e.expect) {
		s.fail("%d: receive %d completes, but nothing was sent", e.i, c.ID)
		return
	}
	m := &e.expect[e.expHead]
	e.expHead++
	op := ib.WCRecv
	want := simPattern[m.rom : m.rom+m.n]
	if m.write {
		op = ib.WCRecvWriteImm
		want = nil
	}
	if int(c.ByteLen) != m.n || c.Opcode != op || c.Flags != m.flag || c.Imm != m.imm || c.Solicited != m.se {
		s.fail("%d: receive completes %s; want %+v", e.i, doneString(*c), *m)
		return
	}
	p := e.slot(i)
	if !bytes.Equal(p[:len(want)], want) {
		s.fail("%d: receive %d has wrong bytes", e.i, c.ID)
	}
	for _, b := range p[len(want):] {
		if b != poison {
			s.fail("%d: receive %d: bytes behind its %d are changed", e.i, c.ID, len(want))
			break
		}
	}
	e.giveSlot(i)
}

// finish checks what must be true when nothing moves any more.
func (s *sim) finish() {
	for _, e := range s.ends {
		if _, ok := e.q.Deadline(); ok {
			s.fail("%d: a timer runs at the end", e.i)
		}
		// Requests at the end may have been unsignaled.
		for ; e.sendHead < len(e.sends); e.sendHead++ {
			x := &e.sends[e.sendHead]
			if x.flags&ib.Signaled != 0 || e.q.cfg.SignalAll || e.q.sq.head != e.q.sq.tail {
				s.fail("%d: request %d of %d never completes; state %v", e.i, e.sendHead, len(e.sends), e.q.State())
				return
			}
			e.check(e.sendHead)
		}
		if !e.dead && e.expHead != len(e.expect) {
			s.fail("%d: %d messages of %d arrived", e.i, e.expHead, len(e.expect))
		}
		n := binary.NativeEndian.Uint64(e.peer.buf[simWords:])
		if n < e.counter || n > e.posted || !e.dead && n != e.posted {
			s.fail("%d: the word is %d after %d of %d FETCH_ADDs", e.i, n, e.counter, e.posted)
		}
		if v := binary.NativeEndian.Uint64(e.peer.buf[simWords+8:]); !e.dead && v != e.chase {
			s.fail("%d: the CAS word is %#x, want %#x", e.i, v, e.chase)
		}
		if e.q.State() == ib.StateError && e.q.rq.head != e.q.rq.tail {
			s.fail("%d: receives were not flushed", e.i)
		}
		if !bytes.Equal(e.buf[:simROM], simPattern) {
			s.fail("%d: memory that nobody wrote to is changed", e.i)
		}
	}
}
