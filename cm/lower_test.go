package cm_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestC202_ActiveOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch, server := w.channel(), w.channel()
	l := w.listen(server)
	id := w.id(ch)
	if id.Device() != nil || id.Port() != 0 {
		t.Error("a new id has a device")
	}
	must(t, id.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), time.Second))
	w.want(ch, cm.AddrResolved, id)
	if id.Device() != w.dev || id.Port() != 1 {
		t.Errorf("device %v port %d; want the one of verbs.Open, port 1", id.Device(), id.Port())
	}
	if id.RemoteAddr() != l.LocalAddr() || !id.LocalAddr().IsValid() {
		t.Errorf("addresses %v, %v", id.LocalAddr(), id.RemoteAddr())
	}
	must(t, id.ResolveRoute(time.Second))
	w.want(ch, cm.RouteResolved, id)
	qp := w.qp(id)
	if qp.State() != ib.StateInit {
		t.Errorf("new queue pair in %v", qp.State())
	}
	must(t, id.Connect(&cm.ConnParam{Private: []byte("hello")}))

	req := w.want(server, cm.ConnectRequest, nil)
	if req.Listener != l || req.ID == nil || req.ID == l {
		t.Fatalf("request %+v", req)
	}
	if len(req.Private) != 56 || string(req.Private[:5]) != "hello" {
		t.Errorf("private data %q", req.Private)
	}
	child := req.ID
	if child.Device() != w.dev || child.Port() != 1 || child.RemoteAddr() != id.LocalAddr() || child.LocalAddr() != l.LocalAddr() {
		t.Errorf("child %v %v %v %v", child.Device(), child.Port(), child.LocalAddr(), child.RemoteAddr())
	}
	cqp := w.qp(child)
	must(t, child.Accept(&cm.ConnParam{Private: []byte("welcome")}))
	if cqp.State() != ib.StateRTS {
		t.Errorf("after Accept the queue pair is in %v", cqp.State())
	}

	ev := w.want(ch, cm.Established, id)
	if qp.State() != ib.StateRTS {
		t.Errorf("at Established the queue pair is in %v", qp.State())
	}
	if len(ev.Private) != 196 || string(ev.Private[:7]) != "welcome" {
		t.Errorf("private data %q", ev.Private)
	}
	if string(id.Private()[:7]) != "welcome" || string(child.Private()[:5]) != "hello" {
		t.Error("the ids do not remember the private data")
	}
	ev = w.want(server, cm.Established, child) // C-212: once, without private data
	if ev.Private != nil {
		t.Errorf("passive side has private data %q", ev.Private)
	}
	w.none(ch)
	w.none(server)
	for _, q := range []*verbs.QP{qp, cqp} {
		a, err := q.Query(ib.AttrMinRNRTimer)
		must(t, err)
		if a.MinRNRTimer != 640*time.Microsecond { // P29
			t.Errorf("min RNR timer %v", a.MinRNRTimer)
		}
	}
}

func TestC209_DepthNegotiation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	l := w.listen(ch)
	id := w.routed(ch, l.LocalAddr())
	qp := w.qp(id)
	must(t, id.Connect(&cm.ConnParam{ResponderResources: 4, InitiatorDepth: 6, RetryCount: 3, RNRRetryCount: 2}))
	req := w.want(ch, cm.ConnectRequest, nil)
	if p := req.Param; p.ResponderResources != 6 || p.InitiatorDepth != 4 || p.RetryCount != 3 || p.RNRRetryCount != 2 {
		t.Errorf("the server sees %+v", p)
	}
	cqp := w.qp(req.ID)
	must(t, req.ID.Accept(&cm.ConnParam{ResponderResources: 2, InitiatorDepth: 3}))
	ev := w.want(ch, cm.Established, id)
	if p := ev.Param; p.ResponderResources != 3 || p.InitiatorDepth != 2 {
		t.Errorf("the client sees %+v", p)
	}
	w.depths(qp, 2, 3)
	w.depths(cqp, 3, 2)

	// A peer that answers with more than it was offered gets no more.
	w2 := newWorld(t)
	w2.cm.MaxDestRDAtomic, w2.cm.MaxRDAtomic = 255, 255
	c := w2.pair(&cm.ConnParam{ResponderResources: 4, InitiatorDepth: 6}, nil)
	w2.depths(c.a.QP(), 6, 4)
	w2.depths(c.b.QP(), 4, 6)
}

