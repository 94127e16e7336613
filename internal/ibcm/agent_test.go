package ibcm

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// world is two agents, their programs, and the network between them, in virtual time.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	now     time.Duration
	a, b    *end // a connects, b listens
	flights []flight
	tasks   []task
	steps   int

	// fault says when a packet arrives, how often; nil: once. It sees the n-th message
	// of its kind.
	fault func(p Packet, attr Attr, n int) []time.Duration
	sent  map[Attr]int
	trace []string
}

type flight struct {
	at time.Duration
	p  Packet
}

// task is something that a program does at a time.
type task struct {
	at time.Duration
	f  func()
}

const latency = 50 * time.Microsecond

// end is an agent with its program.
type end struct {
	w     *world
	name  string
	addr  netip.Addr
	agent *Agent

	manualAccept     bool // the program does not answer requests by itself
	manualEstablish  bool
	manualDisconnect bool // it does not answer disconnects
	admit            func(r *Request) Verdict
	accept           AcceptParam

	program func(ev Event) // instead of the simple one

	log  []string // events
	conn *Conn    // of the last event
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), sent: make(map[Attr]int)}
	w.a = w.newEnd("a", "10.9.0.1")
	w.b = w.newEnd("b", "10.9.0.2")
	return w
}

func (w *world) newEnd(name, addr string) *end {
	e := &end{w: w, name: name, addr: netip.MustParseAddr(addr)}
	e.accept = AcceptParam{QPN: 0x222222, ResponderResources: 1, InitiatorDepth: 2, RNRRetryCount: 7, AckDelay: 8}
	e.restart(Config{})
	return e
}

// restart gives the end a new agent, as a new process has.
func (e *end) restart(cfg Config) {
	cfg.GUID = ib.GUID(e.w.rng.Uint64())
	cfg.Rand = e.w.rng.Uint64
	cfg.Admit = func(r *Request) Verdict {
		if e.admit != nil {
			return e.admit(r)
		}
		return Verdict{Take: true, Owner: e}
	}
	e.agent = NewAgent(cfg)
}

func (e *end) param(to *end) *ConnectParam {
	return &ConnectParam{
		Path: Path{
			Local: e.addr, Remote: to.addr, TOS: 0x68, MTU: ib.MTU1024,
			AckTimeout: 18, FlowLabel: 0xabcde,
		},
		ServiceID: Service(ib.PortSpaceTCP, 7174), QPN: 0x111111,
		ResponderResources: 4, InitiatorDepth: 6, RetryCount: 7, RNRRetryCount: 6,
		ECE: ECE{Vendor: 0x564552, Options: 0x10000123}, Private: []byte("hello"),
	}
}

func (e *end) connect(to *end) *Conn {
	e.w.t.Helper()
	c, err := e.agent.Connect(e.w.now, e.param(to))
	if err != nil {
		e.w.t.Fatal(err)
	}
	c.Owner = e
	e.settle()
	return c
}

// do calls something and checks its error.
func (e *end) do(err error) {
	e.w.t.Helper()
	if err != nil {
		e.w.t.Fatalf("%s: %v\n%s", e.name, err, e.w.story())
	}
	e.settle()
}

// settle runs the program on the agent's events and puts its packets on the wire.
func (e *end) settle() {
	for {
		events := slices.Clone(e.agent.Events())
		if len(events) == 0 {
			break
		}
		for _, ev := range events {
			e.event(ev)
		}
	}
	for _, p := range e.agent.Packets() {
		e.w.send(p)
	}
}

