package event_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// providers runs a test on all backends, with notifiers of both kinds.
func providers(t *testing.T, f func(t *testing.T, r *rig, b event.Backend)) {
	t.Helper()
	for _, only := range []bool{false, true} {
		kind := "waits"
		if only {
			kind = "descriptors"
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, b event.Backend) {
				f(t, newRig(t, &scripted.Config{Descriptors: only}), b)
			})
		})
	}
}

// TestCQ: completions come in order, those from before the watch too, and each wakes.
func TestCQ(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		n := r.line(nil)
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		n.give(3)
		w, got := n.watch(l)
		until(t, l, "what was there", func() bool { return len(*got) == 3 })
		turn(t, l, 0)
		if !n.scq.Armed() {
			t.Error("not armed while idle")
		}
		for i := range 5 {
			n.give(2)
			until(t, l, "an event", func() bool { return len(*got) == 3+2*(i+1) })
		}
		ids(t, *got, 13)
		_, err := l.CQ(n.cq, func(verbs.WC) {})
		is(t, err, event.ErrWatched, "twice")
		_, err = n.cq.Next(t.Context())
		is(t, err, verbs.ErrOneConsumer, "Next beside the loop")
		other := newLoop(t, event.Config{Backend: b})
		_, err = other.CQ(n.cq, func(verbs.WC) {})
		is(t, err, verbs.ErrOneConsumer, "a second loop")

		// After Close the queue is its owner's again, with what is in it.
		must(t, w.Close())
		n.give(1)
		turn(t, l, 0)
		wc, err := n.cq.Next(t.Context())
		if wc.ID != 13 || err != nil {
			t.Error(wc.ID, err)
		}
		_, err = other.CQ(n.cq, func(verbs.WC) {})
		must(t, err)
	})
}

// TestNoArmWithoutNeed: a queue that is armed stays armed, whatever its neighbours do, and
// only those that have something are polled.
func TestNoArmWithoutNeed(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		ch := get[*verbs.CompChannel](t)(r.dev.CreateCompChannel())
		r.closeLast(ch)
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		idle := make([]*line, 20)
		for i := range idle {
			c := ch
			if i%2 == 0 {
				c = nil
			}
			idle[i] = r.line(c)
			idle[i].watch(l)
		}
		n := r.line(ch)
		_, got := n.watch(l)
		turn(t, l, 0)
		arms, polls := r.p.Count("arm"), r.p.Count("poll")
		const rounds = 50
		for i := range rounds {
			n.give(1)
			until(t, l, "a completion", func() bool { return len(*got) == i+1 })
		}
		turn(t, l, 0)
		if k := r.p.Count("arm") - arms; k > rounds+1 {
			t.Errorf("%d arms for %d completions", k, rounds)
		}
		// For each: the completion, none more, and the look after arming.
		if k := r.p.Count("poll") - polls; k > 4*rounds {
			t.Errorf("%d polls for %d completions", k, rounds)
		}
		for _, n := range idle {
			if !n.scq.Armed() {
				t.Error("an idle queue is not armed")
			}
		}
	})
}

// TestSharedChannels: several queues on a channel, several channels, several loops.
func TestSharedChannels(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		const channels, queues, rounds = 3, 4, 30
		var loops [2]*event.Loop
		for i := range loops {
			loops[i] = newLoop(t, event.Config{Backend: b, Recheck: -1})
		}
		type user struct {
			n   *line
			got *[]uint64
			w   *event.Watch
		}
		var all []user
		for c := range channels {
			ch := get[*verbs.CompChannel](t)(r.dev.CreateCompChannel())
			r.closeLast(ch)
			for range queues {
				n := r.line(ch)
				w, got := n.watch(loops[c%2])
				all = append(all, user{n, got, w})
			}
		}
		for i := range rounds {
			for j, u := range all {
				if (i+j)%3 != 0 {
					u.n.give(1)
				}
			}
			for _, l := range loops {
				for k := 1; k > 0; {
					var err error
					k, err = l.Turn(0)
					must(t, err)
				}
			}
			for j, u := range all {
				ids(t, *u.got, int(u.n.next))
				if t.Failed() {
					t.Fatalf("round %d, queue %d", i, j)
				}
			}
		}
		// The channel is given back with its last watch.
		for i, u := range all {
			must(t, u.w.Close())
			if _, err := u.n.cq.Arm(ib.NotifyAny); (err == nil) != (i%queues == queues-1) {
				t.Errorf("Arm after Close of %d: %v", i, err)
			}
		}
	})
}

