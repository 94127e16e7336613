package scripted

import (
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// object watches that the contract is kept for one object of a provider.
type object struct {
	p       *Provider
	kind    string
	tag     uint64 // the handle of a CQ
	ctx     *Context
	parents []*object
	kids    int
	closed  bool
	busy    atomic.Int32
}

func (o *object) init(p *Provider, kind string, c *Context, parents ...*object) {
	o.p, o.kind, o.ctx, o.parents = p, kind, c, parents
}

// open counts the object with its parents. p.mu is held.
func (o *object) open() {
	if o.ctx != nil {
		o.ctx.kids++
	}
	for _, p := range o.parents {
		p.kids++
	}
}

// begin starts a call. The error is the one that is due, or that of a device that is
// gone; end must be called in either case.
func (o *object) begin(op string) error {
	if o.p.cfg.Unchecked {
		return nil
	}
	o.gate(op)
	if !o.busy.CompareAndSwap(0, 1) {
		o.p.violate("%s: %s while another call is in progress", o.kind, op)
	}
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	if o.closed {
		o.p.violateLocked("%s: %s after close", o.kind, op)
	}
	err := o.p.callLocked(op)
	if err == nil && o.ctx != nil && o.ctx.dev.gone {
		err = driver.ErrDeviceGone
	}
	return err
}

// look starts a call that cannot fail, and is not counted.
func (o *object) look(op string) {
	if o.p.cfg.Unchecked {
		return
	}
	if !o.busy.CompareAndSwap(0, 1) {
		o.p.violate("%s: %s while another call is in progress", o.kind, op)
	}
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	if o.closed {
		o.p.violateLocked("%s: %s after close", o.kind, op)
	}
}

func (o *object) gate(op string) {
	if gate := o.p.cfg.Gate; gate != nil {
		gate(op, o.tag)
	}
}

func (o *object) end() { o.busy.Store(0) }

// close ends the object; the error is the one that is due. It is closed all the same,
// as with the kernel's objects whose destruction fails.
func (o *object) close() error {
	op := "close " + o.kind
	o.gate(op)
	if !o.busy.CompareAndSwap(0, 1) {
		o.p.violate("%s: close while another call is in progress", o.kind)
	}
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	if o.closed {
		o.p.violateLocked("%s: closed twice", o.kind)
		return nil
	}
	if o.kids > 0 {
		o.p.violateLocked("%s: closed with %d children", o.kind, o.kids)
	}
	o.closed = true
	if o.ctx != nil {
		o.ctx.kids--
	}
	for _, p := range o.parents {
		p.kids--
	}
	return o.p.callLocked(op)
}

// signal is a level that goroutines and descriptors can wait for. The provider's lock
// guards it, except for c.
type signal struct {
	p   *Provider
	on  bool
	c   chan struct{} // closed while on
	d   *descriptor   // nil: not made
	end bool
}

func (s *signal) init(p *Provider) {
	s.p = p
	s.c = make(chan struct{})
}

// set changes the level. p.mu is held.
func (s *signal) set(on bool) {
	if s.on == on || s.end {
		return
	}
	s.on = on
	if on {
		close(s.c)
	} else {
		s.c = make(chan struct{})
	}
	if s.d != nil {
		s.d.set(on)
	}
}

func (s *signal) look() (c <-chan struct{}, on bool) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.c, s.on
}

// descriptor makes the descriptor. p.mu is held.
func (s *signal) descriptor() (int, error) {
	if s.end {
		return -1, fmt.Errorf("scripted: descriptor of a closed notifier")
	}
	if s.d != nil {
		return s.d.fd, nil
	}
	d, err := newDescriptor(s.p.cfg.PollErrors)
	if err != nil {
		return -1, err
	}
	s.d = d
	if s.on {
		d.set(true)
	}
	return d.fd, nil
}

// pollError has the descriptor report an error and nothing else, while the calls of the
// notifier go on as before: a device was removed, and the driver does not say so.
func (s *signal) pollError() {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if _, err := s.descriptor(); err == nil {
		s.d.fail()
	}
}

// stop ends the signal and leaves it set. p.mu is held.
func (s *signal) stop() {
	s.set(true)
	s.end = true
	if s.d != nil {
		s.d.close()
		s.d = nil
	}
}
