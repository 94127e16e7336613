package main

import (
	"context"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// source is something with a descriptor that is readable while it has an event.
type source interface{ FD() (int, error) }

// sleeper waits for descriptors.
type sleeper interface {
	add(source) error
	sleep(limit time.Duration) error // until a source has an event, wake, or the limit; negative: none
	wake()                           // from any goroutine
	close()
}

// loop is a waiter in one goroutine: look at all sources, sleep if there is nothing.
// With a spinner it does not sleep, and needs no completion channels.
type loop struct {
	ch      *cm.EventChannel
	h       handlers
	sleeper sleeper
	spins   bool
	turns   uint
	called  bool // a handler has run, so that what until waits for may have come
	devices map[*verbs.Device]*loopDevice
	queues  map[*verbs.CQ]*loopQueue
	unarmed []*loopQueue // which may have completions that no event will tell of
	wcs     [batchSize]verbs.WC
	woken   func() bool // stops the wake-up at the end of the context
}

type loopDevice struct {
	async *verbs.AsyncEvents
	comp  *verbs.CompChannel // nil if the loop spins
}

type loopQueue struct {
	cq   *verbs.CQ
	f    func([]verbs.WC) bool
	done func(error)
	gone bool
}

func newLoop(ch *cm.EventChannel, h handlers, s sleeper) *loop {
	_, spins := s.(*spinner)
	return &loop{
		ch: ch, h: h, sleeper: s, spins: spins,
		devices: map[*verbs.Device]*loopDevice{},
		queues:  map[*verbs.CQ]*loopQueue{},
	}
}

func (l *loop) queue(d *verbs.Device, n int, f func([]verbs.WC) bool, done func(error)) (*queue, error) {
	dev, err := l.device(d)
	if err != nil {
		return nil, err
	}
	cq, err := d.CreateCQ(n, &verbs.CQConfig{Channel: dev.comp})
	if err != nil {
		return nil, err
	}
	q := &loopQueue{cq: cq, f: f, done: done}
	l.queues[cq] = q
	l.unarmed = append(l.unarmed, q)
	return &queue{cq: cq, stop: func() { l.end(q, nil) }}, nil
}

// device watches the asynchronous events of a device and makes the channel that its
// queues share.
func (l *loop) device(d *verbs.Device) (*loopDevice, error) {
	if dev := l.devices[d]; dev != nil {
		return dev, nil
	}
	dev := &loopDevice{async: d.Async()}
	if !l.spins {
		var err error
		if dev.comp, err = d.CreateCompChannel(); err != nil {
			return nil, err
		}
		for _, s := range []source{dev.comp, dev.async} {
			if err := l.sleeper.add(s); err != nil {
				dev.comp.Close()
				return nil, err
			}
		}
	}
	l.devices[d] = dev
	return dev, nil
}

func (l *loop) until(ctx context.Context, deadline time.Time, cond func() bool) error {
	for !cond() {
		if err := ctx.Err(); err != nil {
			return err
		}
		l.called = false
		if err := l.turn(); err != nil {
			return err
		}
		if l.called {
			continue
		}
		limit := time.Duration(-1)
		if !deadline.IsZero() && (!l.spins || l.turns%clockTurns == 0) {
			if limit = time.Until(deadline); limit <= 0 {
				return os.ErrDeadlineExceeded
			}
		}
		if err := l.sleeper.sleep(limit); err != nil {
			return err
		}
	}
	return nil
}

// A spinning loop looks at completions in every turn and at the rest less often, as on a
// kernel device looking is a system call.
const (
	rareTurns  = 64
	clockTurns = 16
)

// turn looks at every source once.
func (l *loop) turn() error {
	l.turns++
	if !l.spins || l.turns%rareTurns == 0 {
		if err := l.events(); err != nil {
			return err
		}
	}
	if l.spins {
		for _, q := range l.queues {
			l.poll(q)
		}
		return nil
	}
	for _, dev := range l.devices {
		for {
			cq, ok, err := dev.comp.TryEvent()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if q := l.queues[cq]; q != nil {
				l.unarmed = append(l.unarmed, q)
			}
		}
	}
	queues := l.unarmed
	l.unarmed = nil
	for _, q := range queues {
		l.drain(q)
	}
	return nil
}

// events hands out events of the connection manager and of devices.
func (l *loop) events() error {
	for {
		ev, ok, err := l.ch.TryEvent()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		l.called = true
		l.h.cm(ev)
	}
	for _, dev := range l.devices {
		for {
			ev, ok, err := dev.async.TryEvent()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			l.called = true
			l.h.async(ev)
		}
	}
	return nil
}

// drain polls a queue until it is empty and armed, in this order: what comes between
// the last poll and the arming makes Arm say so. A queue that does not become empty has
// its turn again, after the others.
func (l *loop) drain(q *loopQueue) {
	for range fairBatches {
		if l.poll(q) > 0 {
			continue
		}
		if q.gone {
			return
		}
		ready, err := q.cq.Arm(ib.NotifyAny)
		if err != nil {
			l.end(q, err)
			return
		}
		if !ready {
			return
		}
	}
	l.unarmed = append(l.unarmed, q)
	l.called = true // there is more: no sleep
}

const fairBatches = 64

// poll hands out one batch.
func (l *loop) poll(q *loopQueue) int {
	if q.gone {
		return 0
	}
	n, err := q.cq.Poll(l.wcs[:])
	if err != nil {
		l.end(q, err)
		return 0
	}
	if n > 0 {
		l.called = true
		if !q.f(l.wcs[:n]) {
			l.end(q, nil)
		}
	}
	return n
}

func (l *loop) end(q *loopQueue, err error) {
	if q.gone {
		return
	}
	q.gone = true
	delete(l.queues, q.cq)
	l.called = true
	q.done(err)
}

func (l *loop) close() {
	if l.woken != nil {
		l.woken()
	}
	for _, q := range l.queues {
		l.end(q, nil)
	}
	l.sleeper.close()
	for _, dev := range l.devices {
		if dev.comp != nil {
			dev.comp.Close()
		}
	}
}
