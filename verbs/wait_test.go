package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// bubble runs a test in virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// quiet checks that a channel has no event.
func (r *rig) quiet(ch *verbs.CompChannel, what string) {
	r.Helper()
	if cq, ok, err := ch.TryEvent(); ok || err != nil {
		r.Errorf("%s: event of %p, %v", what, cq, err)
	}
}

// fires checks that a channel has an event of a CQ.
func (r *rig) fires(ch *verbs.CompChannel, cq *verbs.CQ, what string) {
	r.Helper()
	if got, ok, err := ch.TryEvent(); !ok || err != nil || got != cq {
		r.Errorf("%s: event %v of %p, %v; want one of %p", what, ok, got, err, cq)
	}
}

func TestC236_StrictArming(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	ch, err := cq.Channel()
	r.ok(err)
	for i := range 4 {
		r.recv(qp, uint64(i))
	}
	sqp.CompleteRecv(1, scripted.Received(8), false)
	ready, err := cq.Arm(ib.NotifyAny)
	if !ready || err != nil {
		t.Errorf("Arm on a queue that has something: %v, %v", ready, err)
	}
	r.quiet(ch, "old completion")
	sqp.CompleteRecv(1, scripted.Received(8), false)
	r.fires(ch, cq, "new completion")
	sqp.CompleteRecv(1, scripted.Received(8), false)
	r.quiet(ch, "not armed again")
	r.want(r.poll(cq), wcs{{0, success}, {1, success}, {2, success}})
	ready, err = cq.Arm(ib.NotifyAny)
	if ready || err != nil {
		t.Errorf("Arm on an empty queue: %v, %v", ready, err)
	}
	// C-243: the completion is polled before the event is seen.
	sqp.CompleteRecv(1, scripted.Received(8), false)
	r.want(r.poll(cq), wcs{{3, success}})
	r.fires(ch, cq, "event of what was polled already")
	r.quiet(ch, "one event per arm")
}

func TestC238_Solicited(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	ch, err := cq.Channel()
	r.ok(err)
	for i := range 8 {
		r.recv(qp, uint64(i))
	}
	arm := func(n ib.Notify) {
		t.Helper()
		r.poll(cq)
		if ready, err := cq.Arm(n); ready || err != nil {
			t.Fatal(ready, err)
		}
	}
	arm(ib.NotifySolicited)
	sqp.CompleteRecv(1, scripted.Received(8), false)
	r.quiet(ch, "unsolicited")
	sqp.CompleteRecv(1, scripted.Received(8), true)
	r.fires(ch, cq, "solicited")
	arm(ib.NotifySolicited)
	r.send(qp, 9, ib.Signaled|ib.Solicited)
	sqp.CompleteSend(1, success)
	r.quiet(ch, "a send")
	// Armed for any, a solicited arm takes nothing away; after the event it does.
	arm(ib.NotifyAny)
	arm(ib.NotifySolicited)
	sqp.CompleteRecv(1, scripted.Received(8), false)
	r.fires(ch, cq, "armed for any")
	arm(ib.NotifySolicited)
	sqp.CompleteRecv(1, scripted.Received(8), false)
	r.quiet(ch, "armed for solicited again")
	// A wait needs any.
	r.poll(cq)
	done := make(chan error)
	go func() {
		_, err := cq.Next(bg)
		done <- err
	}()
	for cq.Stats().Sleeps == 0 {
		time.Sleep(time.Millisecond)
	}
	sqp.CompleteRecv(1, scripted.Received(8), false)
	r.ok(<-done)
	r.poll(cq)
	arm(ib.NotifySolicited)
	sqp.CompleteSend(1, success)
	r.send(qp, 10, 0)
	sqp.CompleteSend(1, ib.StatusRetryExc)
	for {
		if got, ok, err := ch.TryEvent(); err != nil || ok && got == cq {
			r.ok(err)
			return
		} else if !ok {
			t.Fatal("a failure fires no event")
		}
	}
}

