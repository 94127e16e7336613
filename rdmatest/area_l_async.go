package rdmatest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area L: asynchronous events.
func areaAsync() []check {
	return []check{
		{"C-183_GIDChange", Changes, gidChange},
		{"C-184_PortEvents", Changes, portEvents},
		{"C-185_AccessError", 0, accessErrorEvent},
		{"C-185_RequestError", 0, requestErrorEvent},
		{"C-185_Established", 0, establishedEvent},
		{"C-186_CQError", 0, cqError},
		{"C-187_BurstIsDelivered", Changes, burstIsDelivered},
		{"C-187_TwoReaders", Changes, twoReaders},
		{"C-187_CloseWakesReader", 0, closeWakesReader},
		{"C-188_CloseQueuePair", 0, closeQueuePairFromHandler},
		{"C-188_CloseCQ", 0, closeCQFromHandler},
		{"C-188_CloseSRQ", 0, closeSRQFromHandler},
		{"C-191_DeviceRemoval", Changes, deviceRemoval},
	}
}

func gidChange(t *tb) {
	p := t.Provider.(changeable)
	t.drainAsync(t.a)
	extra := netip.MustParseAddr("10.0.0.55")
	for _, addrs := range [][]netip.Addr{{t.Addr, extra}, {t.Addr}} {
		t.ok(p.SetAddrs(addrs), "set the addresses")
		ev := t.asyncEvent(t.a)
		if ev.Type != ib.EventGIDChange || ev.Port != 1 {
			t.Errorf("%v of port %d", ev.Type, ev.Port)
		}
		gids, err := t.a.GIDs()
		t.ok(err, "read the table")
		if len(gids) != len(addrs) { // new already when the event is read
			t.Errorf("%d GIDs for %d addresses", len(gids), len(addrs))
		}
		t.noAsync(t.a)
	}
}

func portEvents(t *tb) {
	p := t.Provider.(changeable)
	t.drainAsync(t.a)
	t.ok(p.SetLink(false), "link down")
	if ev := t.asyncEvent(t.a); ev.Type != ib.EventPortErr || ev.Port != 1 {
		t.Errorf("%v of port %d", ev.Type, ev.Port)
	}
	t.ok(p.SetLink(true), "link up")
	if ev := t.asyncEvent(t.a); ev.Type != ib.EventPortActive || ev.Port != 1 {
		t.Errorf("%v of port %d", ev.Type, ev.Port)
	}
	t.noAsync(t.a)
}

// wantQPEvent waits for the event of a queue pair, and lets others of it pass.
func (t *tb) wantQPEvent(d *verbs.Device, qp *verbs.QP, want ib.EventType) {
	t.Helper()
	for {
		ev := t.asyncEvent(d)
		if ev.QP == qp && ev.Type == want {
			return
		}
		if ev.QP != nil && ev.QP != qp {
			t.Errorf("event %v of another queue pair", ev.Type)
		}
	}
}

// The responder hears what a peer did to its queue pair.
func accessErrorEvent(t *tb) {
	t.drainAsync(t.b)
	a, b := t.pair()
	a.badWrite(b)
	t.differs(func() { t.wantQPEvent(t.b, b.qp, ib.EventQPAccessErr) })
	b.state(ib.StateError)
	t.drainAsync(t.b)
}

// badWrite writes with a key that is none, which fails both queue pairs.
func (e *end) badWrite(to *end) {
	e.Helper()
	bad := remoteOf(to.mr, 0, 8)
	bad.RKey ^= 1
	e.send(verbs.Write(1, bad, e.sge(0, 8), ib.Signaled))
	e.sent(1, ib.StatusRemAccess)
}

func requestErrorEvent(t *tb) {
	t.drainAsync(t.b)
	a, b := t.pair(func(l *link) { l.b.Access = 0 })
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusRemInvReq)
	t.differs(func() { t.wantQPEvent(t.b, b.qp, ib.EventQPReqErr) })
	b.state(ib.StateError)
	t.drainAsync(t.b)
}

