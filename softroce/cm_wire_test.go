package softroce

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibcm"
)

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

func TestC232_RTULostHealedByData(t *testing.T) {
	for _, states := range [][]ib.QPState{{ib.StateInit, ib.StateRTR}, {ib.StateInit, ib.StateRTR, ib.StateRTS}} {
		t.Run(states[len(states)-1].String(), func(t *testing.T) { healedByData(t, states) })
	}
}

func healedByData(t *testing.T, states []ib.QPState) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		lose(n, ibcm.AttrRTU, 0)
		l := b.listen(0)
		id := a.resolve(l.Info().Local)
		a.ask(id)
		ev := b.want(ib.CMConnectRequest)
		child := ev.Child.(*cmID)
		b.ready(child, states...)
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
		if b.held().waiting != 0 {
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
		if b.held().waiting != 0 {
			t.Error("a connection that failed still waits for data")
		}
	})
}

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
