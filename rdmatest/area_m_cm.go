package rdmatest

import (
	"bytes"
	"errors"
	"math/bits"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area M, first part: ids, addresses, parameters.
func areaCM() []check {
	return []check{
		{"C-192_BindErrors", 0, bindErrors},
		{"C-193_PortZero", 0, portZero},
		{"C-193_ListenWithoutBind", IPv4, listenWithoutBind},
		{"C-194_AddressInUse", 0, addressInUse},
		{"C-194_PortOfTCP", 0, portOfTCP},
		{"C-195_ReuseAddr", 0, reuseAddr},
		{"C-198_NoDevice", 0, idWithoutDevice},
		{"C-199_WrongOrder", 0, wrongOrder},
		{"C-200_AddressResolution", 0, addressResolution},
		{"C-202_EventOrder", 0, eventOrder},
		{"C-203_NobodyListens", 0, nobodyListens},
		{"C-204_Reject", 0, reject},
		{"C-204_CloseWithoutAnswer", 0, closeWithoutAnswer},
		{"C-206_AcceptIsCheckedFirst", 0, acceptIsCheckedFirst},
		{"C-207_Defaults", 0, connectDefaults},
		{"C-208_ZeroedParameters", 0, zeroedParameters},
		{"C-209_DepthNegotiation", 0, depthNegotiation},
		{"C-210_RetryBeyondSeven", 0, retryBeyondSeven},
		{"C-211_EventDataLives", 0, eventDataLives},
		{"C-214_NoQueuePair", 0, noQueuePair},
		{"C-226_Wildcard", 0, wildcard},
		{"C-226_WildcardIPv6", IPv4, wildcardIPv6},
		{"C-226_IPv6Only", IPv4 | Changes, wildcardIPv6Only},
		{"C-227_LinkLocalNeedsZone", 0, linkLocalNeedsZone},
	}
}

func bindErrors(t *tb) {
	ch := t.channel(t.Provider)
	for _, c := range []struct {
		what string
		addr string
		want error
	}{
		{"an address of another host", "192.0.2.77:0", enotavail},
		{"a multicast address", "224.0.0.77:0", enotavail},
		{"a link-local address without zone", "[fe80::1]:0", einval},
		{"a link-local address in a zone that is not", "[fe80::1%no-such]:0", syscall.ENODEV},
	} {
		id := t.newID(ch, ib.PortSpaceTCP)
		t.isErr(id.Bind(netip.MustParseAddrPort(c.addr)), c.want, "bind to %s", c.what)
	}
	id := t.newID(ch, ib.PortSpaceTCP)
	t.isErr(id.Bind(netip.AddrPort{}), einval, "bind to nothing")
	t.ok(id.Bind(netip.AddrPortFrom(t.Addr, 0)), "bind")
	t.isErr(id.Bind(netip.AddrPortFrom(t.Addr, 0)), einval, "bind again")
	t.noEvent(ch)
}

func portZero(t *tb) {
	ch := t.channel(t.Provider)
	id := t.newID(ch, ib.PortSpaceTCP)
	t.ok(id.Bind(netip.AddrPortFrom(t.Addr, 0)), "bind")
	if a := id.LocalAddr(); a.Port() == 0 || a.Addr() != t.Addr {
		t.Errorf("bound to %v", a)
	}
}

// It means a port of every address of IPv4.
func listenWithoutBind(t *tb) {
	un := t.newID(t.channel(t.Provider), ib.PortSpaceTCP)
	t.ok(un.Listen(0), "listen without bind")
	if a := un.LocalAddr(); a.Port() == 0 || !a.Addr().IsUnspecified() {
		t.Errorf("listens on %v", a)
	}
	if un.Device() != nil {
		t.Error("a wildcard listener has a device")
	}
}

func addressInUse(t *tb) {
	ch := t.channel(t.Provider)
	first := t.newID(ch, ib.PortSpaceTCP)
	t.ok(first.Bind(netip.AddrPortFrom(t.Addr, 0)), "bind")
	t.ok(first.Listen(0), "listen")
	a := first.LocalAddr()
	second := t.newID(ch, ib.PortSpaceTCP)
	err := second.Bind(a)
	t.isErr(err, einuse, "bind to a port in use")
	any := netip.AddrPortFrom(t.anyAddr(), a.Port())
	t.isErr(t.newID(ch, ib.PortSpaceTCP).Bind(any), enotavail, "bind the wildcard beside a listener")
	udp := t.newID(ch, ib.PortSpaceUDP)
	t.ok(udp.Bind(a), "bind in another port space")
	t.closed(first, "listener")
	t.ok(t.newID(ch, ib.PortSpaceTCP).Bind(a), "bind after the first is closed")
}

// The ports of TCP are others.
func portOfTCP(t *tb) {
	tcp, err := net.Listen("tcp", ":0")
	t.ok(err, "listen with TCP")
	defer tcp.Close()
	port := uint16(tcp.Addr().(*net.TCPAddr).Port)
	id := t.newID(t.channel(t.Peer), ib.PortSpaceTCP)
	t.ok(id.Bind(netip.AddrPortFrom(t.PeerAddr, port)), "bind a port that TCP listens on")
	t.ok(id.Listen(0), "listen on a port that TCP listens on")
}

func reuseAddr(t *tb) {
	ch := t.channel(t.Provider)
	x, y := t.newID(ch, ib.PortSpaceTCP), t.newID(ch, ib.PortSpaceTCP)
	t.ok(x.SetReuseAddr(true), "set the option")
	t.ok(y.SetReuseAddr(true), "set the option")
	t.ok(x.Bind(netip.AddrPortFrom(t.Addr, 0)), "bind")
	t.ok(y.Bind(x.LocalAddr()), "bind to the same with the option")
	t.isErr(x.Listen(0), einuse, "listen while another is bound")
	t.closed(y, "the other")
	t.ok(x.Listen(0), "listen alone")
	z := t.newID(ch, ib.PortSpaceTCP)
	t.ok(z.SetReuseAddr(true), "set the option")
	t.isErr(z.Bind(x.LocalAddr()), einuse, "bind beside a listener")
}

// What kills a process in C is an error here.
func idWithoutDevice(t *tb) {
	ch := t.channel(t.Provider)
	_, l := t.listener(0)
	pd, cq := t.pd(t.a), t.cq(t.a, 16, nil)
	for what, id := range map[string]*cm.ID{"new": t.newID(ch, ib.PortSpaceTCP), "listening": l, "nil": nil} {
		_, err := id.CreateQP(pd, verbs.QPConfig{SendCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
		t.isErr(err, einval, "%s id: create a queue pair", what)
		t.isErr(id.ResolveRoute(resolveLimit), einval, "%s id: resolve a route", what)
		t.isErr(id.Connect(&cm.ConnParam{NoReceives: true}), einval, "%s id: connect", what)
		t.isErr(id.Accept(&cm.ConnParam{NoReceives: true}), einval, "%s id: accept", what)
		if qp := id.QP(); qp != nil {
			t.Errorf("%s id has a queue pair", what)
		}
	}
	if l.Device() != nil && t.PeerAddr.IsUnspecified() {
		t.Error("a wildcard listener has a device")
	}
}

func wrongOrder(t *tb) {
	ch := t.channel(t.Provider)
	id := t.newID(ch, ib.PortSpaceTCP)
	t.isErr(id.Disconnect(), einval, "disconnect an idle id")
	t.isErr(id.Reject(nil), einval, "reject an idle id")
	t.isErr(id.Notify(ib.EventCommEst), einval, "notify an idle id")
	t.isErr(id.Establish(), einval, "establish an idle id")
	_, _, err := id.QPAttr(ib.StateInit)
	t.isErr(err, einval, "attributes of an idle id")
	_, err = id.GetRequest(t.limit)
	t.isErr(err, einval, "get a request from an idle id")
	t.isErr(id.JoinMulticast(netip.MustParseAddr("239.1.1.1"), 0), einval, "join with an id of a reliable connection")

	_, l := t.listener(0)
	t.isErr(l.Listen(0), einval, "listen twice")
	t.isErr(l.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(t.Addr, 1), resolveLimit), einval, "resolve on a listener")
	t.isErr(l.Disconnect(), einval, "disconnect a listener")
	_, err = l.GetRequest(t.limit)
	t.isErr(err, einval, "get a request from a listener with a channel")

	r := t.resolve(ch, netip.AddrPortFrom(t.PeerAddr, 4242))
	t.isErr(r.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(t.PeerAddr, 1), resolveLimit), einval, "resolve twice")
	t.isErr(r.ResolveRoute(resolveLimit), einval, "resolve the route twice")
	t.isErr(r.Listen(0), einval, "listen on a resolved id")
	t.isErr(r.Connect(nil), cm.ErrNoQP, "connect without a queue pair")
	t.noEvent(ch)
	t.closed(r, "id")
	t.isErr(r.Connect(nil), net.ErrClosed, "connect a closed id")
}

func addressResolution(t *tb) {
	ch := t.channel(t.Provider)
	for _, a := range []netip.Addr{t.Addr, t.PeerAddr} {
		id := t.newID(ch, ib.PortSpaceTCP)
		t.ok(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(a, 7), resolveLimit), "resolve %v", a)
		t.event(ch, cm.AddrResolved)
		if id.Device() != t.a || id.Port() != 1 {
			t.Errorf("%v resolved to %v port %d", a, id.Device(), id.Port())
		}
		if l := id.LocalAddr(); !l.Addr().IsValid() || l.Addr().IsUnspecified() || l.Port() == 0 {
			t.Errorf("local address %v", l)
		}
		if r := id.RemoteAddr(); r != netip.AddrPortFrom(a, 7) {
			t.Errorf("remote address %v, want %v", r, a)
		}
	}
	// A limit of zero is one try.
	id := t.newID(ch, ib.PortSpaceTCP)
	t.ok(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(t.Addr, 7), 0), "resolve the own address without a limit")
	t.event(ch, cm.AddrResolved)

	dst := netip.AddrPortFrom(t.PeerAddr, 7)
	for _, c := range []struct {
		what     string
		src, dst netip.AddrPort
		limit    time.Duration
		want     error
	}{
		{"a foreign source", netip.MustParseAddrPort("192.0.2.9:0"), dst, resolveLimit, enotavail},
		{"a multicast group", netip.AddrPort{}, netip.MustParseAddrPort("239.1.2.3:7"), resolveLimit, syscall.ENETUNREACH},
		{"a broadcast", netip.AddrPort{}, netip.MustParseAddrPort("255.255.255.255:7"), resolveLimit, syscall.ENETUNREACH},
		{"nothing", netip.AddrPort{}, netip.AddrPort{}, resolveLimit, einval},
		{"a negative limit", netip.AddrPort{}, dst, -1, einval},
	} {
		id := t.newID(ch, ib.PortSpaceTCP)
		err := id.ResolveAddr(c.src, c.dst, c.limit)
		if err == nil { // then it is the event that says so
			err = t.event(ch, cm.AddrError).Err
		}
		t.isErr(err, c.want, "resolve %s", c.what)
	}
	t.noEvent(ch)
}

