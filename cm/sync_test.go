package cm_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
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

// waitingPair connects two ids whose calls wait.
func (w *world) waitingPair() (a, b, l *cm.ID) {
	w.t.Helper()
	l, err := cm.NewID(w.p, 0)
	must(w.t, err)
	w.closes(l)
	must(w.t, l.Bind(someSrc))
	must(w.t, l.Listen(0))
	a, err = cm.NewID(w.p, ib.PortSpaceTCP)
	must(w.t, err)
	w.closes(a)
	must(w.t, a.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), time.Second))
	if a.Device() != w.dev {
		w.t.Error("resolved without the device")
	}
	must(w.t, a.ResolveRoute(time.Second))
	w.qp(a)
	connected := make(chan error)
	go func() { connected <- a.Connect(&cm.ConnParam{Private: []byte("hello")}) }()
	ev, err := l.GetRequest(w.t.Context())
	must(w.t, err)
	b = ev.ID
	w.closes(b)
	if ev.Type != cm.ConnectRequest || ev.Listener != l || string(ev.Private[:5]) != "hello" {
		w.t.Errorf("request %+v", ev)
	}
	w.qp(b)
	must(w.t, b.Accept(&cm.ConnParam{Private: []byte("welcome")}))
	must(w.t, <-connected)
	return a, b, l
}

func TestWaitingIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, _ := w.waitingPair()
	if string(a.Private()[:7]) != "welcome" || a.Param().InitiatorDepth == 0 {
		t.Errorf("answer %q %+v", a.Private(), a.Param())
	}
	if a.QP().State() != ib.StateRTS || b.QP().State() != ib.StateRTS {
		t.Error("queue pairs are not in RTS")
	}
	must(t, a.Disconnect()) // the library answers for b
	if !errors.Is(a.Err(), net.ErrClosed) || b.Err() != io.EOF || b.QP().State() != ib.StateError {
		t.Errorf("causes %v, %v", a.Err(), b.Err())
	}
	must(t, b.Disconnect())
	must(t, a.Disconnect())
}

func TestWaitingRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, reason := range []ib.RejectReason{ib.RejectInvalidServiceID, ib.RejectStaleConn} {
		w.cm.Script(func(id *scripted.CMID, c scripted.CMCall) (bool, error) {
			if c.Name != "Connect" {
				return false, nil
			}
			id.Post(driver.CMEvent{Type: cm.Rejected, Status: int(reason), Private: make([]byte, 148)})
			return true, nil
		})
		id := w.waiting()
		must(t, id.ResolveAddr(netip.AddrPort{}, anyDst, 0))
		must(t, id.ResolveRoute(0))
		w.qp(id)
		err := id.Connect(nil)
		var rej *cm.RejectError
		if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &rej) || rej.Reason != reason {
			t.Errorf("%v: %v", reason, err)
		}
		if id.QP().State() != ib.StateError {
			t.Error("the queue pair was not failed")
		}
	}
}

// TestWaitingErrors: events of failure are the errors of calls.
func TestWaitingErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		call   string
		ev     cm.EventType
		status int
		want   error
	}{
		{"ResolveAddr", cm.AddrError, -int(syscall.EHOSTUNREACH), syscall.EHOSTUNREACH},
		{"ResolveRoute", cm.RouteError, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT},
		{"Connect", cm.Unreachable, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT},
		{"Connect", cm.ConnectError, -int(syscall.ENOMEM), syscall.ENOMEM},
		{"Connect", cm.DeviceRemoval, 0, verbs.ErrDeviceGone},
		{"Connect", cm.Disconnected, 0, io.EOF},
	} {
		w.cm.Script(func(id *scripted.CMID, call scripted.CMCall) (bool, error) {
			if call.Name != c.call {
				return false, nil
			}
			id.Post(driver.CMEvent{Type: c.ev, Status: c.status})
			return true, nil
		})
		id := w.waiting()
		err := id.ResolveAddr(netip.AddrPort{}, anyDst, 0)
		if err == nil {
			err = id.ResolveRoute(0)
		}
		if err == nil {
			w.qp(id)
			err = id.Connect(nil)
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.ev, err, c.want)
		}
	}
	// An unknown event wakes as well (P22).
	w.cm.Script(func(id *scripted.CMID, call scripted.CMCall) (bool, error) {
		if call.Name != "ResolveAddr" {
			return false, nil
		}
		id.Post(driver.CMEvent{Type: 77})
		return true, nil
	})
	if err := w.waiting().ResolveAddr(netip.AddrPort{}, anyDst, 0); err == nil {
		t.Error("no error")
	}
}

func TestWaitingTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) { return c.Name == "ResolveAddr", nil })
		id := w.waiting()
		if err := id.SetTimeout(-1); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("negative: %v", err)
		}
		must(t, id.SetTimeout(time.Minute))
		start := time.Now()
		err := id.ResolveAddr(netip.AddrPort{}, anyDst, 0)
		var ne net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("got %v", err)
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("after %v", d)
		}
		// It goes on: the answer may still come.
		if err := id.ResolveAddr(netip.AddrPort{}, anyDst, 0); !errors.Is(err, cm.ErrPending) {
			t.Errorf("again: %v", err)
		}
		w.cm.Script(nil)
		w.cmid(id).Post(driver.CMEvent{Type: cm.AddrError, Status: -int(syscall.ETIMEDOUT)})
		synctest.Wait()
		must(t, id.ResolveAddr(netip.AddrPort{}, anyDst, 0))

		// Close ends a wait.
		w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) { return c.Name == "ResolveRoute", nil })
		must(t, id.SetTimeout(0))
		got := make(chan error)
		go func() { got <- id.ResolveRoute(0) }()
		synctest.Wait()
		must(t, id.Close())
		if err := <-got; !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestWaitingListener(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		// Asynchronous listeners have no GetRequest (C-199).
		if _, err := w.listen(w.channel()).GetRequest(t.Context()); !errors.Is(err, cm.ErrState) {
			t.Errorf("asynchronous: %v", err)
		}
		l := w.waiting()
		if _, err := l.GetRequest(t.Context()); !errors.Is(err, cm.ErrState) {
			t.Errorf("not listening: %v", err)
		}
		if err := l.Listen(-1); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("negative backlog: %v", err)
		}
		// A Listen that fails leaves the id as it was: its calls still wait.
		must(t, l.Bind(someSrc))
		w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) { return c.Name == "Listen", syscall.ENOMEM })
		if err := l.Listen(0); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("failing listen: %v", err)
		}
		w.cm.Script(nil)
		must(t, l.ResolveAddr(netip.AddrPort{}, anyDst, 0))
		must(t, l.Close())

		l = w.waiting()
		must(t, l.Listen(0))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.GetRequest(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		got := make(chan error)
		for range 2 {
			go func() { _, err := l.GetRequest(t.Context()); got <- err }()
		}
		synctest.Wait()
		must(t, l.Close())
		for range 2 {
			if err := <-got; !errors.Is(err, net.ErrClosed) {
				t.Errorf("got %v", err)
			}
		}
		if _, err := l.GetRequest(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

// TestC225_MigrateNil: an id becomes one whose calls wait, and back.
func TestC225_MigrateNil(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	id := w.id(ch)
	must(t, id.Migrate(nil))
	if err := id.Migrate(nil); !errors.Is(err, cm.ErrState) {
		t.Errorf("again: %v", err)
	}
	must(t, id.ResolveAddr(netip.AddrPort{}, anyDst, 0)) // waits
	if id.Device() == nil {
		t.Error("the call did not wait")
	}
	w.none(ch)
	must(t, id.Migrate(ch))
	must(t, id.ResolveRoute(0))
	w.want(ch, cm.RouteResolved, id)

	// A listener, with a request that waits.
	l := w.listen(ch)
	a := w.routed(ch, l.LocalAddr())
	w.qp(a)
	must(t, a.Connect(nil))
	must(t, l.Migrate(nil))
	w.none(ch)
	ev, err := l.GetRequest(t.Context())
	must(t, err)
	w.closes(ev.ID)
	w.qp(ev.ID)
	accepted := make(chan error)
	go func() { accepted <- ev.ID.Accept(nil) }()
	must(t, errFrom(ch.Event(t.Context())))
	must(t, <-accepted)
	must(t, l.Migrate(ch))
	if _, err := l.GetRequest(t.Context()); !errors.Is(err, cm.ErrState) {
		t.Errorf("after it became asynchronous: %v", err)
	}
	must(t, ev.ID.Migrate(ch)) // a connection
	must(t, a.Disconnect())
	w.want(ch, cm.Disconnected, ev.ID)
	w.want(ch, cm.Disconnected, a)

	// While a call waits, its answer comes to the new channel, and the call still ends.
	w.cm.Script(func(_ *scripted.CMID, c scripted.CMCall) (bool, error) { return c.Name == "ResolveAddr", nil })
	id = w.waiting()
	raw := w.cmid(id)
	got := make(chan error)
	go func() { got <- id.ResolveAddr(netip.AddrPort{}, anyDst, 0) }()
	for len(w.cm.Calls("ResolveAddr")) < 3 {
		w.yield()
	}
	must(t, id.Migrate(ch))
	raw.Post(driver.CMEvent{Type: cm.AddrError, Status: -int(syscall.ETIMEDOUT)})
	w.want(ch, cm.AddrError, id)
	if err := <-got; !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("got %v", err)
	}
}

func errFrom(_ cm.Event, err error) error { return err }

// TestOwnQueuePair: a queue pair that the id does not know is moved by its owner.
func TestOwnQueuePair(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	l := w.listen(ch)
	id := w.routed(ch, l.LocalAddr())
	move := func(id *cm.ID, qp *verbs.QP, states ...ib.QPState) {
		t.Helper()
		for _, s := range states {
			a, m, err := id.QPAttr(s)
			must(t, err)
			if s == ib.StateRTR && a.MinRNRTimer != 640*time.Microsecond {
				t.Errorf("min RNR timer %v", a.MinRNRTimer)
			}
			must(t, qp.Modify(&a, m))
		}
	}
	qa, qb := w.spareQP(), w.spareQP()
	move(id, qa, ib.StateInit)
	if _, _, err := id.QPAttr(ib.StateRTR); !errors.Is(err, cm.ErrState) {
		t.Errorf("RTR before the answer: %v", err)
	}
	must(t, id.Connect(&cm.ConnParam{QPN: qa.Num()}))
	req := w.want(ch, cm.ConnectRequest, nil)
	if req.Param.QPN != qa.Num() {
		t.Errorf("queue pair number %v", req.Param.QPN)
	}
	move(req.ID, qb, ib.StateInit, ib.StateRTR, ib.StateRTS)
	must(t, req.ID.Accept(&cm.ConnParam{QPN: qb.Num()}))
	ev := w.want(ch, cm.ConnectResponse, id)
	if ev.Param.QPN != qb.Num() {
		t.Errorf("queue pair number %v", ev.Param.QPN)
	}
	move(id, qa, ib.StateRTR, ib.StateRTS)
	must(t, id.Establish())
	w.want(ch, cm.Established, req.ID)
	if err := id.Establish(); !errors.Is(err, cm.ErrState) {
		t.Errorf("again: %v", err)
	}
	must(t, id.Disconnect())
	w.want(ch, cm.Disconnected, req.ID)
	if qa.State() != ib.StateRTS {
		t.Error("the queue pair was touched")
	}
}

// TestUseQP: a queue pair made by the caller is moved and failed, not closed.
func TestUseQP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	l := w.listen(ch)
	id := w.routed(ch, l.LocalAddr())
	qp := w.spareQP()
	must(t, id.UseQP(qp))
	if qp.State() != ib.StateInit || id.QP() != qp {
		t.Errorf("in %v", qp.State())
	}
	w.post(qp)
	must(t, id.Connect(nil))
	child := w.want(ch, cm.ConnectRequest, nil).ID
	w.qp(child)
	must(t, child.Accept(nil))
	w.want(ch, cm.Established, id)
	w.want(ch, cm.Established, child)
	if qp.State() != ib.StateRTS {
		t.Errorf("in %v", qp.State())
	}
	must(t, id.Close())
	w.want(ch, cm.Disconnected, child)
	if qp.State() != ib.StateError || !errors.Is(qp.Err(), net.ErrClosed) {
		t.Errorf("in %v, %v", qp.State(), qp.Err())
	}
	must(t, qp.Close())
	id2 := w.routed(ch, l.LocalAddr())
	if err := id2.UseQP(qp); err == nil {
		t.Error("a closed queue pair was taken")
	}
}

