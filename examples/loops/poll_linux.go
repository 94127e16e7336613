package main

import (
	"context"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

func init() {
	ways["poll"] = func(ctx context.Context, s *server) error { return serveLoop(ctx, s, &poller{}) }
}

// poller waits with poll(2): no limit of descriptors, and an array that the kernel reads
// whole each time.
type poller struct {
	sources []*source
	fds     []unix.PollFd
}

func (w *poller) add(s *source) error {
	w.sources = append(w.sources, s)
	return nil
}

func (w *poller) change(*source) error { return nil }
func (w *poller) remove(s *source)     { w.sources = without(w.sources, s) }
func (w *poller) close()               {}

func (w *poller) wait(dst []*source, block bool) ([]*source, error) {
	w.fds = w.fds[:0]
	for _, s := range w.sources {
		events := int16(unix.POLLIN)
		if s.write {
			events |= unix.POLLOUT
		}
		w.fds = append(w.fds, unix.PollFd{Fd: int32(s.fd), Events: events})
	}
	limit := -1
	if !block {
		limit = 0
	}
	_, err := unix.Poll(w.fds, limit)
	if err == unix.EINTR {
		return dst, nil
	}
	if err != nil {
		return dst, os.NewSyscallError("poll", err)
	}
	for i, s := range w.sources {
		if w.fds[i].Revents != 0 { // POLLERR and POLLHUP come unasked: serve finds the error
			dst = append(dst, s)
		}
	}
	return dst, nil
}

func without(sources []*source, s *source) []*source {
	return slices.DeleteFunc(sources, func(o *source) bool { return o == s })
}