func (w *world) depths(qp *verbs.QP, rd, dest int) {
	w.t.Helper()
	a, err := qp.Query(ib.AttrMaxRDAtomic | ib.AttrMaxDestRDAtomic)
	must(w.t, err)
	if a.MaxRDAtomic != rd || a.MaxDestRDAtomic != dest {
		w.t.Errorf("queue pair issues %d and serves %d, want %d and %d", a.MaxRDAtomic, a.MaxDestRDAtomic, rd, dest)
	}
}

func TestC203_NobodyListens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	id := w.routed(ch, netip.MustParseAddrPort("10.0.0.9:9"))
	qp := w.qp(id)
	must(t, id.Connect(nil))
	ev := w.want(ch, cm.Rejected, id)
	var rej *cm.RejectError
	if !errors.As(ev.Err, &rej) || rej.Reason != ib.RejectInvalidServiceID || len(rej.Private) != 148 || !errors.Is(ev.Err, syscall.ECONNREFUSED) {
		t.Errorf("error %v", ev.Err)
	}
	if qp.State() != ib.StateError || !errors.Is(qp.Err(), ib.RejectInvalidServiceID) || !errors.Is(id.Err(), ib.RejectInvalidServiceID) {
		t.Errorf("queue pair in %v, cause %v, id %v", qp.State(), qp.Err(), id.Err())
	}
	must(t, id.Disconnect()) // C-216
}

func TestC204_Reject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	l := w.listen(ch)
	id := w.routed(ch, l.LocalAddr())
	w.qp(id)
	must(t, id.Connect(nil))
	child := w.want(ch, cm.ConnectRequest, nil).ID
	why := make([]byte, 149)
	copy(why, "no thanks")
	before := len(w.cm.Calls())
	if err := child.Reject(why); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("149 bytes: %v", err)
	}
	if len(w.cm.Calls()) != before {
		t.Error("the driver was asked")
	}
	must(t, child.Reject(why[:148]))
	for what, err := range map[string]error{"reject twice": child.Reject(nil), "accept after reject": child.Accept(nil)} {
		if !errors.Is(err, cm.ErrState) || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, child.Close())
	ev := w.want(ch, cm.Rejected, id)
	if !errors.Is(ev.Err, ib.RejectConsumer) || string(ev.Private) != string(why[:148]) {
		t.Errorf("%v %q", ev.Err, ev.Private)
	}

	// Closing the request without an answer.
	id = w.routed(ch, l.LocalAddr())
	w.qp(id)
	must(t, id.Connect(nil))
	must(t, w.want(ch, cm.ConnectRequest, nil).ID.Close())
	ev = w.want(ch, cm.Rejected, id)
	if !errors.Is(ev.Err, ib.RejectConsumer) {
		t.Error(ev.Err)
	}
}

// TestC206_FailingAccept: what the library refuses leaves the request as it is; what
// the system refuses uses it up.
func TestC206_FailingAccept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	l := w.listen(ch)
	id := w.routed(ch, l.LocalAddr())
	w.qp(id)
	must(t, id.Connect(nil))
	child := w.want(ch, cm.ConnectRequest, nil).ID
	for _, c := range []struct {
		p    *cm.ConnParam
		want error
	}{
		{&cm.ConnParam{Private: make([]byte, 197)}, syscall.EINVAL},
		{&cm.ConnParam{ResponderResources: 1000}, syscall.EINVAL},
		{nil, cm.ErrNoQP}, // C-214
	} {
		if err := child.Accept(c.p); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.p, err, c.want)
		}
	}
	qp := w.bareQP(child)
	if err := child.Accept(nil); !errors.Is(err, cm.ErrNoReceives) {
		t.Errorf("without receives: %v", err)
	}
	if n := len(w.cm.Calls("Accept")); n != 0 {
		t.Fatalf("the driver saw %d accepts", n)
	}
	w.post(qp)
	must(t, child.Accept(&cm.ConnParam{Private: make([]byte, 196)}))
	w.want(ch, cm.Established, id)
	w.want(ch, cm.Established, child)

	id = w.routed(ch, l.LocalAddr())
	w.qp(id)
	must(t, id.Connect(nil))
	child = w.want(ch, cm.ConnectRequest, nil).ID
	qp = w.qp(child)
	w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) { return c.Name == "Accept", syscall.ENOMEM })
	if err := child.Accept(nil); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("failing accept: %v", err)
	}
	w.cm.Script(nil)
	if err := child.Accept(nil); !errors.Is(err, cm.ErrState) {
		t.Errorf("accept after a failed accept: %v", err)
	}
	if qp.State() != ib.StateError || !errors.Is(qp.Err(), syscall.ENOMEM) {
		t.Errorf("queue pair in %v, %v", qp.State(), qp.Err())
	}
	if ev := w.want(ch, cm.Rejected, id); !errors.Is(ev.Err, ib.RejectConsumer) {
		t.Error(ev.Err)
	}
}