// The first packet that comes in RTR says that the peer is there.
func establishedEvent(t *tb) {
	t.drainAsync(t.b)
	a, b := t.pair(func(l *link) { l.upTo = ib.StateRTR })
	b.recv(1, 0, 8)
	a.send(verbs.Send(2, a.sge(0, 8), ib.Signaled))
	a.sent(2, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
	t.differs(func() { t.wantQPEvent(t.b, b.qp, ib.EventCommEst) })
	b.rts()
	t.drainAsync(t.b)
}

// overflow posts more than the queue of sends has room for.
func (e *end) overflow(to *end) {
	e.Helper()
	for i := range e.scq.Cap() + 8 {
		if e.qp.PostSend(verbs.Write(uint64(i), to.mr.Remote(0, 8), e.sge(0, 8), ib.Signaled)) != nil {
			return // the queue pair has failed already
		}
	}
}

// overrunning is a link whose queues are too small.
func overrunning(l *link) { l.cqs, l.cfg.AllowOverrun, l.cfg.MaxSendWR = 4, true, 64 }

// wantCQErr waits for the event of a queue, and lets others pass.
func (t *tb) wantCQErr(d *verbs.Device, cq *verbs.CQ) {
	t.Helper()
	for {
		ev := t.asyncEvent(d)
		if ev.Type == ib.EventCQErr {
			if ev.CQ != cq {
				t.Error("the event names another queue")
			}
			return
		}
	}
}

func cqError(t *tb) {
	t.drainAsync(t.a)
	a, b := t.pair(overrunning)
	a.overflow(b)
	t.wantCQErr(t.a, a.scq)
	t.pass(500*time.Millisecond, virtualGrace)
	more := 0
	for {
		ev, ok, err := t.a.Async().TryEvent()
		t.ok(err, "look for another event")
		if !ok {
			break
		}
		if ev.Type != ib.EventCQErr {
			continue
		}
		if more++; ev.CQ != a.scq {
			t.Error("the event names another queue")
		}
	}
	t.differs(func() { // at least one; more help nobody
		if more > 0 {
			t.Errorf("%d CQ_ERR for one overrun", 1+more)
		}
	})
}

func burstIsDelivered(t *tb) {
	p := t.Provider.(changeable)
	t.drainAsync(t.a)
	extra := netip.MustParseAddr("10.0.0.56")
	const n = 200
	for i := range n {
		addrs := []netip.Addr{t.Addr}
		if i%2 == 0 {
			addrs = append(addrs, extra)
		}
		t.ok(p.SetAddrs(addrs), "set the addresses")
	}
	for i := range n {
		ev, ok, err := t.a.Async().TryEvent()
		t.ok(err, "fetch")
		if !ok || ev.Type != ib.EventGIDChange {
			t.Fatalf("event %d of %d: %v, %v", i, n, ok, ev.Type)
		}
	}
	t.noAsync(t.a)
}

func twoReaders(t *tb) {
	p := t.Provider.(changeable)
	t.drainAsync(t.a)
	const n = 60
	ctx, stop := context.WithCancel(t.limit)
	defer stop()
	var mu sync.Mutex
	got := 0
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for _, err := range t.a.Async().Events(ctx) {
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("reader: %v", err)
					}
					return
				}
				mu.Lock()
				if got++; got == n {
					stop()
				}
				mu.Unlock()
			}
		})
	}
	extra := netip.MustParseAddr("10.0.0.57")
	for i := range n {
		addrs := []netip.Addr{t.Addr}
		if i%2 == 0 {
			addrs = append(addrs, extra)
		}
		t.ok(p.SetAddrs(addrs), "set the addresses")
	}
	wg.Wait()
	if got != n {
		t.Errorf("%d events of %d", got, n)
	}
	t.noAsync(t.a)
}