// TestC239_ArmPollSleep puts completions between all steps of the wait, in the strict
// model: a wait that forgets to look after it has armed sleeps for ever, which the bubble
// sees, or for a second, which the counter does.
func TestC239_ArmPollSleep(t *testing.T) {
	t.Parallel()
	for _, fd := range []bool{false, true} {
		t.Run(fmt.Sprint("descriptor ", fd), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &scripted.Config{Descriptors: fd})
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			qa, sa, ca, _ := r.ready(verbs.QPConfig{MaxRecvWR: 4})
			qb, sb, cb, _ := r.ready(verbs.QPConfig{MaxRecvWR: 4})
			const rounds = 20000
			play := func(qp *verbs.QP, cq *verbs.CQ, peer *scripted.QP, seed uint64) error {
				rnd := rand.New(rand.NewPCG(seed, 2))
				var dst [4]verbs.WC
				for got := 0; got < rounds; {
					n, err := cq.Wait(bg, dst[:1+rnd.IntN(4)])
					if err != nil {
						return err
					}
					for range n {
						if err := qp.PostRecv(verbs.Recv(1, r.mr.SGE(0, 8))); err != nil {
							return err
						}
						for range rnd.IntN(200) { // some time passes
						}
						peer.CompleteRecv(1, scripted.Received(8), rnd.IntN(2) == 0)
						got++
					}
				}
				return nil
			}
			for range 4 {
				r.recv(qa, 1)
				r.recv(qb, 1)
			}
			done := make(chan error)
			go func() { done <- play(qb, cb, sa, seed) }()
			sb.CompleteRecv(1, scripted.Received(8), false)
			sb.CompleteRecv(1, scripted.Received(8), false)
			r.ok(play(qa, ca, sb, seed+1))
			r.ok(<-done)
			for _, cq := range []*verbs.CQ{ca, cb} {
				if s := cq.Stats(); s.Rescued != 0 || s.Sleeps == 0 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

func TestC240_FirstArm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		qp, sqp, cq, scq := r.ready(verbs.QPConfig{})
		r.recv(qp, 1)
		r.recv(qp, 2)
		sqp.CompleteRecv(1, scripted.Received(8), false)
		wc, err := cq.Next(bg)
		if err != nil || wc.ID != 1 {
			t.Errorf("%+v, %v", wc, err)
		}
		if scq.Armed() {
			t.Error("armed although there was a completion")
		}
		go func() {
			synctest.Wait()
			sqp.CompleteRecv(1, scripted.Received(8), false)
		}()
		if wc, err := cq.Next(bg); err != nil || wc.ID != 2 {
			t.Errorf("%+v, %v", wc, err)
		}
		if s := cq.Stats(); s.Sleeps != 1 || s.Wakeups != 1 || s.Empty != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestC241_TwoQueuesOneChannel: waits on queues of one channel; one sleeps for all.
func TestC241_TwoQueuesOneChannel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ch, _ := r.channel()
		const queues = 8
		var qps []*verbs.QP
		var sqps []*scripted.QP
		got := make(chan uint64)
		ctx, stop := context.WithCancel(bg)
		var wg sync.WaitGroup
		for i := range queues {
			cq, _ := r.cq(8, &verbs.CQConfig{Channel: ch})
			if c, err := cq.Channel(); c != ch || err != nil {
				t.Fatal("another channel", err)
			}
			qp, sqp := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
			r.rts(qp)
			for range 4 {
				r.recv(qp, uint64(i))
			}
			qps, sqps = append(qps, qp), append(sqps, sqp)
			wg.Go(func() {
				for wc, err := range cq.Completions(ctx) {
					if err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
						return
					}
					got <- wc.ID
				}
			})
		}
		synctest.Wait()
		for round := range 50 {
			i := round * 5 % queues
			sqps[i].CompleteRecv(1, scripted.Received(8), false)
			if id := <-got; id != uint64(i) {
				t.Fatalf("queue %d woke for %d", id, i)
			}
			r.recv(qps[i], uint64(i))
			synctest.Wait()
		}
		// All at once.
		for _, s := range sqps {
			s.CompleteRecv(2, scripted.Received(8), false)
		}
		count := map[uint64]int{}
		for range 2 * queues {
			count[<-got]++
		}
		for i := range queues {
			if count[uint64(i)] != 2 {
				t.Errorf("queue %d gave %d", i, count[uint64(i)])
			}
		}
		stop()
		wg.Wait()
	})
}

