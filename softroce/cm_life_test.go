package softroce

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibcm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// lose makes a network lose management datagrams: the n-th of a kind, or all if n is 0.
func lose(n *network, attr ibcm.Attr, nth int) {
	seen := 0
	n.setHook(func(_, _ netip.AddrPort, b []byte, _ *uint8) bool {
		if len(b) != gsiPacketLen+4 {
			return true
		}
		a, err := ibcm.PeekAttr(b[gsiPacketLen-madLen : gsiPacketLen])
		if err != nil || a != attr {
			return true
		}
		seen++
		return nth != 0 && seen != nth
	})
}

func TestC216_BothDisconnect(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ida, idb := join(t, a, b)
		done := make(chan error, 1)
		go func() { done <- ida.Disconnect() }()
		b.do(idb.Disconnect())
		a.do(<-done)
		a.want(ib.CMDisconnected)
		b.want(ib.CMDisconnected)
		a.do(ida.Disconnect())
		b.do(idb.Disconnect())
		a.want(ib.CMTimewaitExit)
		b.want(ib.CMTimewaitExit)
		a.quiet()
		b.quiet()
		if n := a.ch.core.agent.Len() + b.ch.core.agent.Len(); n != 0 {
			t.Errorf("%d connections are remembered", n)
		}
	})
}

func TestC217_CloseInsteadOfDisconnect(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ida, _ := join(t, a, b)
		a.do(ida.Close())
		start := time.Now()
		if ev := b.want(ib.CMDisconnected); ev.Status != 0 || time.Since(start) > 10*time.Millisecond {
			t.Errorf("%+v after %v", ev, time.Since(start))
		}
		fails(t, "disconnect of a closed id", ida.Disconnect(), net.ErrClosed)
		a.quiet()
		// The end of the provider tells the peers too.
		_, idb := join(t, a, b)
		a.do(a.p.Close())
		if ev := b.want(ib.CMDisconnected); ev.Status != 0 || ev.Handle != idb.handle {
			t.Errorf("%+v", ev)
		}
		b.do(idb.Disconnect())
	})
}

func TestC215_PeerNeverAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ida, _ := join(t, a, b)
		start := time.Now()
		a.do(ida.Disconnect())
		b.want(ib.CMDisconnected)
		if ev := a.want(ib.CMDisconnected); ev.Status != -int(syscall.ETIMEDOUT) || time.Since(start) < 20*time.Second {
			t.Errorf("%+v after %v", ev, time.Since(start))
		}
	})
}

func TestC218_ClientGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		for _, when := range []string{"before the request is fetched", "before accept", "before reject"} {
			id := a.resolve(l.Info().Local)
			a.ask(id)
			var child *cmID
			if when != "before the request is fetched" {
				child = b.want(ib.CMConnectRequest).Child.(*cmID)
			}
			synctest.Wait()
			a.do(id.Close())
			synctest.Wait()
			if child == nil {
				child = b.want(ib.CMConnectRequest).Child.(*cmID)
			}
			b.ready(child)
			if when == "before reject" {
				fails(t, when, child.Reject(nil), syscall.EINVAL)
			} else {
				fails(t, when, child.Accept(b.param(child)), syscall.EINVAL)
			}
			b.quiet()
			b.do(child.Close())
		}
		// It goes on listening.
		a.ask(a.resolve(l.Info().Local))
		b.want(ib.CMConnectRequest)
	})
}

func TestC219_ListenerClosed(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		first := a.resolve(l.Info().Local)
		a.ask(first)
		ev := b.want(ib.CMConnectRequest)
		second := a.resolve(l.Info().Local)
		a.ask(second)
		synctest.Wait()
		b.do(l.Close())
		if ev := a.want(ib.CMRejected); ev.Status != 28 || ev.Handle != second.handle {
			t.Errorf("unfetched: %+v", ev)
		}
		b.quiet()
		// The fetched one can still be accepted, and works.
		child := b.accept(ev)
		a.establish(first)
		if ev := b.want(ib.CMEstablished); ev.Handle != child.handle {
			t.Errorf("%+v", ev)
		}
		third := a.resolve(l.Info().Local)
		a.ask(third)
		if ev := a.want(ib.CMRejected); ev.Status != 8 {
			t.Errorf("%+v", ev)
		}
		// The port is free at once.
		b.listen(l.local.Port())
	})
}