func TestDatagrams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	id, err := ch.NewID(ib.PortSpaceUDP)
	must(t, err)
	w.closes(id)
	must(t, id.ResolveAddr(netip.AddrPort{}, anyDst, 0))
	w.want(ch, cm.AddrResolved, id)
	qp, err := id.CreateQP(w.pd, verbs.QPConfig{SendCQ: w.cq})
	must(t, err)
	if qp.Type() != ib.UD || qp.State() != ib.StateRTS {
		t.Errorf("%v in %v", qp.Type(), qp.State())
	}
	if err := id.JoinMulticast(anyDst.Addr(), 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no group: %v", err)
	}
	must(t, id.JoinMulticast(group, ib.JoinFullMember))
	if err := id.JoinMulticast(group, ib.JoinFullMember); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("twice: %v", err)
	}
	ev := w.want(ch, cm.MulticastJoin, id)
	if ev.Group != group || ev.UD.QPN != 0xffffff || ev.UD.QKey != ib.QKeyCM {
		t.Errorf("event %+v", ev)
	}
	must(t, id.LeaveMulticast(group))
	if err := id.LeaveMulticast(group); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("left already: %v", err)
	}
	must(t, id.ResolveRoute(0))
	w.want(ch, cm.RouteResolved, id)
	w.cm.Script(func(id *scripted.CMID, c scripted.CMCall) (bool, error) {
		if c.Name != "Connect" {
			return false, nil
		}
		id.Post(driver.CMEvent{Type: cm.Established, UD: driver.UDParam{QPN: 77, QKey: ib.QKeyCM}})
		return true, nil
	})
	must(t, id.Connect(nil)) // without receives: datagrams are not acknowledged
	if ev := w.want(ch, cm.Established, id); ev.UD.QPN != 77 {
		t.Errorf("event %+v", ev)
	}
}
