package rdmatest

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area N: event notification.
func areaNotify() []check {
	return []check{
		{"C-236_StrictArming", 0, strictArming},
		{"C-238_Solicited", 0, solicited},
		{"C-238_ReceiveError", 0, solicitedReceiveError},
		{"C-238_SolicitedSendError", 0, solicitedSendError},
		{"C-239_ArmPollSleep", 0, armPollSleep},
		{"C-240_FirstWait", 0, firstWait},
		{"C-241_TwoQueuesOneChannel", 0, twoQueuesOneChannel},
		{"C-242_ManyEventsOneReadiness", 0, manyEvents},
		{"C-243_EventWithEmptyQueue", 0, eventWithEmptyQueue},
		{"C-244_ReadableThenNothing", 0, readableThenNothing},
		{"C-244_LevelOfCompletions", 0, levelOfCompletions},
		{"C-244_LevelOfCM", 0, levelOfCM},
		{"C-244_LevelOfAsync", 0, levelOfAsync},
		{"C-250_CompChannelWaits", 0, compChannelWaits},
		{"C-250_CMChannelWaits", 0, cmChannelWaits},
		{"C-250_QueueWaits", 0, queueWaits},
		{"C-251_NoThreadPerWaiter", 0, noThreadPerWaiter},
		{"C-252_TwoWaiters", 0, twoWaiters},
		{"C-254_ChannelClosedFirst", 0, channelClosedFirst},
		{"C-256_BatchIsNotDropped", 0, batchIsNotDropped},
	}
}

// watched is a pair whose completion queues share a channel on side a.
func (t *tb) watched(change ...func(*link)) (a, b *end, ch *verbs.CompChannel) {
	t.Helper()
	ch, err := t.a.CreateCompChannel()
	t.ok(err, "create a channel")
	t.Cleanup(func() { t.closed(ch, "channel") })
	a, b = t.pair(append([]func(*link){func(l *link) { l.cqA = &verbs.CQConfig{Channel: ch} }}, change...)...)
	return a, b, ch
}

func (t *tb) arm(cq *verbs.CQ, n ib.Notify) (ready bool) {
	t.Helper()
	ready, err := cq.Arm(n)
	t.ok(err, "arm")
	return ready
}

// fired waits for the event of a queue.
func (t *tb) fired(ch *verbs.CompChannel, cq *verbs.CQ) {
	t.Helper()
	got, err := ch.Event(t.limit)
	t.ok(err, "wait for the event")
	if got != cq {
		t.Error("event of another queue")
	}
}

// silent checks that no event comes.
func (t *tb) silent(ch *verbs.CompChannel, what string) {
	t.Helper()
	t.grace()
	_, ok, err := ch.TryEvent()
	t.ok(err, "look for an event")
	if ok {
		t.Errorf("event that must not be: %s", what)
	}
}