func TestC219_ChannelClosed(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ch := b.channel()
		l := b.newIDOn(ch, ib.PortSpaceTCP)
		b.do(l.BindAddr(netip.AddrPortFrom(addrB, 0)))
		b.do(l.Listen(0))
		a.ask(a.resolve(l.Info().Local))
		synctest.Wait()
		woken := make(chan error, 1)
		empty := b.channel()
		go func() { woken <- empty.Wait(context.Background()) }()
		synctest.Wait()
		b.do(empty.Close())
		if err := <-woken; err != nil {
			t.Errorf("wait on a channel that is closed: %v", err)
		}
		if _, _, err := empty.Next(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("next on a closed channel: %v", err)
		}
		b.do(ch.Close())
		b.do(ch.Close())
		if ev := a.want(ib.CMRejected); ev.Status != 28 {
			t.Errorf("%+v", ev)
		}
		// The listener is there, but nobody can see its requests.
		a.ask(a.resolve(l.Info().Local))
		if ev := a.want(ib.CMRejected); ev.Status != 28 {
			t.Errorf("%+v", ev)
		}
		_, err := ch.CreateID(1, ib.PortSpaceTCP, 0)
		fails(t, "id on a closed channel", err, net.ErrClosed)
		// Moved to another, it works again.
		fails(t, "migrate to a closed channel", l.Migrate(ch), net.ErrClosed)
		b.do(l.Migrate(b.ch))
		a.ask(a.resolve(l.Info().Local))
		b.want(ib.CMConnectRequest)
	})
}

func TestC220_Backlog(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.newID()
		b.do(l.BindAddr(netip.AddrPortFrom(addrB, 0)))
		b.do(l.Listen(1))
		for range 4 {
			a.ask(a.resolve(l.Info().Local))
		}
		time.Sleep(5 * time.Second) // of the bubble: nobody fetches
		a.quiet()
		if len(b.ch.queue) != 1 || l.unfetched != 1 {
			t.Errorf("%d events, %d unfetched", len(b.ch.queue), l.unfetched)
		}
		for i := range 4 {
			start := time.Now()
			b.want(ib.CMConnectRequest)
			if d := time.Since(start); i > 0 && d > 1300*time.Millisecond {
				t.Errorf("request %d comes after %v", i, d)
			}
		}
	})
}

func TestC222_ProgramNeverAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		id := a.resolve(l.Info().Local)
		a.ask(id)
		ev := b.want(ib.CMConnectRequest)
		time.Sleep(10 * time.Minute)
		a.quiet()
		b.quiet()
		b.accept(ev)
		a.establish(id)
		b.want(ib.CMEstablished)
	})
}

func TestC225_Migrate(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		id := a.resolve(l.Info().Local)
		a.ask(id)
		ev := b.want(ib.CMConnectRequest)
		child := ev.Child.(*cmID)
		other := b.channel()
		b.do(child.Migrate(other))
		b.do(child.Migrate(other))
		b.accept(ev)
		a.establish(id)
		if ev := b.wantOn(other, ib.CMEstablished); ev.Handle != child.handle {
			t.Errorf("%+v", ev)
		}
		b.quiet()
		// Back, with an event pending.
		a.do(id.Disconnect())
		synctest.Wait()
		b.do(child.Migrate(b.ch))
		if _, ok, _ := other.Next(); ok {
			t.Error("an event stayed behind")
		}
		b.want(ib.CMDisconnected)
		// A listener with its pending requests and their children.
		next := a.resolve(l.Info().Local)
		a.ask(next)
		synctest.Wait()
		b.do(l.Migrate(other))
		ev = b.wantOn(other, ib.CMConnectRequest)
		if ev.Child.(*cmID).ch != other {
			t.Error("the child's events would come elsewhere")
		}
		fails(t, "migrate to nothing", l.Migrate(nil), syscall.EINVAL)
		fails(t, "migrate to another device", l.Migrate(a.ch), syscall.EINVAL)
	})
}

func TestC228_ConcurrentConnects(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		const count = 64
		ids := make(map[uint64]*cmID)
		for range count {
			id := a.resolve(l.Info().Local)
			ids[id.handle] = id
			a.ask(id)
		}
		for range count {
			b.accept(b.want(ib.CMConnectRequest))
		}
		for range count {
			ev := a.want(ib.CMConnectResponse)
			id := ids[ev.Handle]
			a.ready(id, ib.StateInit, ib.StateRTR, ib.StateRTS)
			a.do(id.Establish())
		}
		seen := make(map[uint64]bool)
		for range count {
			seen[b.want(ib.CMEstablished).Handle] = true
		}
		if len(seen) != count {
			t.Errorf("%d connections are established", len(seen))
		}
		for _, id := range ids {
			a.do(id.Disconnect())
		}
		for range count {
			b.want(ib.CMDisconnected)
		}
		for id := range b.qps {
			b.do(id.Disconnect())
		}
		for range count {
			a.want(ib.CMDisconnected)
		}
	})
}

