package rdmatest

import (
	"errors"
	"net/netip"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area I, multicast. Devices without it skip what needs it, with their reason.
func areaMulticast() []check {
	return []check{
		{"C-160_AttachRules", 0, attachRules},
		{"C-160_CloseAttached", 0, closeAttached},
		{"C-161_ThroughCM", 0, multicastThroughCM},
		{"C-162_JoinErrors", 0, joinErrors},
	}
}

// groupAddr gives a group of the family that the test runs on.
func (t *tb) groupAddr() netip.Addr {
	if t.Addr.Is6() {
		return netip.MustParseAddr("ff0e::4:77")
	}
	return netip.MustParseAddr("239.4.0.77")
}

func attachRules(t *tb) {
	a, _ := t.datagrams()
	g := ib.GIDFromAddr(t.groupAddr())
	t.ok(a.qp.AttachMulticast(g, 0), "attach")
	t.ok(a.qp.AttachMulticast(g, 0), "attach again")
	t.ok(a.qp.DetachMulticast(g, 0), "detach")
	t.isErr(a.qp.DetachMulticast(g, 0), einval, "detach again")
	t.isErr(a.qp.AttachMulticast(a.gid.GID, 0), einval, "attach to a host")
	t.isErr(a.qp.AttachMulticast(ib.GID{}, 0), einval, "attach to nothing")
	rc, _ := t.pair()
	t.isErr(rc.qp.AttachMulticast(g, 0), einval, "attach a reliable connection")
}

// A queue pair that is closed while it is attached goes, and its groups with it.
func closeAttached(t *tb) {
	for range 3 { // the kernel would have them for ever
		a, b := t.datagrams()
		g := ib.GIDFromAddr(t.groupAddr())
		for _, e := range []*end{a, b} {
			t.ok(e.qp.AttachMulticast(g, 0), "attach")
		}
		t.ok(a.qp.AttachMulticast(ib.GIDFromAddr(t.groupAddr().Next()), 0), "attach to a second group")
		t.closed(a.qp, "queue pair with groups")
		t.closed(b.qp, "queue pair with a group")
	}
}

// member is an id with a queue pair for datagrams.
func (t *tb) member(name string, side int) *peer {
	t.Helper()
	p, a := t.Provider, t.Addr
	if side == 1 {
		p, a = t.Peer, t.PeerAddr
	}
	ch := t.channel(p)
	id := t.newID(ch, ib.PortSpaceUDP)
	t.ok(id.ResolveAddr(netip.AddrPortFrom(a, 0), netip.AddrPortFrom(t.groupAddr(), 0), resolveLimit), "%s: resolve the group", name)
	t.event(ch, cm.AddrResolved)
	return t.equip(name, ch, id, func(c *verbs.QPConfig) { c.Type = ib.UD })
}

// enters joins a group, and gives where it is reached.
func (p *peer) enters(g netip.Addr) cm.UDParam {
	p.Helper()
	p.ok(p.id.JoinMulticast(g, ib.JoinFullMember), "%s: join %v", p.name, g)
	ev := p.event(p.ch, cm.MulticastJoin)
	if ev.Err != nil || ev.Group != g || ev.UD.QPN != ib.QPNMulticast || ev.UD.QKey != ib.QKeyCM {
		p.Fatalf("%s: joined %+v", p.name, ev)
	}
	return ev.UD
}

// hears wants a datagram of a member: a copy for each receive of the end.
func (p *peer) hears(id uint64, from *peer, what string) {
	p.Helper()
	wc := p.got(id, ib.StatusSuccess)
	if wc.SrcQPN != from.qp.Num() {
		p.Errorf("%s: from %v, want %v", p.name, wc.SrcQPN, from.qp.Num())
	}
	off := int(id)*1024 + grhLen
	if got := string(p.mr.Bytes()[off : off+len(what)]); got != what {
		p.Errorf("%s: received %q, want %q", p.name, got, what)
	}
}

// Two members of a group hear each other until one leaves.
func multicastThroughCM(t *tb) {
	t.datagrams() // or skip
	a, b := t.member("a", 0), t.member("b", 1)
	g := t.groupAddr()
	to := a.enters(g)
	b.enters(g)
	h, err := a.pd.CreateAH(to.AH)
	t.ok(err, "an address handle of the group")
	t.Cleanup(func() { t.closed(h, "address handle") })
	say := func(what string) {
		t.Helper()
		copy(a.mr.Bytes()[32<<10:], what)
		a.send(verbs.SendTo(1, h, to.QPN, to.QKey, a.sge(32<<10, len(what)), ib.Signaled))
		a.sent(1, ib.StatusSuccess)
	}
	say("to all")
	b.hears(0, a, "to all")
	t.ok(b.id.LeaveMulticast(g), "leave")
	say("to nobody")
	t.grace()
	if n, err := b.rcq.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
		t.Errorf("%d datagrams after the leave, %v", n, err)
	}
	b.enters(g)
	say("again")
	b.hears(1, a, "again")
	t.noEvent(a.ch, b.ch)
}

func joinErrors(t *tb) {
	ch := t.channel(t.Provider)
	g := t.groupAddr()
	fresh := t.newID(ch, ib.PortSpaceUDP)
	t.isErr(fresh.JoinMulticast(g, 0), einval, "join before the device is known")
	tcp := t.newID(ch, ib.PortSpaceTCP)
	t.ok(tcp.Bind(netip.AddrPortFrom(t.Addr, 0)), "bind")
	t.isErr(tcp.JoinMulticast(g, 0), einval, "join with an id of reliable connections")
	id := t.newID(ch, ib.PortSpaceUDP)
	t.ok(id.Bind(netip.AddrPortFrom(t.Addr, 0)), "bind")
	t.isErr(id.JoinMulticast(g, 0), einval, "join before an address is resolved")
	t.ok(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(t.Addr, 7), resolveLimit), "resolve")
	t.event(ch, cm.AddrResolved)
	t.isErr(id.JoinMulticast(t.Addr, 0), einval, "join a host")
	t.isErr(id.LeaveMulticast(g), einval, "leave a group that was not joined")
	t.noEvent(ch)

	if err := id.JoinMulticast(g, ib.JoinFullMember); errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("%s: multicast: %v", t.a.Info().Name, err)
	} else {
		t.ok(err, "join")
	}
	t.event(ch, cm.MulticastJoin)
	t.isErr(id.JoinMulticast(g, ib.JoinFullMember), einval, "join again")
	t.ok(id.LeaveMulticast(g), "leave")
	t.isErr(id.LeaveMulticast(g), einval, "leave again")
	t.noEvent(ch)
}