func eventOrder(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	id := t.newID(ch, ib.PortSpaceTCP)
	id.SetUserData("mine")
	to := netip.AddrPortFrom(t.PeerAddr, l.LocalAddr().Port())
	t.ok(id.ResolveAddr(netip.AddrPort{}, to, resolveLimit), "resolve")
	ev := t.event(ch, cm.AddrResolved)
	if ev.ID != id || ev.ID.UserData() != "mine" || id.Device() != t.a || id.Port() != 1 {
		t.Error("AddrResolved without id or device")
	}
	t.ok(id.ResolveRoute(resolveLimit), "resolve the route")
	t.event(ch, cm.RouteResolved)
	c := t.equip("client", ch, id)
	c.state(ib.StateInit)
	t.ok(id.Connect(&cm.ConnParam{Private: []byte("hello")}), "connect")
	child, req := t.request(lch, l)
	if !bytes.HasPrefix(req.Private, []byte("hello")) {
		t.Errorf("private data %q", req.Private)
	}
	if child.Device() != t.b || child.RemoteAddr() != id.LocalAddr() || child.LocalAddr().Port() != to.Port() {
		t.Errorf("request from %v to %v", child.RemoteAddr(), child.LocalAddr())
	}
	s := t.equip("server", lch, child)
	t.ok(child.Accept(&cm.ConnParam{Private: []byte("welcome")}), "accept")
	est := t.event(ch, cm.Established)
	if !bytes.HasPrefix(est.Private, []byte("welcome")) {
		t.Errorf("private data %q", est.Private)
	}
	t.event(lch, cm.Established)
	c.state(ib.StateRTS)
	s.state(ib.StateRTS)
	t.exchange(c, s)
	t.noEvent(ch, lch)
}