func (e *end) event(ev Event) {
	s := ev.Type.String()
	switch {
	case ev.Type == EventRejected:
		s = fmt.Sprintf("%s %d", s, ev.Reason)
	case ev.TimedOut:
		s += " timed out"
	}
	e.log = append(e.log, s)
	e.w.trace = append(e.w.trace, fmt.Sprintf("%10v %s: %s (%v)", e.w.now, e.name, s, ev.Conn.State()))
	e.conn = ev.Conn
	if e.program != nil {
		e.program(ev)
		return
	}
	var err error
	switch {
	case ev.Type == EventRequest && !e.manualAccept:
		err = e.agent.Accept(e.w.now, ev.Conn, &e.accept)
	case ev.Type == EventReply && !e.manualEstablish:
		err = e.agent.Establish(e.w.now, ev.Conn)
	case ev.Type == EventDisconnected && !e.manualDisconnect:
		err = e.agent.Disconnect(e.w.now, ev.Conn)
	}
	if err != nil {
		e.w.t.Fatalf("%s: after %v: %v\n%s", e.name, ev.Type, err, e.w.story())
	}
}

func (w *world) send(p Packet) {
	attr, err := PeekAttr(p.MAD[:])
	if err != nil {
		w.t.Fatalf("sent no message: %v", err)
	}
	w.sent[attr]++
	delays := []time.Duration{latency}
	if w.fault != nil {
		delays = w.fault(p, attr, w.sent[attr])
	}
	w.trace = append(w.trace, fmt.Sprintf("%10v %v -> %v %v %v", w.now, p.Local, p.Remote, attr, delays))
	for _, d := range delays {
		w.flights = append(w.flights, flight{w.now + d, p})
	}
}

// run lets time pass to the given time, or until nothing can happen any more.
func (w *world) run(until time.Duration) {
	w.t.Helper()
	for ; w.steps < 1_000_000; w.steps++ {
		next, ok := w.next()
		if !ok || next > until {
			w.now = max(w.now, min(until, 24*time.Hour))
			return
		}
		w.now = max(w.now, next)
		if i := w.due(); i >= 0 {
			p := w.flights[i].p
			w.flights = slices.Delete(w.flights, i, i+1)
			w.deliver(p)
			continue
		}
		if i := slices.IndexFunc(w.tasks, func(k task) bool { return k.at <= w.now }); i >= 0 {
			f := w.tasks[i].f
			w.tasks = slices.Delete(w.tasks, i, i+1)
			f()
			continue
		}
		for _, e := range []*end{w.a, w.b} {
			if at, ok := e.agent.Deadline(); ok && at <= w.now {
				e.agent.Advance(w.now)
				e.settle()
			}
		}
	}
	w.t.Fatalf("never comes to rest\n%s", w.story())
}

const forever = 100 * time.Hour

// next gives the time at which something happens.
func (w *world) next() (at time.Duration, ok bool) {
	at = forever
	for _, f := range w.flights {
		at, ok = min(at, f.at), true
	}
	for _, k := range w.tasks {
		at, ok = min(at, k.at), true
	}
	for _, e := range []*end{w.a, w.b} {
		if d, set := e.agent.Deadline(); set {
			at, ok = min(at, d), true
		}
	}
	return at, ok
}

// due gives the first packet that has arrived.
func (w *world) due() int {
	best := -1
	for i, f := range w.flights {
		if f.at <= w.now && (best < 0 || f.at < w.flights[best].at) {
			best = i
		}
	}
	return best
}

func (w *world) deliver(p Packet) {
	for _, e := range []*end{w.a, w.b} {
		if e.addr == p.Remote {
			e.agent.Receive(w.now, p.Remote, p.Local, p.MAD[:])
			e.settle()
			return
		}
	}
}

func (w *world) story() string {
	return strings.Join(w.trace[max(0, len(w.trace)-60):], "\n")
}

// want checks the events of an end.
func (e *end) want(events ...string) {
	e.w.t.Helper()
	if !slices.Equal(e.log, events) {
		e.w.t.Errorf("%s saw %q, want %q\n%s", e.name, e.log, events, e.w.story())
	}
}

func (e *end) wantState(c *Conn, s State) {
	e.w.t.Helper()
	if c.State() != s {
		e.w.t.Errorf("%s is %v, want %v\n%s", e.name, c.State(), s, e.w.story())
	}
}

