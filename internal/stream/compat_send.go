package stream

import "github.com/verbena-rdma/verbena/ib"

// next gives the next request. Buffers for the peer come first: it may be waiting.
func (c *compat) next(op *Op) bool {
	end := &c.end
	if end.err != nil {
		return end.lastDue && c.lastWord(op)
	}
	if c.advertise(op) || c.probe(op) || c.sendMap(op) {
		return true
	}
	if c.out.write.n > 0 {
		if !c.out.mayData() {
			return false
		}
		c.takeMapWrite(op)
		return true
	}
	if c.out.pending() > 0 {
		return c.sendData(op)
	}
	switch {
	case end.lastDue && (end.closing || end.peerClosed):
		return c.lastWord(op)
	case end.write == writeEnding:
		if end.peerFin || end.readClosed {
			return c.lastWord(op) // nothing is left in either direction
		}
		end.write = writeEnded
		c.word(op, makeWord(wordControl, controlShutdown))
		c.emit(op, slotControl, 0, true)
		return true
	}
	return false
}

// sendData makes op the next message: as much as the peer's current buffer holds.
func (c *compat) sendData(op *Op) bool {
	if c.have == 0 || c.credit <= c.kept() || !c.out.mayData() {
		return false
	}
	t := &c.entries[c.head]
	if c.held(min(enough, uint64(t.n))) {
		return false
	}
	n := uint32(min(c.sendable(), uint64(t.n), MaxRecvSize))
	op.Opcode, op.Imm = ib.OpWriteImm, uint32(makeWord(wordData, n))
	op.Remote, op.RKey = t.addr, t.key
	c.out.fill(op, n)
	t.addr += uint64(n)
	t.n -= n
	if t.n == 0 {
		c.head = (c.head + 1) % len(c.entries)
		c.have--
	}
	c.credit--
	c.out.total += uint64(n)
	c.emit(op, slotData, n, false)
	return true
}

// kept is how many credits data leave alone. A peer that does not poll has no receives
// for control words but those of the credits; but never so many are kept that the peer
// need not grant new ones, which it does after half of them.
func (c *compat) kept() uint32 { return min(reserve+c.controls, c.most/4) }

// word makes op a message of no bytes. Its address is one that the peer has, though by
// the rules it does not matter.
func (c *compat) word(op *Op, w word) {
	op.Opcode, op.Imm = ib.OpWriteImm, uint32(w)
	op.Remote, op.RKey = c.peer.SGLAddr, c.peer.SGLKey
	c.controls++
}

// lastWord sends DISCONNECT.
func (c *compat) lastWord(op *Op) bool {
	c.end.lastDue = false
	c.end.write = writeEnded
	c.word(op, makeWord(wordControl, controlDisconnect))
	c.emit(op, slotControl, 0, true)
	c.end.lastSent = op.ID
	return true
}

// advertise gives the peer the next buffer, and new credits. It does so as soon as the
// peer has filled one, not when the user has read it. After DISCONNECT of either side
// there are no updates: a peer of C does not poll any more.
func (c *compat) advertise(op *Op) bool {
	if c.end.lastSent != 0 || c.end.peerClosed {
		return false
	}
	// As many messages as there are receives, less the spare ones.
	limit := c.granted
	if l := c.seq + uint16(max(c.posted-SpareRecvs, 0)); int16(l-c.granted) > 0 {
		limit = l
	}
	b, ok := c.nextBuffer()
	if !ok && limit-c.granted < uint16(max((c.cfg.RecvQueue-SpareRecvs)/2, 1)) {
		return false
	}
	c.granted = limit
	c.word(op, makeWord(wordCredit, uint32(limit)))
	if ok {
		m := &c.in.regions[b.region].mem
		s := sglEntry{m.Addr + uint64(b.index)*uint64(m.Size), m.RKey, uint32(m.Size)}
		op.Remote = c.peer.SGLAddr + sglLen*uint64(c.slot)
		op.DataN = sglLen
		s.put(op.Data[:], order(&c.peer))
		c.slot = (c.slot + 1) % c.peer.SGLLen
		c.told[(c.toldHead+c.toldN)%len(c.told)] = b
		c.toldN++
	}
	c.emit(op, slotControl, 0, false)
	return true
}

// nextBuffer takes the buffer to advertise next.
func (c *compat) nextBuffer() (buffer, bool) {
	// The end of the peer's data needs no more buffers, but C may send after it.
	if c.toldN == len(c.told) {
		return buffer{}, false
	}
	return c.in.take(c.in.active)
}

// probe sends a keep-alive: a WRITE of no bytes without immediate, as C does.
func (c *compat) probe(op *Op) bool {
	if !c.alive.ask {
		return false
	}
	c.alive.ask = false
	op.Opcode, op.Remote, op.RKey = ib.OpWrite, c.peer.SGLAddr, c.peer.SGLKey
	c.emit(op, slotControl, 0, true)
	c.alive.id = op.ID
	return true
}
