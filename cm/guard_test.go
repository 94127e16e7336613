package cm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

var (
	anyDst  = netip.MustParseAddrPort("10.0.0.2:7471")
	group   = netip.MustParseAddr("239.1.2.3")
	someSrc = netip.MustParseAddrPort("10.0.0.1:0")
)

// idCalls are all calls of an id, in order of their names.
func idCalls(w *world, id *cm.ID) map[string]func() error {
	return map[string]func() error{
		"Accept":         func() error { return id.Accept(nil) },
		"Bind":           func() error { return id.Bind(someSrc) },
		"Connect":        func() error { return id.Connect(nil) },
		"CreateQP":       func() error { _, err := w.tryCreate(id.CreateQP); return err },
		"Disconnect":     func() error { return id.Disconnect() },
		"Establish":      func() error { return id.Establish() },
		"GetRequest":     func() error { _, err := id.GetRequest(context.Background()); return err },
		"JoinMulticast":  func() error { return id.JoinMulticast(group, ib.JoinFullMember) },
		"LeaveMulticast": func() error { return id.LeaveMulticast(group) },
		"Listen":         func() error { return id.Listen(0) },
		"Notify":         func() error { return id.Notify(ib.EventCommEst) },
		"QPAttr":         func() error { _, _, err := id.QPAttr(ib.StateInit); return err },
		"Reject":         func() error { return id.Reject(nil) },
		"ResolveAddr":    func() error { return id.ResolveAddr(netip.AddrPort{}, anyDst, time.Second) },
		"ResolveRoute":   func() error { return id.ResolveRoute(time.Second) },
		"UseQP":          func() error { return id.UseQP(w.spareQP()) },
	}
}

