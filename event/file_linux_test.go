package event_test

import (
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// socketpair gives two connected stream sockets that do not block.
func socketpair(t testing.TB) (a, b int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	must(t, err)
	return fds[0], fds[1]
}

func TestFile(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		a, peer := socketpair(t)
		defer unix.Close(a)
		var got []event.Mask
		w := get[*event.Watch](t)(l.File(a, event.Readable, func(m event.Mask) { got = append(got, m) }))
		masks := func(what string, want ...event.Mask) {
			t.Helper()
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
			got = nil
		}
		turn(t, l, 0)
		_, err := unix.Write(peer, []byte("x"))
		must(t, err)
		turn(t, l, 1)
		turn(t, l, 1)
		masks("level", event.Readable, event.Readable)
		must(t, w.SetMask(event.Readable|event.Writable))
		turn(t, l, 1)
		masks("both", event.Readable|event.Writable)
		must(t, w.SetMask(event.Writable))
		turn(t, l, 1)
		masks("writable", event.Writable)
		must(t, w.SetMask(0))
		turn(t, l, 0)
		must(t, unix.Close(peer))
		turn(t, l, 0)
		masks("asleep")
		must(t, w.SetMask(event.Readable))
		turn(t, l, 1)
		masks("hung up", event.Readable|event.HangUp)
		must(t, w.Close())
		turn(t, l, 0)
		is(t, w.SetMask(event.Readable), net.ErrClosed, "SetMask after Close")
		is(t, w.SetMask(event.HangUp), syscall.EINVAL, "HangUp alone")
		is(t, w.SetMask(1<<7), syscall.EINVAL, "no mask")
		if s := (event.Readable | event.HangUp).String(); s != "Readable|HangUp" {
			t.Error(s)
		}
		if s := event.Mask(0).String(); s != "0" {
			t.Error(s)
		}
	})
}

// TestFileErrors: what cannot be watched is refused in the same way by all backends.
func TestFileErrors(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		none := func(event.Mask) { t.Error("called") }
		fd := eventfd(t)
		w := get[*event.Watch](t)(l.File(fd, event.Readable, none))
		_, err := l.File(fd, event.Readable, none)
		is(t, err, event.ErrWatched, "twice")
		must(t, w.Close())
		w = get[*event.Watch](t)(l.File(fd, 0, none))
		_, err = l.File(fd, event.Readable, none)
		is(t, err, event.ErrWatched, "twice, asleep")
		must(t, w.Close())
		get[*event.Watch](t)(l.File(fd, event.Readable, none))
		_, err = l.File(-1, event.Readable, none)
		is(t, err, syscall.EBADF, "no descriptor")
		_, err = l.File(fd, event.HangUp, none)
		is(t, err, syscall.EINVAL, "HangUp alone")
		f := get[*os.File](t)(os.Open("file.go"))
		defer f.Close()
		_, err = l.File(int(f.Fd()), event.Readable, none)
		is(t, err, syscall.EPERM, "a regular file")
		var oe *event.OpError
		if !errors.As(err, &oe) || oe.Hint == "" {
			t.Errorf("no hint: %v", err)
		}
		turn(t, l, 0)
	})
}

// TestC247_BigDescriptor: select refuses what does not fit into its sets, and goes on.
func TestC247_BigDescriptor(t *testing.T) {
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		small := eventfd(t)
		const big = 1024
		fd := eventfd(t)
		if fd < big {
			fd = get[int](t)(dupAtLeast(fd, big))
			defer unix.Close(fd)
		}
		calls := 0
		w, err := l.File(fd, event.Readable, func(event.Mask) { calls++ })
		if b == event.Select {
			var limit *event.DescriptorLimitError
			if !errors.As(err, &limit) || limit.FD != fd || limit.Limit != big || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("a descriptor of %d: %v", fd, err)
			}
		} else {
			must(t, err)
			signal(t, fd)
			turn(t, l, 1)
			must(t, w.Close())
		}
		get[*event.Watch](t)(l.File(small, event.Readable, func(event.Mask) { calls++ }))
		signal(t, small)
		calls = 0
		turn(t, l, 1)
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
}

