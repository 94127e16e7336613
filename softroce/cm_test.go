package softroce

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cmSide is a program that uses the connection manager of one device.
type cmSide struct {
	*side
	p     *Provider
	cm    driver.CM
	ch    *cmChannel
	qps   map[*cmID]*qp
	lasts uint64
}

func newCMSide(t testing.TB, p *Provider, addr netip.Addr) *cmSide {
	t.Helper()
	s := &cmSide{side: newSide(t, p, addr, sideConfig{}), p: p, qps: make(map[*cmID]*qp)}
	var err error
	if s.cm, err = p.OpenCM(); err != nil {
		t.Fatal(err)
	}
	s.ch = s.channel()
	return s
}

// cmPair makes two programs on two devices.
func cmPair(t testing.TB, n *network) (a, b *cmSide) {
	t.Helper()
	return newCMSide(t, n.provider(t, 1, addrA), addrA), newCMSide(t, n.provider(t, 2, addrB), addrB)
}

func (s *cmSide) channel() *cmChannel {
	s.t.Helper()
	ch, err := s.cm.OpenChannel()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { ch.Close() })
	return ch.(*cmChannel)
}

func (s *cmSide) newID() *cmID { return s.newIDOn(s.ch, ib.PortSpaceTCP) }

func (s *cmSide) newIDOn(ch *cmChannel, ps ib.PortSpace) *cmID {
	s.t.Helper()
	s.lasts++
	id, err := ch.CreateID(s.lasts, ps, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { id.Close() })
	return id.(*cmID)
}

// want waits for the next event and checks its type.
func (s *cmSide) want(e ib.CMEventType) driver.CMEvent {
	s.t.Helper()
	return s.wantOn(s.ch, e)
}

func (s *cmSide) wantOn(ch *cmChannel, e ib.CMEventType) driver.CMEvent {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := ch.Wait(ctx); err != nil {
		s.t.Fatalf("no %v: %v", e, err)
	}
	ev, ok, err := ch.Next()
	if err != nil || !ok {
		s.t.Fatalf("no %v: %v", e, err)
	}
	if ev.Type != e {
		s.t.Fatalf("%v (status %d), want %v", ev.Type, ev.Status, e)
	}
	return ev
}

// quiet checks that there is no event when all is at rest.
func (s *cmSide) quiet() {
	s.t.Helper()
	synctest.Wait()
	if ev, ok, err := s.ch.Next(); ok || err != nil {
		s.t.Fatalf("%v (status %d), %v", ev.Type, ev.Status, err)
	}
}

// held is what a connection manager has in memory.
type held struct{ conns, ids, ports, waiting, events int }

func (s *cmSide) held() held {
	m := s.ch.core
	m.mu.Lock()
	defer m.mu.Unlock()
	return held{m.agent.Len(), len(m.ids), len(m.ports.owners), len(m.byQPN), len(s.ch.queue)}
}