func TestC230_DeviceRemoval(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ida, _ := join(t, a, b)
		bound := a.listen(0)
		wild := a.newID()
		a.do(wild.BindAddr(netip.AddrPortFrom(anyIPv4, 7300)))
		a.do(wild.Listen(0))
		idle := a.newID()
		other := b.resolve(bound.Info().Local)
		b.ask(other)
		a.want(ib.CMConnectRequest) // fetched, not answered
		a.p.RemoveDevice()
		got := map[uint64]int{a.want(ib.CMDeviceRemoval).Handle: 1}
		got[a.want(ib.CMDeviceRemoval).Handle]++
		if got[ida.handle] != 1 || got[bound.handle] != 1 {
			t.Errorf("removal was told to %v", got)
		}
		a.quiet()
		for what, err := range map[string]error{
			"disconnect": ida.Disconnect(), "connect": ida.Connect(wholeParam), "listen": bound.Listen(0),
			"bind": idle.BindAddr(netip.AddrPortFrom(addrA, 0)), "resolve": idle.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(addrB, 1), 0),
		} {
			fails(t, what, err, driver.ErrDeviceGone)
			fails(t, what, err, syscall.ENODEV)
		}
		_, err := a.p.OpenCM()
		fails(t, "open without a device", err, syscall.ENODEV)
		_, err = a.cm.OpenChannel()
		fails(t, "open a channel without a device", err, syscall.ENODEV)
		for _, id := range []*cmID{ida, bound, idle} {
			a.do(id.Close())
		}
		// The wildcard listener survives, and takes the next device.
		a.p.RestoreDevice()
		to := netip.AddrPortFrom(addrA, 7300)
		next := b.resolve(to)
		b.ask(next)
		ev := a.want(ib.CMConnectRequest)
		if ev.Handle != wild.handle || ev.Child.(*cmID).Info().Local != to {
			t.Errorf("%+v", ev)
		}
	})
}

func TestC231_Notify(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		lose(n, ibcm.AttrRTU, 0)
		l := b.listen(0)
		id := a.resolve(l.Info().Local)
		a.ask(id)
		child := b.accept(b.want(ib.CMConnectRequest))
		a.establish(id)
		b.quiet()
		fails(t, "another event", child.Notify(ib.EventQPFatal), syscall.EINVAL)
		b.do(child.Notify(ib.EventCommEst))
		b.want(ib.CMEstablished)
		fails(t, "a second time", child.Notify(ib.EventCommEst), syscall.EISCONN)
		fails(t, "another event", child.Notify(ib.EventQPFatal), syscall.EINVAL)
		b.quiet()
	})
}

// TestC232_RTULost is healed by the first data, without anybody's doing.
func TestC232_RTULostHealedByData(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		lose(n, ibcm.AttrRTU, 0)
		l := b.listen(0)
		id := a.resolve(l.Info().Local)
		a.ask(id)
		ev := b.want(ib.CMConnectRequest)
		child := ev.Child.(*cmID)
		b.ready(child, ib.StateInit, ib.StateRTR)
		b.qp = b.qps[child]
		rid := b.recv(0, 8)
		b.do(child.Accept(b.param(child)))
		a.establish(id)
		a.qp = a.qps[id]
		sid := a.send(0, 8, 0)
		ok(t, a.next(a.scq), sid)
		ok(t, b.next(b.rcq), rid)
		start := time.Now()
		b.want(ib.CMEstablished)
		if d := time.Since(start); d > 0 {
			t.Errorf("it came %v later", d)
		}
		if len(b.ch.core.byQPN) != 0 {
			t.Error("an established connection still waits for data")
		}
	})
}

func TestC232_MessagesLost(t *testing.T) {
	for _, attr := range []ibcm.Attr{ibcm.AttrREQ, ibcm.AttrREP, ibcm.AttrRTU, ibcm.AttrDREQ, ibcm.AttrDREP} {
		t.Run(attr.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network) {
				a, b := cmPair(t, n)
				lose(n, attr, 1)
				start := time.Now()
				ida, idb := join(t, a, b)
				a.do(ida.Disconnect())
				b.want(ib.CMDisconnected)
				b.do(idb.Disconnect())
				a.want(ib.CMDisconnected)
				if d := time.Since(start); d < 500*time.Millisecond || d > time.Second {
					t.Errorf("took %v", d)
				}
				a.want(ib.CMTimewaitExit)
				b.want(ib.CMTimewaitExit)
				a.quiet()
				b.quiet()
			})
		})
	}
}

