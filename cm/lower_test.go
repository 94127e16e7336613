package cm_test

import (
	"errors"
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

// TestC332_NoReads: a queue pair has no right to what its side does not offer, whatever the peer
// has asked for.
func TestC332_NoReads(t *testing.T) {
	t.Parallel()
	const reads = ib.RemoteRead | ib.RemoteAtomic
	for _, x := range []struct {
		offer int
		want  ib.Access
	}{{-1, 0}, {0, reads}, {2, reads}} {
		w := newWorld(t)
		c := w.pair(&cm.ConnParam{ResponderResources: x.offer}, &cm.ConnParam{ResponderResources: x.offer})
		for _, id := range []*cm.ID{c.a, c.b} {
			a, err := id.QP().Query(ib.AttrAccess)
			must(t, err)
			if got := a.Access & reads; got != x.want {
				t.Errorf("with ResponderResources %d a queue pair has %v, want %v", x.offer, got, x.want)
			}
		}
	}
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

	// The same when data is received (P23).
	id = w.routed(ch, l.LocalAddr())
	w.qp(id)
	must(t, id.Connect(nil))
	child = w.want(ch, cm.ConnectRequest, nil).ID
	w.qp(child)
	must(t, child.Accept(nil))
	w.want(ch, cm.Established, id)
	w.scriptedQP(child.QP()).CompleteRecv(1, scripted.Received(8), false)
	w.none(ch)
	wc, err := w.cq.Next(t.Context())
	if err != nil || wc.QP != child.QP() || wc.Status != ib.StatusSuccess {
		t.Errorf("completion %+v, %v", wc, err)
	}
	ev, err := ch.Event(t.Context())
	if err != nil || ev.Type != cm.Established || ev.ID != child {
		t.Errorf("event %v, %v", ev.Type, err)
	}
	if n := len(w.cm.Calls("Notify")); n != 3 {
		t.Errorf("the driver was notified %d times", n)
	}
}