func (s *cmSide) do(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// fails checks that an error is, or wraps, want.
func fails(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (s *cmSide) listen(port uint16) *cmID {
	s.t.Helper()
	id := s.newID()
	s.do(id.BindAddr(netip.AddrPortFrom(s.addr, port)))
	s.do(id.Listen(0))
	return id
}

// resolve makes an id that may connect to a port of another side.
func (s *cmSide) resolve(to netip.AddrPort) *cmID {
	s.t.Helper()
	id := s.newID()
	s.do(id.ResolveAddr(netip.AddrPort{}, to, time.Second))
	s.want(ib.CMAddrResolved)
	s.do(id.ResolveRoute(time.Second))
	s.want(ib.CMRouteResolved)
	return id
}

// ready gives an id a queue pair in a state, by the attributes of the id.
func (s *cmSide) ready(id *cmID, states ...ib.QPState) *qp {
	s.t.Helper()
	q := s.qps[id]
	if q == nil {
		q = s.newQP(sideConfig{depth: 8, sge: 1})
		s.qps[id] = q
	}
	for _, st := range states {
		a, m, err := id.InitQPAttr(st)
		if err != nil {
			s.t.Fatalf("attributes for %v: %v", st, err)
		}
		if err := q.Modify(&a, m); err != nil {
			s.t.Fatalf("to %v: %v", st, err)
		}
	}
	return q
}

var wholeParam = driver.ConnParam{
	ResponderResources: wholeDepth, InitiatorDepth: wholeDepth, RetryCount: 7, RNRRetryCount: 7,
}

func (s *cmSide) param(id *cmID) driver.ConnParam {
	p := wholeParam
	p.QPN = s.qps[id].Num()
	return p
}

// ask connects an id with a new queue pair.
func (s *cmSide) ask(id *cmID) {
	s.t.Helper()
	s.ready(id, ib.StateInit)
	s.do(id.Connect(s.param(id)))
}

// accept answers a request.
func (s *cmSide) accept(ev driver.CMEvent) *cmID {
	s.t.Helper()
	id := ev.Child.(*cmID)
	s.lasts++
	id.SetHandle(s.lasts)
	s.t.Cleanup(func() { id.Close() })
	s.ready(id, ib.StateInit, ib.StateRTR, ib.StateRTS)
	s.do(id.Accept(s.param(id)))
	return id
}

// establish finishes the active side.
func (s *cmSide) establish(id *cmID) {
	s.t.Helper()
	s.want(ib.CMConnectResponse)
	s.ready(id, ib.StateInit, ib.StateRTR, ib.StateRTS)
	s.do(id.Establish())
}

// join connects two sides.
func join(t testing.TB, a, b *cmSide) (ida, idb *cmID) {
	t.Helper()
	l := b.listen(0)
	ida = a.resolve(l.Info().Local)
	a.ask(ida)
	idb = b.accept(b.want(ib.CMConnectRequest))
	a.establish(ida)
	b.want(ib.CMEstablished)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return ida, idb
}

func TestC202_ConnectTransferDisconnect(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.newID()
		b.do(l.BindAddr(netip.AddrPortFrom(addrB, 7174)))
		if i := l.Info(); i.Device != DeviceName || i.Port != 1 || i.Local.Port() != 7174 {
			t.Errorf("bound id: %+v", i)
		}
		b.do(l.Listen(5))
		ida := a.newID()
		a.do(ida.ResolveAddr(netip.AddrPort{}, l.Info().Local, time.Second))
		if ev := a.want(ib.CMAddrResolved); ev.Handle != ida.handle || ev.Status != 0 {
			t.Errorf("event %+v", ev)
		}
		if i := ida.Info(); i.Device != DeviceName || i.Port != 1 || i.Local.Addr() != addrA ||
			i.Local.Port() < firstEphemeral || i.Remote != l.Info().Local {
			t.Errorf("resolved id: %+v", i)
		}
		a.do(ida.ResolveRoute(time.Second))
		a.want(ib.CMRouteResolved)
		a.ready(ida, ib.StateInit)
		p := driver.ConnParam{
			Private: []byte("hello"), ResponderResources: 4, InitiatorDepth: 6, RetryCount: 5, RNRRetryCount: 6,
			FlowControl: true, SRQ: true, QPN: a.qps[ida].Num(),
		}
		a.do(ida.Connect(p))
		ev := b.want(ib.CMConnectRequest)
		if c := ev.Conn; ev.Handle != l.handle || ev.Status != 0 || c.ResponderResources != 6 || c.InitiatorDepth != 4 ||
			c.RetryCount != 5 || c.RNRRetryCount != 6 || !c.FlowControl || !c.SRQ || c.QPN != p.QPN {
			t.Errorf("request %+v", ev)
		}
		if len(ev.Private) != 56 || string(ev.Private[:6]) != "hello\x00" {
			t.Errorf("private data %q", ev.Private)
		}
		child := ev.Child.(*cmID)
		if i := child.Info(); i.Local != l.Info().Local || i.Remote != ida.Info().Local || i.Device != DeviceName {
			t.Errorf("child: %+v", i)
		}
		child.SetHandle(99)
		b.ready(child, ib.StateInit, ib.StateRTR, ib.StateRTS)
		b.do(child.Accept(driver.ConnParam{
			Private: []byte("welcome"), ResponderResources: 2, InitiatorDepth: 3, RNRRetryCount: 4, QPN: b.qps[child].Num(),
		}))
		ev = a.want(ib.CMConnectResponse)
		// C-209: what the server serves is what the client may have open.
		if c := ev.Conn; ev.Handle != ida.handle || c.ResponderResources != 3 || c.InitiatorDepth != 2 ||
			c.RNRRetryCount != 4 || c.QPN != b.qps[child].Num() || len(ev.Private) != 196 || string(ev.Private[:8]) != "welcome\x00" {
			t.Errorf("response %+v", ev)
		}
		a.ready(ida, ib.StateInit, ib.StateRTR, ib.StateRTS)
		a.do(ida.Establish())
		ev = b.want(ib.CMEstablished)
		if ev.Handle != 99 || len(ev.Private) != 0 || ev.Status != 0 {
			t.Errorf("established %+v", ev)
		}
		a.quiet()

		// Data goes over the two queue pairs.
		b.qp, a.qp = b.qps[child], a.qps[ida]
		fill(a.mem[:64], 1)
		rid := b.recv(1000, 64)
		sid := a.send(0, 64, 0)
		ok(t, a.next(a.scq), sid)
		ok(t, b.next(b.rcq), rid)
		if string(b.mem[1000:1064]) != string(a.mem[:64]) {
			t.Error("bytes differ")
		}

		// C-215
		a.do(ida.Disconnect())
		if ev := b.want(ib.CMDisconnected); ev.Status != 0 || ev.Handle != 99 {
			t.Errorf("disconnected %+v", ev)
		}
		a.quiet()
		b.do(child.Disconnect())
		if ev := a.want(ib.CMDisconnected); ev.Status != 0 || ev.Handle != ida.handle {
			t.Errorf("disconnected %+v", ev)
		}
		a.want(ib.CMTimewaitExit)
		b.want(ib.CMTimewaitExit)
		a.do(ida.Disconnect())
		a.quiet()
		b.quiet()
	})
}

