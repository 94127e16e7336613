package cm_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

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

// TestP22_C235_Terminals: of several ends the first counts, and it is given once.
func TestP22_C235_Terminals(t *testing.T) {
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
