package softroce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/timers"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// qp is a queue pair: the protocol machine, and a lock around it. Who has the lock
// builds packets and writes them to the socket, so packets leave in the order in which
// they were made.
type qp struct {
	d              *device
	ctx            *deviceContext
	num            ib.QPN
	domain         mem.Domain // with the number
	handle         uint64
	typ            ib.QPType
	sendCQ, recvCQ *cq

	// peer is the way to the other end, from RTR on. Readers of the socket look at it
	// before they take the lock.
	peer atomic.Pointer[peer]

	mu      sync.Mutex
	eng     *transport.QP
	timer   timers.Timer
	armed   bool
	armedAt time.Duration
	slack   time.Duration // by which the timer may be late
	waiting bool          // in the list of its endpoint, see endpoint.waiting
	active  bool          // counted in the peer's buffer
	window  int           // that the machine was told
	est     bool          // the connection manager is to be told of the first packet
	closed  bool
}

var _ driver.QP = (*qp)(nil)

// peer is the other end of a queue pair, and how packets get there and come from there.
type peer struct {
	e      *endpoint
	remote netip.Addr // without zone
	to     netip.AddrPort
	tos    uint8
	flow   wire.Flow // of what is sent
	buffer *peerBuffer

	segments atomic.Int32 // packets of a train
	heard    atomic.Bool  // something came from it

	// Of the reader, under e.rx: the flow of what comes, whose source port is the
	// peer's choice.
	rxPort uint16
	rxFlow wire.Flow
}

// CreateQP makes a queue pair in RESET.
func (p *pd) CreateQP(cfg driver.QPConfig) (driver.QP, error) {
	if err := p.err(); err != nil {
		return nil, err
	}
	switch cfg.Type {
	case ib.RC:
	case ib.UC, ib.UD, ib.RawPacket, ib.XRCSend, ib.XRCRecv, ib.DriverQP:
		return nil, fmt.Errorf("softroce: queue pair of type %v: %w", cfg.Type, errors.ErrUnsupported)
	default:
		return nil, fmt.Errorf("softroce: queue pair of type %d: %w", uint8(cfg.Type), syscall.EINVAL)
	}
	if cfg.SRQ != nil {
		return nil, fmt.Errorf("softroce: shared receive queue: %w", errors.ErrUnsupported)
	}
	if err := checkCaps(cfg.Cap); err != nil {
		return nil, err
	}
	send, ok1 := cfg.SendCQ.(*cq)
	recv, ok2 := cfg.RecvCQ.(*cq)
	if !ok1 || !ok2 || send.ctx != p.ctx || recv.ctx != p.ctx {
		return nil, fmt.Errorf("softroce: completion queue of another device: %w", syscall.EINVAL)
	}
	d := p.ctx.d
	if err := d.acquire(kindQP); err != nil {
		return nil, err
	}
	q := &qp{d: d, ctx: p.ctx, handle: cfg.Handle, typ: cfg.Type, sendCQ: send, recvCQ: recv}
	q.timer.F = q.onTimer
	q.mu.Lock() // until it is whole: its number is found before
	defer q.mu.Unlock()
	if !d.qps.add(q) {
		d.release(kindQP)
		return nil, fmt.Errorf("softroce: no queue pair number is free: %w", syscall.ENOMEM)
	}
	q.domain = p.domain.QP(q.num)
	eng, err := transport.New(transport.Config{
		QPN:       q.num,
		Type:      cfg.Type,
		Caps:      cfg.Cap,
		SignalAll: cfg.SignalAll,
		Domain:    q.domain,
		Memory:    d.memory,
		Bind:      func(s *driver.SendSlot) mem.Fault { return d.bind(q.domain, s) },
	})
	if err == nil {
		err = send.attach(q)
	}
	if err == nil {
		if err = recv.attach(q); err != nil {
			send.detach(q)
		}
	}
	if err != nil {
		q.closed = true
		d.qps.remove(q)
		d.release(kindQP)
		return nil, fmt.Errorf("softroce: create queue pair: %w", err)
	}
	q.eng = eng
	return q, nil
}

// checkCaps compares with the limits of the device; the error names field and limit.
func checkCaps(c driver.Caps) error {
	for _, f := range []struct {
		name   string
		n, max int
	}{
		{"MaxSendWR", c.MaxSendWR, maxQPWR},
		{"MaxRecvWR", c.MaxRecvWR, maxQPWR},
		{"MaxSendSGE", c.MaxSendSGE, maxSGE},
		{"MaxRecvSGE", c.MaxRecvSGE, maxSGE},
		{"MaxInline", c.MaxInline, maxInline},
	} {
		if f.n < 0 || f.n > f.max {
			return fmt.Errorf("softroce: %s %d is not in 0..%d: %w", f.name, f.n, f.max, syscall.EINVAL)
		}
	}
	return nil
}

