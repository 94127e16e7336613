package verbs_test

import (
	"context"
	"fmt"
	"net"
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