// TestC242_ManyEvents: all events behind one readiness are fetched.
func TestC242_ManyEvents(t *testing.T) {
	t.Parallel()
	for _, fd := range []bool{false, true} {
		r := newRig(t, &scripted.Config{Descriptors: fd})
		ch, _ := r.channel()
		const queues = 64
		seen := map[*verbs.CQ]bool{}
		for range queues {
			cq, scq := r.cq(4, &verbs.CQConfig{Channel: ch})
			_, err := cq.Arm(ib.NotifyAny)
			r.ok(err)
			scq.Push(driver.WC{}, false)
			seen[cq] = false
		}
		for range queues {
			cq, err := ch.Event(bg)
			r.ok(err)
			if seen[cq] {
				t.Fatal("an event came twice")
			}
			seen[cq] = true
		}
		r.quiet(ch, "after all")
	}
}

// TestC244_Glitch: readable, then nothing.
func TestC244_Glitch(t *testing.T) {
	t.Parallel()
	for _, fd := range []bool{false, true} {
		r := newRig(t, &scripted.Config{Descriptors: fd})
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
		ch, err := cq.Channel()
		r.ok(err)
		sch := r.ctx.Channel(0)
		r.recv(qp, 1)
		r.recv(qp, 2)
		sch.Glitch()
		r.quiet(ch, "glitch")
		sch.Glitch()
		sch.Post(12345) // of no queue
		sch.Post(0)
		done := make(chan error)
		go func() {
			_, err := cq.Next(bg)
			done <- err
		}()
		for cq.Stats().Sleeps == 0 {
			time.Sleep(time.Millisecond)
		}
		sch.Glitch()
		sch.Post(cqHandle(r)) // an event without a completion
		for cq.Stats().Empty == 0 {
			time.Sleep(time.Millisecond)
		}
		sqp.CompleteRecv(1, scripted.Received(8), false)
		r.ok(<-done)
		go func() {
			got, err := ch.Event(bg)
			if got != cq {
				err = errors.Join(err, errors.New("another queue"))
			}
			done <- err
		}()
		sch.Glitch()
		_, err = cq.Arm(ib.NotifyAny)
		r.ok(err)
		sqp.CompleteRecv(1, scripted.Received(8), false)
		r.ok(<-done)
		// The asynchronous events.
		r.ctx.AsyncQueue().Glitch()
		if _, ok, err := r.dev.Async().TryEvent(); ok || err != nil {
			t.Error(ok, err)
		}
	}
}

func cqHandle(r *rig) uint64 { return r.ctx.CQ(0).Handle() }

// waits are the calls that wait, each on something of its own.
func waits(r *rig) map[string]func(context.Context) error {
	cq, _ := r.cq(4, nil)
	next, _ := r.cq(4, nil)
	iter, _ := r.cq(4, nil)
	ch, _ := r.channel()
	other, _ := r.channel()
	return map[string]func(context.Context) error{
		"CQ.Wait":        func(ctx context.Context) error { _, err := cq.Wait(ctx, make([]verbs.WC, 1)); return err },
		"CQ.Next":        func(ctx context.Context) error { _, err := next.Next(ctx); return err },
		"CQ.Completions": func(ctx context.Context) error { return last(iter.Completions(ctx)) },
		"Channel.Event":  func(ctx context.Context) error { _, err := ch.Event(ctx); return err },
		"Channel.Events": func(ctx context.Context) error { return last(other.Events(ctx)) },
		"Async.Event":    func(ctx context.Context) error { _, err := r.dev.Async().Event(ctx); return err },
		"Async.Events":   func(ctx context.Context) error { return last(r.dev.Async().Events(ctx)) },
	}
}

