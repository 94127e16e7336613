package cm

import (
	"net"

	"github.com/verbena-rdma/verbena/verbs"
)

// Consume makes the caller the only consumer of the channel, as an event loop is: until
// release is called, Event and Events of others give verbs.ErrOneConsumer, and so does a
// second Consume. The consumer calls TryEvent while FD is readable. A goroutine that is in
// Event already goes on with the event that it waits for.
//
// closed is called, in a goroutine of its own, when the channel is closed, which FD does
// not show. It may be running when release returns.
func (ch *EventChannel) Consume(closed func()) (release func(), err error) {
	if err := ch.check(opEvent); err != nil {
		return nil, err
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	switch {
	case ch.closed:
		return nil, opError(opEvent, net.ErrClosed)
	case ch.consumed:
		return nil, opError(opEvent, verbs.ErrOneConsumer)
	}
	ch.consumed = true
	stop := ch.src.OnClose(closed)
	return func() {
		stop()
		ch.mu.Lock()
		defer ch.mu.Unlock()
		ch.consumed = false
	}, nil
}

// taken gives the error of a wait on a channel that a loop consumes.
func (ch *EventChannel) taken() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.consumed {
		return opError(opEvent, verbs.ErrOneConsumer)
	}
	return nil
}
