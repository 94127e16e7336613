package event_test

import (
	"errors"
	"net"
	"testing"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// lazy is a Source in the strict model: its descriptor shows only what comes after Prepare.
type lazy struct {
	fd       int
	work     int
	armed    bool
	prepares int
	serve    func()
	err      error // of Prepare and Serve

	prepareErr error
}

func (s *lazy) FD() (int, error) { return s.fd, nil }

func (s *lazy) Prepare() (bool, error) {
	s.prepares++
	s.armed = true
	return s.work > 0, errors.Join(s.err, s.prepareErr)
}

func (s *lazy) Serve(most int) (n int, err error) {
	if _, err := unix.EventfdDrain(s.fd); err != nil {
		return 0, err
	}
	for ; s.work > 0 && n < most; n++ {
		s.work--
		if s.serve != nil {
			s.serve()
		}
	}
	return n, s.err
}

func (s *lazy) add(t testing.TB, n int) {
	s.work += n
	if s.armed {
		s.armed = false
		signal(t, s.fd)
	}
}

func TestSource(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Batch: 4})
		s := &lazy{fd: eventfd(t), work: 3} // before Add
		w := get[*event.Watch](t)(l.Add(s))
		until(t, l, "work from before", func() bool { return s.work == 0 })
		for range 5 {
			s.add(t, 6)
			until(t, l, "work", func() bool { return s.work == 0 })
		}
		turn(t, l, 0)
		n := s.prepares
		fd := eventfd(t)
		signal(t, fd)
		f := get[*event.Watch](t)(l.File(fd, event.Readable, func(event.Mask) {}))
		for range 10 {
			turn(t, l, 1)
		}
		if s.prepares != n {
			t.Errorf("%d times prepared without need", s.prepares-n)
		}
		must(t, f.Close())

		// A panic loses no work, an error ends the watch.
		s.serve = func() { panic("x") }
		s.add(t, 2)
		if p := call(func() { l.Turn(0) }); p != "x" {
			t.Errorf("panic %v", p)
		}
		s.serve = nil
		until(t, l, "work after a panic", func() bool { return s.work == 0 })
		var failed error
		w.OnError(func(err error) { failed = err })
		s.err = errors.New("broken")
		s.add(t, 1)
		until(t, l, "the error", func() bool { return failed != nil })
		is(t, failed, s.err, "OnError")
		turn(t, l, 0)
		_, err := l.Add(s)
		is(t, err, s.err, "Add of a broken source")
		is(t, w.Close(), nil, "Close")
		if err := w.SetMask(event.Readable); err == nil || errors.Is(err, net.ErrClosed) {
			t.Errorf("SetMask: %v", err)
		}
	})
}

// TestPrepareFails: an error, or a panic, while sources are armed.
func TestPrepareFails(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		a, c := &lazy{fd: eventfd(t)}, &bad{lazy{fd: eventfd(t)}, ""}
		get[*event.Watch](t)(l.Add(a))
		w := get[*event.Watch](t)(l.Add(c))
		w.OnError(func(error) { t.Error("a panic is no error") })
		c.panic = "x"
		a.add(t, 1)
		c.add(t, 1)
		turn(t, l, 2)
		if p := call(func() { l.Turn(-1) }); p != "x" {
			t.Errorf("panic %v", p)
		}
		c.panic = ""
		turn(t, l, 0)
		a.add(t, 1)
		c.add(t, 1)
		turn(t, l, 2)
		a.err = errors.New("broken")
		_, err := l.Turn(-1)
		is(t, err, a.err, "Turn")
		c.add(t, 1)
		turn(t, l, 1)
	})
}

// bad panics in Prepare.
type bad struct {
	lazy
	panic string
}

func (s *bad) Prepare() (bool, error) {
	if s.panic != "" {
		panic(s.panic)
	}
	return s.lazy.Prepare()
}
