package rdmatest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area Q, first part: packets that no honest host sends.
func areaHostile() []check {
	const needs = Faults | VirtualTime
	return []check{
		{"C-316_Garbage", needs, garbage},
		{"C-318_WrongICRC", anyWire, wrongICRC},
		{"C-319_SpoofedSource", anyWire, spoofedSource},
		{"C-319_OtherLocalAddress", anyWire | OtherAddress, otherLocalAddress},
		{"C-320_Injection", needs, injection},
		{"C-320_ForgedAcknowledgements", needs, forgedAcks},
		{"C-321_SequenceViolations", needs, sequenceViolations},
		{"C-322_HostileRETH", needs, hostileRETH},
		{"C-322_ReadFlood", needs, readFlood},
		{"C-323_KeysAreUnpredictable", 0, keysUnpredictable},
		{"C-324_NumberScan", needs, numberScan},
		{"C-335_CongestionMarks", needs, congestionMarks},
	}
}

// alive checks that a pair works.
func alive(a, b *end) {
	a.Helper()
	b.recv(900, 50000, 64)
	a.fill(50000, 64, 0x3E)
	a.send(verbs.Send(901, a.sge(50000, 64), ib.Signaled))
	a.sent(901, ib.StatusSuccess)
	b.got(900, ib.StatusSuccess)
	b.check(50000, 64, 0x3E, "message of a pair that was attacked")
	clear(b.mr.Bytes()[50000:50064])
}

// write is a correct write of some bytes to the start of b's region.
func writeTo(b *end, psn ib.PSN, data []byte) wire.Packet {
	return wire.Packet{
		Opcode: wire.RCWriteOnly, PSN: psn, AckReq: true,
		RETH: wire.RETH{Addr: b.mr.Remote(0, 0).Addr, RKey: b.mr.RKey(), Len: uint32(len(data))}, Payload: data,
	}
}

// Any bytes at all are dropped, and hurt nobody.
func garbage(t *tb) {
	a, b := t.pair()
	rng := rand.New(rand.NewPCG(t.Fabric.Seed(), 1))
	src, dst := netip.AddrPortFrom(a.addr(), wire.Port), netip.AddrPortFrom(b.addr(), wire.Port)
	good := writeTo(b, a.attr.SQPSN, pattern(64, 1))
	good.DestQP, good.PKey = b.qp.Num(), 0xFFFF
	head := good.AppendTo(nil)
	for i := range 4000 {
		p := make([]byte, rng.IntN(600))
		for j := range p {
			p[j] = byte(rng.Uint32())
		}
		switch i % 4 {
		case 0: // noise
			t.Fabric.Inject(src, dst, p, 0)
		case 1: // noise with a right checksum
			t.Fabric.Forge(a.addr(), b.addr(), p)
		case 2: // every opcode, for this queue pair
			q := append([]byte{byte(i / 4)}, p...)
			if len(q) >= 12 {
				copy(q[1:12], head[1:12])
				// Not the number that is expected: that may be a correct request.
				q[9] ^= 0x80
			}
			t.Fabric.Forge(a.addr(), b.addr(), q)
		default: // a correct packet that was cut off
			t.Fabric.Inject(src, dst, Seal(src, dst, head)[:rng.IntN(len(head))], 0)
		}
		if i%256 == 0 {
			t.settle()
		}
	}
	t.settle()
	t.untouched(b.mr.Bytes(), 0, "memory under garbage")
	a.state(ib.StateRTS)
	b.state(ib.StateRTS)
	alive(a, b)
}

func wrongICRC(t *tb) {
	a, b := t.pair()
	src, dst := netip.AddrPortFrom(a.addr(), wire.Port), netip.AddrPortFrom(b.addr(), wire.Port)
	p := writeTo(b, a.attr.SQPSN, pattern(8, 1))
	p.DestQP, p.PKey = b.qp.Num(), 0xFFFF
	good := Seal(src, dst, p.AppendTo(nil))
	const mutable = 4 // FECN, BECN and reserved bits
	for bit := range 8 * len(good) {
		if bit/8 == mutable {
			continue
		}
		bad := append([]byte(nil), good...)
		bad[bit/8] ^= 1 << (bit % 8)
		t.Fabric.Inject(src, dst, bad, 0)
		if bit%512 == 0 {
			t.settle()
		}
	}
	t.settle()
	t.untouched(b.mr.Bytes(), 0, "memory under corrupt packets")
	b.state(ib.StateRTS)
	// What routers may change is not covered.
	good[mutable] |= 0x80
	t.Fabric.Inject(src, dst, good, 0xB8)
	t.settle()
	t.same(b.mr.Bytes()[:8], pattern(8, 1), "a packet with FECN and another traffic class")
}