// TestC207_QPAttributes has every attribute, and no other, for each state and side.
func TestC203_NobodyListens(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		keep := b.listen(7000) // so that the address is open
		udp := b.newIDOn(b.ch, ib.PortSpaceUDP)
		b.do(udp.BindAddr(netip.AddrPortFrom(addrB, 7001)))
		b.do(udp.Listen(0))
		bound := b.newID()
		b.do(bound.BindAddr(netip.AddrPortFrom(addrB, 7002)))
		_ = keep
		for _, port := range []uint16{7001, 7002, 7003, 0} {
			id := a.resolve(netip.AddrPortFrom(addrB, port))
			start := time.Now()
			a.ask(id)
			ev := a.want(ib.CMRejected)
			if ev.Status != 8 || len(ev.Private) != 148 || time.Since(start) > 100*time.Millisecond || ev.Handle != id.handle {
				t.Errorf("port %d: %+v after %v", port, ev, time.Since(start))
			}
			for _, x := range ev.Private {
				if x != 0 {
					t.Errorf("port %d: private data %x", port, ev.Private)
					break
				}
			}
			a.do(id.Disconnect()) // C-216: after REJECTED
		}
		b.quiet()
	})
}

func TestC221_Unreachable(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a := newCMSide(t, n.provider(t, 1, addrA), addrA)
		id := a.resolve(netip.AddrPortFrom(addrC, 5))
		start := time.Now()
		a.ask(id)
		ev := a.want(ib.CMUnreachable)
		if d := time.Since(start); ev.Status != -int(syscall.ETIMEDOUT) || d < 10*time.Second || d > time.Minute {
			t.Errorf("status %d after %v", ev.Status, d)
		}
		a.do(id.Disconnect())
		a.quiet()
	})
}

func TestC204_Reject(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		private := make([]byte, 148)
		fill(private, 5)
		id := a.resolve(l.Info().Local)
		a.ask(id)
		child := b.want(ib.CMConnectRequest).Child
		fails(t, "149 bytes", child.Reject(make([]byte, 149)), syscall.EINVAL)
		b.do(child.Reject(private))
		fails(t, "reject again", child.Reject(nil), syscall.EINVAL)
		fails(t, "accept after reject", child.Accept(wholeParam), syscall.EINVAL)
		if ev := a.want(ib.CMRejected); ev.Status != 28 || string(ev.Private) != string(private) {
			t.Errorf("rejected %+v", ev)
		}
		b.do(child.Close())

		id = a.resolve(l.Info().Local)
		a.ask(id)
		b.do(b.want(ib.CMConnectRequest).Child.Close())
		if ev := a.want(ib.CMRejected); ev.Status != 28 || string(ev.Private) != string(make([]byte, 148)) {
			t.Errorf("rejected %+v", ev)
		}

		// The active side may say no, too.
		id = a.resolve(l.Info().Local)
		a.ask(id)
		b.accept(b.want(ib.CMConnectRequest))
		a.want(ib.CMConnectResponse)
		a.do(id.Reject([]byte("no")))
		if ev := b.want(ib.CMRejected); ev.Status != 28 || string(ev.Private[:3]) != "no\x00" {
			t.Errorf("rejected %+v", ev)
		}
		fails(t, "establish after reject", id.Establish(), syscall.EINVAL)
	})
}