func TestNoReceives(t *testing.T) { // P27, D12
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	l := w.listen(ch)
	id := w.routed(ch, l.LocalAddr())
	if err := id.Connect(nil); !errors.Is(err, cm.ErrNoQP) {
		t.Errorf("without queue pair: %v", err)
	}
	w.bareQP(id)
	if err := id.Connect(nil); !errors.Is(err, cm.ErrNoReceives) {
		t.Errorf("without receives: %v", err)
	}
	if n := len(w.cm.Calls("Connect")); n != 0 {
		t.Fatal("the driver was asked")
	}
	must(t, id.Connect(&cm.ConnParam{NoReceives: true}))
	w.want(ch, cm.ConnectRequest, nil)
}

func TestC215_OrderlyDisconnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.pair(nil, nil)
	must(t, c.a.Disconnect())
	if c.a.QP().State() != ib.StateError || !errors.Is(c.a.QP().Err(), net.ErrClosed) {
		t.Errorf("the side that disconnects: %v, %v", c.a.QP().State(), c.a.QP().Err())
	}
	w.none(c.ach) // the peer has not answered
	if c.b.QP().State() != ib.StateRTS {
		t.Error("the peer's queue pair changed before its event was fetched")
	}
	ev := w.want(c.bch, cm.Disconnected, c.b)
	if ev.Err != nil || c.b.QP().State() != ib.StateError || c.b.QP().Err() != io.EOF || c.b.Err() != io.EOF { // D8
		t.Errorf("%v; queue pair %v, %v; id %v", ev.Err, c.b.QP().State(), c.b.QP().Err(), c.b.Err())
	}
	w.want(c.ach, cm.Disconnected, c.a) // answered by the library
	if !errors.Is(c.a.Err(), net.ErrClosed) {
		t.Errorf("cause %v", c.a.Err())
	}
	// C-216: again, on both sides.
	must(t, c.a.Disconnect())
	must(t, c.b.Disconnect())
	w.none(c.ach)
	w.none(c.bch)
}

func TestC216_DisconnectAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.pair(nil, nil)
	must(t, c.a.Disconnect())
	must(t, c.a.Disconnect())
	must(t, c.b.Disconnect())
	w.want(c.ach, cm.Disconnected, c.a)
	w.want(c.bch, cm.Disconnected, c.b)
	w.none(c.ach)
	w.none(c.bch)

	// A driver for which a second disconnect, or one too late, is EINVAL.
	c = w.pair(nil, nil)
	w.cm.Script(func(_ *scripted.CMID, call scripted.CMCall) (bool, error) {
		return call.Name == "Disconnect", syscall.EINVAL
	})
	must(t, c.a.Disconnect())
	w.cm.Script(nil)
	if !errors.Is(c.a.Err(), net.ErrClosed) {
		t.Errorf("cause %v", c.a.Err())
	}
}

func TestC217_CloseInsteadOfDisconnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.pair(nil, nil)
	must(t, c.a.Close())
	must(t, c.a.Close())
	if err := c.a.Disconnect(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	w.want(c.bch, cm.Disconnected, c.b)
	w.none(c.ach)
}

func TestC218_ClientGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch, sch := w.channel(), w.channel()
	l := w.listen(sch)
	dial := func() *cm.ID {
		id := w.routed(ch, l.LocalAddr())
		w.qp(id)
		must(t, id.Connect(nil))
		return id
	}
	id := dial()
	must(t, id.Close())
	child := w.want(sch, cm.ConnectRequest, nil).ID // still delivered
	w.qp(child)
	err := child.Accept(nil)
	var op *cm.OpError
	if !errors.Is(err, syscall.EINVAL) || !errors.As(err, &op) || op.Hint == "" || op.Remote != child.RemoteAddr() {
		t.Errorf("accept: %v", err)
	}
	must(t, child.Close())

	id = dial()
	child = w.want(sch, cm.ConnectRequest, nil).ID
	must(t, id.Close())
	if err := child.Reject(nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("reject: %v", err)
	}
	must(t, child.Close())
	w.none(sch)

	id = dial() // and it goes on
	child = w.want(sch, cm.ConnectRequest, nil).ID
	w.qp(child)
	must(t, child.Accept(nil))
	w.want(ch, cm.Established, id)
	w.want(sch, cm.Established, child)
}