func spoofedSource(t *tb) {
	a, b := t.pair(func(l *link) { l.a.Timeout = time.Second })
	for i := range b.mr.Bytes() {
		b.mr.Bytes()[i] = 0x77
	}
	strange := t.stranger()
	seen := t.Fabric.Rule(Rule{From: b.addr(), To: strange})
	b.forgeFrom(strange, writeTo(b, a.attr.SQPSN, pattern(8, 1)))
	lost := a.mute(OpAcknowledge)
	a.send(verbs.Write(1, b.mr.Remote(8, 8), a.sge(0, 8), ib.Signaled))
	t.settle()
	a.forgeFrom(strange, nak(a.attr.SQPSN, wire.AckNoLimit))
	a.forgeFrom(strange, nak(a.attr.SQPSN, wire.NAKAccess))
	t.settle()
	a.empty()
	a.state(ib.StateRTS)
	t.untouched(b.mr.Bytes()[:8], 0x77, "memory that a stranger wrote to")
	if seen.Hits() != 0 {
		t.Errorf("%d answers to a stranger", seen.Hits())
	}
	lost.Remove()
	a.sent(1, ib.StatusSuccess)
	alive(a, b)
}

// A packet must also come to the address that the queue pair uses.
func otherLocalAddress(t *tb) {
	extra := t.OtherAddr
	if !extra.IsValid() {
		extra = netip.MustParseAddr("10.0.0.66")
		if t.PeerAddr.Is6() {
			extra = netip.MustParseAddr("fd00::66")
		}
		t.drainAsync(t.b)
		defer t.drainAsync(t.b)
		t.ok(t.Peer.(changeable).SetAddrs([]netip.Addr{t.PeerAddr, extra}), "give the peer another address")
	}
	a, b := t.pair()
	// Somebody uses the other address, so its socket is open.
	lch := t.channel(t.Peer)
	l := t.newID(lch, ib.PortSpaceTCP)
	t.ok(l.Bind(netip.AddrPortFrom(extra, 0)), "bind the other address")
	t.ok(l.Listen(0), "listen")
	seen := t.Fabric.Rule(Rule{From: extra})
	p := writeTo(b, a.attr.SQPSN, pattern(8, 1))
	p.DestQP, p.PKey, p.MigReq = b.qp.Num(), 0xFFFF, true
	t.Fabric.Forge(a.addr(), extra, p.AppendTo(nil))
	t.settle()
	t.untouched(b.mr.Bytes(), 0, "memory written to through another address")
	if seen.Hits() != 0 {
		t.Errorf("%d answers from the other address", seen.Hits())
	}
	alive(a, b)
	// It was the address: to that of the queue pair the same request is done.
	p.PSN = next24(a.attr.SQPSN, 1)
	t.Fabric.Forge(a.addr(), b.addr(), p.AppendTo(nil))
	t.until("the request, when it comes to the right address", func() bool { return bytes.Equal(b.mr.Bytes()[:8], pattern(8, 1)) })
}

// Packets with guessed numbers change nothing, and are answered at most once a gap.
func injection(t *tb) {
	a, b := t.pair(func(l *link) { l.a.Timeout = 20 * time.Second })
	alive(a, b) // one number is used
	expected := next24(a.attr.SQPSN, 1)
	seen := a.listen(b.addr())
	rng := rand.New(rand.NewPCG(t.Fabric.Seed(), 2))
	sent := 0
	for i := range 1 << 14 {
		psn := ib.PSN(rng.Uint32() & 0xFFFFFF)
		if psn == expected {
			continue
		}
		b.forge(a, writeTo(b, psn, []byte("evil")))
		sent++
		if i%512 == 0 {
			t.settle()
		}
	}
	t.settle()
	t.untouched(b.mr.Bytes(), 0, "memory under injection")
	if n := seen.count(wire.NAKSequence); n > 1 {
		t.Errorf("%d NAKs for one gap", n)
	}
	if packets, _ := seen.total(); packets > sent {
		t.Errorf("%d answers to %d packets", packets, sent)
	}
	a.state(ib.StateRTS)
	b.state(ib.StateRTS)
	alive(a, b)
}

