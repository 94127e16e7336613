package main

import (
	"context"

	"github.com/panjf2000/gnet/v2/pkg/errors"
	"github.com/panjf2000/gnet/v2/pkg/netpoll"
	"golang.org/x/sys/unix"
)

func init() { ways["gnet"] = serveGnet }

// serveGnet puts the sources into the event loop of gnet, a framework. What it needs is
// that any descriptor can be watched, and no more.
func serveGnet(ctx context.Context, s *server) error {
	poller, err := netpoll.OpenPoller()
	if err != nil {
		return err
	}
	defer poller.Close()
	l := &gnetLoop{poller: poller, sources: make(map[int]*source)}
	// The loop knows descriptors only, so a source that must be served though its own
	// descriptor is silent is announced by one more.
	l.bell, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(l.bell)
	if err := l.add(&source{fd: l.bell, serve: l.serveAgain}); err != nil {
		return err
	}
	if err := s.register(l, l.later); err != nil {
		return err
	}
	stop, err := s.sockets(ctx, l)
	if err != nil {
		return err
	}
	defer stop()
	err = poller.Polling(func(fd int, _ netpoll.IOEvent, _ netpoll.IOFlags) error {
		if src := l.sources[fd]; src != nil {
			l.serve(src)
		}
		if l.err != nil || ctx.Err() != nil {
			return errors.ErrEngineShutdown
		}
		return nil
	})
	if err == errors.ErrEngineShutdown {
		err = l.err
	}
	return err
}

type gnetLoop struct {
	poller  *netpoll.Poller
	sources map[int]*source
	bell    int
	again   []*source
	err     error
}

func (l *gnetLoop) add(s *source) error {
	l.sources[s.fd] = s
	return l.poller.AddRead(&netpoll.PollAttachment{FD: s.fd}, false)
}

func (l *gnetLoop) change(s *source) error {
	if s.write {
		return l.poller.ModReadWrite(&netpoll.PollAttachment{FD: s.fd}, false)
	}
	return l.poller.ModRead(&netpoll.PollAttachment{FD: s.fd}, false)
}

func (l *gnetLoop) remove(s *source) {
	delete(l.sources, s.fd)
	l.poller.Delete(s.fd)
}

func (l *gnetLoop) later(s *source) {
	l.again = append(l.again, s)
	ring(l.bell)
}

func (l *gnetLoop) serve(s *source) {
	more, err := s.serve()
	if err != nil {
		l.err = err
	}
	if more {
		l.later(s)
	}
}

func (l *gnetLoop) serveAgain() (bool, error) {
	var count [8]byte
	unix.Read(l.bell, count[:])
	again := l.again
	l.again = nil
	for _, s := range again {
		l.serve(s)
	}
	return false, nil
}
