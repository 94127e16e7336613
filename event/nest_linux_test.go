package event_test

import (
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// outer are the foreign ways to wait for a loop's descriptor.
var outer = map[string]func(t testing.TB, fd int) func() bool{
	"poll": func(t testing.TB, fd int) func() bool {
		return func() bool { return readable(t, fd) }
	},
	"select": func(t testing.TB, fd int) func() bool {
		return func() bool {
			var r, w unix.FDSet
			r.Set(fd)
			n, err := unix.Select(fd+1, &r, &w, false)
			must(t, err)
			return n > 0
		}
	},
	"epoll": func(t testing.TB, fd int) func() bool {
		ep := get[int](t)(unix.EpollCreate())
		t.Cleanup(func() { unix.Close(ep) })
		must(t, unix.EpollAdd(ep, fd, unix.PollIn))
		return func() bool {
			n, err := unix.EpollWait(ep, make([]unix.EpollEvent, 1), 0)
			must(t, err)
			return n > 0
		}
	},
}

// TestC249_Nested: the loop's descriptor is readable exactly while a turn would find
// something, of every kind of source, for every foreign way to wait.
func TestC249_Nested(t *testing.T) {
	t.Parallel()
	providers(t, func(t *testing.T, r *rig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Batch: 4, Recheck: -1})
		l.Do(func() {}) // before FD is asked for
		fd := get[int](t)(l.FD())
		looks := map[string]func() bool{}
		for name, f := range outer {
			looks[name] = f(t, fd)
		}
		level := func(want bool, what string) {
			t.Helper()
			for name, look := range looks {
				if got := look(); got != want {
					t.Errorf("%s: readable %v to %s", what, got, name)
				}
			}
		}
		// found: there is something, the turns find so many things, and then there is
		// nothing.
		found := func(n int, what string) {
			t.Helper()
			for n > 0 {
				level(true, what)
				k, err := l.Turn(0)
				must(t, err)
				if n -= k; k == 0 {
					t.Fatalf("%s: a turn for nothing", what)
				}
			}
			level(false, what+", afterwards")
			turn(t, l, 0)
			level(false, what+", after one more turn")
		}
		found(1, "function before FD")

		l.Do(func() { l.Do(func() {}) })
		found(2, "functions")

		n := r.line(nil)
		n.give(9)
		_, got := n.watch(l)
		found(9, "completions before the watch")
		for i := range 3 {
			n.give(9)
			found(9, "completions")
			ids(t, *got, 18+9*i)
		}

		file := eventfd(t)
		get[*event.Watch](t)(l.File(file, event.Readable, func(event.Mask) { drain(t, file) }))
		level(false, "file")
		signal(t, file)
		found(1, "file")

		get[*event.Watch](t)(l.Async(r.dev.Async(), func(verbs.AsyncEvent) {}))
		level(false, "events")
		for range 6 {
			r.ctx.PostAsync(driver.AsyncEvent{Type: 250})
		}
		found(6, "events")

		// Timers: one that is due, one to come, one that is stopped, one that is moved.
		l.After(0, func() {})
		found(1, "timer that is due")
		soon := l.After(time.Millisecond, func() {})
		for !looks["poll"]() {
		}
		found(1, "timer")
		soon.Reset(time.Microsecond)
		for !looks["poll"]() {
		}
		soon.Reset(time.Hour)
		level(false, "timer that was moved when it was due")
		soon.Reset(time.Microsecond)
		for !looks["poll"]() {
		}
		soon.Stop()
		level(false, "timer that was stopped when it was due")

		// A source that is closed, and a handler that panics.
		w := get[*event.Watch](t)(l.File(eventfd(t), event.Writable, func(event.Mask) {}))
		level(true, "writable")
		must(t, w.Close())
		level(false, "watch that was closed")
		m := r.line(nil)
		ww, _ := m.watch(l)
		ww.OnError(func(error) {})
		turn(t, l, 0)
		level(false, "watch")
		must(t, m.cq.Close())
		found(1, "queue that was closed")

		l.Do(func() { panic("x") })
		l.Do(func() {})
		level(true, "function that will panic")
		call(func() { l.Turn(0) })
		found(1, "function after a panic")
	})
}

// TestNestedLoops: a loop in a loop in a loop, on each backend.
func TestNestedLoops(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		r := newRig(t, &scripted.Config{Descriptors: true})
		loops := make([]*event.Loop, 3)
		for i := range loops {
			loops[i] = newLoop(t, event.Config{Backend: b, Recheck: -1})
			if i == 0 {
				continue
			}
			inner := loops[i-1]
			get[*event.Watch](t)(loops[i].File(get[int](t)(inner.FD()), event.Readable, func(event.Mask) {
				_, err := inner.Turn(0)
				must(t, err)
			}))
		}
		n := r.line(nil)
		_, got := n.watch(loops[0])
		timer := make(chan bool, 1)
		loops[0].After(time.Millisecond, func() { timer <- true })
		running(t, loops[2])
		arrive(t, timer, "the timer of the innermost loop")
		for i := range 20 {
			n.give(1)
			done := make(chan int)
			for k := 0; k <= i; {
				loops[0].Do(func() { done <- len(*got) })
				k = arrive(t, done, "the function of the innermost loop")
			}
		}
		if _, err := loops[0].Turn(0); err != nil && err != event.ErrBusy {
			t.Log(err) // it may be in a turn of the outer loop just now
		}
	})
}
