package verbs

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wait"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// AsyncEvents gives the asynchronous events of a device (ibv_get_async_event).
// Events are acknowledged before they are seen: no Close waits for a reader.
// Whoever reads, the library's own state follows first (a CQ_ERR fails its queue
// pairs), then every observer, then the reader.
//
// Each event goes to one reader. Several goroutines may read; all but one sleep.
type AsyncEvents struct {
	dev *Device
	d   driver.AsyncQueue
	src *wait.Source

	// dead ends when the device is found to be gone, whoever finds it.
	dead context.Context
	end  context.CancelFunc

	mu   sync.Mutex // one call of d at a time, and:
	soft []uint64   // handles of SRQs with an event that the library made
	fd   channelFD

	omu sync.Mutex
	obs []*observer // copied when it changes
}

type observer struct{ f func(AsyncEvent) }

// AsyncEvent is a value; the object is nil if it has been closed meanwhile.
type AsyncEvent struct {
	Type   ib.EventType
	Device *Device
	CQ     *CQ
	QP     *QP
	SRQ    *SRQ
	Port   int
}

const opAsync = "asynchronous event"

func (a *AsyncEvents) begin(d *Device) {
	a.dev, a.d = d, d.c.Async()
	a.src = wait.New(a.d)
	a.dead, a.end = context.WithCancel(context.Background())
}

// bury wakes the readers, as the descriptor need not say that the device is gone, and lets
// go of the descriptor, without which the kernel may not be able to remove the device.
func (a *AsyncEvents) bury() {
	a.end()
	a.src.Release()
}

// shut wakes the readers.
func (a *AsyncEvents) shut() { a.src.Close() }

func (a *AsyncEvents) op() error {
	if a == nil || a.dev == nil {
		return opError(opAsync, nil, "", errNil)
	}
	return a.dev.op(opAsync)
}

// Event waits for the next event. It parks the goroutine and holds no thread. It
// gives ctx's error, or one that wraps net.ErrClosed when the device is closed, or
// ErrDeviceGone when the device went away. If ctx has ended, it gives its error even
// if there is an event, which stays.
func (a *AsyncEvents) Event(ctx context.Context) (AsyncEvent, error) {
	if err := a.op(); err != nil {
		return AsyncEvent{}, err
	}
	raw, err := a.wait(ctx)
	a.dev.leave() // observers may close the device
	if err != nil {
		return AsyncEvent{}, a.fail(err)
	}
	return a.follow(raw), nil
}

func (a *AsyncEvents) wait(ctx context.Context) (raw driver.AsyncEvent, err error) {
	werr := a.src.Wait(ctx, func() bool {
		var ok bool
		raw, ok, err = a.next()
		return ok || err != nil
	})
	if werr != nil {
		return driver.AsyncEvent{}, werr
	}
	return raw, err
}

// fail leaves the errors of contexts as they are.
func (a *AsyncEvents) fail(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return a.dev.fail(opAsync, "", err)
}

// TryEvent gives an event that is there, or ok == false. It never blocks.
func (a *AsyncEvents) TryEvent() (ev AsyncEvent, ok bool, err error) {
	if err := a.op(); err != nil {
		return AsyncEvent{}, false, err
	}
	raw, ok, err := a.next()
	a.dev.leave()
	if err != nil {
		return AsyncEvent{}, false, a.fail(err)
	}
	if !ok {
		return AsyncEvent{}, false, nil
	}
	return a.follow(raw), true, nil
}

// Events waits for one event after the other. The last pair carries the error that
// ended it; breaking out is allowed at any time and loses nothing.
func (a *AsyncEvents) Events(ctx context.Context) iter.Seq2[AsyncEvent, error] {
	return func(yield func(AsyncEvent, error) bool) { a.events(ctx, yield) }
}

func (a *AsyncEvents) events(ctx context.Context, yield func(AsyncEvent, error) bool) {
	for {
		ev, err := a.Event(ctx)
		if !yield(ev, err) || err != nil {
			return
		}
	}
}

