package main

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func init() {
	ways["select"] = func(ctx context.Context, s *server) error { return serveLoop(ctx, s, &selecter{}) }
}

// selecter waits with select(2). Its sets have room for descriptors below 1024 only; what
// is beyond would be written outside of them, so add refuses it.
type selecter struct{ sources []*source }

func (w *selecter) add(s *source) error {
	if s.fd >= unix.FD_SETSIZE {
		return fmt.Errorf("select cannot wait for descriptor %d: the limit is %d", s.fd, unix.FD_SETSIZE)
	}
	w.sources = append(w.sources, s)
	return nil
}

func (w *selecter) change(*source) error { return nil }
func (w *selecter) remove(s *source)     { w.sources = without(w.sources, s) }
func (w *selecter) close()               {}

func (w *selecter) wait(dst []*source, block bool) ([]*source, error) {
	var r, wr unix.FdSet
	most := 0
	for _, s := range w.sources {
		r.Set(s.fd)
		if s.write {
			wr.Set(s.fd)
		}
		most = max(most, s.fd)
	}
	var limit *unix.Timeval // nil: no limit
	if !block {
		limit = &unix.Timeval{}
	}
	n, err := unix.Select(most+1, &r, &wr, nil, limit)
	if err == unix.EINTR || n == 0 {
		return dst, nil
	}
	if err != nil {
		return dst, os.NewSyscallError("select", err)
	}
	for _, s := range w.sources {
		if r.IsSet(s.fd) || wr.IsSet(s.fd) {
			dst = append(dst, s)
		}
	}
	return dst, nil
}