// TestC248_Budget: a source that always has something does not starve others, and what is left
// over is served without a sleep.
func TestC248_Budget(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		r := newRig(t, nil)
		busy, quiet := r.line(nil), r.line(nil)
		l := newLoop(t, event.Config{Backend: b, Batch: 8, Recheck: -1})
		order := &recorder{}
		get[*event.Watch](t)(l.CQ(busy.cq, func(verbs.WC) {
			order.add("busy")
			busy.give(1)
		}))
		fd := eventfd(t)
		signal(t, fd)
		get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { order.add("file") }))
		get[*event.Watch](t)(l.CQ(quiet.cq, func(verbs.WC) { order.add("quiet") }))
		busy.give(1)
		for range 5 {
			quiet.give(1)
			order.log = nil
			n, err := l.Turn(-1)
			must(t, err)
			if n != 10 || order.log[0] == "" {
				t.Errorf("%d calls in a turn: %v", n, order.log)
			}
			for _, s := range []string{"file", "quiet"} {
				if k := count(order.log, s); k != 1 {
					t.Errorf("%s was called %d times: %v", s, k, order.log)
				}
			}
		}
		if s := l.Stats(); s.Sleeps != 0 {
			t.Errorf("slept %d times with work to do", s.Sleeps)
		}
	})
}

func count(list []string, s string) (n int) {
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}

// TestC256_PanicInBatch: a handler that panics loses no completion: the next turn goes on
// with the next one, in Turn and in Run.
func TestC256_PanicInBatch(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		n := r.line(nil)
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		var got []uint64
		get[*event.Watch](t)(l.CQ(n.cq, func(wc verbs.WC) {
			got = append(got, wc.ID)
			if wc.ID%5 == 2 {
				panic(wc.ID)
			}
			if wc.ID == 63 {
				l.Stop()
			}
		}))
		n.give(64)
		panics := 0
		for len(got) < 64 {
			p := call(func() {
				if panics%2 == 0 {
					_, err := l.Turn(time.Hour)
					must(t, err)
					return
				}
				must(t, l.Run(t.Context()))
			})
			if p != nil {
				panics++
			}
		}
		ids(t, got, 64)
		if panics != 13 {
			t.Errorf("%d panics", panics)
		}
		n.give(1)
		for len(got) < 65 {
			if _, err := l.Turn(time.Hour); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestC256_CloseInBatch: a watch that is closed in the middle of a batch leaves the rest in the
// queue.
func TestC256_CloseInBatch(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		n := r.line(nil)
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		var got []uint64
		var w *event.Watch
		w = get[*event.Watch](t)(l.CQ(n.cq, func(wc verbs.WC) {
			if got = append(got, wc.ID); len(got) == 10 {
				must(t, w.Close())
			}
		}))
		n.give(64)
		turn(t, l, 10)
		turn(t, l, 0)
		// A new watch gives them.
		get[*event.Watch](t)(l.CQ(n.cq, func(wc verbs.WC) { got = append(got, wc.ID) }))
		turn(t, l, 54)
		ids(t, got, 64)
	})
}

// TestClosedQueuePair: of a queue pair that a handler closes, nothing is delivered
// afterwards.
func TestClosedQueuePair(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		n := r.line(nil)
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		calls := 0
		get[*event.Watch](t)(l.CQ(n.cq, func(wc verbs.WC) {
			calls++
			must(t, wc.QP.Close())
		}))
		n.give(20)
		turn(t, l, 1)
		turn(t, l, 0)
		n.pair()
		n.give(1)
		until(t, l, "a completion of another queue pair", func() bool { return calls == 2 })
	})
}

