package stream

import (
	"fmt"

	"github.com/verbena-rdma/verbena/ib"
)

// compat is the machine of rsockets version 1 (docs/stream-protocol.md, part 2). Names
// are those of the document: seq and limit count messages of a direction, the table
// holds the buffers that a receiver advertises.
type compat struct {
	*Engine

	// Sending: the peer's buffers and credits.
	table    []byte
	entries  []sglEntry // ring: what the peer advertised, slot by slot
	head     int        // the entry that is filled
	have     int        // entries that are not full
	credit   uint32     // limit − seq
	most     uint32     // the greatest credit that it gave
	limit    uint16
	controls uint32 // words without credit that were sent since the peer last showed that it polls
	leaked   uint32 // credits that map updates cost for ever

	// Receiving: our buffers and receives.
	posted   int // receives
	nextID   uint64
	seq      uint16   // messages that arrived
	granted  uint16   // the limit that the peer knows
	told     []buffer // ring: advertised and not full
	toldHead int
	toldN    int
	filled   uint32 // bytes in the oldest of them
	slot     uint32 // of the peer's table, the next to write
}

// reserve is how many credits are kept for what takes none: control words and updates,
// for which the peer has no receives of their own.
const reserve = 4

func (e *Engine) newCompat() error {
	cfg := &e.cfg
	if err := e.checkRecv("Recv", &cfg.Recv); err != nil {
		return err
	}
	bad := func(field, format string, a ...any) error { return &ConfigError{field, fmt.Sprintf(format, a...)} }
	switch {
	case cfg.RecvQueue < max(int(e.local.Credits), 2*SpareRecvs) || cfg.RecvQueue > 1<<15:
		return bad("RecvQueue", "%d is not in %d to %d", cfg.RecvQueue, max(int(e.local.Credits), 2*SpareRecvs), 1<<15)
	case cfg.Posted < 0 || cfg.Posted > cfg.RecvQueue:
		return bad("Posted", "%d is not in 0 to RecvQueue (%d)", cfg.Posted, cfg.RecvQueue)
	case e.local.SGLLen < 2 || e.local.SGLLen > maxTable || len(cfg.Table) < TableLen(int(e.local.SGLLen), e.local.IOMap):
		return bad("Table", "%d bytes for %d entries (at least 2, as C has two halves) and a map of %d", len(cfg.Table), e.local.SGLLen, e.local.IOMap)
	case cfg.Recv.Addr != e.local.BufAddr || cfg.Recv.RKey != e.local.BufKey || uint32(cfg.Recv.Size) != e.local.BufLen:
		return bad("Recv", "its first buffer is not that of the hello")
	case e.peer.SGLLen == 0 || e.peer.BufLen == 0 || e.peer.Credits == 0:
		return bad("Peer", "no table, buffer or credits")
	}
	c := &compat{
		Engine:  e,
		table:   cfg.Table,
		entries: make([]sglEntry, e.local.SGLLen),
		have:    1,
		credit:  uint32(e.peer.Credits),
		most:    uint32(e.peer.Credits),
		limit:   e.peer.Credits,
		granted: e.local.Credits,
		posted:  cfg.Posted,
		nextID:  uint64(cfg.Posted),
		// No more than our buffers and the peer's table can be advertised.
		told: make([]buffer, min(int(e.peer.SGLLen), 64)),
		slot: 1 % e.peer.SGLLen,
	}
	c.entries[0] = sglEntry{e.peer.BufAddr, e.peer.BufKey, e.peer.BufLen}
	e.c = c
	e.in.addRegion(cfg.Recv)
	first, _ := e.in.take(0)
	c.told[0], c.toldN = first, 1
	return nil
}

// nextRecv keeps RecvQueue receives posted. They need no memory: all that arrives is an
// immediate.
func (c *compat) nextRecv(r *Recv) bool {
	if c.posted >= c.cfg.RecvQueue {
		return false
	}
	*r = Recv{ID: c.nextID, Loc: Loc{Region: NoRegion}}
	c.posted++
	c.nextID++
	return true
}