func nobodyListens(t *tb) {
	ch := t.channel(t.Provider)
	_, l := t.listener(0)
	port := l.LocalAddr().Port()
	t.closed(l, "listener")
	c := t.equip("client", ch, t.resolve(ch, netip.AddrPortFrom(t.PeerAddr, port)))
	start := time.Now()
	t.ok(c.id.Connect(nil), "connect")
	ev := t.event(ch, cm.Rejected)
	if took := time.Since(start); t.Virtual && took > 100*time.Millisecond {
		t.Errorf("refused after %v", took)
	}
	var rej *cm.RejectError
	if !errors.As(ev.Err, &rej) || rej.Reason != ib.RejectInvalidServiceID {
		t.Errorf("refused with %v, want %v", ev.Err, ib.RejectInvalidServiceID)
	}
	t.isErr(ev.Err, erefused, "nobody listens")
	if len(ev.Private) != 148 || len(bytes.Trim(ev.Private, "\x00")) != 0 {
		t.Errorf("%d bytes of private data: %x", len(ev.Private), ev.Private)
	}
	c.state(ib.StateError)
	c.flushed()
	// A listener of another port space is nobody.
	lch := t.channel(t.Peer)
	udp := t.newID(lch, ib.PortSpaceUDP)
	t.ok(udp.Bind(netip.AddrPortFrom(t.PeerAddr, 0)), "bind")
	if err := udp.Listen(0); err == nil {
		c := t.equip("client", ch, t.resolve(ch, netip.AddrPortFrom(t.PeerAddr, udp.LocalAddr().Port())))
		t.ok(c.id.Connect(nil), "connect")
		t.isErr(t.event(ch, cm.Rejected).Err, erefused, "a listener of datagrams")
	} else if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("listen for datagrams: %v", err)
	}
}

