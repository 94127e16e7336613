package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// waker is a descriptor that another goroutine makes readable.
type waker struct {
	mu    sync.Mutex
	fd    int // -1: closed
	woken atomic.Bool
}

func newWaker() (*waker, error) {
	fd, err := unix.Eventfd()
	if err != nil {
		return nil, err
	}
	return &waker{fd: fd}, nil
}

func (w *waker) FD() (int, error) { return w.fd, nil }

func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		w.woken.Store(true)
		// It cannot fail: the descriptor is open, and a full counter is readable.
		_ = unix.EventfdSignal(w.fd)
	}
}

// rest makes the descriptor unreadable again if it was woken.
func (w *waker) rest() error {
	if !w.woken.Swap(false) {
		return nil
	}
	_, err := unix.EventfdDrain(w.fd)
	return err
}

func (w *waker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	unix.Close(w.fd)
	w.fd = -1
}

// newSleepingLoop makes a loop that sleeps, and that the end of ctx wakes.
func newSleepingLoop(ctx context.Context, ch *cm.EventChannel, h handlers, s sleeper) (waiter, error) {
	l := newLoop(ch, h, s)
	if err := s.add(ch); err != nil {
		s.close()
		return nil, err
	}
	l.woken = context.AfterFunc(ctx, s.wake)
	return l, nil
}

// poller sleeps in poll(2).
type poller struct {
	*waker
	fds []unix.PollFD
}

func newPollWaiter(ctx context.Context, ch *cm.EventChannel, h handlers) (waiter, error) {
	w, err := newWaker()
	if err != nil {
		return nil, err
	}
	p := &poller{waker: w}
	if err := p.add(w); err != nil {
		w.close()
		return nil, err
	}
	return newSleepingLoop(ctx, ch, h, p)
}

func (p *poller) add(s source) error {
	fd, err := s.FD()
	if err != nil {
		return err
	}
	p.fds = append(p.fds, unix.PollFD{Fd: int32(fd), Events: unix.PollIn})
	return nil
}

func (p *poller) sleep(limit time.Duration) error {
	if _, err := unix.Poll(p.fds, limit); err != nil {
		return err
	}
	return p.rest()
}

// epoller sleeps in epoll_wait(2).
type epoller struct {
	*waker
	ep     int
	events []unix.EpollEvent
}

func newEpollWaiter(ctx context.Context, ch *cm.EventChannel, h handlers) (waiter, error) {
	w, err := newWaker()
	if err != nil {
		return nil, err
	}
	ep, err := unix.EpollCreate()
	if err != nil {
		w.close()
		return nil, err
	}
	e := &epoller{waker: w, ep: ep, events: make([]unix.EpollEvent, batchSize)}
	if err := e.add(w); err != nil {
		e.close()
		return nil, err
	}
	return newSleepingLoop(ctx, ch, h, e)
}

func (e *epoller) add(s source) error {
	fd, err := s.FD()
	if err != nil {
		return err
	}
	return unix.EpollAdd(e.ep, fd, unix.PollIn)
}

func (e *epoller) sleep(limit time.Duration) error {
	if _, err := unix.EpollWait(e.ep, e.events, limit); err != nil {
		return err
	}
	return e.rest()
}

func (e *epoller) close() {
	unix.Close(e.ep)
	e.waker.close()
}