func closeWakesReader(t *tb) {
	d, err := t.a.Info().OpenPrivate()
	t.ok(err, "open privately")
	woken := make(chan error, 1)
	go func() {
		_, err := d.Async().Event(t.limit)
		woken <- err
	}()
	t.pass(2*time.Millisecond, time.Millisecond)
	t.closed(d, "device")
	t.isErr(<-woken, net.ErrClosed, "wait on a device that is closed")
	_, _, err = d.Async().TryEvent()
	t.isErr(err, net.ErrClosed, "fetch from a closed device")
	_, err = d.AllocPD()
	t.isErr(err, net.ErrClosed, "allocate on a closed device")
}

// drain stops the sends of a queue pair, for which it has an event.
func (e *end) drain() {
	e.Helper()
	a := e.attr
	a.State = ib.StateSQD
	err := e.qp.Modify(&a, ib.AttrState)
	if errors.Is(err, errors.ErrUnsupported) {
		e.Skipf("%s: %v", e.dev.Info().Name, err)
	}
	e.ok(err, "%s: modify to SQD", e.name)
}

// An event is acknowledged before it is seen: no Close waits for its reader. The tests close
// in the handler, behind the event, and before it is read: then it names no object.
func closeQueuePairFromHandler(t *tb) {
	t.drainAsync(t.b)
	_, b := t.pair()
	b.drain()
	t.closesInHandler(func(ev verbs.AsyncEvent) bool { return ev.QP == b.qp && ev.Type == ib.EventSQDrained },
		func(ev verbs.AsyncEvent) error { return errors.Join(ev.QP.Close(), b.rcq.Close(), b.scq.Close()) })
	_, b = t.pair()
	b.drain()
	t.drained(t.b, b.qp)
	t.closed(b.qp, "queue pair behind its event")
	_, b = t.pair()
	b.drain()
	t.grace()
	t.closed(b.qp, "queue pair before its event")
	t.unnamed(t.b, func(ev verbs.AsyncEvent) bool { return ev.QP == b.qp })
}

func closeCQFromHandler(t *tb) {
	t.drainAsync(t.b)
	over := func() (a, b *end) {
		a, b = t.pair(overrunning)
		b.overflow(a)
		return a, b
	}
	_, b := over()
	t.closesInHandler(func(ev verbs.AsyncEvent) bool { return ev.CQ == b.scq && ev.Type == ib.EventCQErr },
		func(ev verbs.AsyncEvent) error { return errors.Join(b.qp.Close(), ev.CQ.Close()) })
	t.grace()
	t.drainAsync(t.b)
	_, b = over()
	t.wantCQErr(t.b, b.scq)
	t.closed(b.qp, "queue pair")
	t.closed(b.scq, "queue behind its event")
	t.grace()
	t.drainAsync(t.b)
	_, b = over()
	t.grace()
	t.closed(b.qp, "queue pair")
	t.closed(b.scq, "queue before its event")
	t.unnamed(t.b, func(ev verbs.AsyncEvent) bool { return ev.CQ == b.scq })
}

func closeSRQFromHandler(t *tb) {
	t.supports(verbs.FeatureSRQ)
	t.drainAsync(t.b)
	limited := func() (a, b *end) {
		a, b = t.shared(4)
		b.share(1, 0, 64)
		b.share(2, 64, 64)
		t.ok(b.srq.SetLimit(2), "set the limit")
		a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
		a.sent(1, ib.StatusSuccess)
		b.got(1, ib.StatusSuccess)
		return a, b
	}
	_, b := limited()
	t.closesInHandler(func(ev verbs.AsyncEvent) bool { return ev.SRQ == b.srq && ev.Type == ib.EventSRQLimitReached },
		func(ev verbs.AsyncEvent) error { return errors.Join(b.qp.Close(), ev.SRQ.Close()) })
	_, b = limited()
	if ev := t.asyncEvent(t.b); ev.SRQ != b.srq || ev.Type != ib.EventSRQLimitReached {
		t.Errorf("event %+v", ev)
	}
	t.closed(b.qp, "queue pair")
	t.closed(b.srq, "shared queue behind its event")
	_, b = limited()
	t.grace()
	t.closed(b.qp, "queue pair")
	t.closed(b.srq, "shared queue before its event")
	t.unnamed(t.b, func(ev verbs.AsyncEvent) bool { return ev.SRQ == b.srq })
}

