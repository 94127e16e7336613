package event_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, cfg := range []event.Config{{Backend: 3}, {Batch: -1}} {
		if _, err := event.New(&cfg); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	l, err := event.New(nil)
	must(t, err)
	must(t, l.Close())
	must(t, l.Close())
	_, err = l.Turn(0)
	is(t, err, net.ErrClosed, "Turn after Close")
	is(t, l.Run(t.Context()), net.ErrClosed, "Run after Close")
	_, err = l.FD()
	is(t, err, net.ErrClosed, "FD after Close")
	_, err = l.File(0, event.Readable, func(event.Mask) {})
	is(t, err, net.ErrClosed, "File after Close")
	l.Do(func() { t.Error("called after Close") })
	l.After(0, func() { t.Error("called after Close") }).Reset(0)
	l.Stop()
	if s := event.Backend(7).String(); s != "Backend(7)" {
		t.Error(s)
	}
}

// TestNil: zero and nil values give errors and do nothing.
func TestNil(t *testing.T) {
	t.Parallel()
	for _, l := range []*event.Loop{nil, {}} {
		_, err := l.Turn(0)
		is(t, err, syscall.EINVAL, "Turn")
		is(t, l.Run(t.Context()), syscall.EINVAL, "Run")
		is(t, l.Close(), syscall.EINVAL, "Close")
		_, err = l.FD()
		is(t, err, syscall.EINVAL, "FD")
		_, err = l.CQ(nil, nil)
		is(t, err, syscall.EINVAL, "CQ")
		_, err = l.CM(nil, nil)
		is(t, err, syscall.EINVAL, "CM")
		_, err = l.Async(nil, nil)
		is(t, err, syscall.EINVAL, "Async")
		_, err = l.File(0, event.Readable, nil)
		is(t, err, syscall.EINVAL, "File")
		_, err = l.Add(nil)
		is(t, err, syscall.EINVAL, "Add")
		l.After(0, func() {}).Stop()
		l.Do(func() {})
		l.Stop()
		l.Stats()
	}
	var w *event.Watch
	is(t, w.Close(), syscall.EINVAL, "Close")
	is(t, w.SetMask(event.Readable), syscall.EINVAL, "SetMask")
	w.OnError(nil)
}

func TestRun(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		// Stop before Run counts.
		l.Stop()
		must(t, l.Run(t.Context()))
		// From a handler, and it is over then.
		for range 3 {
			calls := 0
			l.Do(func() { calls++; l.Stop() })
			must(t, l.Run(t.Context()))
			if calls != 1 {
				t.Errorf("%d calls", calls)
			}
		}
		// A context that ends, before and meanwhile.
		ctx, cancel := context.WithCancel(t.Context())
		l.Do(cancel)
		is(t, l.Run(ctx), context.Canceled, "cancelled by a handler")
		is(t, l.Run(ctx), context.Canceled, "cancelled before")
		ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		is(t, l.Run(ctx), context.DeadlineExceeded, "deadline")
		turn(t, l, 0)

		// One at a time.
		in := make(chan bool)
		l.Do(func() {
			if _, err := l.Turn(0); !errors.Is(err, event.ErrBusy) {
				t.Errorf("Turn in a handler: %v", err)
			}
			close(in)
		})
		stop := running(t, l)
		arrive(t, in, "the handler")
		is(t, l.Run(t.Context()), event.ErrBusy, "second Run")
		stop()

		// Close of another goroutine ends Run.
		done := make(chan error)
		started := make(chan bool)
		l.Do(func() { close(started) })
		go func() { done <- l.Run(t.Context()) }()
		arrive(t, started, "Run")
		must(t, l.Close())
		is(t, arrive(t, done, "the end of Run"), net.ErrClosed, "closed")
	})
}

// TestTurn: it waits as long as it was told, and not for what is there.
func TestTurn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		turn(t, l, 0)
		start := time.Now()
		if n, err := l.Turn(2 * time.Millisecond); n != 0 || err != nil {
			t.Error(n, err)
		}
		if d := time.Since(start); d < 2*time.Millisecond {
			t.Errorf("waited for %v", d)
		}
		l.Do(func() {})
		l.Do(func() {})
		if n, err := l.Turn(time.Hour); n != 2 || err != nil {
			t.Error(n, err)
		}
		// From another goroutine, while it sleeps.
		go l.Do(func() {})
		if n, err := l.Turn(-1); n != 1 || err != nil {
			t.Error(n, err)
		}
		go l.Stop()
		if n, err := l.Turn(-1); n != 0 || err != nil {
			t.Error(n, err)
		}
	})
}