// TestC198_C199_Order tries every call in every state: what the state does not allow is
// "wrong state", and the driver does not hear of it.
func TestC198_C199_Order(t *testing.T) {
	t.Parallel()
	allowed := map[string][]string{
		"idle":           {"Bind", "Listen", "ResolveAddr"},
		"bound":          {"Listen", "ResolveAddr"},
		"listening":      nil,
		"addr pending":   nil,
		"addr resolved":  {"CreateQP", "QPAttr", "ResolveRoute", "UseQP"},
		"route resolved": {"Connect", "CreateQP", "QPAttr", "UseQP"},
		"connecting":     nil,
		"request":        {"Accept", "CreateQP", "QPAttr", "Reject", "UseQP"},
		"connected":      {"Disconnect", "Notify"},
		"ended":          {"Disconnect"},
	}
	for state, may := range allowed {
		for name := range idCalls(nil, nil) {
			t.Run(state+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				id := w.inState(state)
				before := len(w.cm.Calls())
				err := idCalls(w, id)[name]()
				if contains(may, name) {
					if errors.Is(err, cm.ErrState) || errors.Is(err, cm.ErrPending) {
						t.Errorf("refused: %v", err)
					}
					return
				}
				if !errors.Is(err, cm.ErrState) && !errors.Is(err, cm.ErrPending) && name != "LeaveMulticast" && name != "JoinMulticast" {
					t.Errorf("got %v, want wrong state", err)
				}
				if !errors.Is(err, syscall.EINVAL) {
					t.Errorf("%v is not EINVAL", err)
				}
				var op *cm.OpError
				if !errors.As(err, &op) || op.Op == "" {
					t.Errorf("%v is no OpError", err)
				}
				if n := len(w.cm.Calls()); n != before {
					t.Errorf("the driver was called: %v", w.cm.Calls()[before:])
				}
			})
		}
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// inState gives an id of the lower floor in a state.
func (w *world) inState(state string) *cm.ID {
	w.t.Helper()
	ch := w.channel()
	switch state {
	case "idle":
		return w.id(ch)
	case "bound":
		id := w.id(ch)
		must(w.t, id.Bind(someSrc))
		return id
	case "listening":
		return w.listen(ch)
	case "addr pending":
		id := w.id(ch)
		must(w.t, id.ResolveAddr(netip.AddrPort{}, anyDst, 0))
		return id
	case "addr resolved":
		id := w.id(ch)
		must(w.t, id.ResolveAddr(netip.AddrPort{}, anyDst, 0))
		w.want(ch, cm.AddrResolved, id)
		return id
	case "route resolved":
		return w.routed(ch, anyDst)
	case "connecting", "request":
		l := w.listen(ch)
		id := w.routed(ch, l.LocalAddr())
		w.qp(id)
		must(w.t, id.Connect(nil))
		if state == "connecting" {
			return id
		}
		return w.want(ch, cm.ConnectRequest, nil).ID
	case "connected":
		return w.pair(nil, nil).a
	case "ended":
		c := w.pair(nil, nil)
		must(w.t, c.a.Disconnect())
		w.want(c.bch, cm.Disconnected, c.b)
		w.want(c.ach, cm.Disconnected, c.a)
		return c.a
	}
	panic(state)
}

// TestClosedID: every call on a closed id wraps net.ErrClosed and reaches no driver.
func TestClosedID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.pair(nil, nil)
	must(t, c.a.Close())
	before := len(w.cm.Calls())
	for name, call := range idCalls(w, c.a) {
		if err := call(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"SetTOS": c.a.SetTOS(1), "SetReuseAddr": c.a.SetReuseAddr(true), "SetAFOnly": c.a.SetAFOnly(true),
		"SetAckTimeout": c.a.SetAckTimeout(time.Second), "SetTimeout": c.a.SetTimeout(time.Second), "Migrate": c.a.Migrate(nil),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(w.cm.Calls()); n != before {
		t.Errorf("the driver was called: %v", w.cm.Calls()[before:])
	}
}

// TestNilAndZero: methods of nil and zero objects give EINVAL or the zero value.
func TestNilAndZero(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", what, err)
		}
	}
	for i, id := range []*cm.ID{nil, new(cm.ID)} {
		for name, call := range idCalls(w, id) {
			check(fmt.Sprintf("ID %d %s", i, name), call())
		}
		check("Close", id.Close())
		check("SetTOS", id.SetTOS(1))
		check("SetAckTimeout", id.SetAckTimeout(-1))
		check("SetTimeout", id.SetTimeout(1))
		check("Migrate", id.Migrate(nil))
		check("Migrate", id.Migrate(w.channel()))
		check("Err", id.Err())
		id.SetUserData(1)
		if id.LocalAddr().IsValid() || id.RemoteAddr().IsValid() || id.Device() != nil || id.Port() != 0 || id.QP() != nil || id.Private() != nil || id.Param().Private != nil || id.PortSpace() != 0 {
			t.Error("a zero id has something")
		}
	}
	for _, ch := range []*cm.EventChannel{nil, new(cm.EventChannel)} {
		_, err := ch.Event(ctx)
		check("Event", err)
		_, _, err = ch.TryEvent()
		check("TryEvent", err)
		_, err = ch.FD()
		check("FD", err)
		_, err = ch.NewID(0)
		check("NewID", err)
		check("Close", ch.Close())
		for _, err := range ch.Events(ctx) {
			check("Events", err)
		}
	}
	for _, l := range []*cm.Listener{nil, new(cm.Listener)} {
		_, err := l.Accept(ctx)
		check("Accept", err)
		for _, err := range l.Requests(ctx) {
			check("Requests", err)
		}
		_, err = l.FD()
		check("FD", err)
		check("Close", l.Close())
		if l.Addr() != nil {
			t.Error("address")
		}
	}
	for _, r := range []*cm.Request{nil, new(cm.Request)} {
		_, err := r.Accept(ctx, nil)
		check("Accept", err)
		check("Reject", r.Reject(nil))
		_, err = r.CreateQP(w.pd, verbs.QPConfig{SendCQ: w.cq})
		check("CreateQP", err)
		check("Close", r.Close())
		if r.Device() != nil || r.Port() != 0 || r.Private() != nil || r.Param().QPN != 0 || r.LocalAddr().IsValid() || r.RemoteAddr().IsValid() {
			t.Error("a zero request has something")
		}
	}
	for _, r := range []*cm.Route{nil, new(cm.Route)} {
		_, err := r.Connect(ctx, nil)
		check("Connect", err)
		_, err = r.CreateQP(w.pd, verbs.QPConfig{SendCQ: w.cq})
		check("CreateQP", err)
		check("Close", r.Close())
		if r.Device() != nil || r.Port() != 0 || r.LocalAddr().IsValid() || r.RemoteAddr().IsValid() {
			t.Error("a zero route has something")
		}
	}
	for _, c := range []*cm.Conn{nil, new(cm.Conn)} {
		check("Close", c.Close())
		check("Err", c.Err())
		if c.QP() != nil || c.Device() != nil || c.Private() != nil || c.Done() != nil || c.LocalAddr().IsValid() || c.RemoteAddr().IsValid() {
			t.Error("a zero connection has something")
		}
	}
	_, err := cm.NewEventChannel(nil)
	check("NewEventChannel", err)
	_, err = cm.NewID(nil, 0)
	check("NewID", err)
	_, err = cm.Listen(nil, "10.0.0.1:0", nil)
	check("Listen", err)
	_, err = cm.Resolve(ctx, nil, "10.0.0.1:1", nil)
	check("Resolve", err)
}