func forgedAcks(t *tb) {
	a, b, lost, psn := t.threeWrites()
	seen := b.listen(a.addr())
	rng := rand.New(rand.NewPCG(t.Fabric.Seed(), 3))
	for i := range 1 << 13 {
		// Anything but the three numbers that are under way.
		guess := next24(psn, 3+rng.IntN(1<<24-3))
		s := []wire.Syndrome{wire.AckNoLimit, wire.NAKSequence, wire.RNRNAK(time.Second), wire.NAKAccess}[i%4]
		a.forge(b, nak(guess, s))
		a.forge(b, wire.Packet{Opcode: wire.RCReadRespOnly, PSN: guess, AETH: wire.AETH{Syndrome: wire.AckNoLimit}, Payload: []byte("evil")})
		a.forge(b, wire.Packet{Opcode: wire.RCAtomicAck, PSN: guess, AETH: wire.AETH{Syndrome: wire.AckNoLimit}})
		if i%256 == 0 {
			t.settle()
		}
	}
	t.settle()
	a.empty()
	a.state(ib.StateRTS)
	if packets, _ := seen.total(); packets > 16 {
		t.Errorf("%d packets were sent because of forged answers", packets)
	}
	lost.Remove()
	for i := range uint64(3) {
		a.sent(1+i, ib.StatusSuccess)
	}
	alive(a, b)
}