func reject(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	id, _ := t.request(lch, l)
	why := pattern(148, 7)
	t.isErr(id.Reject(append(why, 0)), einval, "reject with 149 bytes")
	t.ok(id.Reject(why), "reject with 148 bytes")
	t.isErr(id.Reject(nil), einval, "reject twice")
	t.isErr(id.Accept(&cm.ConnParam{NoReceives: true}), einval, "accept after reject")
	ev := t.event(ch, cm.Rejected)
	var rej *cm.RejectError
	if !errors.As(ev.Err, &rej) || rej.Reason != ib.RejectConsumer || !bytes.Equal(ev.Private, why) || !bytes.Equal(rej.Private, why) {
		t.Errorf("refused with %v and %x", ev.Err, ev.Private)
	}
	t.isErr(ev.Err, erefused, "the peer's program said no")
	c.state(ib.StateError)
	c.flushed()
	t.closed(id, "rejected request")
	t.noEvent(ch, lch)
	t.dial(ch, lch, l, nil, nil) // the listener goes on
}

func closeWithoutAnswer(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	id, _ := t.request(lch, l)
	t.closed(id, "request")
	ev := t.event(ch, cm.Rejected)
	var rej *cm.RejectError
	if !errors.As(ev.Err, &rej) || rej.Reason != ib.RejectConsumer || len(bytes.Trim(ev.Private, "\x00")) != 0 {
		t.Errorf("refused with %v and %x", ev.Err, ev.Private)
	}
	c.state(ib.StateError)
}

