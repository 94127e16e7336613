package softroce

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestC207_QPAttributes(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.newID()
		b.do(l.SetOption(0, optionTOS, []byte{0x20}))
		_, _, err := l.InitQPAttr(ib.StateInit)
		fails(t, "C-199: attributes of an idle id", err, syscall.EINVAL)
		b.do(l.BindAddr(netip.AddrPortFrom(addrB, 0)))
		b.do(l.SetOption(0, optionTOS, []byte{0}))
		l.tosSet = false
		b.do(l.Listen(0))
		_, _, err = l.InitQPAttr(ib.StateInit)
		fails(t, "attributes of a listener", err, syscall.EINVAL)

		ida := a.newID()
		a.do(ida.SetOption(0, optionTOS, []byte{0x68}))
		a.do(ida.ResolveAddr(netip.AddrPort{}, l.Info().Local, 0))
		a.want(ib.CMAddrResolved)
		a.do(ida.ResolveRoute(0))
		a.want(ib.CMRouteResolved)
		for _, s := range []ib.QPState{ib.StateRTR, ib.StateRTS, ib.StateError, ib.StateReset} {
			_, _, err := ida.InitQPAttr(s)
			fails(t, "attributes too early", err, syscall.EINVAL)
		}
		attr, mask, err := ida.InitQPAttr(ib.StateInit)
		if want := (driver.QPAttr{State: ib.StateInit, Port: 1, Access: ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic}); err != nil ||
			attr != want || mask != ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccess {
			t.Errorf("INIT: %+v %v %v", attr, mask, err)
		}
		a.ready(ida)
		p := a.param(ida)
		p.RetryCount, p.RNRRetryCount = 5, 6
		a.do(ida.Connect(p))
		ev := b.want(ib.CMConnectRequest)
		child := ev.Child.(*cmID)
		// C-207: defaults show the device's maximum.
		if ev.Conn.ResponderResources != 128 || ev.Conn.InitiatorDepth != 128 {
			t.Errorf("request %+v", ev.Conn)
		}
		const rtr = ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer
		const rts = ib.AttrState | ib.AttrSQPSN | ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrMaxRDAtomic
		check := func(who string, id *cmID, s *cmSide, peer *cmSide, peerQPN ib.QPN, serve, issue, retry, rnr int) (rq, sq ib.PSN) {
			t.Helper()
			attr, mask, err := id.InitQPAttr(ib.StateRTR)
			rq = attr.RQPSN
			want := driver.QPAttr{
				State: ib.StateRTR, PathMTU: ib.MTU4096, DestQPN: peerQPN, RQPSN: rq, MaxDestRDAtomic: serve, MinRNRTimer: 640 * time.Microsecond,
				AH: driver.AHAttr{DGID: ib.GIDFromAddr(peer.addr), SGIDIndex: s.gidIndex(), HopLimit: 64, TrafficClass: 0x68, Global: true, Port: 1},
			}
			if err != nil || attr != want || mask != rtr {
				t.Errorf("%s RTR: %+v %v %v, want %+v", who, attr, mask, err, want)
			}
			attr, mask, err = id.InitQPAttr(ib.StateRTS)
			sq = attr.SQPSN
			want = driver.QPAttr{
				State: ib.StateRTS, SQPSN: sq, Timeout: 4096 * time.Nanosecond << 18, RetryCount: retry, RNRRetry: rnr, MaxRDAtomic: issue,
			}
			if err != nil || attr != want || mask != rts {
				t.Errorf("%s RTS: %+v %v %v, want %+v", who, attr, mask, err, want)
			}
			return rq, sq
		}
		before, _ := check("passive", child, b, a, a.qps[ida].Num(), 128, 128, 5, 6)
		b.ready(child)
		b.do(child.Accept(driver.ConnParam{ResponderResources: 2, InitiatorDepth: 3, RNRRetryCount: 4, QPN: b.qps[child].Num()}))
		a.want(ib.CMConnectResponse)
		brq, bsq := check("accepted", child, b, a, a.qps[ida].Num(), 2, 3, 5, 6)
		arq, asq := check("active", ida, a, b, b.qps[child].Num(), 3, 2, 5, 4)
		if arq != bsq || asq != brq || arq == asq || before != brq {
			t.Errorf("PSNs %v %v, %v %v", arq, asq, brq, bsq)
		}
	})
}

func TestC209_Depths(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		ida := a.resolve(l.Info().Local)
		a.ready(ida, ib.StateInit)
		for what, f := range map[string]func(p *driver.ConnParam){
			"C-209: 200 reads served":    func(p *driver.ConnParam) { p.ResponderResources = 200 },
			"C-209: 129 reads issued":    func(p *driver.ConnParam) { p.InitiatorDepth = 129 },
			"C-210: 8 retries":           func(p *driver.ConnParam) { p.RetryCount = 8 },
			"C-210: 15 RNR retries":      func(p *driver.ConnParam) { p.RNRRetryCount = 15 },
			"57 bytes of private data":   func(p *driver.ConnParam) { p.Private = make([]byte, 57) },
			"C-214: no queue pair":       func(p *driver.ConnParam) { p.QPN = 0 },
			"a queue pair of nobody":     func(p *driver.ConnParam) { p.QPN ^= 0xff00 },
			"255 bytes of private data":  func(p *driver.ConnParam) { p.Private = make([]byte, 255) },
			"1000 bytes of private data": func(p *driver.ConnParam) { p.Private = make([]byte, 1000) },
		} {
			p := a.param(ida)
			f(&p)
			fails(t, what, ida.Connect(p), syscall.EINVAL)
		}
		// After all that, it can still connect, with depths that the peer must bound.
		p := a.param(ida)
		p.ResponderResources, p.InitiatorDepth = 1, 0
		p.RetryCount, p.RNRRetryCount = 0, 0
		p.Private = make([]byte, 56)
		a.do(ida.Connect(p))
		ev := b.want(ib.CMConnectRequest)
		child := ev.Child.(*cmID)
		if c := ev.Conn; c.ResponderResources != 0 || c.InitiatorDepth != 1 || c.RetryCount != 0 || c.RNRRetryCount != 0 {
			t.Errorf("C-208: request %+v", c)
		}
		if attr, _, err := child.InitQPAttr(ib.StateInit); err != nil || attr.Access != ib.RemoteWrite {
			t.Errorf("a side that serves no reads allows %v, %v", attr.Access, err)
		}
		b.ready(child, ib.StateInit, ib.StateRTR, ib.StateRTS)
		q := b.param(child)
		q.ResponderResources, q.InitiatorDepth = 100, wholeDepth
		b.do(child.Accept(q))
		if c := a.want(ib.CMConnectResponse).Conn; c.ResponderResources != 1 || c.InitiatorDepth != 0 {
			t.Errorf("response %+v", c)
		}
	})
}

