package rdmatest

import (
	"errors"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area I: unreliable datagrams. Devices without them skip it, with their reason.
func areaUD() []check {
	return []check{
		{"C-152_RoundTrip", 0, datagramRoundTrip},
		{"C-153_SizeLimit", 0, datagramSizes},
		{"C-154_WrongQKey", 0, wrongQKey},
		{"C-154_OwnQKey", 0, ownQKey},
		{"C-155_SmallReceive", 0, datagramTooLong},
	}
}

const (
	grhLen  = 40
	testKey = ib.QKey(0x1234)
)

// datagrams gives two queue pairs that take datagrams with testKey.
func (t *tb) datagrams() (a, b *end) {
	t.Helper()
	mk := func(name string, dev *verbs.Device, side int) *end {
		e := &end{tb: t, name: name, dev: dev, gid: t.gid(dev, side)}
		e.pd = t.pd(dev)
		e.scq, e.rcq = t.cq(dev, 64, nil), t.cq(dev, 64, nil)
		qp, err := e.pd.CreateQP(verbs.QPConfig{Type: ib.UD, SendCQ: e.scq, RecvCQ: e.rcq, MaxSendWR: 16, MaxRecvWR: 16})
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skipf("%s: %v", dev.Info().Name, err)
		}
		t.ok(err, "%s: create a datagram queue pair", name)
		t.Cleanup(func() { t.closed(qp, "queue pair") })
		e.qp = qp
		e.mr = t.region(e.pd, 64<<10, allRights)
		e.attr = verbs.QPAttr{Port: e.gid.Port, QKey: testKey, SQPSN: t.psn()}
		e.move(ib.StateInit, ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrQKey)
		e.move(ib.StateRTR, ib.AttrState)
		e.move(ib.StateRTS, ib.AttrState|ib.AttrSQPSN)
		return e
	}
	return mk("a", t.a, 0), mk("b", t.b, 1)
}

// handle makes an address handle for a peer.
func (e *end) handle(to *end, tclass uint8) *verbs.AH {
	e.Helper()
	w := e.way(to.gid)
	w.TrafficClass = tclass
	h, err := e.pd.CreateAH(w)
	e.ok(err, "%s: create an address handle", e.name)
	e.Cleanup(func() { e.closed(h, "address handle") })
	return h
}

func datagramRoundTrip(t *tb) {
	a, b := t.datagrams()
	h := a.handle(b, 0x20)
	copy(a.mr.Bytes(), "datagram")
	b.recv(1, 0, grhLen+8)
	b.recv(2, 1024, grhLen)
	a.send(verbs.SendTo(1, h, b.qp.Num(), testKey, a.mr.SGE(0, 8), ib.Signaled))
	wr := verbs.SendTo(2, h, b.qp.Num(), testKey, verbs.SGE{}, ib.Signaled)
	wr.Opcode, wr.Imm = ib.OpSendImm, 0x01020304
	a.send(wr)
	a.sent(1, ib.StatusSuccess)
	a.sent(2, ib.StatusSuccess)
	first, second := b.got(1, ib.StatusSuccess), b.got(2, ib.StatusSuccess)
	for _, x := range []struct {
		wc  verbs.WC
		len uint32
		imm bool
	}{{first, grhLen + 8, false}, {second, grhLen, true}} {
		if x.wc.ByteLen != x.len || x.wc.SrcQPN != a.qp.Num() || x.wc.Flags&ib.WithGRH == 0 || x.imm != (x.wc.Flags&ib.WithImm != 0) {
			t.Errorf("want %d bytes from %v, immediate data %v: %+v", x.len, a.qp.Num(), x.imm, x.wc)
		}
	}
	if second.Imm != 0x01020304 {
		t.Errorf("immediate data %#x", second.Imm)
	}
	if got := string(b.mr.Bytes()[grhLen : grhLen+8]); got != "datagram" {
		t.Errorf("received %q", got)
	}
	// On IPv4 the header is in the second half; the first is undefined.
	grh := b.mr.Bytes()[:grhLen]
	if t.PeerAddr.Is4() {
		if grh[20]>>4 != 4 || grh[21]&^3 != 0x20 {
			t.Errorf("IPv4 header % x", grh[20:])
		}
	} else if grh[0]>>4 != 6 {
		t.Errorf("IPv6 header % x", grh)
	}
	// What the receiver learnt is enough to answer.
	back, err := b.pd.CreateAHFromWC(b.gid.Port, &first, grh)
	t.ok(err, "an address handle from a completion")
	t.Cleanup(func() { t.closed(back, "address handle") })
	a.recv(3, 0, grhLen+8)
	b.send(verbs.SendTo(3, back, first.SrcQPN, testKey, b.mr.SGE(grhLen, 8), ib.Signaled))
	b.sent(3, ib.StatusSuccess)
	a.got(3, ib.StatusSuccess)
}

