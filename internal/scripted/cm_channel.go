package scripted

import (
	"context"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// CMChannel is a queue of events in memory.
type CMChannel struct {
	cm  *CM
	one only

	// with cm.mu held
	queue    []driver.CMEvent
	spurious int
	err      error         // of Next, when the queue is empty
	ready    chan struct{} // closed while Next has something
	isReady  bool
	d        *descriptor // nil: none yet
	waiting  int
	closed   bool
}

// onlyFD hides that a channel can be waited for without a descriptor.
type onlyFD struct{ driver.CMChannel }

func newCMChannel(c *CM) *CMChannel { return &CMChannel{cm: c, ready: make(chan struct{})} }

func unwrapCM(ch driver.CMChannel) *CMChannel {
	if o, ok := ch.(onlyFD); ok {
		ch = o.CMChannel
	}
	return ch.(*CMChannel)
}

// level makes what waiters see follow the queue. cm.mu is held.
func (ch *CMChannel) level() {
	on := len(ch.queue) > 0 || ch.spurious > 0 || ch.err != nil
	if on == ch.isReady {
		return
	}
	ch.isReady = on
	if on {
		close(ch.ready)
	} else {
		ch.ready = make(chan struct{})
	}
	if ch.d != nil {
		ch.d.set(on)
	}
}

// PollError has the descriptor report an error and no data (EPOLLERR), for good, while Next
// finds nothing and says nothing. It needs CM.PollErrors.
func (ch *CMChannel) PollError() {
	ch.cm.mu.Lock()
	defer ch.cm.mu.Unlock()
	if _, err := ch.descriptor(); err == nil {
		ch.d.fail()
	}
}

// Spurious makes the channel ready n times without an event.
func (ch *CMChannel) Spurious(n int) {
	ch.cm.mu.Lock()
	defer ch.cm.mu.Unlock()
	ch.spurious += n
	ch.level()
}

// Post queues an event as it is, whatever its handle.
func (ch *CMChannel) Post(ev driver.CMEvent) {
	ch.cm.mu.Lock()
	defer ch.cm.mu.Unlock()
	ch.queue = append(ch.queue, ev)
	ch.level()
}

// Channels gives the channels that are open.
func (c *CM) Channels() []*CMChannel {
	c.mu.Lock()
	defer c.mu.Unlock()
	var chs []*CMChannel
	for ch := range c.channels {
		chs = append(chs, ch)
	}
	return chs
}

// FD gives an eventfd that is readable while Next has something.
func (ch *CMChannel) FD() (int, error) {
	ch.one.enter(ch.cm, "CMChannel.FD", false)
	defer ch.one.leave()
	ch.cm.mu.Lock()
	defer ch.cm.mu.Unlock()
	if ch.closed {
		return -1, errCMClosed
	}
	return ch.descriptor()
}

// descriptor makes the descriptor. cm.mu is held.
func (ch *CMChannel) descriptor() (int, error) {
	if ch.d == nil {
		d, err := newDescriptor(ch.cm.PollErrors)
		if err != nil {
			return -1, err
		}
		ch.d = d
		if ch.isReady {
			d.set(true)
		}
	}
	return ch.d.fd, nil
}

// Wait waits until Next has something.
func (ch *CMChannel) Wait(ctx context.Context) error {
	ch.cm.mu.Lock()
	ready := ch.ready
	ch.waiting++
	if ch.waiting > 1 {
		ch.cm.fault("two goroutines in CMChannel.Wait")
	}
	ch.cm.mu.Unlock()
	defer func() {
		ch.cm.mu.Lock()
		ch.waiting--
		ch.cm.mu.Unlock()
	}()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Next takes one event.
func (ch *CMChannel) Next() (driver.CMEvent, bool, error) {
	ch.one.enter(ch.cm, "CMChannel.Next", false)
	defer ch.one.leave()
	ch.cm.mu.Lock()
	defer ch.cm.mu.Unlock()
	defer ch.level()
	switch {
	case ch.spurious > 0:
		ch.spurious--
		return driver.CMEvent{}, false, nil
	case len(ch.queue) == 0:
		return driver.CMEvent{}, false, ch.err
	}
	ev := ch.queue[0]
	ch.queue = ch.queue[1:]
	return ev, true, nil
}

// CreateID makes an id.
func (ch *CMChannel) CreateID(handle uint64, ps ib.PortSpace, t ib.QPType) (driver.CMID, error) {
	ch.one.enter(ch.cm, "CMChannel.CreateID", false)
	defer ch.one.leave()
	if done, err := ch.cm.called(CMCall{Name: "CreateID", Handle: handle}); done {
		return nil, err
	}
	ch.cm.mu.Lock()
	defer ch.cm.mu.Unlock()
	if ch.closed {
		return nil, errCMClosed
	}
	id := &CMID{cm: ch.cm, ch: ch, handle: handle, ps: ps, typ: t}
	ch.cm.ids[id] = struct{}{}
	return id, nil
}

// Close closes the channel, after its ids.
func (ch *CMChannel) Close() error {
	ch.one.enter(ch.cm, "CMChannel.Close", true)
	defer ch.one.leave()
	ch.cm.mu.Lock()
	defer ch.cm.mu.Unlock()
	for id := range ch.cm.ids {
		if id.ch == ch {
			ch.cm.fault("channel closed before its id (%v)", id.state)
		}
	}
	for _, ev := range ch.queue {
		if ev.Child != nil {
			ch.cm.fault("channel closed with a request in it")
		}
	}
	ch.closed = true
	if ch.d != nil {
		ch.d.close()
		ch.d = nil
	}
	delete(ch.cm.channels, ch)
	return nil
}
