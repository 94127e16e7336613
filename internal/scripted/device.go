package scripted

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Device is a device, for the test to script.
type Device struct {
	p        *Provider
	name     string
	index    int
	port     driver.PortAttr
	gids     []driver.GIDEntry
	gone     bool
	contexts []*Context
}

func (d *Device) info() driver.DeviceInfo {
	i := driver.DeviceInfo{Name: d.name, GUID: ib.GUID(0x5A + d.index), NodeType: ib.NodeCA, Index: d.index}
	if d.p.cfg.Kernel {
		i.Path = "/sys/class/infiniband/" + d.name
	}
	return i
}

// Context gives the last opening of the device that is open.
func (d *Device) Context() *Context {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	for _, c := range slices.Backward(d.contexts) {
		if !c.closed {
			return c
		}
	}
	return nil
}

// SetPort changes what queries of the port give, without an event.
func (d *Device) SetPort(a driver.PortAttr) {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	d.port = a
}

// SetGIDs changes the GID table, with an ib.EventGIDChange.
func (d *Device) SetGIDs(gids []driver.GIDEntry) {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	d.gids = slices.Clone(gids)
	for _, c := range d.contexts {
		c.async.post(driver.AsyncEvent{Type: ib.EventGIDChange, Port: 1})
	}
}

// Remove pulls the device out: an ib.EventDeviceFatal, then driver.ErrDeviceGone from
// every call. What is in the CQs stays there; nothing is flushed.
func (d *Device) Remove() {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	d.gone = true
	for _, c := range d.contexts {
		c.async.post(driver.AsyncEvent{Type: ib.EventDeviceFatal, Port: 1})
		c.async.level()
		for _, ch := range c.channels {
			ch.level()
		}
	}
}

// Context is an opening of a device.
type Context struct {
	object
	dev      *Device
	async    Async
	channels []*Channel
	cqs      []*CQ
	qps      []*QP
	srqs     []*SRQ
}

var (
	_ driver.Context = (*Context)(nil)
	_ driver.Clock   = (*Context)(nil)
)

// ask is a call that the context answers itself.
func (c *Context) ask(op string) error {
	err := c.begin(op)
	c.end()
	if err == nil && c.isGone() {
		err = driver.ErrDeviceGone
	}
	return err
}

func (c *Context) isGone() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.dev.gone
}

// Device gives the names.
func (c *Context) Device() driver.DeviceInfo { return c.dev.info() }

// QueryDevice gives Config.Attr.
func (c *Context) QueryDevice() (driver.DeviceAttr, error) {
	return c.p.cfg.Attr, c.ask("query device")
}