// TestCloseUnderLoop: a queue, or a channel, that its owner closes ends the watch with
// net.ErrClosed: in a handler, while the loop sleeps, and with completions left.
func TestCloseUnderLoop(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		var wg sync.WaitGroup
		t.Cleanup(wg.Wait)
		own := func(n *line) (*event.Watch, chan error) {
			failed := make(chan error, 1)
			w, _ := n.watch(l)
			w.OnError(func(err error) { failed <- err })
			return w, failed
		}
		closed := func(failed chan error, what string) {
			t.Helper()
			until(t, l, what, func() bool { return len(failed) > 0 })
			is(t, <-failed, net.ErrClosed, what)
		}
		n := r.line(nil)
		_, failed := own(n)
		n.give(3)
		must(t, n.cq.Close())
		closed(failed, "queue with completions")

		n = r.line(nil)
		_, failed = own(n)
		l.Do(func() { must(t, n.cq.Close()) })
		closed(failed, "queue in a handler")

		n = r.line(nil)
		_, failed = own(n)
		turn(t, l, 0)
		wg.Go(func() { n.cq.Close() })
		closed(failed, "queue of a loop that sleeps")

		// A shared channel: each of its queues has what is left in it first.
		ch := get[*verbs.CompChannel](t)(r.dev.CreateCompChannel())
		a, c := r.line(ch), r.line(ch)
		var got []uint64
		wa := get[*event.Watch](t)(l.CQ(a.cq, func(wc verbs.WC) { got = append(got, wc.ID) }))
		failed = make(chan error, 2)
		wa.OnError(func(err error) { failed <- err })
		wc, _ := c.watch(l)
		wc.OnError(func(err error) { failed <- err })
		turn(t, l, 0)
		a.give(3)
		wg.Go(func() { ch.Close() })
		until(t, l, "the channel", func() bool { return len(failed) == 2 })
		is(t, <-failed, net.ErrClosed, "channel")
		is(t, <-failed, net.ErrClosed, "channel")
		ids(t, got, 3)

		// Without OnError the turn gives it, and the loop goes on.
		n = r.line(nil)
		n.watch(l)
		turn(t, l, 0)
		must(t, n.cq.Close())
		_, err := l.Turn(time.Hour)
		is(t, err, net.ErrClosed, "turn")
		var oe *event.OpError
		if !errors.As(err, &oe) || oe.Source == "" {
			t.Errorf("%v names no source", err)
		}
		turn(t, l, 0)
	})
}

// TestDeviceRemoved: the queue gives what it has, and then the error; once.
func TestDeviceRemoved(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		n, m := r.line(nil), r.line(nil)
		var got []uint64
		gone := 0
		for _, n := range []*line{n, m} {
			w := get[*event.Watch](t)(l.CQ(n.cq, func(wc verbs.WC) {
				if wc.Status == ib.StatusSuccess {
					got = append(got, wc.ID)
				}
			}))
			w.OnError(func(err error) {
				is(t, err, verbs.ErrDeviceGone, "OnError of a queue")
				gone++
			})
		}
		w := get[*event.Watch](t)(l.Async(r.dev.Async(), func(ev verbs.AsyncEvent) {
			if ev.Type != ib.EventDeviceFatal {
				t.Errorf("event %v", ev.Type)
			}
		}))
		w.OnError(func(err error) {
			is(t, err, verbs.ErrDeviceGone, "OnError of events")
			gone++
		})
		turn(t, l, 0)
		n.give(3)
		r.p.Device("").Remove()
		until(t, l, "the end of the device", func() bool { return gone == 3 })
		ids(t, got, 3)
		turn(t, l, 0)
	})
}

// TestOverrun: a queue that broke fails its watch after what it had.
func TestOverrun(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		n := r.line(nil)
		w, got := n.watch(l)
		var failed error
		w.OnError(func(err error) { failed = err })
		turn(t, l, 0)
		n.give(2)
		n.scq.Overrun()
		until(t, l, "the overrun", func() bool { return failed != nil })
		if len(*got) < 2 {
			t.Errorf("%d completions", len(*got))
		}
	})
}

// TestC244_C243_Hints: channels that are readable for nothing, events of empty and of closed
// queues, and events that come twice: no call, no error, no busy loop.
func TestC244_C243_Hints(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Recheck: -1})
		ch := get[*verbs.CompChannel](t)(r.dev.CreateCompChannel())
		r.closeLast(ch)
		sch := r.ctx.Channel(-1)
		n, dead := r.line(ch), r.line(ch)
		_, got := n.watch(l)
		w, _ := dead.watch(l)
		turn(t, l, 0)
		sch.Glitch()
		turn(t, l, 0)
		sch.Post(n.scq.Handle())
		sch.Post(n.scq.Handle())
		turn(t, l, 0)
		sch.Post(0xDEAD)
		turn(t, l, 0)
		// Polled by somebody else, after the event.
		n.give(1)
		var dst [1]verbs.WC
		if k, err := n.cq.Poll(dst[:]); k != 1 || err != nil {
			t.Error(k, err)
		}
		turn(t, l, 0)
		// Events before and after the end of a watch, and of a queue.
		dead.give(1)
		must(t, w.Close())
		turn(t, l, 0)
		h := dead.scq.Handle()
		must(t, dead.qp.Close())
		must(t, dead.cq.Close())
		sch.Post(h)
		turn(t, l, 0)
		n.give(1)
		until(t, l, "a completion", func() bool { return len(*got) == 1 })
		before := l.Stats().Sleeps
		if k, err := l.Turn(5 * time.Millisecond); k != 0 || err != nil {
			t.Error(k, err)
		}
		if s := l.Stats().Sleeps - before; s > 2 {
			t.Errorf("%d sleeps in one turn", s)
		}
	})
}

