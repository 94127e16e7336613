package verbs_test

import (
	"context"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestC259_Yields: who spins lets others run after each look, also on one processor. It
// is not parallel, as it changes their number.
func TestC259_Yields(t *testing.T) {
	for _, procs := range []int{1, 2} {
		was := runtime.GOMAXPROCS(procs)
		r := newRig(t, nil)
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
		cq.SetSpin(verbs.SpinFor(time.Minute))
		r.recv(qp, 1)
		done := make(chan error)
		go func() { _, err := cq.Next(bg); done <- err }()
		for r.p.Count("poll") < 3 {
			runtime.Gosched()
		}
		// Each step of this goroutine costs one turn of the other.
		const steps = 2000
		polls := r.p.Count("poll")
		for range steps {
			runtime.Gosched()
		}
		polls = r.p.Count("poll") - polls
		if procs == 1 && polls > 4*steps {
			t.Errorf("%d looks in %d turns", polls, steps)
		}
		sqp.CompleteRecv(1, scripted.Received(8), false)
		r.ok(<-done)
		runtime.GOMAXPROCS(was)
	}
}

// TestC259_Adaptive: when it is known how long a wait takes asleep, answers that come at once
// are found without sleeping; when they stay away, the processor is left alone.
func TestC259_Adaptive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		qp, sqp, cq, scq := r.ready(verbs.QPConfig{})
		cq.SetSpin(verbs.Adaptive)
		const learn = 8
		for range learn {
			r.recv(qp, 1)
			go func() {
				time.Sleep(20 * time.Microsecond)
				sqp.CompleteRecv(1, scripted.Received(8), false)
			}()
			_, err := cq.Next(bg)
			r.ok(err)
		}
		for range 20 {
			r.recv(qp, 1)
			scq.Deafen(3) // it comes after a few looks
			sqp.CompleteRecv(1, scripted.Received(8), false)
			_, err := cq.Next(bg)
			r.ok(err)
		}
		if s := cq.Stats(); s.Sleeps != learn {
			t.Errorf("slept: %+v", s)
		}
		slow := func(n int) (polls int) {
			polls = r.p.Count("poll")
			for range n {
				r.recv(qp, 2)
				go func() {
					time.Sleep(time.Second)
					sqp.CompleteRecv(1, scripted.Received(8), false)
				}()
				_, err := cq.Next(bg)
				r.ok(err)
			}
			return r.p.Count("poll") - polls
		}
		slow(250) // it spins in vain, but shortly, as answers came at once
		// Looks: on entering, after arming, after waking, and the re-check's.
		if n := slow(100); n > 100*8 {
			t.Errorf("%d looks in 100 waits of a second", n)
		}
		if s := cq.Stats(); s.Sleeps == 0 || s.Rescued != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestC259_NudgedAndClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	_, _, cq, _ := r.ready(verbs.QPConfig{})
	cq.SetSpin(verbs.Spin{Max: time.Minute, Adaptive: true})
	done := make(chan error)
	go func() { _, err := cq.Wait(bg, make([]verbs.WC, 1)); done <- err }()
	cq.Wake()
	r.ok(<-done)
	ctx, cancel := context.WithCancel(bg)
	go func() { _, err := cq.Next(ctx); done <- err }()
	cancel()
	r.is(<-done, context.Canceled, "spinning")
	go func() { _, err := cq.Next(bg); done <- err }()
	r.ok(cq.Close())
	r.is(<-done, net.ErrClosed, "spinning")
}
