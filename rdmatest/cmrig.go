package rdmatest

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// channel opens a CM channel that lives as long as the test.
func (t *tb) channel(p verbs.Provider) *cm.EventChannel {
	t.Helper()
	ch, err := cm.NewEventChannel(p)
	t.ok(err, "open an event channel")
	t.Cleanup(func() { t.closed(ch, "event channel") })
	return ch
}

func (t *tb) newID(ch *cm.EventChannel, ps ib.PortSpace) *cm.ID {
	t.Helper()
	id, err := ch.NewID(ps)
	t.ok(err, "make an id")
	t.Cleanup(func() { t.closed(id, "id") })
	return id
}

// event waits for the next event of a channel, which must have a type.
func (t *tb) event(ch *cm.EventChannel, want cm.EventType) cm.Event {
	t.Helper()
	ev, err := ch.Event(t.limit)
	t.ok(err, "wait for %v", want)
	if ev.Type != want {
		t.Fatalf("event %v (%v), want %v", ev.Type, ev.Err, want)
	}
	return ev
}

// noEvent checks that no event is there.
func (t *tb) noEvent(chs ...*cm.EventChannel) {
	t.Helper()
	for _, ch := range chs {
		ev, ok, err := ch.TryEvent()
		t.ok(err, "look for an event")
		if ok {
			t.Errorf("event that must not be: %v (%v)", ev.Type, ev.Err)
		}
	}
}

// listener listens on the peer's address, on a port that the system chooses.
func (t *tb) listener(backlog int) (*cm.EventChannel, *cm.ID) {
	t.Helper()
	ch := t.channel(t.Peer)
	id := t.newID(ch, ib.PortSpaceTCP)
	t.ok(id.Bind(netip.AddrPortFrom(t.PeerAddr, 0)), "bind %v", t.PeerAddr)
	t.ok(id.Listen(backlog), "listen")
	return ch, id
}