func (q *qp) Num() ib.QPN { return q.num }

func (q *qp) Caps() driver.Caps {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.eng.Query().Cap
}

// err says why the queue pair takes no calls. q.mu is held.
func (q *qp) err() error {
	if q.closed {
		return net.ErrClosed
	}
	return q.d.err()
}

// SendSlots and RecvSlots give free places of the protocol machine; no data is copied
// on its way from package verbs to the packet.
func (q *qp) SendSlots() []driver.SendSlot {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.eng.SendSlots()
}

func (q *qp) RecvSlots() []driver.RecvSlot {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.eng.RecvSlots()
}

// CommitSend posts the first n slots, builds the packets that may go now and gives
// them to the socket. It does not allocate.
func (q *qp) CommitSend(n int) (int, error) {
	q.mu.Lock()
	if err := q.err(); err != nil {
		q.mu.Unlock()
		return 0, err
	}
	if s := q.eng.State(); s < ib.StateRTS {
		q.mu.Unlock()
		return 0, syscall.EINVAL
	}
	q.eng.CommitSend(n)
	q.flush(q.d.now())
	q.unlock()
	return n, nil
}

// CommitRecv posts the first n slots. It does not allocate.
func (q *qp) CommitRecv(n int) (int, error) {
	q.mu.Lock()
	if err := q.err(); err != nil {
		q.mu.Unlock()
		return 0, err
	}
	if q.eng.State() == ib.StateReset {
		q.mu.Unlock()
		return 0, syscall.EINVAL
	}
	q.eng.CommitRecv(n)
	if q.eng.State() == ib.StateError {
		q.flush(q.d.now())
	}
	q.unlock()
	return n, nil
}

// flush gives completions to their queues, sends what may be sent, and sees that the
// timer runs. q.mu is held.
func (q *qp) flush(now time.Duration) (woke bool) {
	woke = q.deliver(nil)
	if p := q.peer.Load(); p != nil {
		q.transmit(p, now)
		if q.deliver(nil) { // of what failed while it was being built
			woke = true
		}
	}
	q.rearm()
	return woke
}

// transmit sends what the machine wants to send.
func (q *qp) transmit(p *peer, now time.Duration) {
	if w := p.buffer.share(q.active); w != q.window {
		q.window = w
		q.eng.SetWindow(w)
	}
	s := p.e.takeSender()
	for more := true; more; {
		s.out.Buf, s.out.Ends = s.out.Buf[:0], s.out.Ends[:0]
		more = q.eng.Transmit(now, &s.out)
		if len(s.out.Ends) == 0 {
			break
		}
		p.e.send(s, p.to, &p.flow, p.tos, int(p.segments.Load()))
	}
	p.e.giveSender(s)
}

// deliver gives completions and events to their queues. e is where the packets came
// from that caused them, or nil.
func (q *qp) deliver(e *endpoint) (woke bool) {
	for done := q.eng.Completions(); len(done) > 0; done = done[1:] {
		c := q.sendCQ
		if done[0].Recv {
			c = q.recvCQ
		}
		if c.push(&done[0], e) {
			woke = true
		}
	}
	for _, t := range q.eng.Events() {
		q.ctx.async.post(driver.AsyncEvent{Type: t, Handle: q.handle, Port: portNumber})
		if t == ib.EventCommEst {
			q.est = true
		}
	}
	return woke
}

// rearm sees that the timer fires no later than the machine wants, but for slack. A
// timer that is too early is left: it looks again when it fires, which is cheaper than
// moving it with each packet.
//
// To fire for nothing wakes a thread of a process that is perhaps asleep. So each time
// that happens the next one may be later, up to maxSlack, and the first time that the
// machine has something to do ends that. It costs nothing but time after a loss.
func (q *qp) rearm() {
	at, ok := q.eng.Deadline()
	if ok != q.active {
		q.active = ok
		if p := q.peer.Load(); p != nil {
			if ok {
				p.buffer.active.Add(1)
			} else {
				p.buffer.active.Add(-1)
			}
		}
	}
	if !ok || q.armed && q.armedAt <= at+q.slack {
		return
	}
	q.armed, q.armedAt = true, at+q.slack
	q.d.schedule(&q.timer, q.armedAt)
}

