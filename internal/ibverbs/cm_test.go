//go:build linux && cgo

package ibverbs

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func (r *rig) channel() driver.CMChannel {
	r.Helper()
	ch := must(must(r.p.OpenCM())(r).OpenChannel())(r)
	r.closing("cm channel", ch.Close)
	return ch
}

func (r *rig) id(ch driver.CMChannel, handle uint64) driver.CMID {
	r.Helper()
	id := must(ch.CreateID(handle, ib.PortSpaceTCP, ib.RC))(r)
	r.closing("id", id.Close)
	return id
}

// event waits for the next event of a channel.
func (r *rig) event(ch driver.CMChannel, typ ib.CMEventType, handle uint64) driver.CMEvent {
	r.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		ev, ok, err := ch.Next()
		if err != nil {
			r.Fatal(err)
		}
		if !ok {
			r.readable(ch, time.Until(end))
			continue
		}
		if ev.Type == ib.CMTimewaitExit {
			continue
		}
		if ev.Type != typ || ev.Handle != handle {
			r.Fatalf("%v (status %d) of %#x, want %v of %#x", ev.Type, ev.Status, ev.Handle, typ, handle)
		}
		return ev
	}
	r.Fatalf("no %v", typ)
	return driver.CMEvent{}
}

// ready moves a queue pair as cm does.
func (r *rig) ready(id driver.CMID, q driver.QP, states ...ib.QPState) {
	r.Helper()
	for _, s := range states {
		a, m, err := id.InitQPAttr(s)
		if err != nil {
			r.Fatalf("attributes of %v: %v", s, err)
		}
		if m&ib.AttrMinRNRTimer != 0 {
			a.MinRNRTimer = 640 * time.Microsecond
		}
		if err := q.Modify(&a, m); err != nil {
			r.Fatalf("to %v with %v: %v", s, m, err)
		}
	}
}

func TestConnect(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) { connect(t, v6) })
	}
}

