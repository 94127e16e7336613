package main

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

func init() {
	ways["epoll"] = func(ctx context.Context, s *server) error { return serveEpoll(ctx, s, 0) }
	ways["edge"] = func(ctx context.Context, s *server) error { return serveEpoll(ctx, s, unix.EPOLLET) }
}

func serveEpoll(ctx context.Context, s *server, mode uint32) error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	return serveLoop(ctx, s, &epoller{fd: fd, mode: mode, sources: make(map[int32]*source)})
}

// epoller waits with epoll(7). With EPOLLET a descriptor is told once when it becomes
// ready, and not again until it was emptied. This loop works with both, as it never
// forgets a source whose serve said that there is more.
type epoller struct {
	fd      int
	mode    uint32
	sources map[int32]*source
	events  [64]unix.EpollEvent
}

func (w *epoller) add(s *source) error {
	w.sources[int32(s.fd)] = s
	return w.control(unix.EPOLL_CTL_ADD, s)
}

func (w *epoller) change(s *source) error { return w.control(unix.EPOLL_CTL_MOD, s) }

func (w *epoller) control(op int, s *source) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | w.mode, Fd: int32(s.fd)}
	if s.write {
		ev.Events |= unix.EPOLLOUT
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.fd, op, s.fd, &ev))
}

func (w *epoller) remove(s *source) {
	delete(w.sources, int32(s.fd))
	unix.EpollCtl(w.fd, unix.EPOLL_CTL_DEL, s.fd, nil)
}

func (w *epoller) close() { unix.Close(w.fd) }

func (w *epoller) wait(dst []*source, block bool) ([]*source, error) {
	limit := -1
	if !block {
		limit = 0
	}
	n, err := unix.EpollWait(w.fd, w.events[:], limit)
	if err == unix.EINTR {
		return dst, nil
	}
	if err != nil {
		return dst, os.NewSyscallError("epoll_wait", err)
	}
	for _, ev := range w.events[:n] {
		if s := w.sources[ev.Fd]; s != nil { // it may have been removed in this turn
			dst = append(dst, s)
		}
	}
	return dst, nil
}