// Each violation of the protocol ends the queue pair, with one NAK, and touches
// nothing outside of what was named.
func sequenceViolations(t *tb) {
	const m = 256
	data := func(n int) []byte { return pattern(n, 0x99) }
	reth := func(b *end, off, n int) wire.RETH {
		return wire.RETH{Addr: b.mr.Remote(1000, 0).Addr + uint64(off), RKey: b.mr.RKey(), Len: uint32(n)}
	}
	send := func(op wire.Opcode, n int) func(*end) wire.Packet {
		return func(*end) wire.Packet { return wire.Packet{Opcode: op, Payload: data(n)} }
	}
	write := func(op wire.Opcode, announced, n int) func(*end) wire.Packet {
		return func(b *end) wire.Packet {
			return wire.Packet{Opcode: op, RETH: reth(b, 0, announced), Payload: data(n)}
		}
	}
	for _, c := range []struct {
		what    string
		packets []func(*end) wire.Packet
	}{
		{"send: middle without first", []func(*end) wire.Packet{send(wire.RCSendMiddle, m)}},
		{"send: last without first", []func(*end) wire.Packet{send(wire.RCSendLast, 4)}},
		{"write: middle without first", []func(*end) wire.Packet{send(wire.RCWriteMiddle, m)}},
		{"write: last without first", []func(*end) wire.Packet{send(wire.RCWriteLast, 4)}},
		{"send: first within a send", []func(*end) wire.Packet{send(wire.RCSendFirst, m), send(wire.RCSendFirst, m)}},
		{"send: only within a send", []func(*end) wire.Packet{send(wire.RCSendFirst, m), send(wire.RCSendOnly, 4)}},
		{"send: write within a send", []func(*end) wire.Packet{send(wire.RCSendFirst, m), write(wire.RCWriteOnly, 4, 4)}},
		{"send: middle of a write within a send", []func(*end) wire.Packet{send(wire.RCSendFirst, m), send(wire.RCWriteMiddle, m)}},
		{"write: last of a send within a write", []func(*end) wire.Packet{write(wire.RCWriteFirst, 2*m, m), send(wire.RCSendLast, m)}},
		{"send: read request within a send", []func(*end) wire.Packet{send(wire.RCSendFirst, m), write(wire.RCReadRequest, 4, 0)}},
		{"send: first shorter than the path MTU", []func(*end) wire.Packet{send(wire.RCSendFirst, m-4)}},
		{"send: middle shorter than the path MTU", []func(*end) wire.Packet{send(wire.RCSendFirst, m), send(wire.RCSendMiddle, 8)}},
		{"send: first longer than the path MTU", []func(*end) wire.Packet{send(wire.RCSendFirst, m+4)}},
		{"send: only longer than the path MTU", []func(*end) wire.Packet{send(wire.RCSendOnly, m+4)}},
		{"send: last longer than the path MTU", []func(*end) wire.Packet{send(wire.RCSendFirst, m), send(wire.RCSendLast, m+4)}},
		{"send: empty last", []func(*end) wire.Packet{send(wire.RCSendFirst, m), send(wire.RCSendLast, 0)}},
		{"write: more announced than sent", []func(*end) wire.Packet{write(wire.RCWriteOnly, 16, 8)}},
		{"write: less announced than sent", []func(*end) wire.Packet{write(wire.RCWriteOnly, 4, 8)}},
		{"write: ends too early", []func(*end) wire.Packet{write(wire.RCWriteFirst, 3*m, m), send(wire.RCWriteLast, m)}},
		{"write: goes on too long", []func(*end) wire.Packet{write(wire.RCWriteFirst, 2*m, m), send(wire.RCWriteMiddle, m), send(wire.RCWriteLast, 4)}},
		{"write: first of a short message", []func(*end) wire.Packet{write(wire.RCWriteFirst, 8, 8)}},
		{"write: first shorter than the path MTU", []func(*end) wire.Packet{write(wire.RCWriteFirst, 3*m, m-4)}},
		{"write: more than 2^31 bytes", []func(*end) wire.Packet{write(wire.RCWriteFirst, 1<<31+1, m)}},
		{"read: more than 2^31 bytes", []func(*end) wire.Packet{write(wire.RCReadRequest, 1<<31+1, 0)}},
	} {
		a, b := t.pair(small)
		seen := a.listen(b.addr())
		for i := range b.mr.Bytes() {
			b.mr.Bytes()[i] = 0x77
		}
		b.recv(1, 20000, 2000)
		b.recv(2, 30000, 2000)
		for i, f := range c.packets {
			p := f(b)
			p.PSN, p.AckReq = next24(a.attr.SQPSN, i), true
			b.forge(a, p)
		}
		t.settle()
		if n := seen.count(wire.NAKInvalid); n != 1 {
			t.Errorf("%s: answers %v, want one NAK of an invalid request", c.what, seen.syndromes)
		}
		b.state(ib.StateError)
		mem := b.mr.Bytes()
		t.untouched(mem[:1000], 0x77, c.what+": before what was named")
		t.untouched(mem[1000+3*m:20000], 0x77, c.what+": behind what was named")
		t.untouched(mem[22000:], 0x77, c.what+": outside of the receive")
		flushed := 0
		for i := range 2 {
			wc, err := b.rcq.Next(t.limit)
			t.ok(err, "%s: wait for the receives", c.what)
			if wc.ID != uint64(1+i) || wc.Status == ib.StatusSuccess {
				t.Errorf("%s: receive %d with %v", c.what, wc.ID, wc.Status)
			}
			if wc.Status == ib.StatusWRFlush {
				flushed++
			}
		}
		if flushed == 0 {
			t.Errorf("%s: no receive was flushed", c.what)
		}
		a.state(ib.StateRTS) // the honest peer sent nothing
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}

// Key, address and length of a request are checked before anything is done.
func hostileRETH(t *tb) {
	_, probe := t.pair()
	for what := range wrongRemotes(probe) {
		for _, op := range []wire.Opcode{wire.RCWriteOnly, wire.RCReadRequest, wire.RCWriteFirst} {
			a, b := t.pair(small)
			seen := a.listen(b.addr())
			r := wrongRemotes(b)[what]
			p := wire.Packet{Opcode: op, PSN: a.attr.SQPSN, AckReq: true, RETH: wire.RETH{Addr: r.Addr, RKey: r.RKey, Len: 8}}
			switch op {
			case wire.RCWriteOnly:
				p.Payload = pattern(8, 0x99)
			case wire.RCWriteFirst:
				p.Payload, p.RETH.Len = pattern(256, 0x99), 512
			}
			b.forge(a, p)
			t.settle()
			if seen.count(wire.NAKAccess) != 1 {
				t.Errorf("%v with %s: answers %v, want one of an access error", op, what, seen.syndromes)
			}
			t.untouched(b.mr.Bytes(), 0, fmt.Sprintf("%v with %s", op, what))
			b.state(ib.StateError)
			t.closed(a.qp, "queue pair")
			t.closed(b.qp, "queue pair")
		}
	}
	// Nothing at nowhere is nothing.
	a, b := t.pair()
	for i, op := range []wire.Opcode{wire.RCWriteOnly, wire.RCReadRequest} {
		b.forge(a, wire.Packet{Opcode: op, PSN: next24(a.attr.SQPSN, i), AckReq: true, RETH: wire.RETH{Addr: ^uint64(0), RKey: 0xBAD}})
	}
	t.settle()
	b.state(ib.StateRTS)
}

// Requests for much data are served with no more than was asked for, beside others,
// and not at all beyond the region.
func readFlood(t *tb) {
	const n, floods = 60000, 500
	a, b := t.pair(func(l *link) { l.a.Timeout = 20 * time.Second })
	c, d := t.pair()
	seen := a.listen(b.addr())
	packets := (n + t.mtu().Bytes() - 1) / t.mtu().Bytes()
	for i := range floods {
		b.forge(a, wire.Packet{
			Opcode: wire.RCReadRequest, PSN: next24(a.attr.SQPSN, i*packets), AckReq: true,
			RETH: wire.RETH{Addr: b.mr.Remote(0, 0).Addr, RKey: b.mr.RKey(), Len: n},
		})
		if i%100 == 0 {
			alive(c, d)
		}
	}
	t.settle()
	if _, bytes := seen.total(); bytes > floods*(n+n/20) {
		t.Errorf("%d bytes of answers to requests for %d", bytes, floods*n)
	}
	a.empty()
	alive(c, d)
	// The largest request there is, for a small region.
	b.forge(a, wire.Packet{
		Opcode: wire.RCReadRequest, PSN: next24(a.attr.SQPSN, floods*packets), AckReq: true,
		RETH: wire.RETH{Addr: b.mr.Remote(0, 0).Addr, RKey: b.mr.RKey(), Len: 1 << 31},
	})
	t.settle()
	if seen.count(wire.NAKAccess) != 1 {
		t.Errorf("answers %v, want one of an access error", seen.syndromes)
	}
}

// Keys do not follow from one another.
func keysUnpredictable(t *tb) {
	pd := t.pd(t.a)
	buf := make([]byte, 4096)
	const n = 512
	var flips [32]int
	last := ib.RKey(0)
	seen := map[ib.RKey]bool{}
	for i := range n {
		mr, err := pd.RegisterBytes(buf, allRights)
		t.ok(err, "register")
		k := mr.RKey()
		t.closed(mr, "region")
		if seen[k] {
			t.Errorf("key %#x comes again", k)
		}
		seen[k] = true
		if i > 0 {
			for bit := range flips {
				flips[bit] += int(k^last) >> bit & 1
			}
		}
		last = k
	}
	free := 0
	for _, f := range flips {
		if f > n/4 && f < 3*n/4 {
			free++
		}
	}
	t.differs(func() {
		if free < 24 {
			t.Errorf("only %d bits of a key are unpredictable: changes %v", free, flips)
		}
	})
}

func numberScan(t *tb) {
	a, b := t.pair()
	rng := rand.New(rand.NewPCG(t.Fabric.Seed(), 4))
	n := 0
	for i := range 1 << 14 {
		qpn := ib.QPN(rng.Uint32() & 0xFFFFFF)
		if qpn == a.qp.Num() || qpn == b.qp.Num() || qpn == 1 {
			continue
		}
		p := writeTo(b, 0, []byte("scan"))
		p.DestQP, p.PKey = qpn, 0xFFFF
		t.Fabric.Forge(a.addr(), b.addr(), p.AppendTo(nil))
		if n++; i%512 == 0 {
			t.settle()
			alive(a, b)
		}
	}
	t.settle()
	t.untouched(b.mr.Bytes()[:50000], 0, "memory under a scan")
	alive(a, b)
}

// Marks slow the sender down and break nothing; without them everything works too.
func congestionMarks(t *tb) {
	for _, c := range []struct {
		what string
		rule Rule
	}{
		{"one in a hundred", Rule{Mark: true, Chance: 0.01}},
		{"all", Rule{Mark: true}},
		{"bleached", Rule{Bleach: true}},
	} {
		a, b := t.pair(func(l *link) { l.mem = 1 << 20 })
		w := t.Fabric.Rule(c.rule)
		marked := t.Fabric.Rule(Rule{From: a.addr(), To: b.addr(), Match: func(d Datagram) bool { return d.TOS&3 == 3 }})
		cnps := t.Fabric.Rule(Rule{From: b.addr(), To: a.addr(), Opcodes: []uint8{OpCongestionNotif}})
		start := time.Now()
		const rounds = 3
		for i := range rounds {
			a.fill(0, 1<<20, byte(i))
			a.send(verbs.Write(1, b.mr.Remote(0, 1<<20), a.sge(0, 1<<20), ib.Signaled))
			a.sent(1, ib.StatusSuccess)
			b.check(0, 1<<20, byte(i), "write under congestion marks")
		}
		took := time.Since(start)
		if marked.Hits() > 0 && cnps.Hits() == 0 {
			t.Errorf("%s: %d marks and no notification", c.what, marked.Hits())
		}
		if cnps.Hits() > marked.Hits() {
			t.Errorf("%s: %d notifications for %d marks", c.what, cnps.Hits(), marked.Hits())
		}
		if c.rule.Bleach && cnps.Hits() > 0 {
			t.Errorf("%s: %d notifications without a mark", c.what, cnps.Hits())
		}
		t.Logf("%s: %d marks, %d notifications, %v", c.what, marked.Hits(), cnps.Hits(), took)
		for _, f := range []*Filter{w, marked, cnps} {
			f.Remove()
		}
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}