func connect(t *testing.T, v6 bool) {
	r := newRig(t)
	addr := r.gid.GID.Addr()
	if v6 {
		for _, g := range must(r.ctx.GIDs())(t) {
			if !g.GID.Is4() && !g.GID.IsLinkLocal() {
				addr = g.GID.Addr()
			}
		}
		if addr.Is4() {
			t.Fatal("no IPv6 address")
		}
	}
	q := r.cq(1, 600)
	passive, active, other := r.channel(), r.channel(), r.channel()
	if _, ok, err := active.Next(); ok || err != nil {
		t.Fatal(ok, err)
	}
	l := r.id(passive, 0x10_0000_0001)
	if err := l.BindAddr(netip.AddrPortFrom(addr, 0)); err != nil {
		t.Fatal(err)
	}
	if err := l.Listen(0); err != nil {
		t.Fatal(err)
	}
	at := l.Info()
	if at.Local.Addr() != addr || at.Local.Port() == 0 || at.Device != r.ctx.info.Name {
		t.Fatalf("%+v", at)
	}
	a := r.id(active, 0x20_0000_0001)
	if i := a.Info(); i.Device != "" || i.Local.IsValid() || i.Remote.IsValid() {
		t.Errorf("%+v", i)
	}
	if err := a.ResolveAddr(netip.AddrPort{}, at.Local, time.Second); err != nil {
		t.Fatal(err)
	}
	r.event(active, ib.CMAddrResolved, 0x20_0000_0001)
	if i := a.Info(); i.Device != r.ctx.info.Name || i.Port != 1 || i.Remote != at.Local || i.Local.Addr() != addr {
		t.Errorf("%+v", i)
	}
	if err := a.ResolveRoute(time.Second); err != nil {
		t.Fatal(err)
	}
	r.event(active, ib.CMRouteResolved, 0x20_0000_0001)
	if err := a.SetOption(0, 3, []byte{17}); err != nil { // ACK_TIMEOUT
		t.Fatal(err)
	}
	aq := r.qp(1, ib.RC, q, nil)
	r.ready(a, aq, ib.StateInit)
	r.recv(aq, 200, r.sge(0, 64))
	err := a.Connect(driver.ConnParam{
		Private: []byte("please"), QPN: aq.Num(), ResponderResources: 4, InitiatorDepth: 6, RetryCount: 5, RNRRetryCount: 7,
	})
	if err != nil {
		t.Fatal(err)
	}

	req := r.event(passive, ib.CMConnectRequest, 0x10_0000_0001)
	if req.Child == nil || len(req.Private) != 56 || !bytes.HasPrefix(req.Private, []byte("please\x00")) {
		t.Fatalf("%+v", req)
	}
	if c := req.Conn; c.ResponderResources != 6 || c.InitiatorDepth != 4 || c.RetryCount != 5 || c.RNRRetryCount != 7 || c.QPN != aq.Num() {
		t.Errorf("%+v", c)
	}
	child := req.Child
	r.closing("child", child.Close)
	child.SetHandle(0x30_0000_0001)
	if i := child.Info(); i.Device != r.ctx.info.Name || i.Local != at.Local || i.Remote.Addr() != addr {
		t.Errorf("%+v", i)
	}
	if err := child.Migrate(other); err != nil {
		t.Fatal(err)
	}
	bq := r.qp(2, ib.RC, q, nil)
	r.ready(child, bq, ib.StateInit)
	r.recv(bq, 201, r.sge(1024, 64))
	r.ready(child, bq, ib.StateInit, ib.StateRTR, ib.StateRTS)
	if err := child.Accept(driver.ConnParam{Private: []byte("welcome"), QPN: bq.Num(), ResponderResources: 2, InitiatorDepth: 3, RNRRetryCount: 7}); err != nil {
		t.Fatal(err)
	}

	resp := r.event(active, ib.CMConnectResponse, 0x20_0000_0001)
	if len(resp.Private) != 196 || !bytes.HasPrefix(resp.Private, []byte("welcome\x00")) {
		t.Errorf("%+v", resp)
	}
	if c := resp.Conn; c.ResponderResources != 3 || c.InitiatorDepth != 2 || c.QPN != bq.Num() {
		t.Errorf("%+v", c)
	}
	r.ready(a, aq, ib.StateInit, ib.StateRTR, ib.StateRTS)
	if got := must(aq.Query(ib.AttrTimeout | ib.AttrMinRNRTimer | ib.AttrRetryCount))(t); got.Timeout != ib.AckTimeoutDuration(17) || got.MinRNRTimer != 640*time.Microsecond || got.RetryCount != 5 {
		t.Errorf("%+v", got)
	}
	if err := a.Establish(); err != nil {
		t.Fatal(err)
	}
	r.event(other, ib.CMEstablished, 0x30_0000_0001)
	if err := child.Notify(ib.EventCommEst); !errors.Is(err, syscall.EISCONN) {
		t.Errorf("COMM_EST afterwards: %v", err)
	}

	copy(r.mem[2048:], "over the connection")
	r.send(aq, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.SGL = 1, ib.OpSend, append(s.SGL, r.sge(2048, 19))
	})
	for _, w := range r.poll(q, 2) {
		if w.Status != ib.StatusSuccess {
			t.Errorf("%+v", w)
		}
	}
	if got := string(r.mem[1024:1043]); got != "over the connection" {
		t.Errorf("%q", got)
	}

	if err := a.Disconnect(); err != nil {
		t.Fatal(err)
	}
	r.event(other, ib.CMDisconnected, 0x30_0000_0001)
	if err := child.Disconnect(); err != nil {
		t.Fatal(err)
	}
	r.event(active, ib.CMDisconnected, 0x20_0000_0001)
}

