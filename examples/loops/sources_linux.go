package main

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// source is a descriptor and what to do when it is ready.
type source struct {
	fd    int
	write bool // wait until it can be written, too
	// serve does some of the work that there is and says whether there is more.
	serve func() (more bool, err error)
}

// registry is where sources are told to a loop.
type registry interface {
	add(*source) error
	change(*source) error // write has changed
	remove(*source)
}

// register gives the sources of RDMA to a loop. again is called for one that must be served
// though nothing will say that it is ready.
func (s *server) register(r registry, again func(*source)) error {
	s.added = func(d *device) error {
		cq, err := s.cqSource(d)
		if err != nil {
			return err
		}
		async, err := s.asyncSource(d)
		if err != nil {
			return err
		}
		if err := errors.Join(r.add(cq), r.add(async)); err != nil {
			return err
		}
		again(cq) // the first time arms it
		return nil
	}
	cm, err := s.cmSource()
	if err != nil {
		return err
	}
	return r.add(cm)
}

// sockets gives the others to a loop: those of TCP, and one that wakes it when ctx ends.
func (s *server) sockets(ctx context.Context, r registry) (stop func(), err error) {
	end, free, err := endSource(ctx)
	if err != nil {
		return nil, err
	}
	tcp, err := newTCP(s.tcp, r)
	if err != nil {
		free()
		return nil, err
	}
	return func() {
		tcp.close()
		free()
	}, errors.Join(r.add(tcp.accept), r.add(end))
}

// waiter waits for sources: with select, poll or epoll.
type waiter interface {
	registry
	// wait appends the sources that are ready to those in dst. It waits for one, if block
	// says so.
	wait(dst []*source, block bool) ([]*source, error)
	close()
}

// loop is a program's own event loop: one goroutine, one waiter.
type loop struct {
	waiter
	again []*source // that must be served, whatever their descriptors say
}

func (l *loop) later(s *source) { l.again = append(l.again, s) }

func (l *loop) run(ctx context.Context) (err error) {
	var ready []*source
	for ctx.Err() == nil {
		ready, l.again = append(ready[:0], l.again...), l.again[:0]
		if ready, err = l.wait(ready, len(ready) == 0); err != nil {
			return err
		}
		for _, s := range ready {
			more, err := s.serve()
			if err != nil {
				return err
			}
			if more {
				l.later(s) // the next wait does not block
			}
		}
	}
	return nil
}

// serveLoop serves RDMA and TCP in such a loop.
func serveLoop(ctx context.Context, s *server, w waiter) error {
	l := &loop{waiter: w}
	defer l.close()
	if err := s.register(l, l.later); err != nil {
		return err
	}
	stop, err := s.sockets(ctx, l)
	if err != nil {
		return err
	}
	defer stop()
	return l.run(ctx)
}

// budget is how much work of one source is done before it is the others' turn.
const budget = 64

// cmSource: fetch until there is nothing.
func (s *server) cmSource() (*source, error) {
	fd, err := s.ch.FD()
	return &source{fd: fd, serve: func() (bool, error) {
		for range budget {
			ev, ok, err := s.ch.TryEvent()
			if !ok || err != nil {
				return false, err
			}
			s.onCM(ev)
		}
		return true, nil
	}}, err
}

// asyncSource: the same.
func (s *server) asyncSource(d *device) (*source, error) {
	fd, err := d.dev.Async().FD()
	return &source{fd: fd, serve: func() (bool, error) {
		for range budget {
			ev, ok, err := d.dev.Async().TryEvent()
			if !ok || err != nil {
				return false, err
			}
			s.onAsync(ev)
		}
		return true, nil
	}}, err
}

// cqSource is the one that takes care. An event is an edge: it comes once, for a queue
// that was armed, and says nothing about completions that were there before. So: drain the
// channel, poll until the queue is empty, arm, and look once more; only then may the loop
// sleep. Arm does the look, and says what it saw.
func (s *server) cqSource(d *device) (*source, error) {
	var wcs [budget]verbs.WC
	fd, err := d.ch.FD()
	return &source{fd: fd, serve: func() (bool, error) {
		for {
			_, ok, err := d.ch.TryEvent()
			if err != nil {
				return false, err
			}
			if !ok {
				break
			}
		}
		n, err := d.cq.Poll(wcs[:])
		if err != nil {
			return false, err
		}
		for _, wc := range wcs[:n] {
			s.onWC(wc)
		}
		if n == budget {
			return true, nil // there may be more: do not sleep
		}
		return d.cq.Arm(ib.NotifyAny)
	}}, err
}

// endSource wakes the loop when ctx ends. free closes its descriptor, when nobody can ring
// it any more: its number may be another file's by then.
func endSource(ctx context.Context) (s *source, free func(), err error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, nil, os.NewSyscallError("eventfd", err)
	}
	rung := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { ring(fd); close(rung) })
	free = func() {
		if !stop() {
			<-rung
		}
		unix.Close(fd)
	}
	return &source{fd: fd, serve: func() (bool, error) { return false, ended(ctx.Err()) }}, free, nil
}

// ring makes an eventfd readable: the way to wake a loop from another goroutine.
func ring(fd int) { unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