func dupAtLeast(fd, least int) (int, error) {
	n, _, e := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, uintptr(least))
	if e != 0 {
		return -1, e
	}
	return int(n), nil
}

// replace makes the number of fd another file, readable: what happens when it is closed and
// the number given again.
func replace(t testing.TB, fd int) {
	t.Helper()
	other := get[int](t)(unix.Eventfd())
	defer unix.Close(other)
	signal(t, other)
	must(t, syscall.Dup3(other, fd, syscall.O_CLOEXEC))
}

// TestReusedDescriptor: a descriptor that was closed under the loop, and whose number means
// another file by now, ends its watch; the handler is not called for that one.
func TestReusedDescriptor(t *testing.T) {
	// Not in parallel, as it closes numbers.
	for _, b := range backends {
		for _, kept := range []bool{false, true} { // the file lives on in a duplicate
			name := b.String()
			if kept {
				name += "/duplicate"
			}
			t.Run(name, func(t *testing.T) {
				l := newLoop(t, event.Config{Backend: b, Recheck: time.Millisecond})
				fd := get[int](t)(unix.Eventfd())
				defer unix.Close(fd)
				if kept {
					dup := get[int](t)(unix.Dup(fd))
					defer unix.Close(dup)
					signal(t, fd)
				}
				var failed []error
				w := get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { t.Error("called for another file") }))
				w.OnError(func(err error) { failed = append(failed, err) })
				replace(t, fd)
				for end := time.Now().Add(patience); len(failed) == 0 && time.Now().Before(end); {
					l.Do(func() {})
					_, err := l.Turn(time.Millisecond)
					must(t, err)
				}
				if len(failed) != 1 || !errors.Is(failed[0], net.ErrClosed) {
					t.Errorf("failed with %v", failed)
				}
				// No busy loop for what lives on.
				before := l.Stats()
				turns := 0
				for range 10 {
					n, err := l.Turn(time.Millisecond)
					must(t, err)
					turns += n
				}
				if after := l.Stats(); turns != 0 || after.Sleeps-before.Sleeps > 40 {
					t.Errorf("%d calls, %d sleeps in ten turns", turns, after.Sleeps-before.Sleeps)
				}
				// The number may be watched again, and that is what is delivered.
				calls := 0
				w2 := get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { calls++ }))
				must(t, w.Close())
				turn(t, l, 1)
				must(t, w2.Close())
				if calls != 1 {
					t.Errorf("%d calls", calls)
				}
			})
		}
	}
}

// TestStaleWhenReady: what is found ready and is another file by now ends its watch in the same
// turn, without the looks of the re-check.
func TestStaleWhenReady(t *testing.T) {
	for _, b := range backends {
		t.Run(b.String(), func(t *testing.T) {
			l := newLoop(t, event.Config{Backend: b, Recheck: -1})
			fd := get[int](t)(unix.Eventfd())
			defer unix.Close(fd)
			dup := get[int](t)(unix.Dup(fd)) // so that epoll reports it still
			defer unix.Close(dup)
			signal(t, fd)
			get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { t.Error("called for another file") }))
			replace(t, fd)
			_, err := l.Turn(0)
			is(t, err, net.ErrClosed, "turn")
			turn(t, l, 0)
		})
	}
}

// TestReusedNumberIsWatched: the number is given to a new watch before the loop has noticed
// that the old file is closed.
func TestReusedNumberIsWatched(t *testing.T) {
	for _, b := range backends {
		t.Run(b.String(), func(t *testing.T) {
			l := newLoop(t, event.Config{Backend: b})
			fd := get[int](t)(unix.Eventfd())
			defer unix.Close(fd)
			order := &recorder{}
			w := get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { t.Error("called for another file") }))
			w.OnError(func(err error) {
				is(t, err, net.ErrClosed, "OnError")
				order.add("failed")
			})
			replace(t, fd)
			get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) {
				order.add("called")
				drain(t, fd)
			}))
			turn(t, l, 2)
			turn(t, l, 0)
			if !slices.Equal(order.log, []string{"failed", "called"}) {
				t.Error(order.log)
			}
		})
	}
}

