package cm

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// NewID makes an id without a channel (rdma_create_id with a NULL channel): its calls
// wait for their answer and give its error. A rejection is syscall.ECONNREFUSED for
// errors.Is, whatever its reason. SetTimeout bounds the waits, and Close ends them. The
// zero port space is ib.PortSpaceTCP.
//
// The events of such ids are taken by the library, by one goroutine for each provider,
// so a queue pair fails when the peer disconnects even if no call is in progress; an id
// costs no descriptor. One that listens has a channel of its own, in which requests
// stay until GetRequest asks for them. Migrate makes the id an asynchronous one.
func NewID(p verbs.Provider, ps ib.PortSpace) (*ID, error) {
	d, err := acquire(p)
	if err != nil {
		return nil, err
	}
	id, err := d.ch.newID(ps)
	if err != nil {
		d.release()
		return nil, err
	}
	id.mu.Lock()
	id.sync = d
	id.mu.Unlock()
	return id, nil
}

// SetTimeout bounds the calls of an id that wait: one that takes longer gives an error
// that wraps os.ErrDeadlineExceeded. What it started goes on; close the id to withdraw
// it. Zero, the default, leaves it to the limits that the calls have themselves and to
// the connection manager, whose own are a minute and more.
func (id *ID) SetTimeout(d time.Duration) error {
	if err := id.enter(opOption, "", anyState); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if d < 0 {
		return id.errorf(opOption, wrong("cm: the time-out is negative"))
	}
	id.limit = d
	return nil
}

// answer waits for the end of the operation whose state is s, if the calls of the id
// wait.
func (id *ID) answer(op string, s state) error {
	return id.waitFor(op, func() (bool, error) { return id.state != s, id.opErr })
}

// awaitEnd waits for the end of the connection.
func (id *ID) awaitEnd(op string) error {
	return id.waitFor(op, func() (bool, error) { return id.state == stateEnded, nil })
}

// answerJoin waits until a group is joined.
func (id *ID) answerJoin(g *membership) error {
	return id.waitFor(opJoin, func() (bool, error) {
		if g.err == nil && !g.joined && id.member(g.addr) != g {
			return true, net.ErrClosed // left meanwhile
		}
		return g.err != nil || g.joined, g.err
	})
}

// waitFor is await within the id's limit, for ids whose calls wait.
func (id *ID) waitFor(op string, done func() (bool, error)) error {
	id.mu.Lock()
	waits, limit := id.sync != nil, id.limit
	id.mu.Unlock()
	if !waits {
		return nil
	}
	ctx := context.Background()
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	err := id.await(ctx, op, done)
	if err == nil {
		return nil
	}
	e := err.(*OpError)
	var rej *RejectError
	switch {
	case e.Err == context.DeadlineExceeded:
		e.Err = os.ErrDeadlineExceeded
	case errors.As(e.Err, &rej):
		e.Err = refused{rej}
	}
	return e
}

// await waits until done says so, and gives its error as one of the step. done is
// called with mu held. If ctx ends first, its error is given.
func (id *ID) await(ctx context.Context, op string, done func() (bool, error)) error {
	for {
		id.mu.Lock()
		over, err := done()
		switch {
		case id.closing:
			over, err = true, net.ErrClosed
		case over:
		case ctx.Err() != nil:
			over, err = true, ctx.Err()
		}
		if over {
			err = id.errorf(op, err)
			id.mu.Unlock()
			return err
		}
		if id.wake == nil {
			id.wake = make(chan struct{})
		}
		wake := id.wake
		id.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// GetRequest waits for a request at an id that listens and whose calls wait
// (rdma_get_request). The new id is Event.ID; its calls wait as well. Several
// goroutines may call it. An asynchronous id gives ErrState: its requests are events.
func (id *ID) GetRequest(ctx context.Context) (Event, error) {
	if err := id.enter(opRequest, "it must listen, and have no channel", func(s state) bool { return s == stateListening && id.own }); err != nil {
		return Event{}, err
	}
	ch, d := id.ch, id.sync
	id.mu.Unlock()
	return id.nextRequest(ctx, ch, d)
}

// nextRequest takes the next request of a listener that has the channel for itself.
// The new id is moved to the dispatcher, so that its end is noticed at once.
func (id *ID) nextRequest(ctx context.Context, ch *EventChannel, d *dispatcher) (Event, error) {
	for {
		ev, err := ch.Event(ctx)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = id.listenerErr()
			}
			return Event{}, err
		}
		switch {
		case ev.Type == ConnectRequest && ev.ID == nil:
			return Event{}, id.fail(opRequest, ev.Err)
		case ev.Type == ConnectRequest:
			d.retain()
			if err := ev.ID.move(d.ch, d, false, true); err != nil {
				d.release()
				ev.ID.Close()
				if errors.Is(err, verbs.ErrDeviceGone) {
					continue // of a listener on several devices
				}
				return Event{}, err
			}
			return ev, nil
		case terminal(ev.Type):
			ch.Close() // for the others that wait: no request will come any more
			return Event{}, id.listenerErr()
		}
	}
}

// listenerErr says why a listener gives no requests.
func (id *ID) listenerErr() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateEnded && !id.closing {
		return id.errorf(opRequest, id.cause)
	}
	return id.errorf(opRequest, net.ErrClosed)
}

// toOwnChannel gives an id whose calls wait a channel of its own.
func (id *ID) toOwnChannel() error {
	ch, err := newRequests(id.p)
	if err != nil {
		return err
	}
	id.mu.Lock()
	d := id.sync
	id.mu.Unlock()
	if err := id.move(ch, d, true, false); err != nil {
		ch.Close()
		return err
	}
	return nil
}

// toDispatcher takes that back.
func (id *ID) toDispatcher() {
	id.mu.Lock()
	d := id.sync
	id.mu.Unlock()
	if d != nil {
		id.move(d.ch, d, false, false)
	}
}
