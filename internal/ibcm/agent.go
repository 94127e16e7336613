package ibcm

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

var (
	// ErrState: the call does not fit the state of the connection; often because the
	// peer was quicker.
	ErrState = errors.New("ibcm: wrong state")
	// ErrConnected: the connection is established already.
	ErrConnected = errors.New("ibcm: already connected")
	// ErrTooLong: the private data do not fit the message.
	ErrTooLong = errors.New("ibcm: private data too long")
	// ErrNumber: a parameter does not fit its field.
	ErrNumber = errors.New("ibcm: parameter out of range")
)

// Config of an Agent. Zero limits mean the defaults of limits.go.
type Config struct {
	// GUID names this process to peers. They take two connections with the same GUID and
	// queue pair number for one that was left over, so it should be new for each
	// process.
	GUID ib.GUID

	// Rand gives unpredictable numbers, for communication ids and first PSNs: a stranger
	// must not guess them. Tests give repeatable ones.
	Rand func() uint64

	// Admit decides about a request before anything is remembered of it. It is called
	// inside Receive and must not call the agent. Nil: nobody listens.
	Admit func(r *Request) Verdict

	HalfOpen        int
	RequestTries    int
	ReplyTries      int
	DisconnectTries int
}

// Request is a peer's wish to connect, at Admit. It is valid during the call.
type Request struct {
	Local, Remote netip.Addr
	ServiceID     ServiceID
	MTU           ib.MTU
	Private       []byte // MaxPrivateREQ bytes
}

// Verdict is the answer of Admit. The zero Verdict drops the request without a word.
type Verdict struct {
	Take   bool            // make a connection, whose Owner is Owner
	Reason ib.RejectReason // if not Take: reject, unless zero
	Info   []byte          // additional reject information, at most MaxARI
	Owner  any
}

// Packet is a management datagram to be sent to QP1 of a peer.
type Packet struct {
	Local, Remote netip.Addr
	TOS           uint8
	MAD           [MADLen]byte
}

// Stats counts what the agent has seen.
type Stats struct {
	Malformed  uint64 // not a message of the communication manager, or with impossible fields
	Stray      uint64 // belongs to no connection
	Forged     uint64 // names a connection, but comes from another address, or knows it badly
	Duplicates uint64 // had been seen before
	Dropped    uint64 // requests beyond a limit, or that Admit dropped
	Rejected   uint64 // requests refused without a connection
	Repeated   uint64 // messages sent again because no answer came
	Muted      uint64 // answers to strays not given because there were too many
}

// Agent makes, accepts and ends connections (IBTA Vol 1 ch. 12). It is used by one
// goroutine at a time. After each call its owner takes Packets and Events, and sees to
// it that Advance is called at Deadline.
//
// Every message is answered as its sender's state needs it, also when it comes twice,
// late or in another order, so one lost message costs one repetition. Messages are
// believed only if both communication ids, the addresses and, for a disconnect, the
// queue pair number fit.
type Agent struct {
	cfg Config

	local  map[uint32]*Conn    // by our communication id
	remote map[remoteKey]*Conn // by the peer's
	qpns   map[qpnKey]*Conn    // by the peer's queue pair

	timers    timerHeap
	rejected  connList
	timeWaits connList
	pending   int // passive connections that are not established
	strays    bucket

	packets []Packet
	events  []Event
	stats   Stats
}

// A peer is known by address and GUID: whoever can send from the address of another
// host is that host, as far as anybody can tell, and who cannot must not disturb it.
type remoteKey struct {
	addr netip.Addr // without zone
	guid ib.GUID
	id   uint32
}

type qpnKey struct {
	addr netip.Addr
	guid ib.GUID
	qpn  ib.QPN
}

// NewAgent makes an agent.
func NewAgent(cfg Config) *Agent {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&cfg.HalfOpen, halfOpen)
	def(&cfg.RequestTries, requestTries)
	def(&cfg.ReplyTries, replyTries)
	def(&cfg.DisconnectTries, disconnectTries)
	if cfg.Admit == nil {
		cfg.Admit = func(*Request) Verdict { return Verdict{Reason: ib.RejectInvalidServiceID} }
	}
	return &Agent{
		cfg:    cfg,
		local:  make(map[uint32]*Conn),
		remote: make(map[remoteKey]*Conn),
		qpns:   make(map[qpnKey]*Conn),
		strays: bucket{burst: strayBurst, rate: strayRate},
	}
}

// Packets gives what is to be sent, in order, since the last call. The slice is valid
// until the next call of any method.
func (a *Agent) Packets() []Packet {
	p := a.packets
	a.packets = a.packets[:0]
	return p
}