func last[T any](seq func(func(T, error) bool)) (err error) {
	for _, err = range seq {
	}
	return err
}

func TestC250_Contexts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		for name, wait := range waits(r) {
			ctx, cancel := context.WithCancel(bg)
			go func() {
				time.Sleep(time.Hour)
				cancel()
			}()
			start := time.Now()
			r.is(wait(ctx), context.Canceled, name)
			if d := time.Since(start); d != time.Hour {
				t.Errorf("%s: ended after %v", name, d)
			}
			r.is(wait(ctx), context.Canceled, name+", again")
			ctx, cancel = context.WithTimeout(bg, time.Minute)
			start = time.Now()
			r.is(wait(ctx), context.DeadlineExceeded, name)
			if d := time.Since(start); d != time.Minute {
				t.Errorf("%s: ended after %v", name, d)
			}
			cancel()
		}
	})
}

func TestC250_ContextsDescriptor(t *testing.T) {
	t.Parallel()
	r := newRig(t, &scripted.Config{Descriptors: true})
	for name, wait := range waits(r) {
		for range 20 {
			ctx, cancel := context.WithCancel(bg)
			done := make(chan error)
			go func() { done <- wait(ctx) }()
			cancel()
			r.is(<-done, context.Canceled, name)
		}
		ctx, cancel := context.WithTimeout(bg, time.Millisecond)
		r.is(wait(ctx), context.DeadlineExceeded, name)
		cancel()
	}
}

// TestC250_EndedContext: a context that has ended wins over what is there, which stays.
func TestC250_EndedContext(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	ch, err := cq.Channel()
	r.ok(err)
	_, err = cq.Arm(ib.NotifyAny)
	r.ok(err)
	r.recv(qp, 1)
	sqp.CompleteRecv(1, scripted.Received(8), false)
	r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventPortErr, Port: 1})
	ended, cancel := context.WithCancel(bg)
	cancel()
	for _, f := range []func() error{
		func() error { _, err := cq.Wait(ended, make([]verbs.WC, 1)); return err },
		func() error { _, err := cq.Next(ended); return err },
		func() error { _, err := ch.Event(ended); return err },
		func() error { _, err := r.dev.Async().Event(ended); return err },
	} {
		r.is(f(), context.Canceled, "ended context")
	}
	r.fires(ch, cq, "the event stayed")
	r.want(r.poll(cq), wcs{{1, success}})
	if ev, ok, err := r.dev.Async().TryEvent(); !ok || err != nil || ev.Type != ib.EventPortErr {
		t.Error("the asynchronous event is lost", ok, err)
	}
}

// TestC250_Close: Close wakes who waits, twice is once, and later calls say so.
func TestC250_Close(t *testing.T) {
	t.Parallel()
	for _, fd := range []bool{false, true} {
		t.Run(fmt.Sprint("descriptor ", fd), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &scripted.Config{Descriptors: fd})
			const waiters = 3
			done := make(chan error)
			ch, _ := r.channel()
			cq, _ := r.cq(4, nil)
			shared, _ := r.channel()
			first, _ := r.cq(4, &verbs.CQConfig{Channel: shared})
			second, _ := r.cq(4, &verbs.CQConfig{Channel: shared})
			owner, _ := r.cq(4, nil)
			own, err := owner.Channel()
			r.ok(err)
			for name, c := range map[string]struct {
				wait  func() error
				close []closer
				left  func() bool
			}{
				"channel":           {func() error { _, err := ch.Event(bg); return err }, []closer{ch}, nil},
				"queue":             {func() error { _, err := cq.Next(bg); return err }, []closer{cq}, nil},
				"channel of queues": {func() error { _, err := first.Next(bg); return err }, []closer{shared}, nil},
				"queue's channel":   {func() error { _, err := own.Event(bg); return err }, []closer{owner}, nil},
			} {
				for range waiters {
					go func() { done <- c.wait() }()
				}
				time.Sleep(2 * time.Millisecond) // most of them sleep by then
				for _, o := range c.close {
					r.ok(o.Close())
					r.ok(o.Close())
				}
				for range waiters {
					r.is(<-done, net.ErrClosed, name)
				}
				r.is(c.wait(), net.ErrClosed, name+", later")
			}
			_, _, err = ch.TryEvent()
			r.is(err, net.ErrClosed, "TryEvent")
			_, err = ch.FD()
			r.is(err, net.ErrClosed, "FD")
			_, err = r.dev.CreateCQ(4, &verbs.CQConfig{Channel: ch})
			r.is(err, net.ErrClosed, "CreateCQ on a closed channel")
			// Queues on a closed channel can still be polled.
			if n, err := second.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
				t.Error(n, err)
			}
			_, err = second.Next(bg)
			r.is(err, net.ErrClosed, "waiting for a queue on a closed channel")
		})
	}
}

