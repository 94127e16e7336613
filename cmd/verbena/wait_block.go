package main

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// blockWaiter has a goroutine for each source: the way of Go. None holds a thread while
// it waits.
type blockWaiter struct {
	ctx     context.Context // ends the goroutines
	cancel  context.CancelFunc
	h       handlers
	wg      sync.WaitGroup
	changed chan struct{} // a handler has run

	mu      sync.Mutex
	devices map[*verbs.Device]bool
	err     error // that broke a source
}

func newBlockWaiter(_ context.Context, ch *cm.EventChannel, h handlers) (waiter, error) {
	w := &blockWaiter{h: h, changed: make(chan struct{}, 1), devices: map[*verbs.Device]bool{}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.wg.Go(func() {
		for ev, err := range ch.Events(w.ctx) {
			if err != nil {
				w.broken(err)
				return
			}
			h.cm(ev)
			w.change()
		}
	})
	return w, nil
}

func (w *blockWaiter) change() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// broken remembers the error of a source, unless it comes from closing.
func (w *blockWaiter) broken(err error) {
	if w.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return
	}
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.change()
}

func (w *blockWaiter) queue(d *verbs.Device, n int, f func([]verbs.WC) bool, done func(error)) (*queue, error) {
	cq, err := d.CreateCQ(n, nil)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	if !w.devices[d] {
		w.devices[d] = true
		w.wg.Go(func() { w.async(d) })
	}
	w.mu.Unlock()
	ctx, stop := context.WithCancel(w.ctx)
	w.wg.Go(func() {
		defer stop()
		done(w.complete(ctx, cq, f))
		w.change()
	})
	return &queue{cq: cq, stop: stop}, nil
}

// complete hands out completions until it is told to stop.
func (w *blockWaiter) complete(ctx context.Context, cq *verbs.CQ, f func([]verbs.WC) bool) error {
	wcs := make([]verbs.WC, batchSize)
	for {
		n, err := cq.Wait(ctx, wcs)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		more := f(wcs[:n])
		if !more {
			return nil
		}
		w.change()
	}
}

func (w *blockWaiter) async(d *verbs.Device) {
	for ev, err := range d.Async().Events(w.ctx) {
		if err != nil {
			w.broken(err)
			return
		}
		w.h.async(ev)
		w.change()
	}
}

func (w *blockWaiter) until(ctx context.Context, deadline time.Time, cond func() bool) error {
	var late <-chan time.Time
	for {
		if cond() {
			return nil
		}
		w.mu.Lock()
		err := w.err
		w.mu.Unlock()
		if err != nil {
			return err
		}
		if late == nil && !deadline.IsZero() {
			t := time.NewTimer(time.Until(deadline))
			defer t.Stop()
			late = t.C
		}
		select {
		case <-w.changed:
		case <-late:
			if cond() {
				return nil
			}
			return os.ErrDeadlineExceeded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *blockWaiter) close() {
	w.cancel()
	w.wg.Wait()
}