func datagramSizes(t *tb) {
	a, b := t.datagrams()
	h := a.handle(b, 0)
	mtu := t.mtu().Bytes()
	for i := range mtu {
		a.mr.Bytes()[i] = byte(i * 7)
	}
	b.recv(1, 0, grhLen+mtu)
	a.send(verbs.SendTo(1, h, b.qp.Num(), testKey, a.mr.SGE(0, mtu), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
	t.same(b.mr.Bytes()[grhLen:grhLen+mtu], a.mr.Bytes()[:mtu], "a datagram of one MTU")
	t.isErr(a.qp.PostSend(verbs.SendTo(2, h, b.qp.Num(), testKey, a.mr.SGE(0, mtu+1), ib.Signaled)), syscall.EINVAL, "a datagram larger than the MTU")
	a.empty()
}

// A datagram with a wrong key is lost without a word; the next one arrives.
func wrongQKey(t *tb) {
	a, b := t.datagrams()
	h := a.handle(b, 0)
	b.recv(1, 0, grhLen+8)
	a.send(verbs.SendTo(1, h, b.qp.Num(), testKey+1, a.mr.SGE(0, 8), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	copy(a.mr.Bytes(), "the next")
	a.send(verbs.SendTo(2, h, b.qp.Num(), testKey, a.mr.SGE(0, 8), ib.Signaled))
	a.sent(2, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
	if got := string(b.mr.Bytes()[grhLen : grhLen+8]); got != "the next" {
		t.Errorf("received %q", got)
	}
	b.quiet()
	b.state(ib.StateRTS)
}

// A key with the top bit set stands for the sender's own. Who does not know that sends it as
// it is, and the datagram is lost as with any wrong key.
func ownQKey(t *tb) {
	a, b := t.datagrams()
	h := a.handle(b, 0)
	b.recv(1, 0, grhLen+8)
	copy(a.mr.Bytes(), "with own")
	a.send(verbs.SendTo(1, h, b.qp.Num(), 1<<31|0x77, a.mr.SGE(0, 8), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	want := "with own"
	if _, arrived := b.gotAt(1, "C-154/own", ib.StatusSuccess); !arrived {
		want = "the next"
		copy(a.mr.Bytes(), want)
		a.send(verbs.SendTo(2, h, b.qp.Num(), testKey, a.mr.SGE(0, 8), ib.Signaled))
		a.sent(2, ib.StatusSuccess)
		b.got(1, ib.StatusSuccess)
	}
	if got := string(b.mr.Bytes()[grhLen : grhLen+8]); got != want {
		t.Errorf("received %q, want %q", got, want)
	}
	b.quiet()
	b.state(ib.StateRTS)
}

// A receive that is too small fails alone: no sender can take the queue pair down.
func datagramTooLong(t *tb) {
	for _, n := range []int{grhLen - 1, grhLen, grhLen + 7} {
		a, b := t.datagrams()
		h := a.handle(b, 0)
		b.recv(1, 0, n)
		b.recv(2, 1024, grhLen+8)
		for range 2 {
			a.send(verbs.SendTo(0, h, b.qp.Num(), testKey, a.mr.SGE(0, 8), ib.Signaled))
			a.sent(0, ib.StatusSuccess)
		}
		_, failed := b.gotAt(1, "C-155/small", ib.StatusLocLen)
		if wc, ok := b.gotAt(2, "C-155/next", ib.StatusSuccess); ok && wc.Status != ib.StatusSuccess {
			b.state(ib.StateError)
		} else {
			b.state(ib.StateRTS)
		}
		if !failed && n >= grhLen { // then the datagrams are lost, and the receive waits for one that fits
			a.send(verbs.SendTo(0, h, b.qp.Num(), testKey, verbs.SGE{}, ib.Signaled))
			a.sent(0, ib.StatusSuccess)
			b.got(1, ib.StatusSuccess)
		}
		b.quiet()
		a.state(ib.StateRTS)
	}
}
