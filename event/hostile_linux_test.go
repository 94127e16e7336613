package event_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
)

// exits runs f in a goroutine, and waits until that has ended, in whatever way.
func exits(f func()) {
	done := make(chan bool)
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// TestGoexit: a handler that ends its goroutine (as t.FailNow does) loses nothing but that,
// whatever kind it is of.
func TestGoexit(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		for _, nested := range []bool{false, true} {
			l := newLoop(t, event.Config{Backend: b, Batch: 4})
			if nested {
				_, err := l.FD()
				must(t, err)
			}
			n := newRig(t, nil).line(nil)
			var got []uint64
			get[*event.Watch](t)(l.CQ(n.cq, func(wc verbs.WC) {
				if got = append(got, wc.ID); wc.ID%3 == 0 {
					runtime.Goexit()
				}
			}))
			n.give(10)
			fd := eventfd(t)
			signal(t, fd)
			calls := map[string]int{}
			exit := func(what string) {
				calls[what]++
				runtime.Goexit()
			}
			get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { drain(t, fd); exit("file") }))
			l.After(0, func() { exit("timer") })
			l.After(0, func() { calls["timer"]++ })
			l.Do(func() { exit("do") })
			l.Do(func() { calls["do"]++ })
			s := &lazy{fd: eventfd(t), work: 3, serve: func() { exit("serve") }}
			get[*event.Watch](t)(l.Add(s)).OnError(func(error) { exit("failed") })
			for i := 0; len(got) < 10 || s.work > 0; i++ {
				if i == 100 {
					t.Fatalf("completions %v, work %d", got, s.work)
				}
				exits(func() { l.Turn(0) })
			}
			s.err = net.ErrClosed
			s.armed = true
			s.add(t, 0)
			for i := 0; calls["failed"] == 0 && i < 100; i++ {
				exits(func() { l.Turn(0) })
			}
			ids(t, got, 10)
			for what, want := range map[string]int{"file": 1, "timer": 2, "do": 2, "serve": 3, "failed": 1} {
				if calls[what] != want {
					t.Errorf("%d calls of %q, want %d", calls[what], what, want)
				}
			}
			turn(t, l, 0)
		}
	})
}

// TestEndsInItsHandler: queues on one channel, the first of which closes things in its own
// handler; the loop survives, and the others go on if they can.
func TestEndsInItsHandler(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]struct {
		do   func(r *rig, ch *verbs.CompChannel, n *line, l *event.Loop) error
		last bool // there is nothing after it
	}{
		"queue": {func(_ *rig, _ *verbs.CompChannel, n *line, _ *event.Loop) error { return n.cq.Close() }, false},
		"pair":  {func(_ *rig, _ *verbs.CompChannel, n *line, _ *event.Loop) error { return n.qp.Close() }, false},
		"both": {func(_ *rig, _ *verbs.CompChannel, n *line, _ *event.Loop) error {
			return errors.Join(n.cq.Close(), n.qp.Close())
		}, false},
		"channel": {func(_ *rig, ch *verbs.CompChannel, _ *line, _ *event.Loop) error { return ch.Close() }, true},
		"device":  {func(r *rig, _ *verbs.CompChannel, _ *line, _ *event.Loop) error { return r.dev.Close() }, false},
		"loop":    {func(_ *rig, _ *verbs.CompChannel, _ *line, l *event.Loop) error { return l.Close() }, true},
		"loop+pair": {func(_ *rig, _ *verbs.CompChannel, n *line, l *event.Loop) error {
			return errors.Join(l.Close(), n.qp.Close())
		}, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, b event.Backend) {
				r := newRig(t, nil)
				ch := get[*verbs.CompChannel](t)(r.dev.CreateCompChannel())
				r.closeLast(ch)
				l := newLoop(t, event.Config{Backend: b})
				one, two := r.line(ch), r.line(ch)
				var over bool
				after := 0
				w := get[*event.Watch](t)(l.CQ(one.cq, func(verbs.WC) {
					if over {
						after++
						return
					}
					over = true
					if _, err := l.Turn(0); !errors.Is(err, event.ErrBusy) {
						t.Errorf("a turn in a handler: %v", err)
					}
					must(t, end.do(r, ch, one, l))
				}))
				w.OnError(func(err error) { is(t, err, net.ErrClosed, "OnError") })
				w2, got := two.watch(l)
				failed := false
				w2.OnError(func(err error) {
					is(t, err, net.ErrClosed, "OnError of the other")
					failed = true
				})
				one.give(5)
				two.give(1)
				for range 10 {
					l.Turn(0) // of a closed loop it is an error
				}
				if what != "device" && what != "channel" && after > 0 {
					t.Errorf("%d completions after the end", after)
				}
				if !end.last {
					two.give(3)
					until(t, l, "the other queue", func() bool { return len(*got) == 4 })
				}
				if failed != (what == "channel") {
					t.Errorf("the other has failed: %v", failed)
				}
			})
		})
	}
}