func strictArming(t *tb) {
	a, b, ch := t.watched()
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	a.behind(b)
	if !t.arm(a.scq, ib.NotifyAny) {
		t.Error("a queue with a completion is not ready when it is armed")
	}
	t.silent(ch, "for a completion that was there before")
	a.sent(1, ib.StatusSuccess)
	a.send(verbs.Write(2, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	t.fired(ch, a.scq)
	a.sent(2, ib.StatusSuccess)
	a.send(verbs.Write(3, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	t.silent(ch, "for a queue that is not armed")
	a.sent(3, ib.StatusSuccess)
	// Arming twice gives one event.
	t.arm(a.scq, ib.NotifyAny)
	t.arm(a.scq, ib.NotifyAny)
	a.send(verbs.Write(4, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	t.fired(ch, a.scq)
	a.sent(4, ib.StatusSuccess)
	t.silent(ch, "a second one for one arm")
}

// behind lets time pass until what was posted is complete, as far as can be seen without
// looking into the queue of sends: a message goes to the peer behind it, and one comes back.
func (e *end) behind(peer *end) {
	e.Helper()
	e.recv(100, 1024, 8)
	peer.recv(100, 1024, 8)
	e.send(verbs.Send(101, e.sge(1024, 8), 0))
	peer.got(100, ib.StatusSuccess)
	peer.send(verbs.Send(102, peer.sge(1024, 8), ib.Signaled))
	peer.sent(102, ib.StatusSuccess)
	e.polled(e.rcq)
	e.grace()
}

func solicited(t *tb) {
	// Receives of a are what is watched.
	a, b, ch := t.watched()
	for i := range uint64(6) {
		a.recv(i, 1024*int(i), 1024)
	}
	say := func(id uint64, f ib.SendFlags, writeImm bool) {
		t.Helper()
		wr := verbs.Send(id, b.sge(0, 8), f|ib.Signaled)
		if writeImm {
			wr = verbs.WriteImm(id, a.mr.Remote(32<<10, 8), 1, b.sge(0, 8), f|ib.Signaled)
		}
		b.send(wr)
		b.sent(id, ib.StatusSuccess)
	}
	t.arm(a.rcq, ib.NotifySolicited)
	say(1, 0, false)
	t.silent(ch, "for an unsolicited message")
	a.got(0, ib.StatusSuccess)
	say(2, ib.Solicited, false)
	t.fired(ch, a.rcq)
	a.got(1, ib.StatusSuccess)
	t.arm(a.rcq, ib.NotifySolicited)
	say(3, 0, true)
	t.silent(ch, "for an unsolicited write with immediate")
	a.got(2, ib.StatusSuccess)
	say(4, ib.Solicited, true)
	t.fired(ch, a.rcq)
	a.got(3, ib.StatusSuccess)
	// On the sender's side nothing is solicited.
	b.recv(9, 0, 8)
	t.arm(a.scq, ib.NotifySolicited)
	a.send(verbs.Send(10, a.sge(0, 8), ib.Signaled|ib.Solicited))
	a.sent(10, ib.StatusSuccess)
	t.silent(ch, "for the completion of a solicited send")
}

// An error of a receive counts, whatever the queue is armed for.
func solicitedReceiveError(t *tb) {
	a, b, ch := t.watched()
	a.recv(1, 0, 1024)
	t.arm(a.rcq, ib.NotifySolicited)
	a.badWrite(b)
	t.fired(ch, a.rcq)
	a.got(1, ib.StatusWRFlush)
}

// So does an error of a send.
func solicitedSendError(t *tb) {
	a, b, ch := t.watched()
	t.arm(a.scq, ib.NotifySolicited)
	bad := remoteOf(b.mr, 0, 8)
	bad.RKey ^= 1
	a.send(verbs.Write(1, bad, a.sge(0, 8), 0))
	t.differs(func() { t.fired(ch, a.scq) })
	a.sent(1, ib.StatusRemAccess)
}

// Both sides sleep and wake for every message; delays at each step find the gaps.
func armPollSleep(t *tb) {
	const rounds = 1500
	a, b := t.pair()
	var wg sync.WaitGroup
	post := func(e *end) error {
		var wcs [4]verbs.WC // of the sends before
		_, err := e.scq.Poll(wcs[:])
		return errors.Join(err, e.qp.PostSend(verbs.Send(1, e.sge(4096, 8), ib.Signaled)))
	}
	round := func(e *end, i int, first bool) error {
		if first {
			if err := post(e); err != nil {
				return err
			}
		}
		if i%7 == 3 {
			yield()
		}
		if i%64 == 5 {
			t.pass(0, time.Microsecond)
		}
		wc, err := e.rcq.Next(t.limit)
		if err != nil {
			return err
		}
		if i%5 == 2 {
			yield()
		}
		if err := errors.Join(wc.Err(), e.qp.PostRecv(verbs.Recv(wc.ID, e.sge(8*int(wc.ID), 8)))); err != nil {
			return err
		}
		if !first {
			return post(e)
		}
		return nil
	}
	run := func(e *end, first bool) {
		for i := range rounds {
			if err := round(e, i, first); err != nil {
				t.Errorf("%s: round %d: %v", e.name, i, err)
				return
			}
		}
	}
	for i := range uint64(4) {
		a.recv(i, 8*int(i), 8)
		b.recv(i, 8*int(i), 8)
	}
	wg.Go(func() { run(a, true) })
	wg.Go(func() { run(b, false) })
	wg.Wait()
}

func firstWait(t *tb) {
	a, b := t.pair()
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	t.grace()
	start := time.Now()
	var wcs [4]verbs.WC
	n, err := a.scq.Wait(t.limit, wcs[:])
	t.ok(err, "wait for the first time")
	if n != 1 || wcs[0].ID != 1 {
		t.Errorf("%d completions", n)
	}
	if took := time.Since(start); t.Virtual && took > 0 {
		t.Errorf("a completion that was there took %v", took)
	}
}

func twoQueuesOneChannel(t *tb) {
	a, b, ch := t.watched()
	a.recvs(4, 64)
	for range 3 {
		t.arm(a.scq, ib.NotifyAny)
		t.arm(a.rcq, ib.NotifyAny)
		a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
		b.send(verbs.Send(2, b.sge(0, 8), ib.Signaled))
		seen := map[*verbs.CQ]bool{}
		for range 2 {
			cq, err := ch.Event(t.limit)
			t.ok(err, "wait")
			seen[cq] = true
		}
		if !seen[a.scq] || !seen[a.rcq] {
			t.Error("not one event for each queue")
		}
		a.sent(1, ib.StatusSuccess)
		wc, err := a.rcq.Next(t.limit)
		t.ok(err, "wait for the receive")
		a.recv(wc.ID, 64*int(wc.ID), 64)
		b.sent(2, ib.StatusSuccess)
	}
	t.arm(a.scq, ib.NotifyAny)
	t.arm(a.rcq, ib.NotifyAny)
	b.send(verbs.Send(3, b.sge(0, 8), ib.Signaled))
	t.fired(ch, a.rcq) // only the one that has work
	t.silent(ch, "of a queue without work")
}

func manyEvents(t *tb) {
	const n = 64
	ch, err := t.a.CreateCompChannel()
	t.ok(err, "create a channel")
	defer func() { t.closed(ch, "channel") }()
	a, b := t.pair()
	want := map[*verbs.CQ]bool{}
	for range n {
		s := *a
		s.scq = t.cq(t.a, 8, &verbs.CQConfig{Channel: ch})
		s.rcq = s.scq
		cfg := a.qp.Config()
		cfg.SendCQ, cfg.RecvCQ, cfg.MaxSendWR, cfg.MaxRecvWR = s.scq, s.scq, 2, 2
		s.qp = s.newQP(cfg)
		c := t.siblingApart(b)
		t.join(&s, c)
		t.arm(s.scq, ib.NotifyAny)
		want[s.scq] = true
		s.send(verbs.Write(1, b.mr.Remote(0, 8), s.sge(0, 8), ib.Signaled))
	}
	t.grace()
	for range n {
		cq, ok, err := ch.TryEvent()
		if !ok && err == nil {
			cq, err = ch.Event(t.limit) // a machine may be slow
		}
		t.ok(err, "fetch")
		if !want[cq] {
			t.Error("event of a queue that has had its own")
		}
		delete(want, cq)
	}
	if len(want) != 0 {
		t.Errorf("%d of %d queues gave no event", len(want), n)
	}
	_, ok, err := ch.TryEvent()
	t.ok(err, "fetch")
	if ok {
		t.Error("more events than queues")
	}
}

// siblingApart is sibling with a completion queue of its own.
func (t *tb) siblingApart(e *end) *end {
	t.Helper()
	s := *e
	s.scq = t.cq(e.dev, 8, nil)
	s.rcq = s.scq
	cfg := e.qp.Config()
	cfg.SendCQ, cfg.RecvCQ, cfg.MaxSendWR, cfg.MaxRecvWR = s.scq, s.scq, 2, 2
	s.qp = e.newQP(cfg)
	return &s
}

func eventWithEmptyQueue(t *tb) {
	a, b, ch := t.watched()
	t.arm(a.scq, ib.NotifyAny)
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	a.polled(a.scq)
	t.fired(ch, a.scq) // late, and normal
	a.empty()
	t.arm(a.scq, ib.NotifyAny)
	t.silent(ch, "for an empty queue")
	a.send(verbs.Write(2, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	t.fired(ch, a.scq)
	a.sent(2, ib.StatusSuccess)
}

// polled takes a completion without waiting in the library.
func (e *end) polled(cq *verbs.CQ) {
	e.Helper()
	e.until("a completion", func() bool {
		var wcs [1]verbs.WC
		n, err := cq.Poll(wcs[:])
		e.ok(err, "poll")
		return n == 1
	})
}

func readableThenNothing(t *tb) {
	a, b, ch := t.watched()
	t.arm(a.scq, ib.NotifyAny)
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	t.fired(ch, a.scq)
	_, ok, err := ch.TryEvent() // somebody else was faster
	if ok || err != nil {
		t.Errorf("an event that is gone: %v, %v", ok, err)
	}
	a.sent(1, ib.StatusSuccess)
	cch := t.channel(t.Provider)
	id := t.newID(cch, ib.PortSpaceTCP)
	t.ok(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(t.PeerAddr, 7), resolveLimit), "resolve")
	t.event(cch, cm.AddrResolved)
	t.noEvent(cch)
	t.drainAsync(t.a)
	a.drain()
	t.drained(t.a, a.qp)
	t.noAsync(t.a)
}

// Each source's descriptor is readable exactly while there is an event, for programs
// with a loop of their own.
func levelOfCompletions(t *tb) {
	a, b, ch := t.watched()
	level(t, "completion channel", ch.FD,
		func() bool {
			_, ok, err := ch.TryEvent()
			t.ok(err, "fetch")
			return ok
		},
		func() {
			t.arm(a.scq, ib.NotifyAny)
			a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
			a.polled(a.scq)
		})
}

func levelOfCM(t *tb) {
	cch := t.channel(t.Provider)
	level(t, "CM channel", cch.FD,
		func() bool {
			_, ok, err := cch.TryEvent()
			t.ok(err, "fetch")
			return ok
		},
		func() {
			id := t.newID(cch, ib.PortSpaceTCP)
			t.ok(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(t.PeerAddr, 7), resolveLimit), "resolve")
		})
}

func levelOfAsync(t *tb) {
	t.drainAsync(t.b)
	level(t, "asynchronous events", t.b.Async().FD,
		func() bool {
			_, ok, err := t.b.Async().TryEvent()
			t.ok(err, "fetch")
			return ok
		},
		func() {
			_, b := t.pair()
			b.drain()
		})
}

// level checks a descriptor around one event, and around several.
func level(t *tb, what string, fd func() (int, error), try func() bool, bring func()) {
	t.Helper()
	n, err := fd()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("%s: %v", what, err)
	}
	t.ok(err, "%s: descriptor", what)
	again, err := fd()
	t.ok(err, "%s: descriptor", what)
	if again != n {
		t.Errorf("%s: descriptors %d and %d", what, n, again)
	}
	is := func(want bool, when string) {
		t.Helper()
		got, err := readable(n)
		t.ok(err, "%s: poll", what)
		if got != want {
			t.Errorf("%s: readable %v %s", what, got, when)
		}
	}
	is(false, "without an event")
	for _, events := range []int{1, 3} {
		for range events {
			bring()
		}
		t.until(what+" is readable", func() bool {
			r, err := readable(n)
			t.ok(err, "%s: poll", what)
			return r
		})
		is(true, "when asked again")
		got := 0
		t.until(what+": all events", func() bool { // a device may take its time
			for try() {
				got++
			}
			return got >= events
		})
		if got > events {
			t.Errorf("%s: %d events, want %d", what, got, events)
		}
		is(false, "after the last event")
	}
}
