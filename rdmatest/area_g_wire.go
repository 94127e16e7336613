package rdmatest

import (
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area G, third part: answers that no honest peer gives, or not at that time.
func areaRCWire() []check {
	const needs = Faults | VirtualTime
	return []check{
		{"C-127_MisalignedAtomicOnTheWire", anyWire, misalignedOnWire},
		{"C-138_SilenceAfterFatalNAK", anyWire, silenceAfterNAK},
		{"C-139_NAKCodes", needs, nakCodes},
		{"C-139_IgnoredAnswers", needs, ignoredAnswers},
		{"C-140_MalformedResponses", needs, malformedResponses},
	}
}

func misalignedOnWire(t *tb) {
	t.supports(verbs.FeatureAtomics)
	a, b := t.pair()
	seen := a.listen(b.addr())
	for i := range b.mr.Bytes() {
		b.mr.Bytes()[i] = 0x77
	}
	b.forge(a, wire.Packet{
		Opcode: wire.RCFetchAdd, PSN: a.attr.SQPSN, AckReq: true,
		Atomic: wire.AtomicETH{Addr: b.mr.Remote(4, 8).Addr, RKey: b.mr.RKey(), Swap: 1},
	})
	t.settle()
	if n := seen.count(wire.NAKInvalid); n != 1 {
		t.Errorf("%d NAKs of an invalid request, want 1", n)
	}
	b.state(ib.StateError)
	t.untouched(b.mr.Bytes(), 0x77, "memory of a misaligned atomic")
}

// After a fatal NAK the responder says and does nothing more.
func silenceAfterNAK(t *tb) {
	a, b := t.pair(func(l *link) { l.a.Timeout = 10 * time.Second })
	b.recvs(2, 64)
	bad := remoteOf(b.mr, 0, 8)
	bad.RKey ^= 1
	a.send(verbs.Write(1, bad, a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusRemAccess)
	b.got(0, ib.StatusWRFlush)
	b.got(1, ib.StatusWRFlush)
	err := a.qp.PostSend(verbs.Write(2, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	if err == nil {
		a.sent(2, ib.StatusWRFlush)
	} else {
		t.isErr(err, verbs.ErrState, "post after the end")
	}
	seen := a.listen(b.addr())
	psn := a.attr.SQPSN
	for d := range 5 {
		for _, p := range []wire.Packet{
			{Opcode: wire.RCSendOnly, Payload: []byte("good data"), AckReq: true},
			{Opcode: wire.RCWriteOnly, RETH: wire.RETH{Addr: b.mr.Remote(0, 8).Addr, RKey: b.mr.RKey(), Len: 4}, Payload: []byte{1, 2, 3, 4}, AckReq: true},
			{Opcode: wire.RCReadRequest, RETH: wire.RETH{Addr: b.mr.Remote(0, 8).Addr, RKey: b.mr.RKey(), Len: 8}, AckReq: true},
		} {
			p.PSN = next24(psn, d)
			b.forge(a, p)
		}
	}
	t.settle()
	if n, _ := seen.total(); n != 0 {
		t.Errorf("%d packets from a queue pair that has failed", n)
	}
	t.untouched(b.mr.Bytes(), 0, "memory of a queue pair that has failed")
	b.empty()
}

// threeWrites posts three writes whose acknowledgements are lost.
func (t *tb) threeWrites() (a, b *end, lost *Filter, psn ib.PSN) {
	t.Helper()
	a, b = t.pair(func(l *link) { l.a.Timeout = 20 * time.Second })
	lost = a.mute(OpAcknowledge)
	for i := range uint64(3) {
		a.send(verbs.Write(1+i, b.mr.Remote(int(i), 1), a.sge(0, 1), ib.Signaled))
	}
	t.settle()
	return a, b, lost, a.attr.SQPSN
}

func nak(psn ib.PSN, s wire.Syndrome) wire.Packet {
	return wire.Packet{Opcode: wire.RCAcknowledge, PSN: psn, AETH: wire.AETH{Syndrome: s}}
}

func nakCodes(t *tb) {
	for _, c := range []struct {
		code wire.Syndrome
		want ib.Status
	}{
		{wire.NAKInvalid, ib.StatusRemInvReq},
		{wire.NAKAccess, ib.StatusRemAccess},
		{wire.NAKOperation, ib.StatusRemOp},
	} {
		a, b, lost, psn := t.threeWrites()
		a.forge(b, nak(next24(psn, 1), c.code))
		a.sent(1, ib.StatusSuccess) // what came before is acknowledged
		a.sent(2, c.want)           // the owner of the number
		a.sent(3, ib.StatusWRFlush)
		a.state(ib.StateError)
		b.state(ib.StateRTS)
		lost.Remove()
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
	// A sequence error asks for the packets again.
	a, b, lost, psn := t.threeWrites()
	again := t.Fabric.Rule(Rule{From: a.addr(), To: b.addr(), Opcodes: []uint8{OpWriteOnly}})
	a.forge(b, nak(next24(psn, 1), wire.NAKSequence))
	a.sent(1, ib.StatusSuccess)
	t.settle()
	if again.Hits() < 2 {
		t.Errorf("%d packets came again, want 2", again.Hits())
	}
	a.empty()
	lost.Remove()
	a.forge(b, nak(next24(psn, 2), wire.AckNoLimit))
	a.sent(2, ib.StatusSuccess)
	a.sent(3, ib.StatusSuccess)
	t.closed(a.qp, "queue pair")
	t.closed(b.qp, "queue pair")
	// An RNR NAK waits for its time first.
	a, b, lost, psn = t.threeWrites()
	again = t.Fabric.Rule(Rule{From: a.addr(), To: b.addr(), Opcodes: []uint8{OpWriteOnly}})
	a.forge(b, nak(psn, wire.RNRNAK(80*time.Millisecond)))
	t.settle()
	if again.Hits() != 0 {
		t.Errorf("%d packets came again at once", again.Hits())
	}
	lost.Remove()
	start := time.Now()
	a.sent(1, ib.StatusSuccess)
	a.sent(2, ib.StatusSuccess)
	a.sent(3, ib.StatusSuccess)
	if took := time.Since(start); took < 80*time.Millisecond || took > time.Second {
		t.Errorf("went on after %v, was asked to wait 80 ms", took)
	}
}

// What is unknown, or outside of what was sent, is ignored.
func ignoredAnswers(t *tb) {
	a, b, lost, psn := t.threeWrites()
	for _, s := range []wire.Syndrome{wire.NAKInvalidRD, 0x65, 0x7F, 0x40, 0x5F, 0x80, 0xFF} {
		a.forge(b, nak(next24(psn, 1), s))
	}
	for _, d := range []int{3, 4, 100, 1 << 22, -1, -2, -100, -(1 << 22)} {
		for _, s := range []wire.Syndrome{wire.NAKInvalid, wire.NAKAccess, wire.NAKOperation, wire.NAKSequence, wire.RNRNAK(time.Second), wire.AckNoLimit} {
			a.forge(b, nak(next24(psn, d), s))
		}
	}
	t.settle()
	a.empty()
	a.state(ib.StateRTS)
	lost.Remove()
	a.forge(b, nak(next24(psn, 2), wire.AckNoLimit))
	for i := range uint64(3) {
		a.sent(1+i, ib.StatusSuccess)
	}
	b.state(ib.StateRTS)
}

func malformedResponses(t *tb) {
	ok := wire.AETH{Syndrome: wire.AckNoLimit}
	data := func(n int) []byte { return pattern(n, 0x99) }
	const m = 256 // path MTU
	resp := func(op wire.Opcode, n int) wire.Packet { return wire.Packet{Opcode: op, AETH: ok, Payload: data(n)} }
	for _, c := range []struct {
		what    string
		read    int // bytes asked for; 0: a write of 8 bytes
		answers []wire.Packet
	}{
		{"only, too long", 100, []wire.Packet{resp(wire.RCReadRespOnly, 200)}},
		{"only, too short", 100, []wire.Packet{resp(wire.RCReadRespOnly, 50)}},
		{"only, longer than the path MTU", 100, []wire.Packet{resp(wire.RCReadRespOnly, 1024)}},
		{"only, for several packets", 3 * m, []wire.Packet{resp(wire.RCReadRespOnly, m)}},
		{"middle first", 3 * m, []wire.Packet{resp(wire.RCReadRespMiddle, m)}},
		{"last first", 3 * m, []wire.Packet{resp(wire.RCReadRespLast, m)}},
		{"first twice", 3 * m, []wire.Packet{resp(wire.RCReadRespFirst, m), resp(wire.RCReadRespFirst, m)}},
		{"first, shorter than the path MTU", 3 * m, []wire.Packet{resp(wire.RCReadRespFirst, m-4)}},
		{"middle, shorter than the path MTU", 3 * m, []wire.Packet{resp(wire.RCReadRespFirst, m), resp(wire.RCReadRespMiddle, 4)}},
		{"last, too long", 2*m + 10, []wire.Packet{resp(wire.RCReadRespFirst, m), resp(wire.RCReadRespMiddle, m), resp(wire.RCReadRespLast, 11)}},
		{"last, too early", 3 * m, []wire.Packet{resp(wire.RCReadRespFirst, m), resp(wire.RCReadRespLast, m)}},
		{"one middle too many", 2 * m, []wire.Packet{resp(wire.RCReadRespFirst, m), resp(wire.RCReadRespMiddle, m)}},
		{"atomic answer", 100, []wire.Packet{{Opcode: wire.RCAtomicAck, AETH: ok, AtomicAck: 1}}},
		{"read answer to a write", 0, []wire.Packet{resp(wire.RCReadRespOnly, 8)}},
		{"atomic answer to a write", 0, []wire.Packet{{Opcode: wire.RCAtomicAck, AETH: ok}}},
	} {
		a, b := t.pair(small, func(l *link) { l.a.Timeout = 20 * time.Second })
		lost := a.mute(append([]uint8{OpAcknowledge}, readResponses...)...)
		a.recv(9, 60000, 8)
		if c.read > 0 {
			a.send(verbs.Read(1, b.mr.Remote(0, c.read), a.sge(1000, c.read), ib.Signaled))
		} else {
			a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(50000, 8), ib.Signaled))
		}
		a.send(verbs.Write(2, b.mr.Remote(0, 8), a.sge(50000, 8), 0))
		t.settle()
		for i, p := range c.answers {
			p.PSN = next24(a.attr.SQPSN, i)
			a.forge(b, p)
		}
		t.settle()
		wc, err := a.scq.Next(t.limit)
		t.ok(err, "%s: wait", c.what)
		if wc.ID != 1 || wc.Status != ib.StatusBadResp {
			t.Errorf("%s: %d with %v, want 1 with %v", c.what, wc.ID, wc.Status, ib.StatusBadResp)
		}
		a.sent(2, ib.StatusWRFlush)
		a.got(9, ib.StatusWRFlush)
		a.state(ib.StateError)
		mem := a.mr.Bytes()
		t.untouched(mem[:1000], 0, c.what+": before the buffer")
		t.untouched(mem[1000+c.read:], 0, c.what+": behind the buffer")
		if !errors.Is(a.qp.Err(), ib.StatusError(ib.StatusBadResp)) {
			t.Errorf("%s: cause %v", c.what, a.qp.Err())
		}
		lost.Remove()
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}