// anyAddr is the wildcard of the family that the test runs on.
func (t *tb) anyAddr() netip.Addr {
	if t.Addr.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

const resolveLimit = 2 * time.Second

// resolve goes on the active side up to the resolved route.
func (t *tb) resolve(ch *cm.EventChannel, to netip.AddrPort) *cm.ID {
	t.Helper()
	id := t.newID(ch, ib.PortSpaceTCP)
	t.ok(id.ResolveAddr(netip.AddrPortFrom(t.Addr, 0), to, resolveLimit), "resolve %v", to)
	if ev := t.event(ch, cm.AddrResolved); ev.ID != id {
		t.Fatal("event of another id")
	}
	t.ok(id.ResolveRoute(resolveLimit), "resolve the route")
	t.event(ch, cm.RouteResolved)
	return id
}

// peer is one side of a connection that the CM makes.
type peer struct {
	end
	ch *cm.EventChannel
	id *cm.ID
}

// equip gives an id a queue pair with receives 0..depth-1 posted.
func (t *tb) equip(name string, ch *cm.EventChannel, id *cm.ID, change ...func(*verbs.QPConfig)) *peer {
	t.Helper()
	p := &peer{ch: ch, id: id, end: end{tb: t, name: name, dev: id.Device()}}
	if p.dev == nil {
		t.Fatalf("%s: the id has no device", name)
	}
	p.pd = t.pd(p.dev)
	p.scq, p.rcq = t.cq(p.dev, 64, nil), t.cq(p.dev, 64, nil)
	p.mr = t.region(p.pd, 64<<10, allRights)
	cfg := verbs.QPConfig{SendCQ: p.scq, RecvCQ: p.rcq, MaxSendWR: 16, MaxRecvWR: 16}
	for _, f := range change {
		f(&cfg)
	}
	qp, err := id.CreateQP(p.pd, cfg)
	t.ok(err, "%s: create a queue pair", name)
	t.Cleanup(func() { t.closed(qp, "queue pair") })
	p.qp = qp
	p.recvs(depth, 1024)
	return p
}

// depth is the number of receives that equip posts.
const depth = 4

// meet makes a connection on the lower floor; the listener's channel gives the events
// of the passive side.
func (t *tb) meet(req, acc *cm.ConnParam) (c, s *peer, l *cm.ID) {
	t.Helper()
	lch, l := t.listener(0)
	c, s = t.dial(t.channel(t.Provider), lch, l, req, acc)
	return c, s, l
}

// dial connects to a listener and accepts.
func (t *tb) dial(ch, lch *cm.EventChannel, l *cm.ID, req, acc *cm.ConnParam) (c, s *peer) {
	t.Helper()
	c = t.ask(ch, l, req)
	s = t.requested(lch, l)
	t.ok(s.id.Accept(acc), "accept")
	t.event(ch, cm.Established)
	t.event(lch, cm.Established)
	return c, s
}

// ask sends a request to a listener.
func (t *tb) ask(ch *cm.EventChannel, l *cm.ID, req *cm.ConnParam) *peer {
	t.Helper()
	c := t.equip("client", ch, t.resolve(ch, netip.AddrPortFrom(t.PeerAddr, l.LocalAddr().Port())))
	t.ok(c.id.Connect(req), "connect")
	return c
}

// requested takes the next request and gives it a queue pair.
func (t *tb) requested(lch *cm.EventChannel, l *cm.ID) *peer {
	t.Helper()
	id, _ := t.request(lch, l)
	return t.equip("server", lch, id)
}

// request takes the next request.
func (t *tb) request(lch *cm.EventChannel, l *cm.ID) (*cm.ID, cm.Event) {
	t.Helper()
	ev, err := lch.Event(t.limit)
	for err == nil && ev.Type == cm.TimewaitExit { // of an earlier connection
		ev, err = lch.Event(t.limit)
	}
	t.ok(err, "wait for a request")
	if ev.Type != cm.ConnectRequest {
		t.Fatalf("event %v (%v), want a request", ev.Type, ev.Err)
	}
	if ev.Listener != l || ev.ID == nil || ev.ID == l {
		t.Fatal("the request names the wrong ids")
	}
	t.Cleanup(func() { t.closed(ev.ID, "id of a request") })
	return ev.ID, ev
}

// exchange sends a message in each direction.
func (t *tb) exchange(c, s *peer) {
	t.Helper()
	for i, w := range [][2]*peer{{c, s}, {s, c}} {
		from, to := w[0], w[1]
		from.fill(32<<10, 100, byte(i+1))
		from.send(verbs.Send(77, from.sge(32<<10, 100), ib.Signaled))
		from.sent(77, ib.StatusSuccess)
		wc, err := to.rcq.Next(t.limit)
		t.ok(err, "wait for the message")
		if wc.Status != ib.StatusSuccess || wc.ByteLen != 100 || wc.ID >= depth {
			t.Fatalf("message: %d with %v", wc.ID, wc.Status)
		}
		to.check(1024*int(wc.ID), 100, byte(i+1), "message over a connection")
		to.recv(wc.ID, 1024*int(wc.ID), 1024)
	}
}

// over checks the end of one side: the event, the queue pair, the cause.
func (p *peer) over(cause error) {
	p.Helper()
	if ev := p.event(p.ch, cm.Disconnected); ev.ID != p.id || ev.Err != nil {
		p.Errorf("%s: Disconnected of the wrong id, or with %v", p.name, ev.Err)
	}
	p.state(ib.StateError)
	p.isErr(p.qp.Err(), cause, "%s: cause of the queue pair", p.name)
	p.isErr(p.id.Err(), cause, "%s: cause of the id", p.name)
}

// flushed checks that equip's receives come back when a connection ends.
func (p *peer) flushed() {
	p.Helper()
	seen := map[uint64]bool{}
	for range depth {
		wc, err := p.rcq.Next(p.limit)
		p.ok(err, "%s: wait for the receives", p.name)
		if wc.Status != ib.StatusWRFlush || wc.ID >= depth || seen[wc.ID] {
			p.Errorf("%s: receive %d with %v", p.name, wc.ID, wc.Status)
		}
		seen[wc.ID] = true
	}
	p.empty()
}
