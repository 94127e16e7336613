package scripted

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// CM is a connection manager without a network. Left alone it plays both ends of a
// connection as the kernel does: an id that connects finds the listener on that port,
// the listener's channel gets the request, and so on; nothing happens by itself or
// later, so tests are deterministic. A script may take any call in its own hands, fail
// it, and post events in any order. The contract of package driver is checked: Faults
// tells of calls that it forbids.
//
// All methods may be called from any goroutine.
type CM struct {
	// Device is the name that ids are bound to when their address is resolved. Empty
	// names a device that cannot be used.
	Device string
	// Descriptors makes channels that can only be waited for by their descriptor, as
	// the kernel's.
	Descriptors bool
	// PollErrors makes descriptors that can report errors, see CMChannel.PollError.
	PollErrors bool
	// MaxDestRDAtomic and MaxRDAtomic are what QP attributes say beyond what was
	// negotiated, as a hostile peer would; zero: what was negotiated.
	MaxDestRDAtomic, MaxRDAtomic int

	mu       sync.Mutex
	script   func(*CMID, CMCall) (done bool, err error)
	calls    []CMCall
	failAt   int // number of the call to fail, from 1
	failErr  error
	failed   bool
	channels map[*CMChannel]struct{}
	ids      map[*CMID]struct{}
	nextPort uint16
	faults   []string
}

// CMCall is a call of the driver's interface.
type CMCall struct {
	Name     string // "Connect"
	ID       *CMID  // nil: of the manager or a channel
	Src, Dst netip.AddrPort
	Limit    time.Duration
	Param    driver.ConnParam
	Private  []byte
	State    ib.QPState
	Option   int
	Value    []byte
	Group    netip.Addr
	Handle   uint64
}

// NewCM makes a connection manager whose ids are bound to a device.
func NewCM(device string) *CM {
	return &CM{Device: device, channels: map[*CMChannel]struct{}{}, ids: map[*CMID]struct{}{}, nextPort: 40000}
}

// Script has f called for each call of an id, before anything else is done. If f says
// done, its error is the answer and nothing else happens. f may post events; it must
// not call the id.
func (c *CM) Script(f func(id *CMID, call CMCall) (done bool, err error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.script = f
}

// FailCall has the n-th call from now on fail, counting those of the manager, of
// channels and of ids; Close, Info, SetHandle, Next and FD do not count.
func (c *CM) FailCall(n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failAt, c.failErr, c.failed = len(c.calls)+n, err, false
}

// Failed reports whether the call of FailCall came.
func (c *CM) Failed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// Calls gives the calls so far, those with one of some names if any are given.
func (c *CM) Calls(names ...string) []CMCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	var calls []CMCall
	for _, call := range c.calls {
		for _, n := range names {
			if call.Name == n {
				calls = append(calls, call)
			}
		}
		if len(names) == 0 {
			calls = append(calls, call)
		}
	}
	return calls
}

// Faults gives what was done against the contract, and what is still open.
func (c *CM) Faults() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	faults := append([]string(nil), c.faults...)
	for ch := range c.channels {
		faults = append(faults, fmt.Sprintf("channel %p is open", ch))
	}
	for id := range c.ids {
		faults = append(faults, fmt.Sprintf("id %p (%v) is open", id, id.state))
	}
	return faults
}

func (c *CM) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// called notes a call and says whether the script has answered it. c.mu is not held.
func (c *CM) called(call CMCall) (done bool, err error) {
	c.mu.Lock()
	c.calls = append(c.calls, call)
	fail := len(c.calls) == c.failAt
	c.failed = c.failed || fail
	err, script := c.failErr, c.script
	c.mu.Unlock()
	if fail {
		return true, err
	}
	if script != nil && call.ID != nil {
		return script(call.ID, call)
	}
	return false, nil
}

// OpenChannel opens a channel.
func (c *CM) OpenChannel() (driver.CMChannel, error) {
	if done, err := c.called(CMCall{Name: "OpenChannel"}); done {
		return nil, err
	}
	ch := newCMChannel(c)
	c.mu.Lock()
	c.channels[ch] = struct{}{}
	c.mu.Unlock()
	if c.Descriptors {
		return onlyFD{ch}, nil
	}
	return ch, nil
}

// IDs gives the ids that are open.
func (c *CM) IDs() []*CMID {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []*CMID
	for id := range c.ids {
		ids = append(ids, id)
	}
	return ids
}

// RemoveDevice tells every id that is bound to the device that it is gone.
func (c *CM) RemoveDevice() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.ids {
		if id.info.Device != "" && id.accepted() {
			id.post(driver.CMEvent{Type: ib.CMDeviceRemoval})
		}
	}
}

// Break has every channel give an error from now on, after the events that are there.
func (c *CM) Break(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ch := range c.channels {
		ch.err = err
		ch.level()
	}
}

// listener finds who listens on an address. c.mu is held.
func (c *CM) listener(a netip.AddrPort, ps ib.PortSpace) *CMID {
	for id := range c.ids {
		l := id.info.Local
		if id.state == cmListening && id.ps == ps && l.Port() == a.Port() && (l.Addr().IsUnspecified() || l.Addr() == a.Addr()) {
			return id
		}
	}
	return nil
}

// bind gives an id a local address. c.mu is held.
func (c *CM) bind(id *CMID, a netip.AddrPort) error {
	if a.Port() == 0 {
		c.nextPort++
		a = netip.AddrPortFrom(a.Addr(), c.nextPort)
	}
	for o := range c.ids {
		if o != id && o.parent == nil && o.ps == id.ps && o.info.Local.Port() == a.Port() && !(o.reuse && id.reuse) {
			return syscall.EADDRINUSE
		}
	}
	id.info.Local = a
	if !a.Addr().IsUnspecified() {
		id.info.Device, id.info.Port = c.Device, 1
	}
	return nil
}

// only serialises what the contract says must come one at a time, and notes when it
// does not.
type only struct {
	mu   sync.Mutex
	busy bool
	gone bool
}

func (o *only) enter(c *CM, what string, last bool) {
	o.mu.Lock()
	busy, gone := o.busy, o.gone
	o.busy, o.gone = true, o.gone || last
	o.mu.Unlock()
	if busy || gone {
		c.mu.Lock()
		defer c.mu.Unlock()
		if busy {
			c.fault("%s beside another call", what)
		}
		if gone {
			c.fault("%s after Close", what)
		}
	}
}

func (o *only) leave() {
	o.mu.Lock()
	o.busy = false
	o.mu.Unlock()
}

var errCMClosed = fmt.Errorf("scripted: %w", net.ErrClosed)
