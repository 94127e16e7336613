package verbs_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

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
	cq.SetSpin(verbs.SpinFor(time.Minute))
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
		cq.SetSpin(verbs.SpinFor(20 * time.Microsecond))
		cq.SetSpin(verbs.SpinFor(-1))
		cq.SetSpin(verbs.SpinFor(20 * time.Microsecond))
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
