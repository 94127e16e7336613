package softroce

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/internal/wire"
)

const (
	minPacket = wire.BTHLen + wire.ICRCLen
	maxPacket = wire.MaxHeader + 4096 + wire.ICRCLen
)

// receive handles messages. e.rx is held.
func (e *endpoint) receive(ms []netio.Message) {
	c := &e.d.stats
	c.readCalls.Add(1)
	now := e.d.now()
	var packets, bytes uint64
	var q *qp // locked
	for i := range ms {
		m := &ms[i]
		b := m.Buf
		size := m.Segment
		if size <= 0 || size > len(b) {
			size = len(b)
		}
		bytes += uint64(len(b))
		for k := 0; ; k++ {
			p := b[:min(size, len(b))]
			b = b[len(p):]
			packets++
			var why drop
			if q, why = e.packetIn(now, q, p, m, k); why != accepted {
				c.drops[why].Add(1)
			}
			if len(b) == 0 {
				break
			}
		}
	}
	e.leave(now, q)
	c.packetsIn.Add(packets)
	c.bytesIn.Add(bytes)
}

// packetIn handles one packet, the k-th of its message. held is a queue pair that is
// locked since the packet before; the one that is locked now is given back. The order
// of the checks is that of rocev2 hardware: what costs least comes first, and nothing
// changes before the ICRC is known to be right.
func (e *endpoint) packetIn(now time.Duration, held *qp, b []byte, m *netio.Message, k int) (*qp, drop) {
	if !e.link.Load() {
		return held, dropLink
	}
	if len(b) < minPacket || len(b) > maxPacket {
		return held, dropLength
	}
	op := wire.Opcode(b[0])
	if !op.Known() {
		return held, dropOpcode
	}
	if b[1]&0x0F != 0 {
		return held, dropVersion
	}
	qpn := ib.QPN(b[5])<<16 | ib.QPN(b[6])<<8 | ib.QPN(b[7])
	if qpn == gsiQPN {
		e.leave(now, held)
		return nil, e.managementIn(b, m, k)
	}
	q := e.d.qps.find(qpn)
	if q == nil {
		return held, dropNoQP
	}
	if op.Service() != wire.ServiceRC && op != wire.CNP {
		return held, dropService
	}
	peer := q.peer.Load()
	if peer == nil {
		return held, dropState
	}
	if peer.e != e || peer.remote != plain(m.Addr.Addr()) {
		return held, dropAddress
	}
	// Membership of one side must be full (IBTA Vol 1 §10.9.3); ours is.
	if pkey := ib.PKey(b[2])<<8 | ib.PKey(b[3]); pkey&0x7FFF != defaultPKey&0x7FFF {
		return held, dropPKey
	}
	if peer.rxPort != m.Addr.Port() {
		peer.rxPort = m.Addr.Port()
		peer.rxFlow = wire.NewFlow(m.Addr, e.local)
	}
	if _, ok := peer.rxFlow.Check(b, uint16(k)); !ok {
		return held, dropICRC
	}
	if err := e.packet.Decode(b[:len(b)-wire.ICRCLen]); err != nil {
		return held, dropMalformed
	}
	if held != q {
		e.leave(now, held)
		q.mu.Lock()
	}
	if q.closed || !receives(q.eng.State()) {
		return q, dropState
	}
	if !peer.heard.Load() {
		peer.heard.Store(true)
		q.est = true // in RTS too, where no event is raised: the manager moves it there early
	}
	if m.TOS&ecnMask == ecnMarked {
		e.d.stats.marksIn.Add(1)
		q.eng.Congested(now)
	}
	q.eng.Receive(now, &e.packet)
	return q, accepted
}

// receives reports whether a queue pair takes packets in a state.
func receives(s ib.QPState) bool {
	return s == ib.StateRTR || s == ib.StateRTS || s == ib.StateSQD || s == ib.StateSQE
}

// leave ends the handling of a run of packets to one queue pair.
func (e *endpoint) leave(now time.Duration, q *qp) {
	if q == nil {
		return
	}
	if q.deliver(e) {
		e.woke = true
	}
	if q.eng.AckPending() {
		if !q.waiting {
			q.waiting = true
			e.waiting = append(e.waiting, q)
			e.d.stats.acksDelayed.Add(1)
		}
		q.rearm()
	} else {
		q.flush(now)
	}
	q.unlock()
}

// owing reports whether a queue pair still has acknowledgements to send, and forgets
// those that have none.
func (e *endpoint) owing() bool {
	kept := e.waiting[:0]
	for _, q := range e.waiting {
		q.mu.Lock()
		if q.closed || !q.eng.AckPending() {
			q.waiting = false
			e.d.stats.acksWithData.Add(1)
		} else {
			kept = append(kept, q)
		}
		q.mu.Unlock()
	}
	clear(e.waiting[len(kept):])
	e.waiting = kept
	return len(kept) > 0
}

// acknowledge sends the acknowledgements that still wait.
func (e *endpoint) acknowledge() {
	for _, q := range e.waiting {
		q.mu.Lock()
		q.waiting = false
		switch {
		case q.closed:
		case q.eng.AckPending():
			q.flush(e.d.now())
		default:
			e.d.stats.acksWithData.Add(1)
		}
		q.unlock()
	}
	clear(e.waiting)
	e.waiting = e.waiting[:0]
	e.woke = false
}

// managementIn handles a packet for QP1.
func (e *endpoint) managementIn(b []byte, m *netio.Message, k int) drop {
	cm := e.d.managerOrNil()
	if cm == nil {
		return dropNoManager
	}
	if wire.Opcode(b[0]).Service() != wire.ServiceUD {
		return dropService
	}
	if pkey := ib.PKey(b[2])<<8 | ib.PKey(b[3]); pkey&0x7FFF != defaultPKey&0x7FFF {
		return dropPKey
	}
	flow := wire.NewFlow(m.Addr, e.local)
	if _, ok := flow.Check(b, uint16(k)); !ok {
		return dropICRC
	}
	if err := e.packet.Decode(b[:len(b)-wire.ICRCLen]); err != nil {
		return dropMalformed
	}
	mad, ok := madOf(&e.packet)
	if !ok {
		return dropManagement
	}
	cm.receiveMAD(e.addr, m.Addr.Addr().Unmap(), mad)
	return accepted
}

// plain gives an address without zone, as queue pairs compare it.
func plain(a netip.Addr) netip.Addr {
	if a.Is4() {
		return a
	}
	return a.WithZone("").Unmap()
}

func ibPSN(n uint32) ib.PSN { return ib.PSN(n & 0xFFFFFF) }
