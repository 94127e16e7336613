package cm

import (
	"context"
	"errors"
	"iter"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wait"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// EventChannel is a stream of events (struct rdma_event_channel). All methods may be
// called from any goroutine. Each event goes to one caller: several goroutines may
// wait, one of them sleeps on the channel and the others on it.
//
// Fetching an event does work: a queue pair is moved to RTS, or failed. It happens in
// the goroutine that fetches, and takes system calls, but waits for no peer.
type EventChannel struct {
	p   verbs.Provider
	drv driver.CMChannel
	src *wait.Source
	seq uint64 // two channels are locked in this order

	// call serialises the calls of drv, and with them the fetching of events and the
	// work they need. Lock order: call, an ID's mu, then mu.
	call    sync.Mutex
	devices map[string]verbs.DeviceInfo // seen so far; under call

	requests bool // of a listener whose calls wait: only nextRequest takes the events

	mu       sync.Mutex
	ids      map[*ID]struct{}
	closed   bool
	gone     bool // drv is closed
	consumed bool // by who called Consume
}

var channelSeq atomic.Uint64

// newRequests opens a channel for one listener, whose calls wait.
func newRequests(p verbs.Provider) (*EventChannel, error) {
	ch, err := NewEventChannel(p)
	if err == nil {
		ch.requests = true
	}
	return ch, err
}

// NewEventChannel opens a channel (rdma_create_event_channel). It does not block. No
// device (ENODEV), no connection manager in the system (ENOENT), no access (EACCES)
// and a provider without one (errors.ErrUnsupported) are different errors.
func NewEventChannel(p verbs.Provider) (*EventChannel, error) {
	if p == nil {
		return nil, opError(opChannel, wrong("cm: the provider is nil"))
	}
	m, err := p.OpenCM()
	if err != nil {
		return nil, opError(opChannel, err)
	}
	drv, err := m.OpenChannel()
	if err != nil {
		return nil, opError(opChannel, err)
	}
	ch := &EventChannel{p: p, drv: drv, seq: channelSeq.Add(1), ids: map[*ID]struct{}{}}
	ch.src = wait.New(ch.notifier())
	ch.enlist()
	return ch, nil
}

// opError is an error of a step that concerns no id.
func opError(op string, err error) error {
	return &OpError{Op: op, Err: err, Hint: hint(op, 0, err)}
}

// descriptor and sleeper are the channel's driver as package wait sees it. FD counts
// as a call, and they come one at a time.
type (
	descriptor struct{ ch *EventChannel }
	sleeper    struct {
		descriptor
		driver.Waiter
	}
)

func (d descriptor) FD() (int, error) { return d.ch.fd() }

func (ch *EventChannel) notifier() driver.Notifier {
	if w, ok := ch.drv.(driver.Waiter); ok {
		return sleeper{descriptor{ch}, w}
	}
	return descriptor{ch}
}

// check gives the error of a call on a nil, zero or closed channel.
func (ch *EventChannel) check(op string) error {
	if ch == nil || ch.drv == nil {
		return opError(op, wrong("cm: the event channel is nil or zero"))
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return opError(op, net.ErrClosed)
	}
	return nil
}

// Event waits for the next event (rdma_get_cm_event, rdma_ack_cm_event). It parks the
// goroutine and holds no thread. Events are acknowledged before they are seen, so no
// Close waits for a reader, and anything may be called while handling one.
//
// If ctx has ended it gives ctx's error and leaves what there is to the next call.
// After Close of the channel the error wraps net.ErrClosed.
func (ch *EventChannel) Event(ctx context.Context) (Event, error) {
	if err := ch.check(opEvent); err != nil {
		return Event{}, err
	}
	if err := ch.taken(); err != nil {
		return Event{}, err
	}
	var ev Event
	var err error
	werr := ch.src.Wait(ctx, func() bool {
		var ok bool
		ev, ok, err = ch.fetch()
		return ok || err != nil
	})
	switch {
	case err != nil:
	case werr == nil:
		return ev, nil
	case werr == ctx.Err():
		return Event{}, werr
	default:
		err = werr
	}
	return Event{}, opError(opEvent, err)
}

// TryEvent gives an event that is there, or ok == false. It does not wait for one.
func (ch *EventChannel) TryEvent() (ev Event, ok bool, err error) {
	if err := ch.check(opEvent); err != nil {
		return Event{}, false, err
	}
	if ev, ok, err = ch.fetch(); err != nil {
		return Event{}, false, opError(opEvent, err)
	}
	return ev, ok, nil
}

// Events waits for one event after the other. The last pair carries the error that
// ended it; breaking out is allowed at any time and loses nothing.
func (ch *EventChannel) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) { ch.events(ctx, yield) }
}

func (ch *EventChannel) events(ctx context.Context, yield func(Event, error) bool) {
	for {
		ev, err := ch.Event(ctx)
		if !yield(ev, err) || err != nil {
			return
		}
	}
}