// TestC252_CloseOneQueue: of two queues on a channel one is closed while both are waited
// for, whoever leads.
func TestC252_CloseOneQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		for leads := range 2 {
			ch, _ := r.channel()
			var cqs [2]*verbs.CQ
			var scqs [2]*scripted.CQ
			var done [2]chan error
			for i := range 2 {
				cqs[i], scqs[i] = r.cq(4, &verbs.CQConfig{Channel: ch})
				done[i] = make(chan error, 1)
			}
			qp, sqp := r.qp(verbs.QPConfig{SendCQ: cqs[1], MaxSendWR: 2, MaxRecvWR: 2})
			r.move(qp, ib.StateInit)
			r.recv(qp, 7)
			for _, i := range []int{leads, 1 - leads} {
				go func() {
					_, err := cqs[i].Next(bg)
					done[i] <- err
				}()
				synctest.Wait()
			}
			r.ok(cqs[0].Close())
			r.is(<-done[0], net.ErrClosed, "closed queue")
			synctest.Wait()
			sqp.CompleteRecv(1, scripted.Received(8), false)
			r.ok(<-done[1])
			_ = scqs
		}
	})
}

// TestC252_SeveralWaiters: each event to one, and nobody sleeps while there is one.
func TestC252_SeveralWaiters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxRecvWR: 16})
		for i := range 16 {
			r.recv(qp, uint64(i))
		}
		got := make(chan uint64, 100)
		errs := make(chan error)
		for range 5 {
			go func() {
				wc, err := cq.Next(bg)
				got <- wc.ID
				errs <- err
			}()
		}
		synctest.Wait()
		sqp.CompleteRecv(3, scripted.Received(8), false)
		seen := map[uint64]bool{}
		for range 3 {
			r.ok(<-errs)
			seen[<-got] = true
		}
		synctest.Wait()
		if len(seen) != 3 || len(got) != 0 {
			t.Errorf("%v, %d more", seen, len(got))
		}
		sqp.CompleteRecv(2, scripted.Received(8), false)
		for range 2 {
			r.ok(<-errs)
		}
		// The leader is cancelled; another one takes over.
		ctx, cancel := context.WithCancel(bg)
		go func() { _, err := cq.Next(ctx); errs <- err }()
		synctest.Wait()
		go func() { _, err := cq.Next(bg); errs <- err }()
		synctest.Wait()
		cancel()
		r.is(<-errs, context.Canceled, "leader")
		synctest.Wait()
		sqp.CompleteRecv(1, scripted.Received(8), false)
		r.ok(<-errs)

		// The channel's own events.
		ch, _ := r.channel()
		queue, scq := r.cq(8, &verbs.CQConfig{Channel: ch})
		for range 3 {
			go func() {
				_, err := ch.Event(bg)
				errs <- err
			}()
		}
		synctest.Wait()
		for range 3 {
			_, err := queue.Arm(ib.NotifyAny)
			r.ok(err)
			scq.Push(driver.WC{}, false)
			r.ok(<-errs)
			r.poll(queue)
		}
	})
}