func TestOptions(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a := newCMSide(t, n.provider(t, 1, addrA), addrA)
		id := a.newID()
		on, off := []byte{1, 0, 0, 0}, make([]byte, 4)
		for what, err := range map[string]error{
			"TOS":             id.SetOption(0, optionTOS, []byte{8}),
			"REUSEADDR on":    id.SetOption(0, optionReuseAddr, on),
			"REUSEADDR off":   id.SetOption(0, optionReuseAddr, off),
			"AFONLY":          id.SetOption(0, optionAFOnly, on),
			"ACK_TIMEOUT":     id.SetOption(0, optionAckTimeout, []byte{31}),
			"ACK_TIMEOUT off": id.SetOption(0, optionAckTimeout, []byte{14}),
		} {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, err := range map[string]error{
			"TOS of 4 bytes":       id.SetOption(0, optionTOS, on),
			"REUSEADDR of 1 byte":  id.SetOption(0, optionReuseAddr, []byte{1}),
			"AFONLY of 1 byte":     id.SetOption(0, optionAFOnly, []byte{1}),
			"ACK_TIMEOUT 32":       id.SetOption(0, optionAckTimeout, []byte{32}),
			"ACK_TIMEOUT nothing":  id.SetOption(0, optionAckTimeout, nil),
			"ACK_TIMEOUT for PS_U": a.newIDOn(a.ch, ib.PortSpaceUDP).SetOption(0, optionAckTimeout, []byte{3}),
		} {
			fails(t, what, err, syscall.EINVAL)
		}
		fails(t, "level 1", id.SetOption(1, 1, nil), errors.ErrUnsupported)
		fails(t, "option 9", id.SetOption(0, 9, nil), errors.ErrUnsupported)
		a.do(id.BindAddr(netip.AddrPortFrom(addrA, 0)))
		a.do(id.SetOption(0, optionReuseAddr, on))
		fails(t, "REUSEADDR off when bound", id.SetOption(0, optionReuseAddr, off), syscall.EINVAL)
		a.do(id.SetOption(0, optionAFOnly, off))
		a.do(id.Listen(0))
		fails(t, "REUSEADDR when listening", id.SetOption(0, optionReuseAddr, on), syscall.EINVAL)
		fails(t, "AFONLY when listening", id.SetOption(0, optionAFOnly, on), syscall.EINVAL)
		for ps, qt := range map[ib.PortSpace]ib.QPType{ib.PortSpaceTCP: ib.UD, ib.PortSpaceUDP: ib.RC} {
			_, err := a.ch.CreateID(0, ps, qt)
			fails(t, "wrong type of queue pair", err, syscall.EINVAL)
		}
		_, err := a.ch.CreateID(0, ib.PortSpaceIB, ib.RC)
		fails(t, "PS_IB", err, errors.ErrUnsupported)
	})
}

func TestAckTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		id := a.newID()
		a.do(id.SetOption(0, optionAckTimeout, []byte{14}))
		a.do(id.ResolveAddr(netip.AddrPort{}, l.Info().Local, 0))
		a.want(ib.CMAddrResolved)
		a.do(id.ResolveRoute(0))
		a.want(ib.CMRouteResolved)
		a.ask(id)
		child := b.accept(b.want(ib.CMConnectRequest))
		a.want(ib.CMConnectResponse)
		for who, id := range map[string]*cmID{"active": id, "passive": child} {
			if attr, _, err := id.InitQPAttr(ib.StateRTS); err != nil || attr.Timeout != ib.AckTimeoutDuration(14) {
				t.Errorf("%s: %v %v", who, attr.Timeout, err)
			}
		}
		b.do(child.Close())
	})
}

func TestAckTimeoutCode(t *testing.T) {
	t.Parallel()
	for _, s := range []struct{ delay, lifetime, want uint8 }{
		{15, 18, 19}, {15, 16, 17}, {15, 17, 18}, {15, 15, 17}, {16, 15, 17}, {15, 14, 16}, {17, 15, 18}, {18, 15, 18},
		{20, 15, 20}, {8, 17, 18}, {0, 0, 2}, {31, 31, 31}, {0, 31, 31}, {31, 0, 31},
	} {
		if got := ackTimeoutCode(s.delay, s.lifetime); got != s.want {
			t.Errorf("delay %d, life time %d: %d, want %d", s.delay, s.lifetime, got, s.want)
		}
	}
}