// In C a failing accept has refused the peer already. Here it is checked first.
func acceptIsCheckedFirst(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	id, _ := t.request(lch, l)
	t.isErr(id.Accept(nil), cm.ErrNoQP, "accept without a queue pair")
	s := t.equip("server", lch, id)
	t.isErr(id.Accept(&cm.ConnParam{Private: make([]byte, 197)}), einval, "accept with 197 bytes")
	t.isErr(id.Accept(&cm.ConnParam{ResponderResources: 1000}), einval, "accept with too much depth")
	t.ok(id.Accept(&cm.ConnParam{Private: pattern(196, 1)}), "accept with 196 bytes")
	if ev := t.event(ch, cm.Established); !bytes.Equal(ev.Private, pattern(196, 1)) {
		t.Errorf("private data %x", ev.Private)
	}
	t.event(lch, cm.Established)
	t.exchange(c, s)
	// No receive posted: refused on both sides, and mended by posting one.
	r := t.resolve(ch, netip.AddrPortFrom(t.PeerAddr, l.LocalAddr().Port()))
	pd, cq := t.pd(t.a), t.cq(t.a, 16, nil)
	qp, err := r.CreateQP(pd, verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
	t.ok(err, "create a queue pair")
	t.isErr(r.Connect(nil), cm.ErrNoReceives, "connect without receives")
	mr := t.region(pd, 64, ib.LocalWrite)
	t.ok(qp.PostRecv(verbs.Recv(1, mr.SGE(0, 64))), "post a receive")
	t.isErr(r.Connect(&cm.ConnParam{Private: make([]byte, 57)}), einval, "connect with 57 bytes")
	t.ok(r.Connect(&cm.ConnParam{Private: make([]byte, 56)}), "connect with 56 bytes")
	t.request(lch, l)
}

func connectDefaults(t *tb) {
	d, err := t.a.Attr()
	t.ok(err, "query the device")
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	id, req := t.request(lch, l)
	if req.Param.RetryCount != 7 || req.Param.RNRRetryCount != 7 {
		t.Errorf("retries %d and %d, want 7 and 7", req.Param.RetryCount, req.Param.RNRRetryCount)
	}
	if req.Param.ResponderResources != min(d.MaxQPInitRDAtomic, 255) || req.Param.InitiatorDepth != min(d.MaxQPRDAtomic, 255) {
		t.Errorf("depths %d and %d, the device has %d and %d", req.Param.ResponderResources, req.Param.InitiatorDepth, d.MaxQPInitRDAtomic, d.MaxQPRDAtomic)
	}
	s := t.equip("server", lch, id)
	t.ok(id.Accept(nil), "accept")
	t.event(ch, cm.Established)
	t.event(lch, cm.Established)
	for _, p := range []*peer{c, s} {
		a, err := p.qp.Query(^ib.QPAttrMask(0))
		t.ok(err, "query")
		if a.RetryCount != 7 || a.RNRRetry != 7 || a.MaxRDAtomic == 0 || a.MaxDestRDAtomic == 0 || a.Timeout == 0 {
			t.Errorf("%s: %+v", p.name, a)
		}
		// librdmacm leaves code 0 here, which is 655 ms.
		if a.MinRNRTimer <= 0 || a.MinRNRTimer > 10*time.Millisecond {
			t.Errorf("%s: min RNR timer %v", p.name, a.MinRNRTimer)
		}
	}
	t.exchange(c, s)
}

// A zeroed structure means the defaults, not "no retries".
func zeroedParameters(t *tb) {
	c, s, _ := t.meet(&cm.ConnParam{}, &cm.ConnParam{})
	for _, p := range []*peer{c, s} {
		a, err := p.qp.Query(ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrMaxRDAtomic)
		t.ok(err, "query")
		if a.RetryCount != 7 || a.RNRRetry != 7 || a.MaxRDAtomic == 0 {
			t.Errorf("%s: %+v", p.name, a)
		}
	}
	// None is said with a negative number.
	c, s, _ = t.meet(&cm.ConnParam{RetryCount: -1, RNRRetryCount: -1, ResponderResources: -1, InitiatorDepth: -1}, &cm.ConnParam{RNRRetryCount: -1})
	for _, p := range []*peer{c, s} {
		a, err := p.qp.Query(ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrMaxRDAtomic | ib.AttrMaxDestRDAtomic)
		t.ok(err, "query")
		if a.RetryCount != 0 || a.RNRRetry != 0 || a.MaxRDAtomic != 0 || a.MaxDestRDAtomic != 0 {
			t.Errorf("%s: %+v", p.name, a)
		}
	}
}

func depthNegotiation(t *tb) {
	d, err := t.a.Attr()
	t.ok(err, "query the device")
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, &cm.ConnParam{ResponderResources: 4, InitiatorDepth: 6})
	id, req := t.request(lch, l)
	if req.Param.ResponderResources != 6 || req.Param.InitiatorDepth != 4 { // seen from here
		t.Errorf("request with %d/%d, want 6/4", req.Param.ResponderResources, req.Param.InitiatorDepth)
	}
	s := t.equip("server", lch, id)
	t.ok(id.Accept(&cm.ConnParam{ResponderResources: 2, InitiatorDepth: 3}), "accept")
	ev := t.event(ch, cm.Established)
	if ev.Param.ResponderResources != 3 || ev.Param.InitiatorDepth != 2 {
		t.Errorf("answer with %d/%d, want 3/2", ev.Param.ResponderResources, ev.Param.InitiatorDepth)
	}
	t.event(lch, cm.Established)
	for _, w := range []struct {
		p        *peer
		rd, dest int
	}{{c, 2, 3}, {s, 3, 2}} {
		a, err := w.p.qp.Query(ib.AttrMaxRDAtomic | ib.AttrMaxDestRDAtomic)
		t.ok(err, "query")
		// A device may round up to a power of two.
		fits := func(got, want int) bool { return want <= got && got <= 1<<bits.Len(uint(want-1)) }
		if !fits(a.MaxRDAtomic, w.rd) || !fits(a.MaxDestRDAtomic, w.dest) {
			t.Errorf("%s: %d/%d, want %d/%d", w.p.name, a.MaxRDAtomic, a.MaxDestRDAtomic, w.rd, w.dest)
		}
	}
	for i := range uint64(8) { // all of them are served
		c.send(verbs.Read(i, s.mr.Remote(0, 8000), c.sge(0, 8000), ib.Signaled))
	}
	for i := range uint64(8) {
		c.sent(i, ib.StatusSuccess)
	}
	if d.MaxQPRDAtomic < 200 {
		r := t.equip("client", ch, t.resolve(ch, netip.AddrPortFrom(t.PeerAddr, l.LocalAddr().Port())))
		t.isErr(r.id.Connect(&cm.ConnParam{ResponderResources: 200, InitiatorDepth: 200}), einval, "ask for a depth of 200")
	}
}

