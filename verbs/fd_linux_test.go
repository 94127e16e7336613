package verbs_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// waitReadable waits for a descriptor with poll.
func waitReadable(fd int, limit time.Duration) error {
	for end := time.Now().Add(limit); ; {
		fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}
		n, err := unix.Poll(fds, max(time.Until(end), 0))
		switch {
		case err != nil:
			return err
		case n > 0:
			return nil
		case time.Now().After(end) || limit == 0:
			return errors.New("not readable")
		}
	}
}

// TestC246_LevelTrue: FD is readable exactly while TryEvent gives something, in poll and
// epoll, for both kinds of provider.
func TestC246_LevelTrue(t *testing.T) {
	t.Parallel()
	for _, only := range []bool{false, true} {
		r := newRig(t, &scripted.Config{Descriptors: only})
		ch, _ := r.channel()
		cq, scq := r.cq(8, &verbs.CQConfig{Channel: ch})
		fd, err := ch.FD()
		r.ok(err)
		if again, err := ch.FD(); again != fd || err != nil {
			t.Errorf("FD gave %d, then %d, %v", fd, again, err)
		}
		ep, err := unix.EpollCreate()
		r.ok(err)
		defer unix.Close(ep)
		r.ok(unix.EpollAdd(ep, fd, unix.PollIn))
		level := func(want bool, what string) {
			t.Helper()
			if got := waitReadable(fd, 0) == nil; got != want {
				t.Errorf("%s: poll says readable %v", what, got)
			}
			n, err := unix.EpollWait(ep, make([]unix.EpollEvent, 1), 0)
			if got := n > 0; got != want || err != nil {
				t.Errorf("%s: epoll says readable %v, %v", what, got, err)
			}
		}
		level(false, "new")
		scq.Push(driver.WC{}, false)
		level(false, "completion without arm")
		r.poll(cq)
		_, err = cq.Arm(ib.NotifyAny)
		r.ok(err)
		level(false, "armed")
		scq.Push(driver.WC{}, false)
		level(true, "event")
		level(true, "event, still")
		r.poll(cq)
		level(true, "event of what was polled")
		r.fires(ch, cq, "event")
		level(false, "fetched")

		async := r.dev.Async()
		fd, err = async.FD()
		r.ok(err)
		if waitReadable(fd, 0) == nil {
			t.Error("readable without an event")
		}
		r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventPortErr, Port: 1})
		r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventPortActive, Port: 1})
		for range 2 {
			if err := waitReadable(fd, 0); err != nil {
				t.Error(err)
			}
			if _, ok, err := async.TryEvent(); !ok || err != nil {
				t.Error(ok, err)
			}
		}
		if waitReadable(fd, 0) == nil {
			t.Error("readable after the last event")
		}
	}
}

// TestC246_ForeignLoop: the session of a program with its own poll loop.
func TestC246_ForeignLoop(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxRecvWR: 4})
	ch, err := cq.Channel()
	r.ok(err)
	fd, err := ch.FD()
	r.ok(err)
	const total = 500
	next := 0
	for range 4 {
		r.recv(qp, uint64(next))
		next++
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			sqp.CompleteRecv(1, scripted.Received(8), false)
			runtime.Gosched()
		}
	}()
	for got := 0; got < total; {
		for _, wc := range r.poll(cq) {
			if wc.ID != uint64(got) {
				t.Fatalf("got %d, want %d", wc.ID, got)
			}
			got++
			r.recv(qp, uint64(next))
			next++
		}
		ready, err := cq.Arm(ib.NotifyAny)
		r.ok(err)
		if ready {
			continue
		}
		if err := waitReadable(fd, 10*time.Second); err != nil {
			t.Fatalf("a wake-up was lost after %d: %v", got, err)
		}
		for {
			_, ok, err := ch.TryEvent()
			r.ok(err)
			if !ok {
				break
			}
		}
	}
}

// TestC168_Readable: the descriptor shows an event that the library made.
func TestC168_Readable(t *testing.T) {
	t.Parallel()
	for _, only := range []bool{false, true} {
		r := newShared(t, &scripted.Config{Descriptors: only}, true)
		readable := func(want bool, what string) {
			t.Helper()
			fd, err := r.dev.Async().FD()
			r.ok(err)
			if got := waitReadable(fd, 0) == nil; got != want {
				t.Errorf("%s: readable %v", what, got)
			}
		}
		r.ok(r.srq.SetLimit(1)) // before the descriptor is made
		readable(true, "limit set")
		r.once("0 left")
		readable(false, "taken")
		r.ok(r.srq.SetLimit(2))
		readable(true, "limit set again")
		r.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventPortErr, Port: 1})
		for range 2 {
			readable(true, "two events")
			r.event()
		}
		readable(false, "both taken")
	}
}