func TestC219_ListenerClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch, sch := w.channel(), w.channel()
	l := w.listen(sch)
	dial := func() *cm.ID {
		id := w.routed(ch, l.LocalAddr())
		w.qp(id)
		must(t, id.Connect(nil))
		return id
	}
	fetched, unfetched := dial(), dial()
	child := w.want(sch, cm.ConnectRequest, nil).ID
	must(t, l.Close())
	if ev := w.want(ch, cm.Rejected, unfetched); !errors.Is(ev.Err, ib.RejectConsumer) {
		t.Error(ev.Err)
	}
	w.none(sch)
	w.qp(child)
	must(t, child.Accept(nil))
	w.want(ch, cm.Established, fetched)
	w.want(sch, cm.Established, child)

	// A request that was on its way to a closed listener is refused.
	sc := w.cm.Channels()[0]
	stray := &strayChild{}
	sc.Post(driver.CMEvent{Type: ib.CMConnectRequest, Handle: 12345 << 32, Child: stray})
	for _, c := range []*cm.EventChannel{ch, sch} {
		w.none(c)
	}
	if !stray.closed {
		t.Error("the request was not refused")
	}
}

// strayChild is a request of which only the end matters.
type strayChild struct {
	driver.CMID
	closed bool
}

func (s *strayChild) Close() error { s.closed = true; return nil }

// TestP22_Terminals: of several ends the first counts, and it is given once.
func TestP22_Terminals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, first := range []cm.EventType{cm.Unreachable, cm.Rejected, cm.ConnectError, cm.Disconnected} {
		c := w.pair(nil, nil)
		raw := w.cmid(c.a)
		post := func(typ cm.EventType, status int) { raw.Post(driver.CMEvent{Type: typ, Status: status}) }
		post(first, -int(syscall.ETIMEDOUT))
		post(first, -int(syscall.ETIMEDOUT))
		post(cm.Disconnected, 0)
		post(cm.Established, 0)
		post(cm.Unreachable, -int(syscall.EHOSTUNREACH))
		ev := w.want(c.ach, first, c.a)
		if ev.Err != syscall.ETIMEDOUT {
			t.Errorf("%v: %v", first, ev.Err)
		}
		cause := c.a.Err()
		want := error(syscall.ETIMEDOUT)
		if first == cm.Disconnected {
			want = io.EOF
		}
		if cause != want || c.a.QP().Err() != want {
			t.Errorf("%v: cause %v, of the queue pair %v; want %v", first, cause, c.a.QP().Err(), want)
		}
		w.none(c.ach)
		// The removal of the device is news, once.
		post(cm.DeviceRemoval, 0)
		post(cm.DeviceRemoval, 0)
		w.want(c.ach, cm.DeviceRemoval, c.a)
		w.none(c.ach)
		if c.a.Err() != cause {
			t.Error("the cause changed")
		}
		must(t, c.a.Close())
		must(t, c.b.Close())
	}
}

// TestDisconnectedOvertakes: Disconnected may come in place of Established (P22).
func TestDisconnectedOvertakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	l := w.listen(ch)
	id := w.routed(ch, l.LocalAddr())
	w.qp(id)
	must(t, id.Connect(nil))
	child := w.want(ch, cm.ConnectRequest, nil).ID
	w.qp(child)
	must(t, child.Accept(nil))
	raw := w.cmid(child)
	raw.Post(driver.CMEvent{Type: cm.Disconnected})
	raw.Post(driver.CMEvent{Type: cm.Established})
	w.want(ch, cm.Established, id)
	w.want(ch, cm.Disconnected, child)
	w.want(ch, cm.Disconnected, id) // the library's answer
	w.none(ch)
}

// TestUnknownEvent: it is passed on with an error, fails what is in progress, and does
// not touch a connection that stands.
func TestUnknownEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.pair(nil, nil)
	const unknown = cm.EventType(99)
	w.cmid(c.a).Post(driver.CMEvent{Type: unknown})
	if ev := w.want(c.ach, unknown, c.a); ev.Err == nil {
		t.Error("no error")
	}
	if c.a.Err() != nil || c.a.QP().State() != ib.StateRTS {
		t.Errorf("the connection ended: %v", c.a.Err())
	}

	l := w.listen(c.bch)
	id := w.routed(c.ach, l.LocalAddr())
	qp := w.qp(id)
	must(t, id.Connect(nil))
	w.cmid(id).Post(driver.CMEvent{Type: cm.RouteResolved}) // known, but out of place
	if ev := w.want(c.ach, cm.RouteResolved, id); ev.Err == nil {
		t.Error("no error")
	}
	if id.Err() == nil || qp.State() != ib.StateError {
		t.Error("the attempt goes on")
	}
}

