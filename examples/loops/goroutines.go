package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/verbena-rdma/verbena/verbs"
)

// serveGoroutines has a goroutine for each source. None holds a thread while it waits, and
// waiting, arming, draining and acknowledging are the library's business.
func serveGoroutines(ctx context.Context, s *server) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg sync.WaitGroup
		mu sync.Mutex // the server is for one at a time
	)
	do := func(f func() error) {
		mu.Lock()
		defer mu.Unlock()
		if err := f(); err != nil {
			cancel(err)
		}
	}
	s.added = func(d *device) error {
		wg.Go(func() {
			for wc, err := range d.cq.Completions(ctx) {
				if err != nil {
					cancel(err)
					return
				}
				do(func() error { return s.onWC(wc) })
			}
		})
		wg.Go(func() {
			for ev, err := range d.dev.Async().Events(ctx) {
				if err != nil {
					cancel(err)
					return
				}
				do(func() error { return s.onAsync(ev) })
			}
		})
		return nil
	}
	wg.Go(func() {
		for ev, err := range s.ch.Events(ctx) {
			if err != nil {
				cancel(err)
				return
			}
			do(func() error { return s.onCM(ev) })
		}
	})
	wg.Go(func() { serveTCP(ctx, s.tcp, &wg) })
	<-ctx.Done()
	s.tcp.Close()
	wg.Wait()
	return ended(context.Cause(ctx))
}

func serveTCP(ctx context.Context, ln net.Listener, wg *sync.WaitGroup) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer context.AfterFunc(ctx, func() { c.Close() })()
			io.Copy(c, c)
			c.Close()
		})
	}
}

// ended makes the wanted end no error.
func ended(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, verbs.ErrClosed) {
		return nil
	}
	return err
}