// TestThreeDeep: loops in loops in loops tell the truth to poll(2), and deliver everything.
func TestThreeDeep(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		var loops [3]*event.Loop // the first has the second, ...
		for i := range loops {
			loops[i] = newLoop(t, event.Config{Backend: b})
		}
		deep := loops[2]
		for i := range 2 {
			get[*event.Watch](t)(loops[i].File(get[int](t)(loops[i+1].FD()), event.Readable, func(event.Mask) {
				_, err := loops[i+1].Turn(0)
				must(t, err)
			}))
		}
		top := get[int](t)(loops[0].FD())
		n := newRig(t, nil).line(nil)
		_, got := n.watch(deep)
		fd := eventfd(t)
		files, timers, calls := 0, 0, 0
		get[*event.Watch](t)(deep.File(fd, event.Readable, func(event.Mask) { files++; drain(t, fd) }))
		settle := func(what string, done func() bool) {
			t.Helper()
			for i := 0; readable(t, top); i++ {
				if i == 100 {
					t.Fatalf("readable for ever: %s", what)
				}
				_, err := loops[0].Turn(0)
				must(t, err)
			}
			if !done() {
				t.Errorf("not delivered, and nothing is readable: %s", what)
			}
		}
		settle("nothing", func() bool { return true })
		for i := 1; i < 20; i++ {
			n.give(5)
			settle("completions", func() bool { return len(*got) == 5*i })
			signal(t, fd)
			settle("file", func() bool { return files == i })
			deep.Do(func() { calls++ })
			settle("call", func() bool { return calls == i })
			deep.After(0, func() { timers++ })
			waitFor(t, "the timer's descriptor", func() bool { return readable(t, top) })
			settle("timer", func() bool { return timers == i })
		}
		ids(t, *got, 95)
	})
}

// TestCallsAreCounted: those of OnError too, wherever in a turn they come.
func TestCallsAreCounted(t *testing.T) {
	t.Parallel()
	for _, nested := range []bool{false, true} { // arming fails before the sleep, or at the end
		l := newLoop(t, event.Config{})
		if nested {
			_, err := l.FD()
			must(t, err)
		}
		s := &lazy{fd: eventfd(t)}
		get[*event.Watch](t)(l.Add(s)).OnError(func(error) {})
		s.serve = func() { s.prepareErr = net.ErrClosed }
		s.add(t, 1)
		var n int
		for range 3 {
			k, err := l.Turn(time.Microsecond)
			must(t, err)
			n += k
		}
		if s := l.Stats(); n != 2 || s.Calls != 2 {
			t.Errorf("nested %v: turns say %d calls, Stats %d; want 2", nested, n, s.Calls)
		}
	}
}

// TestTimerStorm: timers that many goroutines set, move and stop all the time, with absurd
// durations too, while a loop sleeps, spins and is nested.
func TestTimerStorm(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Recheck: time.Millisecond})
		running(t, l)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		var wg sync.WaitGroup
		for g := range uint64(4) {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, g))
				var ts [8]*event.Timer
				for i := range ts {
					ts[i] = l.After(time.Hour, func() {})
				}
				for i := range 500 {
					tm := ts[rnd.IntN(len(ts))]
					switch rnd.IntN(5) {
					case 0:
						tm.Stop()
					case 1:
						tm.Reset(time.Duration(rnd.Uint64()))
					case 2:
						tm.Reset(time.Duration(rnd.IntN(1000)))
					case 3:
						tm.Reset(1<<63 - 1)
					case 4:
						l.Stats()
					}
					if i == 250 && g == 0 {
						if _, err := l.FD(); err != nil {
							t.Error(err)
						}
					}
				}
				for _, tm := range ts {
					tm.Stop()
				}
				// Whatever was before, this one comes.
				done := make(chan bool)
				ts[0] = l.After(time.Millisecond, func() { close(done) })
				arrive(t, done, "the last timer")
			})
		}
		wg.Wait()
	})
}