// TestClosedDescriptor: without OnError the turn gives the error; the loop goes on.
func TestClosedDescriptor(t *testing.T) {
	for _, b := range backends {
		t.Run(b.String(), func(t *testing.T) {
			l := newLoop(t, event.Config{Backend: b, Recheck: time.Millisecond})
			fd := get[int](t)(unix.Eventfd())
			get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { t.Error("called") }))
			must(t, unix.Close(fd))
			var err error
			for end := time.Now().Add(patience); err == nil && time.Now().Before(end); {
				l.Do(func() {})
				_, err = l.Turn(time.Millisecond)
			}
			is(t, err, net.ErrClosed, "turn")
			turn(t, l, 0)
		})
	}
}

// TestFileOfOneTurn: a handler closes the watch of what was found ready in the same turn.
func TestFileOfOneTurn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		var fds [3]int
		var w [3]*event.Watch
		order := &recorder{}
		for i := range fds {
			fds[i] = eventfd(t)
			signal(t, fds[i])
			w[i] = get[*event.Watch](t)(l.File(fds[i], event.Readable, func(event.Mask) {
				order.add("%d", i)
				must(t, w[(i+1)%3].Close())
				must(t, w[i].Close())
			}))
		}
		turn(t, l, 2)
		turn(t, l, 0)
		if !slices.Equal(order.log, []string{"0", "2"}) {
			t.Error(order.log)
		}
	})
}

// TestManyReady: a turn sees all that is ready, each once, in the order of registration, however
// many there are.
func TestManyReady(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		var got, want []int
		for i := range 150 {
			fd := eventfd(t)
			signal(t, fd)
			get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) { got = append(got, i) }))
			want = append(want, i)
		}
		for range 3 {
			got = nil
			turn(t, l, len(want))
			if !slices.Equal(got, want) {
				t.Errorf("called: %v", got)
			}
		}
	})
}

// TestSelfWatch: a loop that watches itself, or two that watch each other, are refused.
func TestSelfWatch(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l, m := newLoop(t, event.Config{Backend: b}), newLoop(t, event.Config{Backend: b})
		none := func(event.Mask) {}
		_, err := l.File(get[int](t)(l.FD()), event.Readable, none)
		is(t, err, syscall.EINVAL, "itself")
		get[*event.Watch](t)(l.File(get[int](t)(m.FD()), event.Readable, none))
		_, err = m.File(get[int](t)(l.FD()), event.Readable, none)
		is(t, err, syscall.ELOOP, "each other")
	})
}

// TestWatchCloseWaits: a Close of another goroutine comes back when the call has ended; one
// in the handler comes back at once.
func TestWatchCloseWaits(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		fd := eventfd(t)
		signal(t, fd)
		in := make(chan bool)
		ended := false
		var w *event.Watch
		w = get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) {
			drain(t, fd)
			close(in)
			for w.SetMask(event.Readable) == nil { // until Close has begun
				runtime.Gosched()
			}
			ended = true
		}))
		running(t, l)
		arrive(t, in, "the handler")
		must(t, w.Close())
		if !ended {
			t.Error("Close came back before the handler")
		}
	})
}

// TestChangesWhileAsleep: what is added, changed and removed by other goroutines counts for a
// loop that sleeps.
func TestChangesWhileAsleep(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		running(t, l)
		for range 20 {
			a, peer := socketpair(t)
			calls := make(chan event.Mask, 1)
			var w *event.Watch
			w = get[*event.Watch](t)(l.File(a, 0, func(m event.Mask) {
				if w.SetMask(0) == nil {
					calls <- m
				}
			}))
			must(t, w.SetMask(event.Writable))
			if m := arrive(t, calls, "writable"); m != event.Writable {
				t.Error(m)
			}
			must(t, w.SetMask(event.Readable))
			_, err := unix.Write(peer, []byte("x"))
			must(t, err)
			if m := arrive(t, calls, "readable"); m != event.Readable {
				t.Error(m)
			}
			must(t, w.Close())
			must(t, unix.Close(a))
			must(t, unix.Close(peer))
		}
	})
}