func TestOneConsumer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		ch, _ := r.channel()
		a, _ := r.cq(4, &verbs.CQConfig{Channel: ch})
		b, _ := r.cq(4, &verbs.CQConfig{Channel: ch})
		ctx, cancel := context.WithCancel(bg)
		done := make(chan error)
		go func() { _, err := a.Next(ctx); done <- err }()
		synctest.Wait()
		_, err := ch.Event(bg)
		r.is(err, verbs.ErrOneConsumer, "Event beside Wait")
		_, _, err = ch.TryEvent()
		r.is(err, verbs.ErrOneConsumer, "TryEvent beside Wait")
		_, err = b.Arm(ib.NotifyAny)
		r.is(err, verbs.ErrOneConsumer, "Arm beside Wait")
		cancel()
		r.is(<-done, context.Canceled, "Wait")
		ctx, cancel = context.WithCancel(bg)
		go func() { _, err := ch.Event(ctx); done <- err }()
		synctest.Wait()
		_, err = a.Next(bg)
		r.is(err, verbs.ErrOneConsumer, "Wait beside Event")
		r.quiet(ch, "TryEvent beside Event")
		cancel()
		r.is(<-done, context.Canceled, "Event")
		_, err = b.Arm(ib.NotifyAny)
		r.ok(err)
	})
}

// TestC256_BatchNotDropped: what the body of a loop has not seen is given to the next.
func TestC256_BatchNotDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxRecvWR: 64})
	next := uint64(0)
	fill := func() {
		for i := range 64 {
			r.recv(qp, uint64(i))
		}
		sqp.CompleteRecv(64, scripted.Received(8), false)
		next = 0
	}
	see := func(wc verbs.WC) {
		if wc.ID != next {
			t.Fatalf("got %d, want %d", wc.ID, next)
		}
		next++
	}
	rest := func(what string) {
		t.Helper()
		for _, wc := range r.poll(cq) {
			see(wc)
		}
		if next != 64 {
			t.Errorf("%s: %d of 64", what, next)
		}
	}
	fill()
	for wc, err := range cq.Completions(bg) {
		r.ok(err)
		see(wc)
		if next == 20 {
			break
		}
	}
	rest("break")

	fill()
	ctx, cancel := context.WithCancel(bg)
	for wc, err := range cq.Completions(ctx) {
		if err != nil {
			r.is(err, context.Canceled, "cancelled")
			break
		}
		see(wc)
		if next == 30 {
			cancel()
		}
	}
	cancel()
	rest("cancel")

	fill()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		for wc, err := range cq.Completions(bg) {
			r.ok(err)
			see(wc)
			if next == 40 {
				panic("in the middle")
			}
		}
	}()
	rest("panic")

	// Close in the middle: nothing more of the queue pair, everything of the others.
	other, sother := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 1, MaxRecvWR: 4, AllowOverrun: true})
	r.rts(other)
	fill()
	for range 3 {
		r.recv(other, 1000)
	}
	sother.CompleteRecv(3, scripted.Received(8), false)
	n := 0
	for wc, err := range cq.Completions(bg) {
		r.ok(err)
		if wc.QP == other {
			if n++; n == 3 {
				break
			}
			continue
		}
		if see(wc); next == 10 {
			r.ok(qp.Close())
		}
		if next > 10 {
			t.Fatal("a completion of a closed queue pair")
		}
	}
}

