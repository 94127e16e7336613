package event_test

import (
	"math"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
)

// turned makes a turn without limit in another goroutine, as it may not end.
func turned(t testing.TB, l *event.Loop, want int, what string) {
	t.Helper()
	done := make(chan int, 1)
	go func() {
		n, err := l.Turn(-1)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		done <- n
	}()
	select {
	case n := <-done:
		if n != want {
			t.Errorf("%s: %d calls, want %d", what, n, want)
		}
	case <-time.After(patience):
		l.Stop()
		t.Fatalf("the turn did not end: %s", what)
	}
}

// TestHugeRecheck: a time that is as good as never is no time in the past, and does not
// stand in the way of others.
func TestHugeRecheck(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{math.MaxInt64, math.MaxInt64 / 64, 1 << 57} {
		l := newLoop(t, event.Config{Recheck: d})
		n := newRig(t, nil).line(nil)
		_, got := n.watch(l)
		n.give(3)
		until(t, l, "completions", func() bool { return len(*got) == 3 })
		turn(t, l, 0) // now it is armed, and in the care of the re-check
		l.After(time.Millisecond, func() {})
		turned(t, l, 1, "timer")
		before := l.Stats()
		if n, err := l.Turn(time.Millisecond); n != 0 || err != nil {
			t.Error(n, err)
		}
		if s := l.Stats(); s.Sleeps-before.Sleeps > 4 {
			t.Errorf("%d sleeps in a turn of 1 ms", s.Sleeps-before.Sleeps)
		}
	}
}

// TestReusedInOneTurn: a descriptor that was found ready is closed, and its number given
// again, by a handler that comes first in the same turn.
func TestReusedInOneTurn(t *testing.T) {
	for _, b := range backends {
		t.Run(b.String(), func(t *testing.T) {
			l := newLoop(t, event.Config{Backend: b, Recheck: -1})
			first, fd := eventfd(t), get[int](t)(unix.Eventfd())
			defer unix.Close(fd)
			signal(t, first)
			signal(t, fd)
			get[*event.Watch](t)(l.File(first, event.Readable, func(event.Mask) {
				drain(t, first)
				replace(t, fd)
			}))
			w := get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { t.Error("called for another file") }))
			var failed error
			w.OnError(func(err error) { failed = err })
			turn(t, l, 2)
			is(t, failed, net.ErrClosed, "OnError")
			turn(t, l, 0)
		})
	}
}

// TestReusedWhileAsleep: a watch that waits for nothing knows its file all the same.
func TestReusedWhileAsleep(t *testing.T) {
	for _, b := range backends {
		t.Run(b.String(), func(t *testing.T) {
			l := newLoop(t, event.Config{Backend: b, Recheck: -1})
			fd := get[int](t)(unix.Eventfd())
			defer unix.Close(fd)
			none := func(event.Mask) { t.Error("called for another file") }
			for _, masked := range []bool{false, true} {
				m := event.Mask(0)
				if masked {
					m = event.Readable
				}
				w := get[*event.Watch](t)(l.File(fd, m, none))
				if masked {
					must(t, w.SetMask(0))
				}
				var failed error
				w.OnError(func(err error) { failed = err })
				replace(t, fd)
				is(t, w.SetMask(event.Readable), net.ErrClosed, "SetMask")
				turn(t, l, 0)
				must(t, w.SetMask(0))
				calls := 0
				other := get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { calls++ }))
				turn(t, l, 2)
				is(t, failed, net.ErrClosed, "OnError")
				if calls != 1 {
					t.Errorf("%d calls of the new watch", calls)
				}
				must(t, other.Close())
			}
		})
	}
}

// TestSleeperIsSwept: that a descriptor was closed is noticed though its watch sleeps.
func TestSleeperIsSwept(t *testing.T) {
	for _, b := range backends {
		t.Run(b.String(), func(t *testing.T) {
			l := newLoop(t, event.Config{Backend: b, Recheck: time.Hour})
			fd := get[int](t)(unix.Eventfd())
			w := get[*event.Watch](t)(l.File(fd, 0, func(event.Mask) { t.Error("called") }))
			failed := false
			w.OnError(func(err error) { is(t, err, net.ErrClosed, "OnError"); failed = true })
			must(t, unix.Close(fd))
			event.Pass(l, 2*time.Hour)
			turn(t, l, 0)
			turn(t, l, 1)
			if !failed {
				t.Error("not noticed")
			}
		})
	}
}