// closesInHandler waits for an event, with an observer that closes what it names.
func (t *tb) closesInHandler(is func(verbs.AsyncEvent) bool, shut func(verbs.AsyncEvent) error) {
	t.Helper()
	closed := make(chan error, 1)
	done := false
	cancel := t.b.Async().Observe(func(ev verbs.AsyncEvent) {
		if !done && is(ev) {
			done = true
			closed <- shut(ev)
		}
	})
	defer cancel()
	for len(closed) == 0 {
		t.asyncEvent(t.b)
	}
	t.ok(<-closed, "close in the handler")
}

// unnamed reads the events that are there: none may be of an object that is closed.
func (t *tb) unnamed(d *verbs.Device, closed func(verbs.AsyncEvent) bool) {
	t.Helper()
	for {
		ev, ok, err := d.Async().TryEvent()
		t.ok(err, "fetch")
		if !ok {
			return
		}
		if closed(ev) {
			t.Errorf("event %v of a closed object", ev.Type)
		}
	}
}

func deviceRemoval(t *tb) {
	a, b := t.pair()
	for i := range uint64(3) {
		a.recv(i, 0, 8)
	}
	heal := t.Fabric.Cut(netip.Addr{}, netip.Addr{})
	a.send(verbs.Write(10, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	heal()
	async, waiter := make(chan error, 1), make(chan error, 1)
	idle := t.cq(t.a, 4, nil)
	sawFatal := false
	go func() {
		for ev, err := range t.a.Async().Events(t.limit) {
			if err != nil {
				async <- err
				return
			}
			sawFatal = sawFatal || ev.Type == ib.EventDeviceFatal
		}
	}()
	go func() {
		_, err := idle.Next(t.limit)
		waiter <- err
	}()
	time.Sleep(time.Millisecond)
	t.Provider.(changeable).RemoveDevice()
	t.isErr(<-async, verbs.ErrDeviceGone, "the reader of events")
	if !sawFatal {
		t.Error("no DEVICE_FATAL")
	}
	t.isErr(<-waiter, verbs.ErrDeviceGone, "who waits for a completion")
	// Posted work is completed, by the device or by the library.
	seen := map[uint64]bool{}
	for len(seen) < 4 {
		done := false
		for _, cq := range []*verbs.CQ{a.scq, a.rcq} {
			var wcs [8]verbs.WC
			n, err := cq.Poll(wcs[:])
			if err != nil && n == 0 {
				done = true
			}
			for _, wc := range wcs[:n] {
				if wc.Status == ib.StatusSuccess && wc.ID != 10 || seen[wc.ID] {
					t.Errorf("completion %d with %v", wc.ID, wc.Status)
				}
				seen[wc.ID] = true
			}
		}
		if done {
			break
		}
		t.pause()
	}
	if len(seen) != 4 {
		t.Errorf("%d of 4 requests were completed", len(seen))
	}
	if err := a.qp.PostSend(verbs.Write(11, b.mr.Remote(0, 8), a.sge(0, 8), 0)); err == nil {
		a.sent(11, ib.StatusWRFlush)
	}
	if !errors.Is(a.qp.Err(), verbs.ErrDeviceGone) {
		t.Errorf("cause %v, want %v", a.qp.Err(), verbs.ErrDeviceGone)
	}
	_, err := t.a.AllocPD()
	t.isErr(err, verbs.ErrDeviceGone, "allocate on a device that is gone")
	_, err = t.a.Port(1)
	t.isErr(err, verbs.ErrDeviceGone, "query a device that is gone")
	t.closed(a.qp, "queue pair of a device that is gone")
	t.closed(a.mr, "region of a device that is gone")
	t.closed(a.scq, "queue of a device that is gone")
	list, err := verbs.Devices(t.Provider)
	t.ok(err, "list devices")
	if len(list) != 0 {
		t.Errorf("%d devices are listed after the removal", len(list))
	}
}