func TestC232_ReplyAlwaysLost(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		lose(n, ibcm.AttrREP, 0)
		l := b.listen(0)
		id := a.resolve(l.Info().Local)
		a.ask(id)
		child := b.accept(b.want(ib.CMConnectRequest))
		if ev := b.want(ib.CMUnreachable); ev.Handle != child.handle || ev.Status != -int(syscall.ETIMEDOUT) {
			t.Errorf("%+v", ev)
		}
		if ev := a.want(ib.CMRejected); ev.Status != 4 {
			t.Errorf("%+v", ev)
		}
		if len(b.ch.core.byQPN) != 0 {
			t.Error("a connection that failed still waits for data")
		}
	})
}

// TestC326_ForgedRequests sends requests that cannot be, through the whole device.
func TestC327_ForgedRequests(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		good := func() *ibcm.REQ {
			m := &ibcm.REQ{
				LocalCommID: 5, LocalGUID: 6, LocalQPN: 7, MTU: ib.MTU1024, ServiceID: ibcm.Service(ib.PortSpaceTCP, l.Info().Local.Port()),
				Primary: ibcm.PathInfo{LocalGID: ib.GIDFromAddr(addrA), RemoteGID: ib.GIDFromAddr(addrB)},
			}
			h := ibcm.CMAHeader{Src: addrA, Dst: addrB, SrcPort: 99}
			if err := h.Encode(m.Private[:]); err != nil {
				t.Fatal(err)
			}
			return m
		}
		var answers []ib.RejectReason
		var infos []byte
		n.setHook(func(_, to netip.AddrPort, p []byte, _ *uint8) bool {
			var r ibcm.REJ
			if to.Addr() == addrA && len(p) == gsiPacketLen+4 && r.Decode(p[gsiPacketLen-madLen:gsiPacketLen]) == nil {
				answers = append(answers, r.Reason)
				infos = append(infos, r.ARI[:r.ARILen]...)
			}
			return true
		})
		for what, s := range map[string]struct {
			change func(m *ibcm.REQ)
			reason ib.RejectReason
		}{
			"CMA version":       {func(m *ibcm.REQ) { m.Private[0] = 1 }, 28},
			"IP version":        {func(m *ibcm.REQ) { m.Private[1] = 0x50 }, 28},
			"other source":      {func(m *ibcm.REQ) { m.Private[19]++ }, 28},
			"other destination": {func(m *ibcm.REQ) { m.Private[35]++ }, 28},
			"other service":     {func(m *ibcm.REQ) { m.ServiceID = 1 << 40 }, 8},
			"PS_UDP":            {func(m *ibcm.REQ) { m.ServiceID = ibcm.Service(ib.PortSpaceUDP, 1) }, 8},
		} {
			answers = nil
			m := good()
			s.change(m)
			var mad [ibcm.MADLen]byte
			m.Encode(&mad)
			a.do(a.p.dev.sendMAD(addrA, addrB, mad[:], 0))
			b.quiet()
			if len(answers) != 1 || answers[0] != s.reason {
				t.Errorf("%s: answers %v, want %d", what, answers, s.reason)
			}
		}
		// A link that is wider than ours: what we can take is in the answer.
		b.p.dev.port.mu.Lock()
		for i := range b.p.dev.port.table {
			b.p.dev.port.table[i].mtu = 700
		}
		b.p.dev.port.mu.Unlock()
		answers, infos = nil, nil
		var mad [ibcm.MADLen]byte
		good().Encode(&mad)
		a.do(a.p.dev.sendMAD(addrA, addrB, mad[:], 0))
		b.quiet()
		if len(answers) != 1 || answers[0] != ib.RejectInvalidMTU || len(infos) != 1 || infos[0] != byte(ib.MTU512) {
			t.Errorf("answers %v with %v", answers, infos)
		}
	})
}

// TestNarrowPeer: the active side takes the peer's smaller MTU by itself.
func TestC076_NarrowPeer(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a := newCMSide(t, newProvider(t, &Config{Addrs: []netip.Addr{addrA}, ListenPacket: n.listen, Seed: 1, MTU: 9000}), addrA)
		b := newCMSide(t, newProvider(t, &Config{Addrs: []netip.Addr{addrB}, ListenPacket: n.listen, Seed: 2, MTU: 1500}), addrB)
		ida, idb := join(t, a, b)
		for _, id := range []*cmID{ida, idb} {
			if attr, _, err := id.InitQPAttr(ib.StateRTR); err != nil || attr.PathMTU != ib.MTU1024 {
				t.Errorf("path MTU %v, %v", attr.PathMTU, err)
			}
		}
		a.quiet()
	})
}

