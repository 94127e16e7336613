package rdma

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// connMemory is the memory of a connection. The machine of the stream names it by regions.
type connMemory struct {
	base   piece     // receives that are posted before the hello goes
	ring   piece     // Compatible: buffers that the peer writes, and the table behind them
	ringMR *verbs.MR // the rights to it
	send   piece     // the send buffer; none while nothing is to be sent
	stage  piece     // messages of the protocol, on devices without inline data
	first  piece     // base or ring: stream.FirstRecv
	lent   []lentPiece
	inline int // what the queue pair takes inline
	most   int // buffers that may be lent at a time
}

type lentPiece struct {
	region stream.Region
	mr     *verbs.MR // the peer's rights to it: Compatible
	piece
}

// free gives it back. The peer has no right to it any more when it can be somebody else's.
func (l *lentPiece) free(h *hub) {
	if l.mr != nil {
		l.mr.Close()
	}
	h.lent.Add(-int64(len(l.b)))
	h.mem.free(l.piece)
}

// sge names a part of a region for a request.
func (m *connMemory) sge(l stream.Loc) verbs.SGE {
	var p *piece
	switch l.Region {
	case stream.SendRegion:
		p = &m.send
	case stream.FirstRecv:
		p = &m.first
	default:
		for i := range m.lent {
			if m.lent[i].region == l.Region {
				p = &m.lent[i].piece
			}
		}
	}
	return p.sge(int(l.Off), int(l.Len))
}

// dropRing takes the peer's rights away: the connection does not speak rsockets.
func (m *connMemory) dropRing(a *arena) {
	if m.ringMR != nil {
		m.ringMR.Close()
		m.ringMR = nil
	}
	a.free(m.ring)
	m.ring = piece{}
}

// free gives everything back. The queue pair is closed.
func (m *connMemory) free(h *hub) {
	a := &h.mem
	m.dropRing(a)
	for _, p := range []piece{m.base, m.send, m.stage} {
		a.free(p)
	}
	for i := range m.lent {
		m.lent[i].free(h)
	}
	*m = connMemory{}
}

const (
	// firstSend is the send buffer of connections that write little at a time.
	firstSend = 2 << 10
	// sendIdle is how long a larger one stays when nothing is written.
	sendIdle = time.Second
	// mostLent bounds the memory that a hub lends to connections in bulk transfer. It is a
	// bound of the whole, beside Config.RecvBuf for each.
	mostLent = 1 << 30
	// mostRecv is the greatest buffer that is lent, and so the greatest message.
	mostRecv = 64 << 10

	memoryEvents = stream.WantRecv | stream.RecvReturned | stream.Unmapped
)

// sendRoom sees that there is a send buffer, and one that is large enough for writes of n
// bytes, as far as the configuration allows and as soon as the present one is not in use.
// mu is held.
func (c *Conn) sendRoom(n int) error {
	have := len(c.mem.send.b)
	want := firstSend
	if n > firstSend/2 {
		want = c.opts.sendBuf
	}
	if have >= want && have <= c.opts.sendBuf || have > 0 && !c.idleSend() {
		return nil
	}
	want = min(want, c.opts.sendBuf)
	if have > want {
		return nil
	}
	p, err := c.hub.mem.alloc(want)
	if err != nil {
		if have > 0 {
			return nil // it works with what there is
		}
		return err
	}
	if !c.e.SetSendBuffer(len(p.b)) {
		c.hub.mem.free(p)
		return nil
	}
	c.hub.mem.free(c.mem.send)
	c.mem.send = p
	return nil
}

// idleSend reports whether the send buffer may be exchanged. mu is held.
func (c *Conn) idleSend() bool { return c.e.Unsent() == 0 && c.e.Unacked() == 0 }

// shrink gives a send buffer back that is not used. mu is held.
func (c *Conn) shrink() {
	if c.mem.send.s == nil || !c.idleSend() || now()-c.wrote < sendIdle {
		return
	}
	if c.e.SetSendBuffer(0) {
		c.hub.mem.free(c.mem.send)
		c.mem.send = piece{}
	}
}

// adjust follows the events that concern memory. mu is held.
func (c *Conn) adjust(ev stream.Events) {
	if ev&stream.RecvReturned != 0 {
		for {
			r, ok := c.e.TakeReturned()
			if !ok {
				break
			}
			c.takeBack(r)
		}
	}
	if ev&stream.WantRecv != 0 {
		c.lend()
	}
	if ev&stream.Unmapped != 0 {
		c.unmapped()
	}
}

func (c *Conn) takeBack(r stream.Region) {
	for i, l := range c.mem.lent {
		if l.region == r {
			c.mem.lent = append(c.mem.lent[:i], c.mem.lent[i+1:]...)
			l.free(c.hub)
			return
		}
	}
}

// lend gives the machine larger receives, as the peer sends much: not before somebody has
// accepted the connection. mu is held.
func (c *Conn) lend() {
	if c.queued {
		return // the machine keeps the wish: see accepted
	}
	l, err := c.larger()
	if err != nil {
		c.e.Decline(now())
		return
	}
	c.mem.lent = append(c.mem.lent, l)
}

// accepted gives a connection that was waiting at a listener what it could not have there.
func (c *Conn) accepted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued = false
	if c.e != nil && c.e.Want() > 0 && !c.over {
		c.lend()
		c.settle(nil)
	}
}

// errNoLoan: there shall be no larger receives.
var errNoLoan = errors.New("rdma: no larger receives")

func (c *Conn) larger() (l lentPiece, err error) {
	size, least, most := c.e.Want(), stream.MinCredits, c.opts.recvLimit(c.e.Mode())
	compatible := c.e.Mode() == stream.Compatible
	if compatible {
		least = ringBuffers
	}
	for size*least > most {
		size /= 2 // it must be a power of two
	}
	count := min(most/max(size, 1), c.mem.most)
	n := size * count
	if size <= c.e.RecvSize() || count < least || !reserve(&c.hub.lent, int64(n)) {
		return l, errNoLoan
	}
	if l.piece, err = c.hub.mem.alloc(n); err != nil {
		c.hub.lent.Add(-int64(n))
		return l, err
	}
	c.hub.lent.Add(int64(len(l.b) - n))
	mem := stream.RecvMemory{Size: size, Count: count, Mem: l.b[:n:n]}
	if compatible {
		if l.mr, err = c.hub.mem.expose(mem.Mem); err == nil {
			r := l.mr.Remote(0, n)
			mem.Addr, mem.RKey = r.Addr, r.RKey
		}
	}
	if err == nil {
		l.region, err = c.e.Lend(now(), mem)
	}
	if err != nil {
		l.free(c.hub)
	}
	return l, err
}

// reserve takes n of a budget.
func reserve(v *atomic.Int64, n int64) bool {
	if v.Add(n) > mostLent {
		v.Add(-n)
		return false
	}
	return true
}