// rest checks that nothing of the past is remembered when time has passed.
func (w *world) rest() {
	w.t.Helper()
	w.run(forever)
	for _, e := range []*end{w.a, w.b} {
		g := e.agent
		if g.Len() != 0 || len(g.remote) != 0 || len(g.qpns) != 0 || g.HalfOpen() != 0 ||
			len(g.timers) != 0 || g.rejected.n != 0 || g.timeWaits.n != 0 {
			w.t.Errorf("%s remembers %d connections (%d by peer, %d by queue pair, %d half-open, %d timers)\n%s",
				e.name, g.Len(), len(g.remote), len(g.qpns), g.HalfOpen(), len(g.timers), w.story())
		}
	}
}

func TestC202_ConnectAndDisconnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.b.accept.ECE = ECE{Vendor: 0x564552, Options: 0x10000456}
	w.b.accept.Private = []byte("welcome")
	w.b.manualAccept = true
	ca := w.a.connect(w.b)
	w.run(latency)
	w.b.want("request")
	cb := w.b.conn
	if cb.Owner != any(w.b) || !cb.Passive || cb.ServiceID.Port() != 7174 {
		t.Errorf("request: owner %v, passive %v, service %v", cb.Owner, cb.Passive, cb.ServiceID)
	}
	if p := cb.Peer; p.GUID != w.a.agent.cfg.GUID || p.CommID != ca.CommID() || p.QPN != 0x111111 ||
		p.ResponderResources != 4 || p.InitiatorDepth != 6 || p.RetryCount != 7 || p.RNRRetryCount != 6 ||
		p.ECE != (ECE{0x564552, 0x10000123}) {
		t.Errorf("request says %+v", p)
	}
	if cb.TOS != 0x68 || cb.HopLimit != 64 || cb.FlowLabel != 0xabcde || cb.MTU != ib.MTU1024 || cb.AckTimeout != 18 ||
		cb.Local != w.b.addr || cb.Remote != w.a.addr {
		t.Errorf("path %+v", cb.Path)
	}
	before := cb.RQPSN // the queue pair is made ready before the answer
	w.b.do(w.b.agent.Accept(w.now, cb, &w.b.accept))
	w.run(time.Millisecond)
	w.a.want("reply")
	w.b.want("request", "established")
	if cb.RQPSN != before || before == 0 {
		t.Errorf("first PSN %v, before the answer %v", cb.RQPSN, before)
	}
	w.a.wantState(ca, StateEstablished)
	w.b.wantState(cb, StateEstablished)
	if p := ca.Peer; p.GUID != w.b.agent.cfg.GUID || p.CommID != cb.CommID() || p.QPN != 0x222222 ||
		p.ResponderResources != 1 || p.InitiatorDepth != 2 || p.RNRRetryCount != 7 || p.AckDelay != 8 ||
		p.ECE != (ECE{0x564552, 0x10000456}) {
		t.Errorf("reply says %+v", p)
	}
	// Starting PSN is where the receiver of the message starts to send.
	if ca.SQPSN != cb.RQPSN || cb.SQPSN != ca.RQPSN || ca.SQPSN == cb.SQPSN {
		t.Errorf("PSNs %x %x and %x %x", ca.SQPSN, ca.RQPSN, cb.SQPSN, cb.RQPSN)
	}
	if _, ok := w.a.agent.Deadline(); ok {
		t.Error("an established connection has a timer")
	}
	if ca.message != nil || cb.message != nil {
		t.Error("an established connection keeps a message")
	}
	if ca.ServiceID != cb.ServiceID {
		t.Errorf("services %v and %v", ca.ServiceID, cb.ServiceID)
	}
	w.a.do(w.a.agent.Disconnect(w.now, ca))
	w.run(w.now + time.Millisecond)
	w.a.want("reply", "disconnected")
	w.b.want("request", "established", "disconnected")
	w.a.wantState(ca, StateTimeWait)
	w.b.wantState(cb, StateTimeWait)
	w.rest()
	w.a.want("reply", "disconnected", "time wait exit")
	w.b.want("request", "established", "disconnected", "time wait exit")
	if w.sent[AttrREQ] != 1 || w.sent[AttrREP] != 1 || w.sent[AttrRTU] != 1 || w.sent[AttrDREQ] != 1 || w.sent[AttrDREP] != 1 {
		t.Errorf("sent %v", w.sent)
	}
}