// TestC260_LostEvent: the kernel drops an event record.
func TestC260_LostEvent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		fd   bool
		recv bool // a receive is waited for, not a send
	}{{"go, send", false, false}, {"descriptor, send", true, false}, {"descriptor, receive", true, true}} {
		run := func(t *testing.T) {
			r := newRig(t, &scripted.Config{Descriptors: c.fd})
			period := time.Second
			if c.fd {
				period = 100 * time.Millisecond
			}
			r.dev.SetRecheck(period)
			qp, sqp, cq, scq := r.ready(verbs.QPConfig{})
			scq.Swallow(1)
			if c.recv {
				r.recv(qp, 1)
			} else {
				r.send(qp, 1, ib.Signaled)
			}
			complete := func() {
				if c.recv {
					sqp.CompleteRecv(1, scripted.Received(8), false)
				} else {
					sqp.CompleteSend(1, success)
				}
			}
			go func() {
				for cq.Stats().Sleeps == 0 {
					time.Sleep(time.Millisecond)
				}
				complete()
			}()
			start := time.Now()
			wc, err := cq.Next(bg)
			r.ok(err)
			if d := time.Since(start); wc.ID != 1 || d < period || d > 10*period {
				t.Errorf("%+v after %v", wc, d)
			}
			if n := cq.Stats().Rescued; n != 1 {
				t.Errorf("%d rescued, want 1", n)
			}
			// It is armed again after that.
			if c.recv {
				r.recv(qp, 2)
			} else {
				r.send(qp, 2, ib.Signaled)
			}
			sleeps := cq.Stats().Sleeps
			go func() {
				for cq.Stats().Sleeps == sleeps {
					time.Sleep(time.Millisecond)
				}
				complete()
			}()
			wc, err = cq.Next(bg)
			r.ok(err)
			if s := cq.Stats(); wc.ID != 2 || s.Rescued != 1 {
				t.Errorf("%+v, %+v", wc, s)
			}
		}
		t.Run(c.name, func(t *testing.T) {
			if c.fd {
				t.Parallel()
				run(t)
			} else {
				bubble(t, run)
			}
		})
	}
}

// TestIdle: nobody looks while nothing can come.
func TestIdle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
		r.recv(qp, 1)
		done := make(chan error)
		go func() { _, err := cq.Next(bg); done <- err }()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		polls := r.p.Count("poll")
		time.Sleep(24 * time.Hour)
		if n := r.p.Count("poll") - polls; n != 0 {
			t.Errorf("%d looks in an idle day", n)
		}
		// The looks go on while a send is outstanding: one before arming, one after.
		sqp.CompleteRecv(1, scripted.Received(8), false)
		r.ok(<-done)
		r.send(qp, 2, ib.Signaled)
		go func() { _, err := cq.Next(bg); done <- err }()
		synctest.Wait()
		polls = r.p.Count("poll")
		time.Sleep(100 * time.Second)
		if n := r.p.Count("poll") - polls; n < 190 || n > 210 {
			t.Errorf("%d looks in 100 s with a send outstanding", n)
		}
		sqp.CompleteSend(1, success)
		r.ok(<-done)
		if s := cq.Stats(); s.Rescued != 0 {
			t.Errorf("%+v", s)
		}
		// And can be switched off.
		r.dev.SetRecheck(-1)
		r.send(qp, 3, ib.Signaled)
		go func() { _, err := cq.Next(bg); done <- err }()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		polls = r.p.Count("poll")
		time.Sleep(time.Hour)
		if n := r.p.Count("poll") - polls; n != 0 {
			t.Errorf("%d looks that were switched off", n)
		}
		sqp.CompleteSend(1, success)
		r.ok(<-done)
	})
}

// TestC259_Spin: no arm and no event when spinning finds something.
func TestC259_Spin(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, scq := r.ready(verbs.QPConfig{})
	cq.SetSpin(time.Minute)
	r.recv(qp, 1)
	done := make(chan error)
	go func() { _, err := cq.Next(bg); done <- err }()
	for r.p.Count("poll") < 10 {
		time.Sleep(time.Millisecond)
	}
	sqp.CompleteRecv(1, scripted.Received(8), false)
	r.ok(<-done)
	if s := cq.Stats(); s.Sleeps != 0 || scq.Armed() {
		t.Errorf("%+v, armed %v", s, scq.Armed())
	}
	// Time is over, ctx is over, the queue is closed.
	ctx, cancel := context.WithCancel(bg)
	go func() { _, err := cq.Next(ctx); done <- err }()
	cancel()
	r.is(<-done, context.Canceled, "spinning")
	go func() { _, err := cq.Next(bg); done <- err }()
	r.ok(cq.Close())
	r.is(<-done, net.ErrClosed, "spinning")
}