func retryBeyondSeven(t *tb) {
	_, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.equip("client", ch, t.resolve(ch, netip.AddrPortFrom(t.PeerAddr, l.LocalAddr().Port())))
	t.isErr(c.id.Connect(&cm.ConnParam{RetryCount: 15}), einval, "retry 15")
	t.isErr(c.id.Connect(&cm.ConnParam{RNRRetryCount: 8}), einval, "rnr_retry 8")
	t.isErr(c.id.Connect(&cm.ConnParam{MinRNRTimer: -1}), einval, "a negative RNR timer")
	t.ok(c.id.Connect(nil), "connect")
}

func eventDataLives(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	buf := pattern(56, 3)
	t.ask(ch, l, &cm.ConnParam{Private: buf})
	clear(buf) // not kept
	id, ev := t.request(lch, l)
	mine := bytes.Clone(ev.Private)
	t.ask(ch, l, &cm.ConnParam{Private: pattern(56, 9)})
	_, ev2 := t.request(lch, l)
	t.closed(id, "request")
	if !bytes.Equal(ev.Private, mine) || !bytes.Equal(mine, pattern(56, 3)) || !bytes.Equal(ev2.Private, pattern(56, 9)) {
		t.Errorf("private data changed: %x, %x", ev.Private, ev2.Private)
	}
	if ev.Param.RetryCount != 7 {
		t.Errorf("parameters changed: %+v", ev.Param)
	}
}

