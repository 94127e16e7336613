package rdmatest

import (
	"net"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area J: shared receive queues. Devices without them skip it, with their reason.
func areaSRQ() []check {
	return []check{
		{"C-166_FullAndEmpty", 0, srqFullAndEmpty},
		{"C-167_Limit", 0, srqLimit},
		{"C-169_BadLimits", 0, srqBadLimits},
		{"C-170_InUse", 0, srqInUse},
		{"C-171_NotFlushed", 0, srqNotFlushed},
		{"C-171_LastWQE", 0, srqLastWQE},
		{"C-171_LastWQEByPeer", 0, srqLastWQEByPeer},
		{"C-172_ShortReceive", 0, srqShortReceive},
	}
}

// shared gives a pair whose b takes its receives from a shared queue.
func (t *tb) shared(n int, change ...func(*link)) (a, b *end) {
	t.Helper()
	t.supports(verbs.FeatureSRQ)
	return t.pair(append(change, func(l *link) { l.srq = &verbs.SRQConfig{MaxWR: n} })...)
}

func (e *end) share(id uint64, off, n int) {
	e.Helper()
	e.ok(e.srq.PostRecv(verbs.Recv(id, e.mr.SGE(off, n))), "%s: post shared receive %d", e.name, id)
}

func srqFullAndEmpty(t *tb) {
	a, b := t.shared(8, func(l *link) { l.a.RNRRetry = 0 })
	// Nothing there: as with a receive queue of its own.
	a.send(verbs.Send(1, a.mr.SGE(0, 8), ib.Signaled))
	a.sent(1, ib.StatusRNRRetryExc)

	n := 0
	for ; b.srq.Room() > 0; n++ {
		b.share(uint64(n), n*64, 64)
	}
	if n < 8 {
		t.Errorf("%d receives fit, 8 were asked for", n)
	}
	t.isErr(b.srq.PostRecv(verbs.Recv(99, b.mr.SGE(0, 64))), verbs.ErrQueueFull, "a receive beyond the last")
}

func srqLimit(t *tb) {
	a, b := t.shared(16)
	t.drainAsync(t.b)
	for i := range 10 {
		b.share(uint64(i), i*64, 64)
	}
	t.ok(b.srq.SetLimit(7), "set the limit")
	for i := range 10 {
		a.send(verbs.Send(uint64(i), a.mr.SGE(0, 8), ib.Signaled))
		a.sent(uint64(i), ib.StatusSuccess)
		b.got(uint64(i), ib.StatusSuccess)
		switch {
		case i < 3: // 7 are left
			t.noAsync(t.b)
		case i == 3:
			if ev := t.asyncEvent(t.b); ev.Type != ib.EventSRQLimitReached || ev.SRQ != b.srq {
				t.Errorf("event %+v", ev)
			}
			_, limit, err := b.srq.Query()
			t.ok(err, "query the shared queue")
			if limit != 0 {
				t.Errorf("limit %d after its event", limit)
			}
		default: // once
			t.noAsync(t.b)
		}
	}
}

// What a failed queue pair had not taken stays for others.
func srqNotFlushed(t *tb) {
	_, b := t.shared(4)
	b.share(1, 0, 64)
	b.fail()
	b.quiet()
	cfg := b.qp.Config()
	t.closed(b.qp, "queue pair")
	b.qp = b.newQP(cfg)
	a := t.newEnd("another", t.a, 0, t.newLink(), t.newLink().a, nil)
	a.attr.SQPSN, a.attr.RQPSN = b.attr.RQPSN, b.attr.SQPSN
	a.attr.DestQPN, b.attr.DestQPN = b.qp.Num(), a.qp.Num()
	a.attr.AH, b.attr.AH = a.way(b.gid), b.way(a.gid)
	for _, e := range []*end{b, a} {
		e.init()
		e.rtr()
		e.rts()
	}
	a.send(verbs.Send(1, a.mr.SGE(0, 8), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
}

// The last event of a queue pair tells that it takes no more of the shared queue.
func srqLastWQE(t *tb) {
	_, b := t.shared(4)
	t.drainAsync(t.b)
	b.share(1, 0, 64)
	b.fail()
	t.lastWQE(b)
}

// It comes as well if it is the peer who makes the queue pair fail.
func srqLastWQEByPeer(t *tb) {
	a, b := t.shared(4)
	t.drainAsync(t.b)
	b.share(1, 0, 64)
	bad := remoteOf(b.mr, 0, 8)
	bad.RKey ^= 1
	a.send(verbs.Write(1, bad, a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusRemAccess)
	b.state(ib.StateError)
	t.lastWQE(b)
}

// lastWQE waits for the event, which comes once, and late for who listens late. What the
// queue pair has not taken stays.
func (t *tb) lastWQE(b *end) {
	t.Helper()
	b.quiet()
	t.differs(func() { t.wantQPEvent(t.b, b.qp, ib.EventQPLastWQEReached) })
	t.grace()
	for {
		ev, ok, err := t.b.Async().TryEvent()
		t.ok(err, "look for another event")
		if !ok {
			return
		}
		if ev.Type == ib.EventQPLastWQEReached {
			t.Error("LAST_WQE_REACHED twice")
		}
	}
}

func srqBadLimits(t *tb) {
	_, b := t.shared(16)
	_, before, err := b.srq.Query()
	t.ok(err, "query the shared queue")
	for _, n := range []int{-1, 17, 1 << 30} {
		t.isErr(b.srq.SetLimit(n), syscall.EINVAL, "a limit of %d", n)
		_, err := b.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, Limit: n})
		t.isErr(err, syscall.EINVAL, "a queue with a limit of %d", n)
	}
	_, after, err := b.srq.Query()
	t.ok(err, "query the shared queue")
	if after != before {
		t.Errorf("limit %d, it was %d", after, before)
	}
}

// A shared queue that is closed while a queue pair uses it goes with that; until then it
// works. One of another domain is refused.
func srqInUse(t *tb) {
	a, b := t.shared(4)
	cfg := b.qp.Config()
	_, err := t.pd(t.b).CreateQP(cfg)
	t.isErr(err, verbs.ErrPDMismatch, "a queue pair of another domain")

	b.share(1, 0, 64)
	t.closed(b.srq, "shared queue with a queue pair")
	t.isErr(b.srq.PostRecv(verbs.Recv(2, b.sge(0, 64))), net.ErrClosed, "a receive of a closed queue")
	_, err = b.pd.CreateQP(cfg)
	t.isErr(err, net.ErrClosed, "another queue pair of a closed queue")
	a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
}

// Of two queue pairs the one that took a receive that is too short fails, and the other goes on.
func srqShortReceive(t *tb) {
	a, b := t.shared(8)
	a2, b2 := t.sibling(a), t.sibling(b)
	t.join(a2, b2)

	b.share(1, 0, 8)
	a.send(verbs.Send(1, a.sge(0, 64), ib.Signaled))
	b.gotAt(1, "C-172/receiver", ib.StatusLocLen)
	a.sentAt(1, "C-172/sender", ib.StatusRemInvReq)
	a.state(ib.StateError)
	b.state(ib.StateError)

	b2.share(2, 0, 64)
	a2.send(verbs.Send(2, a2.sge(0, 64), ib.Signaled))
	a2.sent(2, ib.StatusSuccess)
	b2.got(2, ib.StatusSuccess)
}
