package rdmatest

import (
	"fmt"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area F, second part: numbers, order, depth.
func areaRCData() []check {
	return []check{
		{"C-103_NumbersWrap", 0, numbersWrap},
		{"C-103_NumbersWrapUnderLoss", Faults | VirtualTime, numbersWrapUnderLoss},
		{"C-108_Visibility", 0, visibility},
		{"C-110_OutstandingReads", 0, outstandingReads},
		{"C-111_SelfConnected", 0, selfConnected},
		{"C-112_DataInRTR", 0, dataInRTR},
	}
}

// wrapping starts both directions shortly before the end of the packet numbers.
func wrapping(l *link) {
	l.a.SQPSN, l.b.RQPSN = 0xFFFFF0, 0xFFFFF0
	l.b.SQPSN, l.a.RQPSN = 0xFFFFF8, 0xFFFFF8
	l.a.PathMTU, l.b.PathMTU = ib.MTU1024, ib.MTU1024
	l.mem = 512 << 10
}

func numbersWrap(t *tb) {
	a, b := t.pair(wrapping)
	acrossTheWrap(a, b)
}

// acrossTheWrap writes and reads back, both over the end of the numbers.
func acrossTheWrap(a, b *end) {
	const n = 200_000
	a.Helper()
	a.fill(0, n, 0x5A)
	a.send(verbs.Write(1, b.mr.Remote(0, n), a.sge(0, n), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	b.check(0, n, 0x5A, "write over the wrap")
	a.send(verbs.Read(2, b.mr.Remote(0, n), a.sge(n, n), ib.Signaled))
	a.sent(2, ib.StatusSuccess)
	a.check(n, n, 0x5A, "read back")
	// The other direction wraps within a read response.
	b.send(verbs.Read(3, a.mr.Remote(n, n), b.sge(n, n), ib.Signaled))
	b.sent(3, ib.StatusSuccess)
	b.check(n, n, 0x5A, "read over the wrap")
}

func numbersWrapUnderLoss(t *tb) {
	for n := 1; n <= 24; n += 1 + n/8 {
		a, b := t.pair(wrapping)
		w1 := t.Fabric.DropNth(t.Addr, t.PeerAddr, n)
		w2 := t.Fabric.DropNth(t.PeerAddr, t.Addr, n)
		acrossTheWrap(a, b)
		w1.Remove()
		w2.Remove()
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}

func visibility(t *tb) {
	a, b := t.pair()
	for i := range 200 {
		b.recv(1, 60000, 8)
		a.fill(0, 20000, byte(i))
		n, err := a.qp.PostSendList([]verbs.SendWR{
			verbs.Write(2, b.mr.Remote(0, 20000), a.sge(0, 20000), 0),
			verbs.Send(3, a.sge(0, 8), ib.Signaled),
		})
		t.ok(err, "post %d", n)
		b.got(1, ib.StatusSuccess)
		b.check(0, 20000, byte(i), "a write before the send")
		a.sent(3, ib.StatusSuccess)
	}
}

func outstandingReads(t *tb) {
	d, err := t.a.Attr()
	t.ok(err, "query the device")
	for _, depth := range []int{1, min(16, d.MaxQPInitRDAtomic, d.MaxQPRDAtomic)} {
		a, b := t.pair(func(l *link) {
			l.a.MaxRDAtomic, l.b.MaxDestRDAtomic = depth, depth
		})
		b.fill(0, 32000, 3)
		for i := range 16 {
			a.send(verbs.Read(uint64(i), b.mr.Remote(2000*i, 2000), a.sge(2000*i, 2000), ib.Signaled))
		}
		for i := range 16 {
			a.sent(uint64(i), ib.StatusSuccess)
		}
		a.check(0, 32000, 3, fmt.Sprintf("reads with depth %d", depth))
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
	// A requester that asks for more than the responder serves is told so, or is
	// served; its requests end either way.
	a, b := t.pair(func(l *link) { l.a.MaxRDAtomic, l.b.MaxDestRDAtomic = 4, 1 })
	for i := range 4 {
		a.send(verbs.Read(uint64(i), b.mr.Remote(0, 8192), a.sge(0, 8192), ib.Signaled))
	}
	failed := false
	for i := range 4 {
		wc, err := a.scq.Next(t.limit)
		t.ok(err, "wait")
		switch {
		case wc.ID != uint64(i):
			t.Errorf("read %d completed, want %d", wc.ID, i)
		case wc.Status == ib.StatusSuccess && !failed:
		case wc.Status == ib.StatusRemInvReq && !failed:
			failed = true
		case wc.Status == ib.StatusWRFlush && failed:
		default:
			t.Errorf("read %d: %v", i, wc.Status)
		}
	}
}

func selfConnected(t *tb) {
	l := t.newLink()
	l.a.RQPSN = l.a.SQPSN
	a := t.newEnd("self", t.a, 0, l, l.a, nil)
	a.attr.DestQPN, a.attr.AH = a.qp.Num(), a.way(a.gid)
	a.init()
	a.rtr()
	a.rts()
	a.fill(0, 5000, 1)
	a.recv(1, 8192, 5000)
	a.send(verbs.Send(2, a.sge(0, 5000), ib.Signaled))
	a.got(1, ib.StatusSuccess)
	a.sent(2, ib.StatusSuccess)
	a.check(8192, 5000, 1, "message to itself")
	a.send(verbs.Read(3, a.mr.Remote(0, 5000), a.sge(20000, 5000), ib.Signaled))
	a.sent(3, ib.StatusSuccess)
	a.check(20000, 5000, 1, "read of itself")
}

func dataInRTR(t *tb) {
	t.drainAsync(t.b)
	a, b := t.pair(func(l *link) { l.upTo = ib.StateRTR })
	b.recv(1, 0, 8)
	a.send(verbs.Send(2, a.sge(0, 8), ib.Signaled))
	a.sent(2, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
	b.state(ib.StateRTR)
	b.rts()
	a.recv(3, 0, 8)
	b.send(verbs.Send(4, b.sge(0, 8), ib.Signaled))
	b.sent(4, ib.StatusSuccess)
	a.got(3, ib.StatusSuccess)
	t.drainAsync(t.b)
}