// Events gives what has happened since the last call. The slice is valid until the next
// call of any method.
func (a *Agent) Events() []Event {
	e := a.events
	a.events = a.events[:0]
	return e
}

// Stats gives the counters.
func (a *Agent) Stats() Stats { return a.stats }

// Len gives the number of connections, those that are over and remembered included.
func (a *Agent) Len() int { return len(a.local) }

// HalfOpen gives the number of passive connections that are not established.
func (a *Agent) HalfOpen() int { return a.pending }

// Deadline gives the time at which Advance must be called; false: no timer runs.
func (a *Agent) Deadline() (time.Duration, bool) {
	if len(a.timers) == 0 {
		return 0, false
	}
	return a.timers[0].when, true
}

// Advance says that time has passed.
func (a *Agent) Advance(now time.Duration) {
	for len(a.timers) > 0 && a.timers[0].when <= now {
		c := a.timers[0]
		a.timers.stop(c)
		a.expire(now, c)
	}
}

// Connect sends a request.
func (a *Agent) Connect(now time.Duration, p *ConnectParam) (*Conn, error) {
	switch {
	case len(p.Private) > MaxPrivateREQ:
		return nil, tooLong("request", len(p.Private), MaxPrivateREQ)
	case p.RetryCount > 7, p.RNRRetryCount > 7, p.AckTimeout > 31,
		p.MTU < ib.MTU256, p.MTU > ib.MTU4096, p.QPN == 0, p.QPN > 0xffffff:
		return nil, ErrNumber
	}
	c := a.newConn()
	c.Path = p.Path
	if c.HopLimit == 0 {
		c.HopLimit = defaultHops
	}
	c.ServiceID = p.ServiceID
	c.QPN = p.QPN
	c.RQPSN = ib.PSN(a.cfg.Rand()) & 0xffffff
	c.tid = a.cfg.Rand()
	c.state = StateReqSent
	c.message = a.request(c, p)
	a.start(now, c)
	return c, nil
}

// Accept answers a request with yes. The queue pair must be able to receive.
func (a *Agent) Accept(now time.Duration, c *Conn, p *AcceptParam) error {
	switch {
	case c.state != StateReqRcvd:
		return ErrState
	case len(p.Private) > MaxPrivateREP:
		return tooLong("reply", len(p.Private), MaxPrivateREP)
	case p.RNRRetryCount > 7, p.AckDelay > 31, p.QPN == 0, p.QPN > 0xffffff:
		return ErrNumber
	}
	c.QPN = p.QPN
	c.message = a.reply(c, p)
	c.state = StateRepSent
	a.start(now, c)
	return nil
}

// Reject answers a request, or on the active side a reply, with no.
func (a *Agent) Reject(now time.Duration, c *Conn, reason ib.RejectReason, info, private []byte) error {
	if c.state != StateReqRcvd && c.state != StateRepRcvd {
		return ErrState
	}
	if len(private) > MaxPrivateREJ {
		return tooLong("reject", len(private), MaxPrivateREJ)
	}
	if len(info) > MaxARI {
		return tooLong("reject information", len(info), MaxARI)
	}
	m := a.reject(c, reason, info, private)
	a.send(c, m)
	if c.state == StateRepRcvd {
		a.forget(c)
		return nil
	}
	// The peer repeats its request if this answer is lost: it shall get it again.
	c.message = m
	a.leaveHalfOpen(c)
	c.state = StateRejected
	a.over(now, c, &a.rejected, maxRejected, rejectedTime)
	return nil
}

// Establish says that the queue pair is ready to send and receive, after EventReply.
func (a *Agent) Establish(now time.Duration, c *Conn) error {
	if c.state != StateRepRcvd {
		return ErrState
	}
	c.state = StateEstablished
	a.send(c, a.readyToUse(c))
	return nil
}

// CommEstablished says that data of the peer have come, so that it must have our reply.
// On an established connection it gives ErrConnected, which is harmless.
func (a *Agent) CommEstablished(now time.Duration, c *Conn) error {
	switch {
	case c.state == StateRepSent:
		a.established(c)
		return nil
	case c.state == StateEstablished:
		return ErrConnected
	}
	return ErrState
}

// Disconnect ends a connection, or answers the peer's disconnect. A connection that has
// ended in any way is no error.
func (a *Agent) Disconnect(now time.Duration, c *Conn) error {
	switch c.state {
	case StateRepRcvd, StateRepSent, StateEstablished:
		a.disconnect(now, c)
	case StateDreqRcvd:
		a.send(c, a.disconnectReply(c))
		a.enterTimeWait(now, c)
	case StateReqSent, StateReqRcvd:
		return ErrState
	}
	return nil
}