// FD gives a descriptor that is readable exactly while TryEvent would give an
// event, or an event came that the library has given before the device (see SRQ.SetLimit).
// It is borrowed: wait on it with select, poll or epoll, do nothing else.
func (a *AsyncEvents) FD() (int, error) {
	if err := a.op(); err != nil {
		return -1, err
	}
	a.mu.Lock()
	fd, err := a.open()
	a.mu.Unlock()
	a.dev.leave()
	if err != nil {
		return -1, a.fail(err)
	}
	return fd, nil
}

// open gives the descriptor: that of the device if the library has no events of its own. mu is held.
func (a *AsyncEvents) open() (int, error) {
	if a.dev.limits.MaxSRQ == 0 {
		return a.d.FD()
	}
	return a.fd.open(a.d, len(a.soft) > 0)
}

// close lets go of what open made.
func (a *AsyncEvents) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fd.close()
}

// Observe has f called for every event, in the goroutine of whoever reads. f may call
// everything but Event and Events of the same device, and must not block. A call of f may
// still be in progress when cancel returns.
func (a *AsyncEvents) Observe(f func(AsyncEvent)) (cancel func()) {
	if a == nil || a.dev == nil {
		return func() {}
	}
	o := &observer{f}
	a.omu.Lock()
	defer a.omu.Unlock()
	a.obs = append(slices.Clone(a.obs), o)
	return func() {
		a.omu.Lock()
		defer a.omu.Unlock()
		a.obs = slices.DeleteFunc(slices.Clone(a.obs), func(x *observer) bool { return x == o })
	}
}

// follow makes the event that users see, after the library and the observers have
// followed it. An unknown number is passed on.
func (a *AsyncEvents) follow(raw driver.AsyncEvent) AsyncEvent {
	d := a.dev
	ev := AsyncEvent{Type: raw.Type, Device: d, Port: raw.Port}
	switch raw.Type {
	case ib.EventCQErr:
		if ev.CQ = d.cqByHandle(raw.Handle); ev.CQ != nil {
			ev.CQ.overran(EventError(raw.Type))
		}
	case ib.EventQPFatal, ib.EventQPReqErr, ib.EventQPAccessErr:
		if ev.QP = d.qpByHandle(raw.Handle); ev.QP != nil {
			ev.QP.lost(EventError(raw.Type))
		}
	case ib.EventCommEst, ib.EventSQDrained, ib.EventPathMig, ib.EventPathMigErr, ib.EventQPLastWQEReached:
		ev.QP = d.qpByHandle(raw.Handle)
	case ib.EventSRQErr, ib.EventSRQLimitReached:
		ev.SRQ = d.srqByHandle(raw.Handle)
	case ib.EventDeviceFatal:
		d.notice(ErrDeviceGone)
	case ib.EventPortActive, ib.EventPortErr, ib.EventLIDChange, ib.EventPKeyChange, ib.EventSMChange,
		ib.EventClientReregister, ib.EventGIDChange, ib.EventWQFatal, ib.EventDeviceSpeedChange:
	}
	a.omu.Lock()
	obs := a.obs
	a.omu.Unlock()
	for _, o := range obs {
		o.f(ev)
	}
	return ev
}

// Handles of closed objects find nothing.
func (d *Device) cqByHandle(h uint64) *CQ {
	if cq := d.cqs.get(uint32(h)); cq != nil && cq.handle == h && !cq.closed() {
		return cq
	}
	return nil
}

func (d *Device) qpByHandle(h uint64) *QP {
	if qp := d.qps.get(uint32(h)); qp != nil && qp.handle == h && !qp.closed() {
		return qp
	}
	return nil
}

func (d *Device) srqByHandle(h uint64) *SRQ {
	if s := d.srqs.get(uint32(h)); s != nil && s.handle == h && !s.closed() {
		return s
	}
	return nil
}
