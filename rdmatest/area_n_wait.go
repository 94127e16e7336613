package rdmatest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area N, second part: goroutines that wait.

func compChannelWaits(t *tb) {
	a, b, ch := t.watched()
	waitRules(t, "completion channel",
		func(ctx context.Context) error { _, err := ch.Event(ctx); return err },
		func() (bool, error) { _, ok, err := ch.TryEvent(); return ok, err },
		func() {
			t.arm(a.scq, ib.NotifyAny)
			a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
			a.polled(a.scq) // waiting would take the event
		}, ch.Close)
}

func cmChannelWaits(t *tb) {
	ch := t.channel(t.Provider)
	waitRules(t, "CM channel",
		func(ctx context.Context) error { _, err := ch.Event(ctx); return err },
		func() (bool, error) { _, ok, err := ch.TryEvent(); return ok, err },
		func() {
			id := t.newID(ch, ib.PortSpaceTCP)
			t.ok(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(t.PeerAddr, 7), resolveLimit), "resolve")
			t.grace()
		}, ch.Close)
}

func queueWaits(t *tb) {
	a, b := t.pair()
	waitRules(t, "completion queue",
		func(ctx context.Context) error { _, err := a.scq.Next(ctx); return err },
		func() (bool, error) {
			n, err := a.scq.Poll(make([]verbs.WC, 1))
			return n == 1, err
		},
		func() {
			a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
			t.grace()
		}, a.scq.Close)
}

// waitRules checks what every source has in common. make brings about one event.
func waitRules(t *tb, what string, wait func(context.Context) error, try func() (bool, error), make_ func(), close_ func() error) {
	t.Helper()
	background := func(ctx context.Context) <-chan error {
		c := make(chan error, 1)
		go func() { c <- wait(ctx) }()
		t.pass(2*time.Millisecond, time.Millisecond)
		return c
	}
	ctx, cancel := context.WithCancel(t.limit)
	c := background(ctx)
	cancel()
	t.isErr(<-c, context.Canceled, "%s: cancel while waiting", what)

	start := time.Now()
	ctx, cancel = context.WithTimeout(t.limit, 20*time.Millisecond)
	t.isErr(wait(ctx), context.DeadlineExceeded, "%s: wait until a deadline", what)
	cancel()
	if took := time.Since(start); took < 20*time.Millisecond || t.Virtual && took > 20*time.Millisecond {
		t.Errorf("%s: a deadline of 20 ms took %v", what, took)
	}

	make_()
	past, cancel := context.WithDeadline(t.limit, time.Now().Add(-time.Second))
	defer cancel()
	err := wait(past) // whichever is documented; the event is not lost
	if err != nil {
		t.isErr(err, context.DeadlineExceeded, "%s: wait with a deadline that has passed", what)
		t.ok(wait(t.limit), "%s: the event after a failed wait", what)
	}
	ok, err := try()
	t.ok(err, "%s: look", what)
	if ok {
		t.Errorf("%s: an event was given twice", what)
	}

	c = background(t.limit)
	d := background(t.limit)
	t.ok(close_(), "%s: close while two wait", what)
	t.isErr(<-c, net.ErrClosed, "%s: wait while it is closed", what)
	t.isErr(<-d, net.ErrClosed, "%s: wait while it is closed", what)
	t.ok(close_(), "%s: close again", what)
	t.isErr(wait(t.limit), net.ErrClosed, "%s: wait after Close", what)
	_, err = try()
	t.isErr(err, net.ErrClosed, "%s: look after Close", what)
}

