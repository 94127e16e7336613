package stream

import (
	"encoding/binary"
	"math/bits"

	"github.com/verbena-rdma/verbena/ib"
)

// next gives the next message. Every message carries the counters of the other
// direction, so a CREDIT is needed only when nothing else goes.
func (v *verbena) next(op *Op) bool {
	end := &v.end
	if end.peerClosed || end.lastSent != 0 {
		return false
	}
	if end.err != nil {
		return end.lastDue && v.lastWord(op)
	}
	if v.sendSize(op) || v.sendProbe(op) || v.sendMap(op) || v.sendStream(op) {
		return true
	}
	// What tells only of receives that control messages used would not help the peer.
	if int32(v.posted-v.told-v.words) >= v.threshold && v.mayControl(ctlCredit) {
		v.controlMessage(op, vCredit, 0, ctlCredit, false)
		return true
	}
	return v.sendVoid(op)
}

// sendStream gives data, writes to maps, and the end.
func (v *verbena) sendStream(op *Op) bool {
	o, end := &v.out, &v.end
	switch {
	case o.write.n > 0:
		if !o.mayData() {
			return false
		}
		v.takeMapWrite(op)
		return true
	case o.pending() > 0:
		return v.sendData(op)
	case end.write == writeEnding:
		if !v.mayData() {
			return false
		}
		end.write = writeEnded
		binary.BigEndian.PutUint64(op.Data[:], o.total)
		op.DataN = 8
		v.message(op, vFin, 0)
		v.emit(op, slotControl, 0, true)
		return true
	case end.lastDue && end.closing:
		return v.lastWord(op)
	}
	return false
}

// sendData makes op the next piece of the stream.
func (v *verbena) sendData(op *Op) bool {
	if !v.mayData() {
		return false
	}
	size := v.nextSize()
	if v.held(min(enough, uint64(size))) {
		return false
	}
	n := uint32(min(v.sendable(), uint64(size)))
	v.out.fill(op, n)
	v.out.total += uint64(n)
	v.message(op, vData, uint32(bits.Len64(v.out.pending())))
	v.emit(op, slotData, n, false)
	return true
}

// nextSize gives the size of the receive that the next message uses.
func (v *verbena) nextSize() uint32 {
	if s, ok := v.sizes.pop(v.seq); ok {
		v.size = s
	}
	return v.size
}

// mayData reports whether a message may go that is none of the control messages: each of
// those that is not on its way must still find a receive. One that is on its way to a
// receive which is posted again afterwards needs no other.
func (v *verbena) mayData() bool {
	need := int32(controls + 1)
	for i, open := range v.open {
		if open && int32(v.control[i]-v.bound) >= 0 {
			need--
		}
	}
	return int32(v.limit-v.seq) >= need && v.out.mayData()
}

// mayControl reports whether a control message may go.
func (v *verbena) mayControl(c int) bool { return !v.open[c] && int32(v.limit-v.seq) > 0 }

// message makes op a message of the protocol.
func (v *verbena) message(op *Op, kind, value uint32) {
	v.nextSize()
	// A receive of another size must not be told of before the change is.
	v.told = v.posted
	if v.change.pending && !v.change.same {
		v.told = v.change.at
	}
	v.words = 0
	op.Opcode = ib.OpSendImm
	op.Imm = uint32(makeVword(kind, value, v.taken, v.told))
	v.seq++
}

// controlMessage makes op a control message.
func (v *verbena) controlMessage(op *Op, kind, value uint32, c int, must bool) {
	v.control[c], v.open[c] = v.seq, true
	v.message(op, kind, value)
	v.emit(op, slotControl, 0, must)
}

// sendSize tells of a change of the size of receives. It comes before everything else.
func (v *verbena) sendSize(op *Op) bool {
	c := &v.change
	if !c.pending || !v.mayControl(ctlSize) {
		return false
	}
	if c.same {
		c.at = v.posted // all of which this message tells
	}
	c.pending = false
	binary.BigEndian.PutUint32(op.Data[:], c.at)
	binary.BigEndian.PutUint32(op.Data[4:], c.burn)
	op.DataN = 8
	v.controlMessage(op, vSize, uint32(log2(c.size)), ctlSize, false)
	return true
}

// sendProbe asks a silent peer, or answers one that asks.
func (v *verbena) sendProbe(op *Op) bool {
	switch {
	case v.pong && v.mayControl(ctlPong):
		v.pong = false
		v.controlMessage(op, vPong, 0, ctlPong, false)
	case (v.alive.ask || v.ping) && v.mayControl(ctlPing):
		v.alive.ask, v.ping = false, false
		v.controlMessage(op, vPing, 0, ctlPing, false)
	default:
		return false
	}
	return true
}

// sendVoid uses up receives of a size that the peer wants to change.
func (v *verbena) sendVoid(op *Op) bool {
	if v.burning && int32(v.burn-v.seq) <= 0 {
		v.burning = false
	}
	if !v.burning || !v.mayData() {
		return false
	}
	v.message(op, vVoid, 0)
	v.emit(op, slotControl, 0, false)
	return true
}

// lastWord sends CLOSE. Nothing follows it.
func (v *verbena) lastWord(op *Op) bool {
	if !v.mayControl(ctlClose) {
		return false
	}
	v.end.lastDue = false
	why := v.end.why
	binary.BigEndian.PutUint64(op.Data[:], v.in.eaten)
	op.DataN = 8
	v.controlMessage(op, vClose, uint32(why), ctlClose, true)
	v.end.lastSent = op.ID
	return true
}