// TestRunTwice: of two goroutines in Run one has an error at once; a context that has ended
// costs no turn.
func TestRunTwice(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		ctx, cancel := context.WithCancel(context.Background())
		errs := make(chan error, 2)
		for range 2 {
			go func() { errs <- l.Run(ctx) }()
		}
		is(t, arrive(t, errs, "the second Run"), event.ErrBusy, "the second Run")
		cancel()
		is(t, arrive(t, errs, "the first Run"), context.Canceled, "the first Run")
		called := false
		l.Do(func() { called = true })
		is(t, l.Run(ctx), context.Canceled, "Run with a context that has ended")
		if called {
			t.Error("a turn was made")
		}
		turn(t, l, 1)
	})
}

// TestClosedBehindTheBack: with a backend that does not use the loop's epoll instance itself,
// FD must not stay readable for a file that lives on in a duplicate after its number was closed
// before its watch.
func TestClosedBehindTheBack(t *testing.T) {
	for _, b := range backends {
		t.Run(b.String(), func(t *testing.T) {
			l := newLoop(t, event.Config{Backend: b})
			top := get[int](t)(l.FD())
			fd := get[int](t)(unix.Eventfd())
			dup := get[int](t)(unix.Dup(fd))
			defer unix.Close(dup)
			w := get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { t.Error("called") }))
			must(t, unix.Close(fd))
			must(t, w.Close())
			signal(t, dup)
			for range 3 {
				turn(t, l, 0)
			}
			if readable(t, top) {
				t.Error("readable for ever")
			}
		})
	}
}

// TestSpinHears: a loop that spins for as long as it likes hears of timers, calls and Stop
// that others bring meanwhile.
func TestSpinHears(t *testing.T) {
	for _, most := range []time.Duration{time.Hour, 1<<63 - 1} {
		for _, b := range backends {
			t.Run(b.String(), func(t *testing.T) {
				l := newLoop(t, event.Config{Backend: b, Spin: event.Spin{Max: most}, Recheck: -1})
				n := newRig(t, nil).line(nil)
				spins := make(chan bool, 1)
				get[*event.Watch](t)(l.CQ(n.cq, func(verbs.WC) { spins <- true }))
				stop := running(t, l)
				for range 5 {
					before := l.Stats().Spins
					n.give(1)
					arrive(t, spins, "a completion, after which it spins")
					waitFor(t, "the spin", func() bool { return l.Stats().Spins > before })
					called := make(chan bool, 1)
					far := l.After(time.Hour, func() {})
					go l.After(time.Millisecond, func() { called <- true })
					arrive(t, called, "a timer of another goroutine")
					n.give(1)
					arrive(t, spins, "a completion")
					go far.Reset(time.Millisecond)
					go l.Do(func() { called <- true })
					arrive(t, called, "a call of another goroutine")
				}
				stop()
			})
		}
	}
}

// TestCloseTouchesNoOther: while one goroutine closes a loop that another runs, the numbers of
// its descriptors may be given to a new loop already; that one keeps what it watches.
func TestCloseTouchesNoOther(t *testing.T) {
	// Not in parallel, so that numbers are given again at once.
	var fds [200]int
	for i := range fds {
		fds[i] = eventfd(t)
		signal(t, fds[i])
	}
	watch := func(l *event.Loop, f func()) {
		for _, fd := range fds {
			get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { f() }))
		}
	}
	for _, b := range backends {
		for range 30 {
			old := get[*event.Loop](t)(event.New(&event.Config{Backend: b}))
			in := make(chan bool, 1)
			watch(old, func() {
				select {
				case in <- true:
				default:
				}
			})
			ended := make(chan error, 1)
			go func() { ended <- old.Run(context.Background()) }()
			arrive(t, in, "a handler")
			closed := make(chan error, 1)
			go func() { closed <- old.Close() }()
			is(t, arrive(t, ended, "the end of Run"), net.ErrClosed, "Run")
			l := get[*event.Loop](t)(event.New(&event.Config{Backend: b}))
			watch(l, func() {})
			must(t, arrive(t, closed, "the end of Close"))
			turn(t, l, len(fds))
			must(t, l.Close())
			if t.Failed() {
				return
			}
		}
	}
}