func TestC206_FailingAccept(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		for what, f := range map[string]func(p *driver.ConnParam){
			"197 bytes":     func(p *driver.ConnParam) { p.Private = make([]byte, 197) },
			"no queue pair": func(p *driver.ConnParam) { p.QPN = 0 }, // C-214
			"200 reads":     func(p *driver.ConnParam) { p.ResponderResources = 200 },
		} {
			id := a.resolve(l.Info().Local)
			a.ask(id)
			child := b.want(ib.CMConnectRequest).Child.(*cmID)
			b.ready(child, ib.StateInit)
			p := b.param(child)
			f(&p)
			fails(t, what, child.Accept(p), syscall.EINVAL)
			if ev := a.want(ib.CMRejected); ev.Status != 28 {
				t.Errorf("%s: %+v", what, ev)
			}
			fails(t, what+", then right", child.Accept(b.param(child)), syscall.EINVAL)
			b.do(child.Close())
		}
		b.quiet()
	})
}

func TestC199_CallsInTheWrongOrder(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a := newCMSide(t, n.provider(t, 1, addrA), addrA)
		id := a.newID()
		to := netip.AddrPortFrom(addrB, 1)
		everything := func(state string, allowed map[string]bool, id *cmID) {
			t.Helper()
			_, _, attr := id.InitQPAttr(ib.StateRTR)
			for call, err := range map[string]error{
				"route":      id.ResolveRoute(0),
				"connect":    id.Connect(wholeParam),
				"accept":     id.Accept(wholeParam),
				"reject":     id.Reject(nil),
				"establish":  id.Establish(),
				"notify":     id.Notify(ib.EventCommEst),
				"disconnect": id.Disconnect(),
				"attributes": attr,
			} {
				if allowed[call] {
					a.do(err)
				} else {
					fails(t, state+": "+call, err, syscall.EINVAL)
				}
			}
		}
		everything("idle", nil, id)
		fails(t, "join on an idle id", id.Join(netip.MustParseAddr("224.1.1.1"), 0, 0), syscall.EINVAL)
		a.do(id.BindAddr(netip.AddrPortFrom(addrA, 0)))
		fails(t, "bind twice", id.BindAddr(netip.AddrPortFrom(addrA, 0)), syscall.EINVAL)
		fails(t, "join", id.Join(netip.MustParseAddr("224.1.1.1"), 0, 0), errors.ErrUnsupported)
		fails(t, "join a host", id.Join(addrB, 0, 0), syscall.EINVAL)
		if err := id.Leave(netip.MustParseAddr("224.1.1.1")); err == nil {
			t.Error("leave of no group")
		}
		everything("bound", nil, id)
		a.do(id.ResolveAddr(netip.AddrPort{}, to, 0))
		a.want(ib.CMAddrResolved)
		fails(t, "resolve twice", id.ResolveAddr(netip.AddrPort{}, to, 0), syscall.EINVAL)
		fails(t, "listen when resolved", id.Listen(0), syscall.EINVAL)
		everything("resolved", map[string]bool{"route": true}, id)
		a.want(ib.CMRouteResolved)
		fails(t, "route twice", id.ResolveRoute(0), syscall.EINVAL)
		a.ask(id)
		everything("connecting", nil, id)

		l := a.listen(0)
		fails(t, "listen twice", l.Listen(0), syscall.EINVAL)
		fails(t, "resolve on a listener", l.ResolveAddr(netip.AddrPort{}, to, 0), syscall.EINVAL)
		everything("listening", nil, l)
		a.do(id.Close())
		a.do(id.Close())
		for what, err := range map[string]error{
			"bind": id.BindAddr(to), "resolve": id.ResolveAddr(to, to, 0), "listen": id.Listen(0),
			"option": id.SetOption(0, 0, []byte{1}), "leave": id.Leave(addrA), "migrate": id.Migrate(a.ch),
		} {
			if err == nil {
				t.Errorf("%s on a closed id works", what)
			}
		}
		a.quiet()
	})
}

// TestAckTimeout: the option sets the timeout of the own queue pair, and tells the peer.