// received takes an immediate.
func (c *compat) received(a Arrival) {
	w := word(a.Imm)
	if c.posted > 0 {
		c.posted--
	}
	switch {
	case c.end.err != nil:
		return
	case !a.HasImm:
		c.die(&ProtocolError{Mode: Compatible, What: "a message without immediate"}, BadProtocol)
		return
	case a.Opcode != ib.WCRecvWriteImm && (a.Len > 0 || w.op() == wordData):
		c.protocolError("a SEND, where data are written", a.Imm)
		return
	}
	switch w.op() {
	case wordData:
		c.data(w, a.Len)
	case wordCredit:
		c.update(w, a.Len)
	case wordIOMap:
		c.mapped(w, a.Len)
	case wordControl:
		c.control(w, a.Len)
	default:
		c.protocolError("a reserved operation", a.Imm)
	}
}

// counted takes a message that costs a credit.
func (c *compat) counted(w word) bool {
	if c.seq == c.granted {
		c.protocolError("more messages than it had credits for", uint32(w))
		return false
	}
	c.seq++
	return true
}

// data takes n bytes that were written to the oldest buffer that we advertised.
func (c *compat) data(w word, n uint32) {
	if !c.counted(w) {
		return
	}
	switch v := w.value(); {
	case v != n:
		c.protocolLimit("the length in the word is not that of the message", uint32(w), uint64(v), uint64(n))
		return
	case n == 0:
		return // means nothing, and peers of C would take it for the end
	case c.toldN == 0:
		c.protocolLimit("data without a buffer", uint32(w), uint64(n), 0)
		return
	}
	b := c.told[c.toldHead]
	size := c.in.size(b)
	if n > size-c.filled {
		c.protocolLimit("data beyond the end of the buffer", uint32(w), uint64(n), uint64(size-c.filled))
		return
	}
	off := c.filled
	c.filled += n
	full := c.filled == size
	if full {
		c.filled = 0
		c.toldHead = (c.toldHead + 1) % len(c.told)
		c.toldN--
		if b.region == c.in.active {
			c.press(c.cfg.MaxRecv, 1)
			if b.region != 0 {
				c.in.busyAt = c.now
			}
		}
	}
	c.out.doubt = false // it is alive, so what it was sent has most likely arrived
	c.arrived(b, off, n, full)
}

// update takes a new limit, and a table entry if n says that one was written.
func (c *compat) update(w word, n uint32) {
	if n != 0 && n != sglLen {
		c.protocolLimit("an update of a strange length", uint32(w), uint64(n), sglLen)
		return
	}
	limit := uint16(w.value())
	more := limit - c.limit
	switch {
	case more >= 1<<15:
		c.protocolLimit("the limit of messages ran backwards", uint32(w), uint64(limit), uint64(c.limit))
		return
	case c.credit+uint32(more) > 1<<16-1:
		c.protocolLimit("more credits than sequence numbers", uint32(w), uint64(c.credit)+uint64(more), 1<<16-1)
		return
	}
	c.limit = limit
	c.credit += uint32(more)
	c.most = max(c.most, c.credit)
	c.controls = 0
	if n == 0 {
		return
	}
	if c.have == len(c.entries) {
		c.protocolLimit("a buffer more than the table holds", uint32(w), uint64(c.have+1), uint64(c.have))
		return
	}
	at := (c.head + c.have) % len(c.entries)
	// The peer may write here at any time: the entry is read once.
	s := parseSGL(c.table[sglLen*at:sglLen*(at+1)], order(&c.local))
	if s.n == 0 || s.addr+uint64(s.n) < s.addr {
		c.protocolLimit("a buffer that is empty or wraps", uint32(w), uint64(s.n), maxValue)
		return
	}
	c.entries[at] = s
	c.have++
}

// control takes a control word; unknown ones mean nothing.
func (c *compat) control(w word, n uint32) {
	end := &c.end
	switch {
	case n != 0:
		c.protocolLimit("a control word with data", uint32(w), uint64(n), 0)
	case w.value() == controlShutdown:
		c.finished()
	case w.value() == controlDisconnect:
		c.finished()
		if !end.peerClosed {
			end.peerClosed = true
			c.drop() // it reads nothing more
			c.events |= Readable | Writable
			if end.closing && end.lastDone {
				c.linger()
			}
		}
	}
}

// finished notes the end of the peer's data.
func (c *compat) finished() {
	if !c.end.peerFin {
		c.end.peerFin = true
		c.events |= Readable
	}
}