func TestC192_BindArguments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	id := w.id(ch)
	for _, a := range []netip.AddrPort{{}, netip.MustParseAddrPort("[fe80::1]:1")} {
		if err := id.Bind(a); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", a, err)
		}
		if err := id.ResolveAddr(netip.AddrPort{}, a, 0); !errors.Is(err, syscall.EINVAL) { // C-227
			t.Errorf("resolve %v: %v", a, err)
		}
	}
	if n := len(w.cm.Calls("BindAddr", "ResolveAddr")); n != 0 {
		t.Errorf("the driver was asked %d times", n)
	}
	must(t, id.Bind(netip.MustParseAddrPort("[fe80::1%eth0]:1")))
	if err := id.Bind(someSrc); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("bound already: %v", err)
	}
	// An IPv4 address in IPv6's clothes is IPv4.
	must(t, w.id(ch).Bind(netip.MustParseAddrPort("[::ffff:10.0.0.1]:5")))
	if got := w.cm.Calls("BindAddr")[1].Src; got.String() != "10.0.0.1:5" {
		t.Errorf("the driver got %v", got)
	}
	if err := id.ResolveAddr(netip.AddrPort{}, anyDst, -1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("negative limit: %v", err)
	}
}

func TestC193_C194_Ports(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	id := w.id(ch)
	must(t, id.Bind(someSrc))
	if id.LocalAddr().Port() == 0 {
		t.Error("no port was chosen")
	}
	unbound := w.id(ch)
	must(t, unbound.Listen(0))
	if a := unbound.LocalAddr(); !a.Addr().IsUnspecified() || a.Port() == 0 || unbound.Device() != nil {
		t.Errorf("listen without bind: %v on %v", a, unbound.Device())
	}
	again := w.id(ch)
	err := again.Bind(id.LocalAddr())
	var op *cm.OpError
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) || op.Hint == "" || op.Local != id.LocalAddr() {
		t.Errorf("in use: %v", err)
	}
	addr := id.LocalAddr()
	must(t, id.Close())
	must(t, again.Bind(addr))
}

func TestC195_Options(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ch := w.channel()
	a, b := w.id(ch), w.id(ch)
	must(t, a.SetReuseAddr(true))
	must(t, b.SetReuseAddr(true))
	must(t, a.Bind(netip.MustParseAddrPort("10.0.0.1:99")))
	must(t, b.Bind(netip.MustParseAddrPort("10.0.0.1:99")))
	must(t, a.SetReuseAddr(true))
	if err := a.SetReuseAddr(false); !errors.Is(err, cm.ErrState) {
		t.Errorf("off when bound: %v", err)
	}
	must(t, a.SetTOS(0x68))
	must(t, a.SetAFOnly(true))
	must(t, a.SetAckTimeout(67*time.Millisecond))
	if err := a.SetAckTimeout(-1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("negative: %v", err)
	}
	calls := w.cm.Calls("SetOption")[3:]
	if len(calls) != 3 || calls[0].Option != 0 || calls[0].Value[0] != 0x68 ||
		calls[1].Option != 2 || len(calls[1].Value) != 4 ||
		calls[2].Option != 3 || len(calls[2].Value) != 1 || calls[2].Value[0] != 14 {
		t.Errorf("options %+v", calls)
	}
	must(t, a.Listen(0))
	for name, err := range map[string]error{"TOS": a.SetTOS(1), "AFONLY": a.SetAFOnly(false), "ACK_TIMEOUT": a.SetAckTimeout(1)} {
		if !errors.Is(err, cm.ErrState) {
			t.Errorf("%s when listening: %v", name, err)
		}
	}
	// ConnParam has the ack time-out as well.
	id := w.routed(ch, anyDst)
	w.qp(id)
	must(t, id.Connect(&cm.ConnParam{AckTimeout: time.Millisecond}))
	if c := w.cm.Calls("SetOption"); len(c) != 7 || c[6].Option != 3 || c[6].Value[0] != 8 {
		t.Errorf("options %+v", c[6:])
	}
}

func TestOtherDevice(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t), newWorld(t)
	ch := w.channel()
	id := w.routed(ch, anyDst)
	for what, call := range map[string]func() error{
		"pd":   func() error { _, err := id.CreateQP(other.pd, verbs.QPConfig{SendCQ: w.cq}); return err },
		"cq":   func() error { _, err := id.CreateQP(w.pd, verbs.QPConfig{SendCQ: other.cq}); return err },
		"recv": func() error { _, err := id.CreateQP(w.pd, verbs.QPConfig{SendCQ: w.cq, RecvCQ: other.cq}); return err },
		"none": func() error { _, err := id.CreateQP(nil, verbs.QPConfig{SendCQ: w.cq}); return err },
		"nocq": func() error { _, err := id.CreateQP(w.pd, verbs.QPConfig{}); return err },
		"ud":   func() error { _, err := id.CreateQP(w.pd, verbs.QPConfig{SendCQ: w.cq, Type: ib.UD}); return err },
		"use":  func() error { return id.UseQP(other.spareQP()) },
		"nil":  func() error { return id.UseQP(nil) },
	} {
		if err := call(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if id.QP() != nil {
		t.Error("the id has a queue pair")
	}
	w.qp(id)
	if _, err := id.CreateQP(w.pd, verbs.QPConfig{SendCQ: w.cq}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("second: %v", err)
	}
}