func TestC225_Migrate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch, sch, worker := w.channel(), w.channel(), w.channel()
	l := w.listen(sch)
	id := w.routed(ch, l.LocalAddr())
	w.qp(id)
	must(t, id.Connect(nil))
	child := w.want(sch, cm.ConnectRequest, nil).ID
	must(t, child.Migrate(worker)) // before accept
	w.qp(child)
	must(t, child.Accept(nil))
	w.want(ch, cm.Established, id)
	w.none(sch)
	w.want(worker, cm.Established, child)
	must(t, id.Disconnect())
	must(t, child.Migrate(sch)) // with an event pending
	w.none(worker)
	w.want(sch, cm.Disconnected, child)
	must(t, child.Migrate(sch)) // to where it is
	must(t, worker.Close())
	if err := child.Migrate(worker); !errors.Is(err, net.ErrClosed) {
		t.Errorf("to a closed channel: %v", err)
	}
	other := newWorld(t).channel()
	if err := child.Migrate(other); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("to another provider's channel: %v", err)
	}
	if err := child.Migrate(new(cm.EventChannel)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("to a zero channel: %v", err)
	}
	must(t, child.Close())
	if err := child.Migrate(sch); !errors.Is(err, net.ErrClosed) {
		t.Errorf("of a closed id: %v", err)
	}
}

// TestChannelClosedFirst: ids outlive their channel, and give no events.
func TestChannelClosedFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.pair(nil, nil)
	must(t, c.ach.Close())
	must(t, c.ach.Close())
	if _, _, err := c.ach.TryEvent(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := c.ach.FD(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := c.ach.NewID(0); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if c.a.QP().State() != ib.StateRTS {
		t.Error("closing the channel ended the connection")
	}
	must(t, c.a.Disconnect())
	w.want(c.bch, cm.Disconnected, c.b)
	must(t, c.a.Close())
}

func TestC230_DeviceRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.pair(nil, nil)
	ch := w.channel()
	bound := w.id(ch)
	must(t, bound.Bind(netip.MustParseAddrPort("10.0.0.1:0")))
	must(t, bound.Listen(0))
	wild := w.id(ch)
	must(t, wild.Listen(0))
	w.cm.RemoveDevice()
	w.want(c.ach, cm.DeviceRemoval, c.a)
	w.want(c.bch, cm.DeviceRemoval, c.b)
	w.want(ch, cm.DeviceRemoval, bound)
	w.none(ch)
	if !errors.Is(c.a.QP().Err(), verbs.ErrDeviceGone) || !errors.Is(c.a.Err(), verbs.ErrDeviceGone) {
		t.Errorf("cause %v, %v", c.a.QP().Err(), c.a.Err())
	}
	if err := c.a.Disconnect(); !errors.Is(err, verbs.ErrDeviceGone) {
		t.Errorf("disconnect: %v", err)
	}
	for _, id := range []*cm.ID{c.a, c.b, bound} {
		must(t, id.Close())
	}
	if wild.Err() != nil {
		t.Error("the wildcard listener ended")
	}
}

// TestStaleEvents: what comes for an id that was closed is dropped (P19).
func TestStaleEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	old := w.id(ch)
	h := w.cmid(old).Handle()
	must(t, old.Close())
	id := w.id(ch) // likely in the same place of the table
	sc := w.cm.Channels()[0]
	sc.Post(driver.CMEvent{Type: cm.Disconnected, Handle: h})
	sc.Post(driver.CMEvent{Type: cm.AddrChange, Handle: 0})
	sc.Post(driver.CMEvent{Type: cm.AddrChange, Handle: w.cmid(id).Handle()})
	w.want(ch, cm.AddrChange, id)
	w.none(ch)
}

