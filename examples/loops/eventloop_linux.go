package main

import (
	"context"

	"github.com/verbena-rdma/verbena/event"
)

func init() {
	for _, b := range []event.Backend{event.Epoll, event.Poll, event.Select} {
		ways["event.Loop-"+b.String()] = func(ctx context.Context, s *server) error { return serveEventLoop(ctx, s, b) }
	}
	ways["nested"] = func(ctx context.Context, s *server) error { return serveNested(ctx, s, &poller{}) }
}

// serveEventLoop leaves waiting to event.Loop.
func serveEventLoop(ctx context.Context, s *server, b event.Backend) error {
	loop, err := event.New(&event.Config{Backend: b, Spin: event.Spin{Adaptive: true}})
	if err != nil {
		return err
	}
	defer loop.Close()
	if err := s.watch(loop); err != nil {
		return err
	}
	tcp, err := newTCP(s.tcp, files{loop: loop, watches: map[*source]*event.Watch{}})
	if err != nil {
		return err
	}
	defer tcp.close()
	if err := tcp.r.add(tcp.accept); err != nil {
		return err
	}
	return ended(loop.Run(ctx))
}

// watch gives all sources of RDMA to a loop.
func (s *server) watch(loop *event.Loop) error {
	s.added = func(d *device) error {
		_, err := loop.CQ(d.cq, s.onWC)
		if err == nil {
			_, err = loop.Async(d.dev.Async(), s.onAsync)
		}
		return err
	}
	_, err := loop.CM(s.ch, s.onCM)
	return err
}

// files has sockets watched by a loop.
type files struct {
	loop    *event.Loop
	watches map[*source]*event.Watch
}

func (f files) add(s *source) error {
	w, err := f.loop.File(s.fd, f.mask(s), func(event.Mask) { s.serve() })
	f.watches[s] = w
	return err
}

func (files) mask(s *source) event.Mask {
	if s.write {
		return event.Readable | event.Writable
	}
	return event.Readable
}

func (f files) change(s *source) error { return f.watches[s].SetMask(f.mask(s)) }

func (f files) remove(s *source) {
	f.watches[s].Close()
	delete(f.watches, s)
}

// serveNested has a loop that cannot change, and to which RDMA is one descriptor more.
func serveNested(ctx context.Context, s *server, w waiter) error {
	inner, err := event.New(nil)
	if err != nil {
		return err
	}
	defer inner.Close()
	if err := s.watch(inner); err != nil {
		return err
	}
	fd, err := inner.FD()
	if err != nil {
		return err
	}
	rdma := &source{fd: fd, serve: func() (more bool, err error) {
		_, err = inner.Turn(0)
		return false, err // the descriptor is level: it says so if there is more
	}}
	l := &loop{waiter: w}
	defer l.close()
	if err := l.add(rdma); err != nil {
		return err
	}
	stop, err := s.sockets(ctx, l)
	if err != nil {
		return err
	}
	defer stop()
	return l.run(ctx)
}