// Close withdraws the owner from a connection: the peer is told, and no event of c is
// given any more. What the protocol still needs goes on by itself.
func (a *Agent) Close(now time.Duration, c *Conn) {
	if c.detached {
		return
	}
	c.detached = true
	c.Owner = nil
	a.dropEvents(c)
	switch c.state {
	case StateReqSent:
		a.send(c, a.timeoutReject(c))
		a.forget(c)
	case StateRepRcvd:
		a.send(c, a.reject(c, ib.RejectConsumer, nil, nil))
		a.forget(c)
	case StateReqRcvd:
		// Cannot fail: nothing in it is too long.
		_ = a.Reject(now, c, ib.RejectConsumer, nil, nil)
	case StateDreqSent:
		c.tries = min(c.tries, abandonedTries)
	default:
		// The others have nothing that could be refused.
		_ = a.Disconnect(now, c)
	}
}

// Shutdown closes every connection. One datagram tells each peer that is not told yet;
// nothing is repeated, as the owner is about to go.
func (a *Agent) Shutdown(now time.Duration) {
	all := make([]*Conn, 0, len(a.local))
	for _, c := range a.local {
		all = append(all, c)
	}
	slices.SortFunc(all, func(x, y *Conn) int { return cmp.Compare(x.id, y.id) })
	for _, c := range all {
		a.Close(now, c)
	}
	for _, c := range all {
		a.forget(c)
	}
}

// newConn makes a connection with an id that nobody can guess.
func (a *Agent) newConn() *Conn {
	c := &Conn{agent: a}
	for {
		c.id = uint32(a.cfg.Rand() >> 32)
		if _, used := a.local[c.id]; c.id != 0 && !used {
			break
		}
	}
	a.local[c.id] = c
	return c
}

// forget takes c out of everything.
func (a *Agent) forget(c *Conn) {
	a.leaveHalfOpen(c)
	c.unlist()
	a.timers.stop(c)
	a.leaveQPN(c)
	if c.inRemote {
		delete(a.remote, remoteKey{plain(c.Remote), c.Peer.GUID, c.Peer.CommID})
		c.inRemote = false
	}
	if a.local[c.id] == c {
		delete(a.local, c.id)
	}
	c.message = nil
	c.state = StateDead
}

func (a *Agent) leaveQPN(c *Conn) {
	if c.inQPN {
		delete(a.qpns, qpnKey{plain(c.Remote), c.Peer.GUID, c.Peer.QPN})
		c.inQPN = false
	}
}

// leaveHalfOpen is called when a passive connection stops being half-open.
func (a *Agent) leaveHalfOpen(c *Conn) {
	if c.Passive && (c.state == StateReqRcvd || c.state == StateRepSent) {
		a.pending--
	}
}

// established ends the wait of the passive side.
func (a *Agent) established(c *Conn) {
	a.leaveHalfOpen(c)
	c.state = StateEstablished
	c.message = nil
	a.timers.stop(c)
	a.event(Event{Type: EventEstablished, Conn: c})
}

// disconnect starts to ask for the end.
func (a *Agent) disconnect(now time.Duration, c *Conn) {
	a.leaveHalfOpen(c)
	c.state = StateDreqSent
	c.tid = a.cfg.Rand()
	c.message = a.disconnectRequest(c)
	a.start(now, c)
	if c.detached {
		c.tries = min(c.tries, abandonedTries)
	}
}

// enterTimeWait is the end of a connection that was, or may have been, established.
func (a *Agent) enterTimeWait(now time.Duration, c *Conn) {
	a.leaveHalfOpen(c)
	c.message = nil
	c.state = StateTimeWait
	a.over(now, c, &a.timeWaits, maxTimeWaits, c.timeWait())
}

// over remembers c for a while in a list of limited length.
func (a *Agent) over(now time.Duration, c *Conn, l *connList, limit int, d time.Duration) {
	a.leaveQPN(c)
	if l.n >= limit {
		a.expire(now, l.first)
	}
	l.push(c)
	a.timers.set(c, now+d)
}

// event gives an event to the owner of its connection, if it still has one.
func (a *Agent) event(e Event) {
	if !e.Conn.detached {
		a.events = append(a.events, e)
	}
}

// dropEvents takes back the events of c that the owner has not fetched.
func (a *Agent) dropEvents(c *Conn) {
	a.events = slices.DeleteFunc(a.events, func(e Event) bool { return e.Conn == c })
}

func (a *Agent) send(c *Conn, mad *[MADLen]byte) {
	a.packets = append(a.packets, Packet{Local: c.Local, Remote: c.Remote, TOS: c.TOS, MAD: *mad})
}

func tooLong(what string, n, limit int) error {
	return fmt.Errorf("%w: %s of %d bytes, at most %d", ErrTooLong, what, n, limit)
}

// plain is an address as it is compared: a datagram has no zone in it.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
