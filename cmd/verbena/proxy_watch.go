package main

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// watch resets a link that carries nothing for too long, or one of whose peers is dead, until
// stop.
func (l *link) watch() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	every := func(d time.Duration, look func() error) {
		wg.Go(func() {
			tick := time.NewTicker(d)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				if err := look(); err != nil {
					l.abort(err)
					return
				}
			}
		})
	}
	if d := l.p.o.idle; d > 0 {
		every(d, l.idle())
	}
	var halves []*net.TCPConn
	for _, c := range []duplex{l.near, l.far} {
		if t, ok := c.(*net.TCPConn); ok {
			halves = append(halves, t)
		}
	}
	if len(halves) > 0 {
		d := min(l.p.o.keepAlive, maxTCPKeepAlive)
		every(d/2, func() error {
			for _, t := range halves {
				if unanswered(t, 2*d) {
					return fmt.Errorf("%v does not answer: %w", t.RemoteAddr(), syscall.ETIMEDOUT)
				}
			}
			return nil
		})
	}
	return func() { close(done); wg.Wait() }
}

var errIdle = errors.New("nothing to carry for too long (-idle)")

// idle gives a look at the counters: whether they have stood still since the last one.
func (l *link) idle() func() error {
	last := int64(-1)
	return func() error {
		sum := l.up.Load() + l.down.Load()
		if sum == last {
			return errIdle
		}
		last = sum
		return nil
	}
}

// closeIdle is what a Close has at least, however short -idle is.
const closeIdle = 5 * time.Second

// end closes both halves in order. Close of RDMA waits until the peer has all: as long as it
// lives, for a slow one would lose the rest otherwise (TCP goes on after Close, too), until
// the link is reset.
func (l *link) end() {
	if d := l.p.o.idle; d > 0 {
		late := time.AfterFunc(max(d, closeIdle), func() { l.abort(errIdle) })
		defer late.Stop()
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.near.Close() })
	wg.Go(func() { l.far.Close() })
	wg.Wait()
}
