package rdmatest

import (
	"errors"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area H: unreliable connections. Devices without them skip it, with their reason.
func areaUC() []check {
	return []check{
		{"C-146_SendWrite", 0, ucSendWrite},
		{"C-147_NoReceive", 0, ucNoReceive},
		{"C-148_RemoteAccess", 0, ucRemoteAccess},
		{"C-151_Forbidden", 0, ucForbidden},
	}
}

// ucPair gives a connected pair without acknowledgements.
func (t *tb) ucPair() (a, b *end) {
	t.Helper()
	l := t.newLink()
	l.cfg.Type = ib.UC
	l.a.Access, l.b.Access = ib.RemoteWrite, ib.RemoteWrite
	for _, d := range []*verbs.Device{t.a, t.b} {
		cq := t.cq(d, 64, nil)
		qp, err := t.pd(d).CreateQP(verbs.QPConfig{Type: ib.UC, SendCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skipf("%s: unreliable connections: %v", d.Info().Name, err)
		}
		t.ok(err, "create a queue pair")
		t.closed(qp, "queue pair")
	}
	a, b = t.newEnd("a", t.a, 0, l, l.a, nil), t.newEnd("b", t.b, 1, l, l.b, nil)
	t.introduce(a, b)
	for _, e := range []*end{b, a} {
		e.init()
		e.move(ib.StateRTR, ib.AttrState|ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN)
		e.move(ib.StateRTS, ib.AttrState|ib.AttrSQPSN)
	}
	return a, b
}

func ucSendWrite(t *tb) {
	a, b := t.ucPair()
	a.fill(0, 5000, 3)
	for i, n := range []int{0, 8, 5000} {
		b.recv(1, 8192, 5000)
		a.send(verbs.Send(2, a.sge(0, n), ib.Signaled))
		a.sent(2, ib.StatusSuccess)
		if wc := b.got(1, ib.StatusSuccess); int(wc.ByteLen) != n || wc.Opcode != ib.WCRecv {
			t.Errorf("send %d of %d bytes: %+v", i, n, wc)
		}
		b.check(8192, n, 3, "a send")
	}
	b.recv(3, 0, 8)
	a.send(verbs.Write(4, b.mr.Remote(16384, 5000), a.sge(0, 5000), ib.Signaled))
	a.sent(4, ib.StatusSuccess)
	a.send(verbs.WriteImm(5, b.mr.Remote(32768, 5000), 0x01020304, a.sge(0, 5000), ib.Signaled))
	a.sent(5, ib.StatusSuccess)
	wc := b.got(3, ib.StatusSuccess)
	if wc.Opcode != ib.WCRecvWriteImm || wc.Imm != 0x01020304 || wc.ByteLen != 5000 {
		t.Errorf("write with immediate data: %+v", wc)
	}
	b.check(16384, 5000, 3, "a write") // it came before the other
	b.check(32768, 5000, 3, "a write with immediate data")
}

// What finds no receive is lost without a word, and the next one arrives.
func ucNoReceive(t *tb) {
	a, b := t.ucPair()
	a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	a.send(verbs.WriteImm(2, b.mr.Remote(1024, 8), 7, a.sge(0, 8), ib.Signaled))
	a.sent(2, ib.StatusSuccess)
	b.quiet()
	a.state(ib.StateRTS)
	b.state(ib.StateRTS)
	copy(a.fill(0, 8, 0), "the next")
	b.recv(3, 0, 64)
	a.send(verbs.Send(4, a.sge(0, 8), ib.Signaled))
	a.sent(4, ib.StatusSuccess)
	b.got(3, ib.StatusSuccess)
	if got := string(b.mr.Bytes()[:8]); got != "the next" {
		t.Errorf("received %q", got)
	}
	a.quiet()
	b.quiet()
}

// A write that may not be is dropped, and harms neither side.
func ucRemoteAccess(t *tb) {
	a, b := t.ucPair()
	for i := range b.mr.Bytes() {
		b.mr.Bytes()[i] = 0x77
	}
	readOnly := t.region(b.pd, 4096, ib.LocalWrite|ib.RemoteRead)
	good := b.mr.Remote(0, 4096)
	b.recv(1, 8192, 64)
	for i, r := range []ib.Remote{
		{Addr: good.Addr, RKey: good.RKey + 0x100, Len: 4096},
		{Addr: good.Addr + uint64(b.mr.Len()), RKey: good.RKey, Len: 64},
		readOnly.Remote(0, 4096),
	} {
		a.send(verbs.Write(uint64(10+i), r, a.sge(0, int(r.Len)), ib.Signaled))
		a.sent(uint64(10+i), ib.StatusSuccess)
	}
	a.send(verbs.Send(20, a.sge(0, 8), ib.Signaled))
	a.sent(20, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
	a.state(ib.StateRTS)
	b.state(ib.StateRTS)
	a.quiet()
	b.quiet()
	t.untouched(b.mr.Bytes()[:8192], 0x77, "what no write may reach")
	t.untouched(readOnly.Bytes(), 0, "what may only be read")
}

// Operations that have an answer are not for these queue pairs, and a post of one harms nothing.
func ucForbidden(t *tb) {
	a, b := t.ucPair()
	r := b.mr.Remote(0, 64)
	for _, wr := range []verbs.SendWR{
		verbs.Read(1, r, a.sge(0, 64), ib.Signaled),
		verbs.CompareSwap(2, b.mr.Remote(0, 8), 0, 1, a.sge(0, 8), ib.Signaled),
		verbs.FetchAdd(3, b.mr.Remote(0, 8), 1, a.sge(0, 8), ib.Signaled),
	} {
		t.isErr(a.qp.PostSend(wr), einval, "post %v", wr.Opcode)
	}
	a.state(ib.StateRTS)
	b.recv(4, 0, 64)
	a.send(verbs.Send(5, a.sge(0, 8), ib.Signaled))
	a.sent(5, ib.StatusSuccess)
	b.got(4, ib.StatusSuccess)
	a.empty()
}