// TestC260_LostEvent: the re-check finds completions whose event was lost, counts that, and
// the queue wakes again afterwards.
func TestC260_LostEvent(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Recheck: time.Millisecond})
		n := r.line(nil)
		_, got := n.watch(l)
		// A provider that waits in Go loses nothing; so it is looked at only while
		// completions must come.
		send := func() { must(t, n.qp.PostSend(verbs.Send(99, r.mr.SGE(0, 8), 0))) }
		for i := range 3 {
			send()
			turn(t, l, 0)
			n.scq.Swallow(1)
			n.give(2)
			until(t, l, "a lost event", func() bool { return len(*got) == 2*(i+1) && l.Stats().Rescued == uint64(i+1) })
			turn(t, l, 0)
			if !n.scq.Armed() {
				t.Error("not armed after a rescue")
			}
			n.sqp.CompleteSend(1, ib.StatusSuccess)
		}
		if k := n.cq.Stats().Rescued; k != 3 {
			t.Errorf("the queue counts %d", k)
		}
		ids(t, *got, 6)
	})
}

// TestRecheckIsQuiet: the re-check rescues nothing where nothing was lost, and leaves queues
// alone that wait for their peers and cannot lose an event.
func TestRecheckIsQuiet(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Recheck: time.Millisecond})
		n := r.line(nil)
		_, got := n.watch(l)
		for i := range 20 {
			n.give(1)
			until(t, l, "a completion", func() bool { return len(*got) == i+1 })
			if i%4 == 0 {
				_, err := l.Turn(3 * time.Millisecond)
				must(t, err)
			}
		}
		if s := l.Stats(); s.Rescued != 0 {
			t.Errorf("rescued: %+v", s)
		}
		// Silence: at most one look for each doubling of the time, and none any more if the
		// provider is lossless.
		polls := -1
		for tries := 0; polls != r.p.Count("poll") && tries < 100; tries++ { // what is due is done
			polls = r.p.Count("poll")
			_, err := l.Turn(5 * time.Millisecond)
			must(t, err)
		}
		_, err := l.Turn(40 * time.Millisecond)
		must(t, err)
		most := 2 * 10
		if strings.Contains(t.Name(), "/waits/") {
			most = 0
		}
		if k := r.p.Count("poll") - polls; k > most {
			t.Errorf("%d polls in silence", k)
		}
	})
}

// TestAsync: asynchronous events are delivered, an unknown one too, and glitches are not.
func TestAsync(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Batch: 2})
		var got []ib.EventType
		w := get[*event.Watch](t)(l.Async(r.dev.Async(), func(ev verbs.AsyncEvent) { got = append(got, ev.Type) }))
		turn(t, l, 0)
		r.ctx.AsyncQueue().Glitch()
		turn(t, l, 0)
		want := []ib.EventType{ib.EventPortErr, ib.EventPortActive, 250, ib.EventSMChange, ib.EventGIDChange}
		for _, typ := range want {
			r.ctx.PostAsync(driver.AsyncEvent{Type: typ, Port: 1})
		}
		turn(t, l, 2)
		turn(t, l, 2)
		turn(t, l, 1)
		turn(t, l, 0)
		if !slices.Equal(got, want) {
			t.Error(got)
		}
		_, err := l.Async(r.dev.Async(), func(verbs.AsyncEvent) {})
		is(t, err, event.ErrWatched, "twice")
		must(t, w.Close())
		r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventPortErr, Port: 1})
		turn(t, l, 0)
		if _, ok, err := r.dev.Async().TryEvent(); !ok || err != nil {
			t.Error(ok, err)
		}
	})
}

// TestAsyncClosed: the events of a device that is closed end their watch.
func TestAsyncClosed(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		w := get[*event.Watch](t)(l.Async(r.dev.Async(), func(verbs.AsyncEvent) {}))
		var failed error
		w.OnError(func(err error) { failed = err })
		turn(t, l, 0)
		for i := len(r.last) - 1; i >= 0; i-- {
			must(t, r.last[i].Close())
		}
		r.last = nil
		must(t, r.dev.Close())
		until(t, l, "the end", func() bool { return failed != nil })
		is(t, failed, net.ErrClosed, "OnError")
	})
}