const (
	minSlack = 500 * time.Microsecond
	maxSlack = 8 * time.Millisecond
)

// unlock gives the lock back and tells the connection manager what it must know.
func (q *qp) unlock() {
	est := q.est
	q.est = false
	q.mu.Unlock()
	if est {
		if m := q.d.managerOrNil(); m != nil {
			m.commEstablished(q.num)
		}
	}
}

// onTimer is a retransmission, a probe, or the end of a wait. An answer may have come
// that the reader was not woken for (rocev2.md §2.8), so the socket is asked first.
func (q *qp) onTimer(now time.Duration) {
	q.mu.Lock()
	q.armed = false
	if q.closed || !q.due(now) {
		q.mu.Unlock()
		return
	}
	p := q.peer.Load()
	q.mu.Unlock()
	rescue := false
	if p != nil {
		// Between two waits of the reader it is nobody's fault that something is there.
		vacant := p.e.role.state.Load() == roleVacant
		rescue = p.e.drain() > 0 && !vacant
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return
	}
	now = q.d.now()
	if !q.due(now) {
		if rescue {
			q.d.stats.rescues.Add(1)
		}
		q.unlock()
		return
	}
	if p != nil {
		if n := p.e.conn.Limits().Segments; !p.heard.Load() || n < int(p.segments.Load()) {
			// The system has found that it cannot cut trains; or, if nothing ever came
			// back, perhaps the network interface does not number their packets as the
			// system does, so that the ICRCs are wrong. Go on without trains.
			p.segments.Store(1)
		}
	}
	q.eng.Advance(now)
	q.flush(now)
	q.unlock()
}

// due reports whether the machine's time has come; else it sees that the timer runs.
func (q *qp) due(now time.Duration) bool {
	at, ok := q.eng.Deadline()
	if ok && at <= now {
		q.slack = 0
		return true
	}
	if ok {
		q.slack = min(max(2*q.slack, minSlack), maxSlack)
	}
	q.rearm()
	return false
}

// fail moves to the error state because of something outside of the queue pair.
func (q *qp) fail() {
	q.mu.Lock()
	defer q.unlock()
	if q.closed || q.eng == nil {
		return
	}
	if s := q.eng.State(); s == ib.StateReset || s == ib.StateError {
		return
	}
	q.eng.Modify(q.d.now(), &driver.QPAttr{State: ib.StateError}, ib.AttrState)
	q.flush(q.d.now())
}

// Query gives all attributes.
func (q *qp) Query(ib.QPAttrMask) (driver.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.err(); err != nil {
		return driver.QPAttr{}, err
	}
	return q.eng.Query(), nil
}

func (q *qp) facts() (qpFacts, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.eng == nil {
		return qpFacts{}, false
	}
	f := qpFacts{Type: q.typ, State: q.eng.State(), DestQPN: q.eng.Query().DestQPN}
	if p := q.peer.Load(); p != nil {
		f.Local, f.Remote = p.e.addr, p.to.Addr()
	}
	return f, true
}

// Attach and Detach are for datagrams.
func (q *qp) Attach(ib.GID, ib.LID) error {
	return fmt.Errorf("softroce: multicast: %w", errors.ErrUnsupported)
}

func (q *qp) Detach(ib.GID, ib.LID) error {
	return fmt.Errorf("softroce: multicast: %w", errors.ErrUnsupported)
}

// Close ends the queue pair. When it returns the device touches no memory of its
// requests, and none of its completions is in a queue.
func (q *qp) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	q.setPeer(nil)
	q.mu.Unlock()
	q.d.memMu.Lock()
	q.d.memory.Unbind(q.domain) // before another one can get the number
	q.d.memMu.Unlock()
	q.d.qps.remove(q)
	q.d.cancel(&q.timer)
	q.sendCQ.detach(q)
	q.recvCQ.detach(q)
	q.ctx.async.forget(func(e driver.AsyncEvent) bool {
		return e.Handle == q.handle && isQPEvent(e.Type)
	})
	q.d.release(kindQP)
	return nil
}

// isQPEvent reports whether an event is about a queue pair.
func isQPEvent(t ib.EventType) bool {
	switch t {
	case ib.EventQPFatal, ib.EventQPReqErr, ib.EventQPAccessErr, ib.EventCommEst,
		ib.EventSQDrained, ib.EventPathMig, ib.EventPathMigErr, ib.EventQPLastWQEReached:
		return true
	}
	return false
}