// TestECE: two embedded devices tell each other what their sockets hold.
func TestECE(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ida, idb := join(t, a, b)
		for who, s := range map[string]struct {
			dev  *device
			peer netip.Addr
			conn *ibcm.Conn
		}{"active": {a.p.dev, addrB, ida.conn}, "passive": {b.p.dev, addrA, idb.conn}} {
			held, ours := eceBuffer(s.conn.Peer.ECE)
			s.dev.window.mu.Lock()
			p := s.dev.window.peers[s.peer]
			s.dev.window.mu.Unlock()
			if !ours || held < minPeerBuffer || p == nil || int(p.bytes.Load()) != held {
				t.Errorf("%s: %d %v, %+v", who, held, ours, p)
			}
		}
	})
	for _, s := range []struct {
		e     ibcm.ECE
		bytes int
	}{
		{eceOf(212992), 212992}, {eceOf(1 << 40), (1<<20 - 1) << 10}, {eceOf(-5), 0}, {eceOf(0), 0},
		{ibcm.ECE{Vendor: vendorID, Options: 2<<28 | 5}, 0}, {ibcm.ECE{Vendor: 1, Options: 1<<28 | 5}, 0},
		{ibcm.ECE{Vendor: vendorID, Options: 1<<28 | 0xff<<20 | 5}, 5 << 10},
	} {
		if b, ok := eceBuffer(s.e); b != s.bytes && ok || ok != (s.bytes > 0) {
			t.Errorf("%+v: %d %v, want %d", s.e, b, ok, s.bytes)
		}
	}
}

// TestForeignECE: a vendor's id that is not ours is not echoed, as librdmacm would give
// up.
func TestForeignECE(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		var rep ibcm.REP
		n.setHook(func(from, _ netip.AddrPort, p []byte, _ *uint8) bool {
			if len(p) != gsiPacketLen+4 {
				return true
			}
			mad := p[gsiPacketLen-madLen : gsiPacketLen]
			_ = rep.Decode(mad)
			return true
		})
		id := a.resolve(l.Info().Local)
		a.ready(id, ib.StateInit)
		a.do(id.Connect(a.param(id)))
		ev := b.want(ib.CMConnectRequest)
		child := ev.Child.(*cmID)
		child.conn.Peer.ECE = ibcm.ECE{Vendor: 0x15b3, Options: 0x1234}
		b.accept(ev)
		a.want(ib.CMConnectResponse)
		if rep.VendorID != 0 || rep.Modifier != 0 {
			t.Errorf("reply has vendor %x, options %x", rep.VendorID, rep.Modifier)
		}
	})
}

// TestNextIsFree: looking for an event that is not there costs nothing.
func TestNextAllocatesNothing(t *testing.T) {
	n := newNetwork()
	a := newCMSide(t, n.provider(t, 1, addrA), addrA)
	if got := testing.AllocsPerRun(100, func() {
		if _, ok, err := a.ch.Next(); ok || err != nil {
			t.Fatal(ok, err)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// TestC223_CloseDuringCalls closes ids and channels while calls on them run.
func TestC223_CloseDuringCalls(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		go func() {
			for {
				if b.ch.Wait(context.Background()) != nil {
					return
				}
				ev, ok, err := b.ch.Next()
				if err != nil {
					return
				}
				if ok && ev.Child != nil {
					ev.Child.Close()
				}
			}
		}()
		for range 50 {
			ch := a.channel()
			id := a.newIDOn(ch, ib.PortSpaceTCP)
			q := a.newQP(sideConfig{depth: 1, sge: 1})
			p := wholeParam
			p.QPN = q.Num()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = id.ResolveAddr(netip.AddrPort{}, l.Info().Local, 0)
				_ = id.ResolveRoute(0)
				_ = id.Connect(p)
				_ = id.Disconnect()
				_ = id.Establish()
				_, _, _ = id.InitQPAttr(ib.StateRTR)
			}()
			_ = id.Close()
			_ = ch.Close()
			<-done
		}
		b.do(b.ch.Close())
		time.Sleep(time.Hour)
		if n := a.ch.core.agent.Len() + b.ch.core.agent.Len(); n != 0 {
			t.Errorf("%d connections are remembered", n)
		}
		if len(a.ch.core.ids) != 0 || len(a.ch.core.ports.owners) != 0 {
			t.Errorf("%d ids and %d ports are left", len(a.ch.core.ids), len(a.ch.core.ports.owners))
		}
	})
}