// TestC244_ReadinessWithoutEvent: readable is a hint.
func TestC244_ReadinessWithoutEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ch := w.channel()
		id := w.id(ch)
		got := make(chan error)
		go func() {
			ev, err := ch.Event(t.Context())
			if err == nil && ev.ID != id {
				err = errors.New("wrong id")
			}
			got <- err
		}()
		synctest.Wait()
		w.cm.Channels()[0].Spurious(10)
		synctest.Wait()
		select {
		case err := <-got:
			t.Fatalf("returned without an event: %v", err)
		default:
		}
		w.cmid(id).Post(driver.CMEvent{Type: cm.AddrChange})
		must(t, <-got)
	})
}

// TestAddrResolvedWithoutDevice: an event may name a device that cannot be used (P46a).
func TestAddrResolvedWithoutDevice(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "nosuch"} {
		w := newWorld(t)
		w.cm.Device = name
		ch := w.channel()
		id := w.id(ch)
		must(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:1"), 0))
		ev := w.want(ch, cm.AddrError, id)
		if !errors.Is(ev.Err, syscall.ENODEV) || id.Device() != nil {
			t.Errorf("%q: %v, %v", name, ev.Err, id.Device())
		}
	}
}

// TestRetrySteps: after AddrError and RouteError the step may be repeated.
func TestRetrySteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	id := w.id(ch)
	fail := true
	w.cm.Script(func(id *scripted.CMID, c scripted.CMCall) (bool, error) {
		if !fail {
			return false, nil
		}
		switch c.Name {
		case "ResolveAddr":
			id.Post(driver.CMEvent{Type: cm.AddrError, Status: -int(syscall.ETIMEDOUT)})
		case "ResolveRoute":
			id.Post(driver.CMEvent{Type: cm.RouteError, Status: -int(syscall.ETIMEDOUT)})
		default:
			return false, nil
		}
		return true, nil
	})
	dst := netip.MustParseAddrPort("10.0.0.2:1")
	for range 2 {
		must(t, id.ResolveAddr(netip.AddrPort{}, dst, 0))
		if err := id.ResolveAddr(netip.AddrPort{}, dst, 0); !errors.Is(err, cm.ErrPending) {
			t.Errorf("while pending: %v", err)
		}
		if ev := w.want(ch, cm.AddrError, id); ev.Err != syscall.ETIMEDOUT {
			t.Error(ev.Err)
		}
	}
	fail = false
	must(t, id.ResolveAddr(netip.AddrPort{}, dst, 0))
	w.want(ch, cm.AddrResolved, id)
	fail = true
	must(t, id.ResolveRoute(0))
	if err := id.ResolveRoute(0); !errors.Is(err, cm.ErrPending) {
		t.Errorf("while pending: %v", err)
	}
	w.want(ch, cm.RouteError, id)
	fail = false
	must(t, id.ResolveRoute(0))
	w.want(ch, cm.RouteResolved, id)
}

// TestC231_CommEst: Notify ends the handshake if the peer's last message is lost.
func TestC231_CommEst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) { return c.Name == "Establish", nil }) // lost
	ch := w.channel()
	l := w.listen(ch)
	id := w.routed(ch, l.LocalAddr())
	w.qp(id)
	if err := id.Notify(ib.EventCommEst); !errors.Is(err, cm.ErrState) {
		t.Errorf("before connect: %v", err)
	}
	must(t, id.Connect(nil))
	child := w.want(ch, cm.ConnectRequest, nil).ID
	w.qp(child)
	must(t, child.Accept(nil))
	w.want(ch, cm.Established, id)
	w.none(ch)
	if err := child.Notify(ib.EventQPFatal); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("another event: %v", err)
	}
	must(t, child.Notify(ib.EventCommEst))
	w.want(ch, cm.Established, child)
	must(t, child.Notify(ib.EventCommEst)) // it is connected: harmless

	// The same when the device's asynchronous events are read.
	id = w.routed(ch, l.LocalAddr())
	w.qp(id)
	must(t, id.Connect(nil))
	child = w.want(ch, cm.ConnectRequest, nil).ID
	w.qp(child)
	must(t, child.Accept(nil))
	w.want(ch, cm.Established, id)
	w.none(ch)
	w.scriptedQP(child.QP()).Event(ib.EventCommEst)
	w.scriptedQP(id.QP()).Event(ib.EventCommEst) // not needed, not wrong
	for range 2 {
		if ev, ok, err := w.dev.Async().TryEvent(); !ok || err != nil || ev.Type != ib.EventCommEst {
			t.Fatalf("%v %v %v", ev, ok, err)
		}
	}
	w.want(ch, cm.Established, child)
	w.none(ch)
	if n := len(w.cm.Calls("Notify")); n != 2 {
		t.Errorf("the driver was notified %d times", n)
	}
}
