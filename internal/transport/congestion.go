package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/internal/wire"
)

// congestion bounds what is in flight: bytes sent and not acknowledged, and bytes of
// READ responses asked for. The bound is the smaller of what the peer's socket buffer
// holds and of a window that grows while nothing is lost and shrinks on loss and on
// congestion notifications (additive increase, multiplicative decrease). Each packet
// costs its payload and packetOverhead, as small datagrams fill a socket buffer too.
type congestion struct {
	peer   uint64 // what the peer's buffer holds
	window uint64 // what the network seems to hold
	slow   uint64 // below it the window doubles each round trip
	mark   seq    // cuts for losses before it have been made

	alpha   uint32 // estimate of congestion, 0 .. alphaOne, as in DCQCN
	cutAt   time.Duration
	cutOnce bool

	owesCNP bool // to the peer
	cnpAt   time.Duration
	cnpOnce bool
}

const (
	alphaOne   = 1 << 10
	alphaShift = 4 // a notification moves alpha by 1/16 of the way
	minWindow  = 2 * packetOverhead
)

func (c *congestion) reset() {
	*c = congestion{peer: c.peer, window: min(c.peer, defaultWindow), slow: 1 << 62, alpha: alphaOne}
}

// SetWindow bounds the bytes that are on their way to the peer, or asked of it, at any
// time: what its socket buffer is known to hold. One packet is always allowed. The
// default is 64 KiB.
func (q *QP) SetWindow(bytes int) {
	c := &q.cc
	c.peer = uint64(max(bytes, minWindow))
	c.window = min(c.window, c.peer)
}

// limit gives the cost that may be in flight.
func (c *congestion) limit() uint64 { return min(c.peer, c.window) }

// psns gives the number of packets that may be in flight.
func (c *congestion) psns() uint64 { return max(minWindowPSNs, c.peer>>10) }

// readPackets gives the packets that one READ request asks for. With several requests
// outstanding the window is divided, so that the next part is asked for while one
// arrives.
func (c *congestion) readPackets(mtu uint32, depth int) uint32 {
	part := c.limit() / uint64(min(depth, 4))
	return uint32(max(1, min(part/(uint64(mtu)+packetOverhead), c.psns()/uint64(min(depth, 4)))))
}

// acknowledged lets the window grow: by what was acknowledged below the threshold, by
// about one packet a round trip above it. Only a window that was used grows.
func (c *congestion) acknowledged(cost, inflight uint64, mtu uint32) {
	if c.window >= c.peer || inflight+cost < c.window/2 {
		return
	}
	if c.window < c.slow {
		c.window += cost
	} else {
		c.window += max(1, cost*(uint64(mtu)+packetOverhead)/c.window)
	}
	c.window = min(c.window, c.peer)
}

// lost halves the window, once for all losses among the packets in flight, down to two
// packets.
func (c *congestion) lost(q *QP) {
	if q.req.una < c.mark {
		return
	}
	c.mark = q.req.max
	q.stats.WindowCuts++
	c.window = max(c.window/2, 2*(uint64(q.mtu)+packetOverhead))
	c.slow = c.window
}

// expired begins again with one packet, as nothing is known of the path any more.
func (c *congestion) expired(q *QP) {
	c.slow = max(c.window/2, 2*(uint64(q.mtu)+packetOverhead))
	c.window = uint64(q.mtu) + packetOverhead
	c.mark = q.req.max
	q.stats.WindowCuts++
}

// notified cuts the window because the peer saw congestion marks (annex A17.9.3), at
// most once a round trip, by half at first, then by what the estimate says. So a flood
// of notifications ends at two packets in flight, and the window recovers afterwards
// like after a loss.
func (c *congestion) notified(now time.Duration, q *QP) {
	gap := max(cnpInterval, q.retry.srtt)
	since := now - c.cutAt
	if c.cutOnce && since < gap {
		return
	}
	if c.cutOnce {
		for range min(since/gap, 64) {
			c.alpha -= c.alpha >> alphaShift
		}
		c.alpha += (alphaOne - c.alpha) >> alphaShift
	}
	c.cutOnce, c.cutAt = true, now
	c.window = max(c.window-c.window*uint64(c.alpha)/(2*alphaOne), 2*(uint64(q.mtu)+packetOverhead))
	c.window = min(c.window, c.peer)
	c.slow = c.window
	q.stats.WindowCuts++
}

// Congested says that a packet of the peer carried a congestion mark; the machine
// answers with at most one CNP per interval (annex A17.9.3).
func (q *QP) Congested(now time.Duration) {
	c := &q.cc
	if c.cnpOnce && now-c.cnpAt < cnpInterval || !q.connected() {
		return
	}
	c.cnpOnce, c.cnpAt, c.owesCNP = true, now, true
	if q.req.reads != 0 {
		// Responses to READs come the same way. It is this side that asks for less.
		c.notified(now, q)
	}
}

// emitCNP sends the notification: 16 reserved bytes, BECN set, PSN 0.
func (q *QP) emitCNP(out *Output) bool {
	if !q.begin(out, 16) {
		return false
	}
	t := &q.tx
	t.Opcode, t.PSN, t.AckReq, t.Solicited, t.BECN = wire.CNP, 0, false, false, true
	q.end(out, t.AppendHeaders(out.Buf, 0), 0)
	t.BECN = false
	q.cc.owesCNP = false
	q.stats.CNPsSent++
	return true
}
