package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection through the proxy: near is the accepted half, far the dialled one.
// Each direction is a goroutine, and what ends it is told to the other half: the end of a
// stream as the end of a stream, everything else as a reset.
type link struct {
	p         *proxy
	near, far duplex
	begun     time.Time
	up, down  atomic.Int64 // bytes to far, to near

	mu    sync.Mutex
	cause error // the first thing that went wrong
	over  bool  // reset, or to be
}

// run carries the link from its dial to its end.
func (l *link) run(ctx context.Context) {
	if err := l.open(ctx); err != nil {
		reset(l.near)
		l.told(err)
		return
	}
	if l.p.o.verbose {
		l.p.log.Printf("%v: connected, carried by %v → %v", l.near.RemoteAddr(), l.far.LocalAddr(), l.far.RemoteAddr())
	}
	stopWatch := l.watch()
	var wg sync.WaitGroup
	wg.Go(func() { l.carry(l.far, l.near, &l.up) })
	wg.Go(func() { l.carry(l.near, l.far, &l.down) })
	wg.Wait()
	stopWatch()
	err := l.why()
	if err != nil {
		l.abort(err)
	} else {
		l.end()
		err = l.why() // it may have been reset meanwhile
	}
	l.told(err)
}

// open makes the far half.
func (l *link) open(ctx context.Context) error {
	if err := l.p.keep(l.near); err != nil {
		return err
	}
	far, err := l.p.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = errStopped
		}
		return fmt.Errorf("no connection to %v: %w", l.p.o.to, err)
	}
	if err := l.p.keep(far); err != nil {
		reset(far)
		return err
	}
	l.mu.Lock()
	l.far = far
	over, cause := l.over, l.cause
	l.mu.Unlock()
	if over { // meanwhile
		reset(far)
		return cause
	}
	return nil
}

// carry is one direction.
func (l *link) carry(dst, src duplex, count *atomic.Int64) {
	rerr, werr := relay(dst, src, count)
	switch {
	case rerr == nil && werr == nil:
		// A failure shows in the other direction.
		_ = dst.CloseWrite()
	case rerr != nil:
		// Nothing more can come or go there, so the other side is to know at once.
		l.abort(rerr)
	default:
		// dst takes no more. What it has said before may still be on its way to src, so the
		// reset waits until src is done, or the other direction has failed, or for the grace.
		l.note(werr)
		end := time.Now().Add(l.p.o.grace)
		dst.SetDeadline(end)
		src.SetDeadline(end)
		var lost atomic.Int64
		if rerr, _ := relay(io.Discard, src, &lost); rerr != nil {
			l.abort(rerr)
		}
	}
}

// note keeps the first thing that went wrong.
func (l *link) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil {
		l.cause = err
	}
}

// why gives it, or nil.
func (l *link) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// abort resets both halves, also if they are being closed. It may be called at any time, and again.
func (l *link) abort(err error) {
	l.note(err)
	l.mu.Lock()
	l.over = true
	far := l.far
	l.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { reset(l.near) })
	if far != nil {
		wg.Go(func() { reset(far) })
	}
	wg.Wait()
}

// reset closes a connection such that the peer does not take it for a regular end.
func reset(c duplex) {
	_ = c.SetLinger(0) // fails on one that is closed or broken already; ends a Close that waits
	_ = c.Close()
}

// told logs the end.
func (l *link) told(err error) {
	took := time.Since(l.begun).Round(time.Millisecond)
	if err != nil {
		l.p.failed.Add(1)
		l.p.complain("%v: reset after %v, %d bytes there, %d back: %v", l.near.RemoteAddr(), took, l.up.Load(), l.down.Load(), err)
		return
	}
	l.p.carried.Add(1)
	if l.p.o.verbose {
		l.p.log.Printf("%v: ended after %v, %d bytes there, %d back", l.near.RemoteAddr(), took, l.up.Load(), l.down.Load())
	}
}

// A silent direction holds a small buffer; one that fills it gets a large one while there
// is much to carry.
const (
	smallRelay = 4 << 10
	largeRelay = 64 << 10
)

var largeBufs = sync.Pool{New: func() any { b := make([]byte, largeRelay); return &b }}

// relay copies until the end of src (nil, nil), and says which side failed otherwise.
func relay(dst io.Writer, src io.Reader, count *atomic.Int64) (rerr, werr error) {
	small := make([]byte, smallRelay)
	var large *[]byte
	defer func() {
		if large != nil {
			largeBufs.Put(large)
		}
	}()
	for {
		b := small
		if large != nil {
			b = *large
		}
		n, err := src.Read(b)
		if n > 0 {
			m, werr := dst.Write(b[:n])
			count.Add(int64(m))
			if werr != nil {
				return nil, werr
			}
		}
		switch {
		case err == io.EOF:
			return nil, nil
		case err != nil:
			return err, nil
		case n == smallRelay && large == nil:
			large = largeBufs.Get().(*[]byte)
		case n < smallRelay && large != nil:
			largeBufs.Put(large)
			large = nil
		}
	}
}
