package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

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