// TestRejected: nobody listens, and the program says no.
func TestRejected(t *testing.T) {
	r := newRig(t)
	q := r.cq(1, 600)
	ch := r.channel()
	addr := r.gid.GID.Addr()
	l := r.id(ch, 1)
	if err := l.BindAddr(netip.AddrPortFrom(addr, 0)); err != nil {
		t.Fatal(err)
	}
	at := l.Info().Local
	if err := l.Listen(8); err != nil {
		t.Fatal(err)
	}
	try := func(handle uint64, to netip.AddrPort) {
		t.Helper()
		a := r.id(ch, handle)
		if err := a.ResolveAddr(netip.AddrPort{}, to, time.Second); err != nil {
			t.Fatal(err)
		}
		r.event(ch, ib.CMAddrResolved, handle)
		if err := a.ResolveRoute(time.Second); err != nil {
			t.Fatal(err)
		}
		r.event(ch, ib.CMRouteResolved, handle)
		v := r.qp(handle, ib.RC, q, nil)
		r.ready(a, v, ib.StateInit)
		if err := a.Connect(driver.ConnParam{QPN: v.Num()}); err != nil {
			t.Fatal(err)
		}
	}
	try(2, netip.AddrPortFrom(addr, at.Port()^1))
	if ev := r.event(ch, ib.CMRejected, 2); ib.RejectReason(ev.Status) != ib.RejectInvalidServiceID {
		t.Errorf("%+v", ev)
	}
	try(3, at)
	req := r.event(ch, ib.CMConnectRequest, 1)
	if err := req.Child.Reject(bytes.Repeat([]byte{'n'}, 148)); err != nil {
		t.Fatal(err)
	}
	if ev := r.event(ch, ib.CMRejected, 3); ib.RejectReason(ev.Status) != ib.RejectConsumer || len(ev.Private) != 148 || ev.Private[147] != 'n' {
		t.Errorf("%+v", ev)
	}
	r.within("close child", req.Child.Close)
	// A request that nobody fetches ends with its listener.
	try(4, at)
	if !r.readable(ch, 10*time.Second) {
		t.Fatal("no request")
	}
}

// TestNoDevice: librdmacm follows a NULL pointer in these calls; nothing of it may reach
// it.
func TestNoDevice(t *testing.T) {
	r := newRig(t)
	ch := r.channel()
	id := r.id(ch, 1)
	for name, f := range map[string]func() error{
		"ResolveRoute": func() error { return id.ResolveRoute(time.Second) },
		"InitQPAttr":   func() error { _, _, err := id.InitQPAttr(ib.StateInit); return err },
		"Connect":      func() error { return id.Connect(driver.ConnParam{}) },
		"Accept":       func() error { return id.Accept(driver.ConnParam{}) },
		"Reject":       func() error { return id.Reject(nil) },
		"Establish":    id.Establish,
		"Notify":       func() error { return id.Notify(ib.EventCommEst) },
		"Disconnect":   id.Disconnect,
		"Join":         func() error { return id.Join(netip.MustParseAddr("239.1.2.3"), 0, 1) },
		"Leave":        func() error { return id.Leave(netip.MustParseAddr("239.1.2.3")) },
		"BindAddr":     func() error { return id.BindAddr(netip.AddrPort{}) },
		"SetOption":    func() error { return id.SetOption(0, 0, nil) },
	} {
		if err := f(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := id.BindAddr(netip.MustParseAddrPort("192.0.2.77:9")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("foreign address: %v", err)
	}
	if err := id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("[fe80::1%nosuch0]:9"), time.Second); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("zone of no interface: %v", err)
	}
	if err := id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr("10.9.0.77"), 9), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if ev := r.event(ch, ib.CMAddrError, 1); ev.Status >= 0 {
		t.Errorf("%+v", ev)
	}
}

// TestMulticast joins and leaves, with a handle of its own.
func TestMulticast(t *testing.T) {
	r := newRig(t)
	ch := r.channel()
	id := must(ch.CreateID(1, ib.PortSpaceUDP, ib.UD))(t)
	r.closing("id", id.Close)
	if err := id.BindAddr(netip.AddrPortFrom(r.gid.GID.Addr(), 0)); err != nil {
		t.Fatal(err)
	}
	group := netip.MustParseAddr("239.1.2.3")
	if err := id.ResolveAddr(netip.AddrPortFrom(r.gid.GID.Addr(), 0), netip.AddrPortFrom(group, 0), time.Second); err != nil {
		t.Fatal(err)
	}
	r.event(ch, ib.CMAddrResolved, 1)
	if err := id.Join(group, ib.JoinFullMember, 0x40_0000_0007); err != nil {
		t.Fatal(err)
	}
	ev := r.event(ch, ib.CMMulticastJoin, 0x40_0000_0007)
	if ev.UD.QPN != ib.QPNMulticast || ev.UD.QKey != ib.QKeyCM || !ev.UD.AH.DGID.IsMulticast() {
		t.Errorf("%+v", ev.UD)
	}
	r.within("leave", func() error { return id.Leave(group) })
	if _, err := ch.CreateID(2, ib.PortSpaceTCP, ib.UD); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}