// QueryPort gives Config.Port, or what SetPort said.
func (c *Context) QueryPort(port int) (driver.PortAttr, error) {
	if err := c.ask("query port"); err != nil {
		return driver.PortAttr{}, err
	}
	if port < 1 || port > c.p.cfg.Attr.Ports {
		return driver.PortAttr{}, syscall.EINVAL
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.dev.port, nil
}

// GIDs gives the table.
func (c *Context) GIDs() ([]driver.GIDEntry, error) {
	if err := c.ask("query gids"); err != nil {
		return nil, err
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return slices.Clone(c.dev.gids), nil
}

// PKey gives 0xFFFF, then 0x8001.
func (c *Context) PKey(port, index int) (ib.PKey, error) {
	if err := c.ask("query pkey"); err != nil {
		return 0, err
	}
	switch index {
	case 0:
		return 0xFFFF, nil
	case 1:
		return 0x8001, nil
	}
	return 0, syscall.EINVAL
}

// Clock stands still.
func (c *Context) Clock() (time.Duration, error) { return time.Hour, c.ask("clock") }

// AllocPD makes a PD.
func (c *Context) AllocPD() (driver.PD, error) {
	if err := c.ask("alloc pd"); err != nil {
		return nil, err
	}
	pd := &PD{}
	pd.object.init(c.p, "pd", c)
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	pd.open()
	return pd, nil
}

// CreateCompChannel makes a channel.
func (c *Context) CreateCompChannel() (driver.CompChannel, error) {
	if err := c.ask("create channel"); err != nil {
		return nil, err
	}
	ch := &Channel{}
	ch.object.init(c.p, "channel", c)
	ch.sig.init(c.p)
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	ch.open()
	c.channels = append(c.channels, ch)
	if c.p.cfg.Descriptors {
		return ch, nil
	}
	return waitingChannel{ch}, nil
}

// CreateCQ makes a CQ of exactly the size.
func (c *Context) CreateCQ(cfg driver.CQConfig) (driver.CQ, error) {
	if err := c.ask("create cq"); err != nil {
		return nil, err
	}
	if cfg.Entries < 1 || cfg.Entries > c.p.cfg.Attr.MaxCQE {
		return nil, syscall.EINVAL
	}
	q := &CQ{handle: cfg.Handle, size: cfg.Entries}
	switch ch := cfg.Channel.(type) {
	case *Channel:
		q.ch = ch
	case waitingChannel:
		q.ch = ch.Channel
	case nil:
	default:
		return nil, syscall.EBADF
	}
	if q.ch != nil && q.ch.ctx != c {
		return nil, syscall.EBADF
	}
	var parents []*object
	if q.ch != nil {
		parents = []*object{&q.ch.object}
	}
	q.object.init(c.p, "cq", c, parents...)
	q.tag = q.handle
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	q.open()
	c.cqs = append(c.cqs, q)
	return q, nil
}

// Async gives the queue of events.
func (c *Context) Async() driver.AsyncQueue {
	if c.p.cfg.Descriptors {
		return &c.async
	}
	return waitingAsync{&c.async}
}

// Close ends the opening.
func (c *Context) Close() error {
	err := c.close()
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.async.sig.stop()
	return err
}

// QP, CQ, Channel and SRQ give the i-th object of the opening in the order of creation, closed
// ones included; negative counts from the end.
func (c *Context) QP(i int) *QP { return pick(c, &c.qps, i) }

// CQ: see QP.
func (c *Context) CQ(i int) *CQ { return pick(c, &c.cqs, i) }

// Channel: see QP.
func (c *Context) Channel(i int) *Channel { return pick(c, &c.channels, i) }

// SRQ: see QP.
func (c *Context) SRQ(i int) *SRQ { return pick(c, &c.srqs, i) }

func pick[T any](c *Context, list *[]*T, i int) *T {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if i < 0 {
		i += len(*list)
	}
	if i < 0 || i >= len(*list) {
		panic(fmt.Sprintf("scripted: object %d of %d", i, len(*list)))
	}
	return (*list)[i]
}

// PostAsync raises an event, of whatever kind and about whatever handle.
func (c *Context) PostAsync(e driver.AsyncEvent) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.async.post(e)
}

// Async is the queue of asynchronous events.
type Async struct {
	object
	sig    signal
	q      []driver.AsyncEvent
	glitch bool
	taken  int
}

func (a *Async) init(p *Provider, c *Context) {
	a.sig.init(p)
	a.object.init(p, "async queue", c)
}

// post adds an event. p.mu is held.
func (a *Async) post(e driver.AsyncEvent) {
	a.q = append(a.q, e)
	a.level()
}

func (a *Async) level() { a.sig.set(len(a.q) > 0 || a.glitch || a.ctx.dev.gone) }

// Glitch makes the queue readable once without an event.
func (a *Async) Glitch() {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	a.glitch = true
	a.level()
}

// PollError: see Channel.PollError.
func (a *Async) PollError() { a.sig.pollError() }

// AsyncQueue gives the queue of the opening, for the test to script.
func (c *Context) AsyncQueue() *Async { return &c.async }

// Next takes an event.
func (a *Async) Next() (driver.AsyncEvent, bool, error) {
	err := a.begin("next async")
	defer a.end()
	if err != nil && !errors.Is(err, driver.ErrDeviceGone) {
		return driver.AsyncEvent{}, false, err
	}
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if len(a.q) == 0 {
		a.glitch = false
		a.level()
		return driver.AsyncEvent{}, false, err
	}
	e := a.q[0]
	a.q = slices.Delete(a.q, 0, 1)
	a.taken++
	a.level()
	return e, true, nil
}

// FD gives the descriptor.
func (a *Async) FD() (int, error) {
	if err := a.p.call("fd"); err != nil {
		return -1, err
	}
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	return a.sig.descriptor()
}

// waitingAsync is an Async that waits in Go.
type waitingAsync struct{ *Async }

func (w waitingAsync) Wait(ctx context.Context) error { return w.sig.wait(ctx) }