func TestPrivateData(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.b.manualAccept = true
	p := w.a.param(w.b)
	p.Private = make([]byte, MaxPrivateREQ+1)
	if _, err := w.a.agent.Connect(0, p); err == nil || w.a.agent.Len() != 0 {
		t.Errorf("request with 93 bytes: %v", err)
	}
	w.a.connect(w.b)
	var got []byte
	for _, f := range w.flights {
		w.b.agent.Receive(0, f.p.Remote, f.p.Local, f.p.MAD[:])
		got = w.b.agent.Events()[0].Private
	}
	if len(got) != MaxPrivateREQ || string(got[:5]) != "hello" {
		t.Errorf("request carries %q", got)
	}
	for _, c := range w.b.agent.local {
		acc := w.b.accept
		acc.Private = make([]byte, MaxPrivateREP+1)
		if err := w.b.agent.Accept(0, c, &acc); err == nil {
			t.Error("reply with 197 bytes")
		}
		if err := w.b.agent.Reject(0, c, ib.RejectConsumer, nil, make([]byte, MaxPrivateREJ+1)); err == nil {
			t.Error("reject with 149 bytes")
		}
		if err := w.b.agent.Reject(0, c, ib.RejectConsumer, make([]byte, MaxARI+1), nil); err == nil {
			t.Error("reject with 73 bytes of information")
		}
		if c.State() != StateReqRcvd {
			t.Errorf("after refused calls the state is %v", c.State())
		}
	}
}

func TestC203_NobodyListens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.b.admit = func(*Request) Verdict { return Verdict{Reason: ib.RejectInvalidServiceID} }
	c := w.a.connect(w.b)
	w.run(time.Millisecond)
	w.a.want("rejected 8")
	w.b.want()
	w.a.wantState(c, StateDead)
	w.rest()
}

func TestC204_RejectWithReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.b.manualAccept = true
	w.a.connect(w.b)
	w.run(latency)
	c := w.b.conn
	private := make([]byte, MaxPrivateREJ)
	for i := range private {
		private[i] = byte(i + 1)
	}
	if err := w.b.agent.Reject(w.now, c, ib.RejectInvalidMTU, []byte{3}, private); err != nil {
		t.Fatal(err)
	}
	p := w.b.agent.Packets()[0]
	w.a.agent.Receive(w.now, p.Remote, p.Local, p.MAD[:])
	ev := w.a.agent.Events()[0]
	if ev.Type != EventRejected || ev.Reason != ib.RejectInvalidMTU || len(ev.Info) != 1 || ev.Info[0] != 3 ||
		!slices.Equal(ev.Private, private) {
		t.Errorf("event %+v", ev)
	}
	for name, err := range map[string]error{
		"reject": w.b.agent.Reject(w.now, c, ib.RejectConsumer, nil, nil),
		"accept": w.b.agent.Accept(w.now, c, &w.b.accept),
	} {
		if err == nil {
			t.Errorf("%s after reject works", name)
		}
	}
	w.rest()
}

// TestWrongState calls everything in every state that does not allow it.
func TestC199_CallsInTheWrongOrder(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		state State
		allow string // of accept, reject, establish, notify, disconnect
	}{
		{StateDead, "d"}, {StateReqSent, ""}, {StateRepRcvd, "r e d"}, {StateReqRcvd, "a r"},
		{StateRepSent, "n d"}, {StateEstablished, "d"}, {StateDreqSent, "d"}, {StateDreqRcvd, "d"},
		{StateTimeWait, "d"}, {StateRejected, "d"},
	} {
		for _, call := range []string{"a", "r", "e", "n", "d"} {
			a := NewAgent(Config{Rand: rand.New(rand.NewPCG(5, 5)).Uint64})
			c := a.newConn()
			c.state, c.Passive = s.state, true
			a.pending = 1
			var err error
			switch call {
			case "a":
				err = a.Accept(0, c, &AcceptParam{QPN: 5})
			case "r":
				err = a.Reject(0, c, ib.RejectConsumer, nil, nil)
			case "e":
				err = a.Establish(0, c)
			case "n":
				err = a.CommEstablished(0, c)
			case "d":
				err = a.Disconnect(0, c)
			}
			if allowed := strings.Contains(s.allow, call); allowed != (err == nil) {
				t.Errorf("%s in %v: %v", call, s.state, err)
			}
		}
	}
	if s := State(200).String(); s != "unknown state" {
		t.Error(s)
	}
	if s := EventType(0).String(); s != "unknown event" {
		t.Error(s)
	}
}

func TestConnectParamRanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	for i, f := range []func(p *ConnectParam){
		func(p *ConnectParam) { p.RetryCount = 8 },
		func(p *ConnectParam) { p.RNRRetryCount = 8 },
		func(p *ConnectParam) { p.AckTimeout = 32 },
		func(p *ConnectParam) { p.MTU = 0 },
		func(p *ConnectParam) { p.MTU = 6 },
		func(p *ConnectParam) { p.QPN = 0 },
		func(p *ConnectParam) { p.QPN = 1 << 24 },
	} {
		p := w.a.param(w.b)
		f(p)
		if _, err := w.a.agent.Connect(0, p); err != ErrNumber {
			t.Errorf("%d: %v", i, err)
		}
	}
	w.b.manualAccept = true
	w.a.connect(w.b)
	w.run(latency)
	for i, f := range []func(p *AcceptParam){
		func(p *AcceptParam) { p.RNRRetryCount = 8 },
		func(p *AcceptParam) { p.AckDelay = 32 },
		func(p *AcceptParam) { p.QPN = 0 },
		func(p *AcceptParam) { p.QPN = 1 << 24 },
	} {
		p := w.b.accept
		f(&p)
		if err := w.b.agent.Accept(w.now, w.b.conn, &p); err != ErrNumber {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestOwnAddress has both ends in one agent with one address.
func TestOwnAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 7)
	c := w.a.connect(w.a)
	w.run(time.Second)
	w.a.want("request", "reply", "established")
	w.a.do(w.a.agent.Disconnect(w.now, c))
	w.run(w.now + time.Second/4)
	w.a.want("request", "reply", "established", "disconnected", "disconnected")
	w.rest()
}

func TestSIDRIsUnsupported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8)
	var mad [MADLen]byte
	q := SIDRREQ{Header: Header{TID: 9}, RequestID: 77, ServiceID: Service(ib.PortSpaceUDP, 5)}
	q.Encode(&mad)
	w.b.agent.Receive(0, w.b.addr, w.a.addr, mad[:])
	out := w.b.agent.Packets()
	if len(out) != 1 || out[0].Remote != w.a.addr || out[0].Local != w.b.addr {
		t.Fatalf("answers %v", out)
	}
	var r SIDRREP
	if err := r.Decode(out[0].MAD[:]); err != nil || r.RequestID != 77 || r.Status != SIDRUnsupported || r.TID != 9 ||
		r.ServiceID != q.ServiceID {
		t.Errorf("answer %+v, %v", r, err)
	}
}

func TestShutdownTellsPeers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 9)
	w.a.connect(w.b)
	w.run(time.Second)
	p := w.a.param(w.b)
	p.QPN = 0x333333
	w.b.manualAccept = true
	if _, err := w.a.agent.Connect(w.now, p); err != nil {
		t.Fatal(err)
	}
	w.a.settle()
	w.run(w.now + time.Millisecond)
	w.a.agent.Shutdown(w.now)
	w.a.settle()
	if w.a.agent.Len() != 0 {
		t.Errorf("%d connections are left", w.a.agent.Len())
	}
	w.run(w.now + time.Millisecond)
	w.b.want("request", "established", "request", "disconnected", "rejected 4")
	if _, ok := w.a.agent.Deadline(); ok {
		t.Error("a timer runs after shutdown")
	}
}