// TestDo: functions come in order, each once, from many goroutines and from themselves.
func TestDo(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		const workers, each = 4, 500
		var got [workers][]int
		n := 0
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range each {
					l.Do(func() {
						got[w] = append(got[w], i)
						n++
					})
				}
			})
		}
		until(t, l, "functions", func() bool { return n == workers*each })
		wg.Wait()
		for w := range got {
			if len(got[w]) != each || !slices.IsSorted(got[w]) {
				t.Errorf("worker %d: %d calls, sorted %v", w, len(got[w]), slices.IsSorted(got[w]))
			}
		}
		// What a function adds comes in the next turn.
		order := &recorder{}
		l.Do(func() {
			order.add("a")
			l.Do(func() { order.add("c") })
		})
		l.Do(func() { order.add("b") })
		turn(t, l, 2)
		turn(t, l, 1)
		turn(t, l, 0)
		if !slices.Equal(order.log, []string{"a", "b", "c"}) {
			t.Error(order.log)
		}
	})
}

// TestPanicInDo: the rest is called in the next turn.
func TestPanicInDo(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		order := &recorder{}
		l.Do(func() { order.add("a") })
		l.Do(func() { panic("b") })
		l.Do(func() { order.add("c") })
		l.After(0, func() { order.add("timer") })
		if p := call(func() { l.Turn(0) }); p != "b" {
			t.Errorf("panic: %v", p)
		}
		l.Do(func() { order.add("d") })
		turn(t, l, 2)
		l.After(0, func() { panic("timer") })
		l.After(0, func() { order.add("e") })
		if p := call(func() { l.Run(t.Context()) }); p != "timer" {
			t.Errorf("panic: %v", p)
		}
		turn(t, l, 1)
		if !slices.Equal(order.log, []string{"timer", "a", "c", "d", "e"}) {
			t.Error(order.log)
		}
	})
}

// TestCloseInHandler: the loop may be closed by a handler; nothing is called afterwards.
func TestCloseInHandler(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		calls := 0
		closing := func() {
			calls++
			must(t, l.Close())
		}
		for range 2 {
			fd := eventfd(t)
			signal(t, fd)
			get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { closing() }))
			l.After(0, closing)
			l.Do(closing)
		}
		is(t, l.Run(t.Context()), net.ErrClosed, "Run")
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
		// By a completion, in the middle of a batch.
		r := newRig(t, nil)
		l = newLoop(t, event.Config{Backend: b})
		n := r.line(nil)
		calls = 0
		get[*event.Watch](t)(l.CQ(n.cq, func(verbs.WC) { closing() }))
		n.give(3)
		is(t, l.Run(t.Context()), net.ErrClosed, "Run")
		if calls != 1 {
			t.Errorf("%d calls of a batch", calls)
		}
	})
}

// TestCloseWaits: a Close of another goroutine comes back when the handler has ended.
func TestCloseWaits(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		in := make(chan bool)
		ended := false
		l.Do(func() {
			close(in)
			for { // until Close has begun
				if _, err := l.FD(); err != nil {
					break
				}
				runtime.Gosched()
			}
			ended = true
		})
		done := make(chan error)
		go func() { done <- l.Run(t.Context()) }()
		arrive(t, in, "the handler")
		must(t, l.Close())
		if !ended {
			t.Error("Close came back before the handler")
		}
		is(t, arrive(t, done, "the end of Run"), net.ErrClosed, "Run")
	})
}

// TestTwoLoopsCloseEachOther: handlers of two loops that close each other's loops and
// watches do not wait for each other.
func TestTwoLoopsCloseEachOther(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		var loops [2]*event.Loop
		var watches [2]*event.Watch
		var met sync.WaitGroup
		met.Add(2)
		for i := range loops {
			loops[i] = newLoop(t, event.Config{Backend: b})
			fd := eventfd(t)
			signal(t, fd)
			watches[i] = get[*event.Watch](t)(loops[i].File(fd, event.Readable, func(event.Mask) {
				if !readable(t, fd) {
					return
				}
				drain(t, fd)
				met.Done()
				met.Wait()
				must(t, watches[1-i].Close())
				must(t, loops[1-i].Close())
			}))
		}
		done := make(chan error, 2)
		for _, l := range loops {
			go func() { done <- l.Run(t.Context()) }()
		}
		for range loops {
			is(t, arrive(t, done, "the end of Run"), net.ErrClosed, "Run")
		}
	})
}