func TestC259_SpinInBubble(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
		cq.SetSpin(20 * time.Microsecond)
		cq.SetSpin(-1)
		cq.SetSpin(20 * time.Microsecond)
		r.recv(qp, 1)
		go func() {
			time.Sleep(time.Hour)
			sqp.CompleteRecv(1, scripted.Received(8), false)
		}()
		wc, err := cq.Next(bg)
		if wc.ID != 1 || err != nil {
			t.Error(wc, err)
		}
	})
}

func TestWaitAllocs(t *testing.T) {
	for _, fd := range []bool{false, true} {
		r := newRig(t, &scripted.Config{Descriptors: fd, Unchecked: true})
		qa, sa, ca, _ := r.ready(verbs.QPConfig{})
		qb, sb, cb, _ := r.ready(verbs.QPConfig{})
		l := r.mr.SGE(0, 8)
		var stop atomic.Bool
		turn := func(qp *verbs.QP, cq *verbs.CQ, peer *scripted.QP) bool {
			if _, err := cq.Next(bg); err != nil {
				t.Error(err)
				return false
			}
			if stop.Load() {
				return false
			}
			if err := qp.PostRecv(verbs.Recv(1, l)); err != nil {
				t.Error(err)
				return false
			}
			peer.CompleteRecv(1, scripted.Received(8), false)
			return true
		}
		r.recv(qa, 1)
		r.recv(qb, 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for turn(qb, cb, sa) {
			}
		}()
		sb.CompleteRecv(1, scripted.Received(8), false)
		// The scripted device makes a channel each time that its level falls: two a
		// round, one for each side.
		n := testing.AllocsPerRun(500, func() { turn(qa, ca, sb) })
		if n > 2 {
			t.Errorf("descriptor %v: %v allocations a round", fd, n)
		}
		stop.Store(true)
		sb.CompleteRecv(1, scripted.Received(8), false)
		<-done
		if a, b := ca.Stats(), cb.Stats(); a.Sleeps == 0 || b.Sleeps == 0 {
			t.Errorf("nobody slept: %+v, %+v", a, b)
		}
	}
}

// TestSoftEvents: completions that the library makes wake those who wait, in each way.
func TestSoftEvents(t *testing.T) {
	t.Parallel()
	for _, fd := range []bool{false, true} {
		t.Run(fmt.Sprint("descriptor ", fd), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &scripted.Config{Descriptors: fd})
			r.dev.SetFlushLimit(20 * time.Millisecond)
			for _, how := range []string{"Wait", "Event", "FD"} {
				qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
				ch, err := cq.Channel()
				r.ok(err)
				sqp.NeverFlush()
				r.dev.SetFlushLimit(20 * time.Millisecond) // and forgets what it has learnt
				r.recv(qp, 1)
				done := make(chan error)
				wait := func(f func() error) {
					go func() { done <- f() }()
				}
				switch how {
				case "Wait":
					wait(func() error {
						wc, err := cq.Next(bg)
						if err == nil && !wc.Synthetic {
							err = fmt.Errorf("%+v", wc)
						}
						return err
					})
				case "Event":
					_, err := cq.Arm(ib.NotifyAny)
					r.ok(err)
					wait(func() error { _, err := ch.Event(bg); return err })
				case "FD":
					_, err := cq.Arm(ib.NotifyAny)
					r.ok(err)
					fd, err := ch.FD()
					r.ok(err)
					wait(func() error { return waitReadable(fd, 10*time.Second) })
				}
				time.Sleep(2 * time.Millisecond)
				r.ok(qp.Fail())
				if err := <-done; err != nil {
					t.Errorf("%s: %v", how, err)
				}
				if how == "FD" {
					r.fires(ch, cq, "level")
					fd, _ := ch.FD()
					if err := waitReadable(fd, 0); err == nil {
						t.Error("readable without an event")
					}
				}
				r.ok(qp.Close())
			}
		})
	}
}