// FD gives a descriptor that is readable exactly while TryEvent would find something
// to fetch. (That may be an event of an id that was closed meanwhile, which TryEvent
// then drops.) It is borrowed: wait on it with select, poll or epoll, do nothing else.
func (ch *EventChannel) FD() (int, error) {
	if err := ch.check(opEvent); err != nil {
		return -1, err
	}
	fd, err := ch.fd()
	if err != nil {
		return -1, opError(opEvent, err)
	}
	return fd, nil
}

func (ch *EventChannel) fd() (int, error) {
	ch.call.Lock()
	defer ch.call.Unlock()
	if ch.isGone() {
		return -1, net.ErrClosed
	}
	return ch.drv.FD()
}

// fetch takes the next event that somebody shall see, and does what it asks for.
func (ch *EventChannel) fetch() (Event, bool, error) {
	ch.call.Lock()
	defer ch.call.Unlock()
	for {
		if ch.isClosed() {
			return Event{}, false, net.ErrClosed
		}
		raw, ok, err := ch.drv.Next()
		if err != nil || !ok {
			return Event{}, false, err
		}
		if ev, ok := ch.process(&raw); ok {
			return ev, true, nil
		}
	}
}

func (ch *EventChannel) isClosed() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.closed
}

func (ch *EventChannel) isGone() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.gone
}

// Close closes the channel (rdma_destroy_event_channel) and wakes who waits. It does
// not block. The ids on it stay usable until they are closed, but give no more events,
// and what only an event can tell (that a peer disconnected) fails no queue pair any
// more: migrate them, or close them.
func (ch *EventChannel) Close() error {
	if ch == nil || ch.drv == nil {
		return opError("close event channel", wrong("cm: the event channel is nil or zero"))
	}
	ch.mu.Lock()
	ch.closed = true
	ch.mu.Unlock()
	ch.src.Close()
	return ch.finish()
}

// finish closes the driver's channel once nobody needs it: the channel is closed, and
// so are its ids.
func (ch *EventChannel) finish() error {
	ch.call.Lock()
	defer ch.call.Unlock()
	ch.mu.Lock()
	last := ch.closed && len(ch.ids) == 0 && !ch.gone
	ch.gone = ch.gone || last
	ch.mu.Unlock()
	if !last {
		return nil
	}
	ch.delist()
	if err := ch.drv.Close(); err != nil {
		return opError("close event channel", err)
	}
	return nil
}

// add and drop keep account of the ids on the channel.
func (ch *EventChannel) add(id *ID) {
	ch.mu.Lock()
	ch.ids[id] = struct{}{}
	ch.mu.Unlock()
}

func (ch *EventChannel) drop(id *ID) error {
	ch.mu.Lock()
	delete(ch.ids, id)
	ch.mu.Unlock()
	return ch.finish()
}

// all gives the ids on the channel.
func (ch *EventChannel) all() []*ID {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ids := make([]*ID, 0, len(ch.ids))
	for id := range ch.ids {
		ids = append(ids, id)
	}
	return ids
}

// NewID makes an id (rdma_create_id). Its events come from ch, and its methods do not
// wait for them. The zero port space is ib.PortSpaceTCP.
func (ch *EventChannel) NewID(ps ib.PortSpace) (*ID, error) {
	if err := ch.check(opCreate); err != nil {
		return nil, err
	}
	return ch.newID(ps)
}

func (ch *EventChannel) newID(ps ib.PortSpace) (*ID, error) {
	if ps == 0 {
		ps = ib.PortSpaceTCP
	}
	switch ps {
	case ib.PortSpaceTCP, ib.PortSpaceUDP, ib.PortSpaceIB, ib.PortSpaceIPoIB:
	default:
		return nil, opError(opCreate, wrong("cm: "+ps.String()+" is no port space"))
	}
	id := &ID{p: ch.p, ps: ps, ch: ch}
	ch.call.Lock()
	defer ch.call.Unlock()
	id.mu.Lock() // the table shows it before it is complete
	defer id.mu.Unlock()
	id.handle = table.add(id, nil)
	err := net.ErrClosed
	if !ch.isGone() {
		id.drv, err = ch.drv.CreateID(id.handle, ps, qpType(ps))
	}
	if err != nil {
		table.remove(id.handle)
		return nil, opError(opCreate, err)
	}
	ch.add(id)
	return id, nil
}

// lockCalls holds the calls of two channels, and gives what lets them go.
func lockCalls(a, b *EventChannel) (unlock func()) {
	if a == b {
		a.call.Lock()
		return a.call.Unlock
	}
	if a.seq > b.seq {
		a, b = b, a
	}
	a.call.Lock()
	b.call.Lock()
	return func() {
		b.call.Unlock()
		a.call.Unlock()
	}
}

// isErrno reports whether err is one of some system errors.
func isErrno(err error, any ...syscall.Errno) bool {
	for _, e := range any {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
