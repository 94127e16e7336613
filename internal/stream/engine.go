package stream

import (
	"fmt"
	"strconv"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// Engine is the protocol machine of one connection.
type Engine struct {
	cfg   Config
	local Hello
	peer  Hello
	now   time.Duration

	out    outgoing
	in     incoming
	end    ending
	alive  keepAlive
	maps   maps
	events Events

	c *compat  // one of
	v *verbena // the two
}

// Our own choices.
const (
	defaultShrink = time.Second
	defaultLinger = 5 * time.Second
	minSendQueue  = 16
	// lastWordTime is how long the last word of a connection that failed may take, and how
	// long a compatible peer is answered after both sides closed.
	lastWordTime = time.Second
	// enough bytes are sent at once, even while an earlier message is on its way.
	enough = 16 << 10
)

// New makes the machine of a connection whose hellos have been exchanged. A *ConfigError
// says what in c is not possible. Of c, the receive memory and the table are kept.
func New(c Config) (*Engine, error) {
	e := &Engine{cfg: c, local: *c.Local, peer: *c.Peer, now: c.Now}
	e.cfg.Local, e.cfg.Peer = nil, nil
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&e.cfg.Shrink, defaultShrink}, {&e.cfg.Linger, defaultLinger}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if e.cfg.MaxRecv == 0 {
		e.cfg.MaxRecv = defaultMaxRecv
	}
	switch {
	case c.Mode != Compatible && c.Mode != Verbena:
		return nil, &ConfigError{"Mode", "there is no mode " + strconv.Itoa(int(c.Mode))}
	case c.SendQueue < minSendQueue || c.SendQueue > 1<<15:
		return nil, &ConfigError{"SendQueue", fmt.Sprintf("%d is not in %d to %d", c.SendQueue, minSendQueue, 1<<15)}
	case c.SendBuffer < 0 || int64(c.SendBuffer) > 1<<31:
		return nil, &ConfigError{"SendBuffer", fmt.Sprintf("%d is not in 0 to 2^31", c.SendBuffer)}
	case e.cfg.MaxRecv < 0 || e.cfg.MaxRecv > MaxRecvSize || e.cfg.MaxRecv&(e.cfg.MaxRecv-1) != 0:
		return nil, &ConfigError{"MaxRecv", fmt.Sprintf("%d is not a power of two up to %d", c.MaxRecv, MaxRecvSize)}
	}
	e.out.size = uint64(c.SendBuffer)
	e.out.slots = make([]slot, c.SendQueue)
	e.alive.set(c.KeepAlive, c.Now)
	e.in.calm, e.in.pressureAt = c.Now, c.Now // which may be below zero
	var err error
	if c.Mode == Compatible {
		err = e.newCompat()
	} else {
		err = e.newVerbena()
	}
	if err != nil {
		return nil, err
	}
	if n := e.local.IOMap; n > 0 {
		e.maps.remote = make([]remoteMap, n)
	}
	return e, nil
}

// checkRecv checks receive memory.
func (e *Engine) checkRecv(field string, m *RecvMemory) error {
	bad := func(format string, a ...any) error { return &ConfigError{field, fmt.Sprintf(format, a...)} }
	if m.Size <= 0 || m.Count <= 0 || m.Count > 1<<15 || int64(m.Size)*int64(m.Count) > 1<<31 {
		return bad("%d buffers of %d bytes", m.Count, m.Size)
	}
	if e.cfg.Mode == Compatible {
		if m.Count < 2 {
			return bad("one buffer: there must be two, so that one can be filled while the other is read")
		}
		return nil
	}
	switch {
	case m.Size&(m.Size-1) != 0 || m.Size < MinRecv || m.Size > MaxRecvSize:
		return bad("size %d is not a power of two from %d to %d", m.Size, MinRecv, MaxRecvSize)
	case m.Count < MinCredits:
		return bad("%d buffers are below %d", m.Count, MinCredits)
	case len(m.Mem) < m.Size*m.Count:
		return bad("%d bytes of memory for %d buffers of %d", len(m.Mem), m.Count, m.Size)
	}
	return nil
}

// Mode gives the protocol that is spoken.
func (e *Engine) Mode() Mode { return e.cfg.Mode }

// Arrival is the completion of a receive.
type Arrival struct {
	Opcode ib.WCOpcode // WCRecv or WCRecvWriteImm
	HasImm bool
	Imm    uint32 // host order, as in verbs.WC
	Len    uint32 // ByteLen
}

// Received takes the oldest receive that completed well.
func (e *Engine) Received(now time.Duration, a Arrival) {
	e.now = now
	if e.end.over {
		return
	}
	e.alive.heard(now)
	if e.v != nil {
		e.v.received(a)
	} else {
		e.c.received(a)
	}
}

// Sent says that the request id, and with it all before, has completed well. It is called
// for signaled requests.
func (e *Engine) Sent(now time.Duration, id uint64) {
	e.now = now
	if id >= e.alive.id && e.alive.id != 0 {
		e.alive.heard(now)
	}
	e.sent(id)
}

// NextRecv gives the next receive to post.
func (e *Engine) NextRecv(r *Recv) bool {
	switch {
	case e.end.over || e.end.gone:
		return false
	case e.v != nil:
		return e.v.nextRecv(r)
	}
	return e.c.nextRecv(r)
}

// Due reports whether what Consume freed must be seen to now: by NextRecv, Next and Events.
// If not, it may wait for the next call that is followed by those anyway, however late that
// comes: what the peer may still send is enough. So a small message that is read costs no
// call of the queue pair.
func (e *Engine) Due() bool { return e.events != 0 || e.end.over || e.v == nil || e.v.due() }

// Next gives the next request to post. It must be posted, before anything else is asked
// of the engine, or the connection ended with Fail: the engine counts on it.
func (e *Engine) Next(now time.Duration, op *Op) bool {
	e.now = now
	if e.end.over || e.end.gone || e.out.free() == 0 {
		return false
	}
	op.N, op.DataN = 0, 0 // the rest is set where it is used
	if e.v != nil {
		return e.v.next(op)
	}
	return e.c.next(op)
}

// Events gives what happened since the last call.
func (e *Engine) Events() Events {
	ev := e.events
	e.events = 0
	return ev
}

// Deadline gives the time at which Advance wants to be called. It may move with every
// call; one that moved to a later time need not be set anew, as Advance may be called
// early.
func (e *Engine) Deadline() (at time.Duration, ok bool) {
	if e.end.over {
		return 0, false
	}
	at, ok = e.shrinkAt()
	if t, has := e.end.deadline, e.end.timed; has && (!ok || t < at) {
		at, ok = t, true
	}
	if t, has := e.alive.deadline(); has && e.asks() && (!ok || t < at) {
		at, ok = t, true
	}
	return at, ok
}

// asks reports whether the peer may be asked whether it is there.
func (e *Engine) asks() bool {
	end := &e.end
	return end.err == nil && !end.gone && !(end.peerClosed && e.v != nil)
}

// Advance lets time pass: keep-alive, linger, shrinking.
func (e *Engine) Advance(now time.Duration) {
	e.now = now
	if e.end.over {
		return
	}
	e.shrink(now)
	if e.end.timed && now >= e.end.deadline {
		e.end.timed = false
		e.tooLate()
	}
	if e.asks() && e.alive.due(now) {
		e.die(ErrKeepAlive, NoKeepAlive)
		e.over(Failed) // the last word would wait for the silent peer
	}
}