// TestWatchedAgain: a file that lives on in a duplicate comes back under its old number.
func TestWatchedAgain(t *testing.T) {
	for _, b := range backends {
		for _, m := range []event.Mask{0, event.Readable} {
			t.Run(b.String()+"/"+m.String(), func(t *testing.T) {
				l := newLoop(t, event.Config{Backend: b, Recheck: time.Hour})
				fd := get[int](t)(unix.Eventfd())
				defer unix.Close(fd)
				dup := get[int](t)(unix.Dup(fd))
				defer unix.Close(dup)
				w := get[*event.Watch](t)(l.File(fd, m, func(event.Mask) { t.Error("called") }))
				must(t, unix.Close(fd))
				must(t, w.Close()) // too late
				must(t, syscall.Dup3(dup, fd, syscall.O_CLOEXEC))
				signal(t, fd)
				calls := 0
				get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { calls++; drain(t, fd) }))
				turn(t, l, 1)
				turn(t, l, 0)
				if calls != 1 {
					t.Errorf("%d calls", calls)
				}
			})
		}
	}
}

// TestSweepEnds: the descriptors of users are looked after once in a period, however many
// there are.
func TestSweepEnds(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 63, 64, 65, 128} {
		l := newLoop(t, event.Config{Recheck: time.Hour})
		for range n {
			get[*event.Watch](t)(l.File(eventfd(t), event.Readable, func(event.Mask) {}))
		}
		event.Pass(l, 2*time.Hour)
		if event.Swept(l) {
			t.Error("swept without a turn")
		}
		for range n/64 + 1 {
			turn(t, l, 0)
		}
		if !event.Swept(l) {
			t.Errorf("%d descriptors are looked after in each turn", n)
		}
	}
}

// TestFailureEndsTheTurn: what is called when arming fails is a call, after which a turn
// does not go to sleep.
func TestFailureEndsTheTurn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		s := &lazy{fd: eventfd(t)}
		w := get[*event.Watch](t)(l.Add(s))
		failed := 0
		w.OnError(func(err error) {
			is(t, err, net.ErrClosed, "OnError")
			failed++
		})
		s.serve = func() { s.prepareErr = net.ErrClosed }
		s.add(t, 1)
		turned(t, l, 1, "work")
		turned(t, l, 1, "OnError")
		if failed != 1 {
			t.Errorf("failed %d times", failed)
		}
	})
}

// TestZeroTimer: methods of a timer that no loop has made do nothing.
func TestZeroTimer(t *testing.T) {
	t.Parallel()
	for _, tm := range []*event.Timer{nil, {}} {
		tm.Reset(time.Second)
		if tm.Stop() {
			t.Error("it was running")
		}
	}
}

// TestWatchOfTheDead: a source that fails while it is being registered with a loop that
// runs leaves nothing behind.
func TestWatchOfTheDead(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		r := newRig(t, nil)
		l := newLoop(t, event.Config{Backend: b})
		base := event.Watched(l)
		_, err := r.dev.Async().FD()
		must(t, err)
		r.p.Device("").Remove()
		for err == nil {
			_, _, err = r.dev.Async().TryEvent()
		}
		is(t, err, verbs.ErrDeviceGone, "the device")
		var over atomic.Bool
		ended := make(chan bool)
		go func() {
			for !over.Load() {
				l.Turn(-1) // its error is that of a source
			}
			close(ended)
		}()
		for range 300 {
			if w, err := l.Async(r.dev.Async(), func(verbs.AsyncEvent) {}); err == nil {
				w.OnError(func(error) {})
			}
		}
		waitFor(t, "the end of the watches", func() bool { return event.Watched(l) == base })
		over.Store(true)
		l.Stop()
		arrive(t, ended, "the end of the turns")
	})
}