func noQueuePair(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	id, _ := t.request(lch, l)
	t.isErr(id.Accept(nil), cm.ErrNoQP, "accept without a queue pair")
	t.isErr(id.Accept(&cm.ConnParam{}), cm.ErrNoQP, "accept without a queue pair")
	s := t.equip("server", lch, id)
	_, err := id.CreateQP(s.pd, verbs.QPConfig{SendCQ: s.scq})
	t.isErr(err, einval, "a second queue pair")
	t.ok(id.Accept(nil), "accept")
	t.event(ch, cm.Established)
	t.event(lch, cm.Established)
	t.exchange(c, s)
}

func wildcard(t *tb) {
	lch := t.channel(t.Peer)
	l := t.newID(lch, ib.PortSpaceTCP)
	t.ok(l.Bind(netip.AddrPortFrom(t.anyAddr(), 0)), "bind the wildcard")
	t.ok(l.Listen(0), "listen")
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	id, _ := t.request(lch, l)
	if id.LocalAddr().Addr() != t.PeerAddr || id.LocalAddr().Port() != l.LocalAddr().Port() || id.RemoteAddr() != c.id.LocalAddr() || id.Device() != t.b {
		t.Errorf("request from %v to %v on %v", id.RemoteAddr(), id.LocalAddr(), id.Device())
	}
	s := t.equip("server", lch, id)
	t.ok(id.Accept(nil), "accept")
	t.event(ch, cm.Established)
	t.event(lch, cm.Established)
	t.exchange(c, s)
}

// The wildcard of IPv6 takes IPv4 as well.
func wildcardIPv6(t *tb) {
	lch := t.channel(t.Peer)
	l := t.newID(lch, ib.PortSpaceTCP)
	t.ok(l.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)), "bind [::]")
	t.ok(l.Listen(0), "listen")
	ch := t.channel(t.Provider)
	t.ask(ch, l, nil)
	id, _ := t.request(lch, l)
	if !id.LocalAddr().Addr().Is4() {
		t.Errorf("IPv4 request at %v", id.LocalAddr())
	}
	t.closed(id, "request")
	t.event(ch, cm.Rejected)
}

// It does not, if it is told so.
func wildcardIPv6Only(t *tb) {
	p := t.Peer.(changeable)
	lch, _ := t.listener(0) // so that the peer answers at its address of IPv4
	ch := t.channel(t.Provider)
	t.drainAsync(t.b)
	t.ok(p.SetAddrs([]netip.Addr{t.PeerAddr, netip.MustParseAddr("fd00::2")}), "give the peer an address of IPv6")
	t.drainAsync(t.b)
	only := t.newID(lch, ib.PortSpaceTCP)
	t.ok(only.SetAFOnly(true), "set the option")
	t.ok(only.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)), "bind [::] with AFONLY")
	t.ok(only.Listen(0), "listen")
	t.ask(ch, only, nil)
	t.isErr(t.event(ch, cm.Rejected).Err, erefused, "IPv4 to a listener of IPv6 only")
	beside := t.newID(lch, ib.PortSpaceTCP)
	t.ok(beside.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), only.LocalAddr().Port())), "bind 0.0.0.0 beside it")
}

func linkLocalNeedsZone(t *tb) {
	id := t.newID(t.channel(t.Provider), ib.PortSpaceTCP)
	dst := netip.MustParseAddrPort("[fe80::77]:7")
	t.isErr(id.ResolveAddr(netip.AddrPort{}, dst, resolveLimit), einval, "resolve a link-local address without zone")
}