func noThreadPerWaiter(t *tb) {
	n := 300
	if t.Virtual {
		n = 2000
	}
	before := osThreads()
	ctx, stop := context.WithCancel(t.limit)
	defer stop()
	var wg sync.WaitGroup
	for i := range n {
		var wait func(context.Context) error
		end := func() error { return nil }
		switch i % 3 {
		case 0:
			ch, err := t.a.CreateCompChannel()
			t.ok(err, "create a completion channel")
			wait = func(ctx context.Context) error { _, err := ch.Event(ctx); return err }
			end = ch.Close
		case 1:
			ch, err := cm.NewEventChannel(t.Provider)
			t.ok(err, "open an event channel")
			wait = func(ctx context.Context) error { _, err := ch.Event(ctx); return err }
			end = ch.Close
		case 2: // all on one source; what it tells meanwhile is of no interest
			wait = func(ctx context.Context) (err error) {
				for err == nil {
					_, err = t.a.Async().Event(ctx)
				}
				return err
			}
		}
		wg.Go(func() {
			if err := wait(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("wait: %v", err)
			}
			if err := end(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	t.grace()
	if now, most := osThreads(), before+runtime.GOMAXPROCS(0)+32; now > most {
		t.Errorf("%d OS threads for %d waiters, %d before", now, n, before)
	}
	stop()
	wg.Wait()
}

func twoWaiters(t *tb) {
	const n = 100
	a, b, ch := t.watched()
	ctx, stop := context.WithCancel(t.limit)
	defer stop()
	events := make(chan *verbs.CQ)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for cq, err := range ch.Events(ctx) {
				if err != nil {
					if !errors.Is(err, context.Canceled) && !errors.Is(err, net.ErrClosed) {
						t.Errorf("waiter: %v", err)
					}
					return
				}
				events <- cq
			}
		})
	}
	for i := range uint64(n) {
		t.arm(a.scq, ib.NotifyAny)
		a.send(verbs.Write(i, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
		select {
		case cq := <-events:
			if cq != a.scq {
				t.Error("event of another queue")
			}
		case <-t.limit.Done():
			t.Fatalf("both sleep with event %d queued", i)
		}
		a.sent(i, ib.StatusSuccess)
	}
	t.closed(ch, "channel under two waiters")
	wg.Wait()
}

func channelClosedFirst(t *tb) {
	n := len(t.a.Objects())
	ch, err := t.a.CreateCompChannel()
	t.ok(err, "create a channel")
	cq, err := t.a.CreateCQ(4, &verbs.CQConfig{Channel: ch})
	t.ok(err, "create a queue")
	t.closed(ch, "channel with a queue")
	if _, err := t.a.CreateCQ(4, &verbs.CQConfig{Channel: ch}); err == nil {
		t.Error("a queue was made on a closed channel")
	}
	if _, err := cq.Poll(make([]verbs.WC, 1)); err != nil {
		t.Errorf("poll a queue whose channel is closed: %v", err)
	}
	t.closed(cq, "queue")
	if left := t.a.Objects(); len(left) != n {
		t.Errorf("objects left: %v", left)
	}
}

func batchIsNotDropped(t *tb) {
	const n = 24
	a, b := t.pair()
	for i := range uint64(n) {
		a.send(verbs.Write(i, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	}
	t.grace()
	next := uint64(0)
	take := func(wc verbs.WC) {
		t.Helper()
		if wc.ID != next || wc.Status != ib.StatusSuccess {
			t.Fatalf("completion %d with %v, want %d", wc.ID, wc.Status, next)
		}
		next++
	}
	for wc, err := range a.scq.Completions(t.limit) { // leave in the middle
		t.ok(err, "iterate")
		if take(wc); next == 5 {
			break
		}
	}
	func() { // leave by a panic
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		for wc, err := range a.scq.Completions(t.limit) {
			t.ok(err, "iterate")
			if take(wc); next == 9 {
				panic("in the middle of a batch")
			}
		}
	}()
	ctx, cancel := context.WithCancel(t.limit) // be cancelled
	for wc, err := range a.scq.Completions(ctx) {
		if err != nil {
			t.isErr(err, context.Canceled, "iterate after the context ended")
			break
		}
		if take(wc); next == 13 {
			cancel()
		}
	}
	cancel()
	for next < n { // the others are still there
		wc, err := a.scq.Next(t.limit)
		t.ok(err, "wait for completion %d", next)
		take(wc)
	}
	a.empty()
	if next != n {
		t.Errorf("%d of %d", next, n)
	}
}
