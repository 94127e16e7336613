// Package scripted is a provider without a device, for tests of packages verbs and cm:
// the test says what happens.
//
// It behaves in the strict event model. Arming a CQ sets a flag; completions that are
// already there never fire; each arm gives one event. Nothing completes by itself: a test
// completes requests (QP.CompleteSend, QP.CompleteRecv), fails the n-th call
// (Provider.FailAt), loses an event (CQ.Swallow), makes a channel readable for nothing
// (Channel.Glitch), breaks a CQ (CQ.Overrun), leaves requests unflushed (QP.NeverFlush),
// removes the device (Device.Remove).
//
// It watches its user: calls that the contract of package driver forbids (two at a time
// on one object, one after Close, a parent closed before its child, a slot with more
// pieces than fit) are recorded, see Provider.Violations.
package scripted

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Config of a provider; nil and zero fields mean one device "fake0" with one active
// Ethernet port, and notifiers that wait in Go.
type Config struct {
	Devices     []string
	Descriptors bool // notifiers have a descriptor and are no driver.Waiter
	PollErrors  bool // descriptors can report errors, see Channel.PollError
	Kernel      bool // devices have a path, as the kernel's
	Unchecked   bool // calls are neither watched nor counted and never fail, for benchmarks
	// Gate is called before each call of an object that is counted ("poll", "arm", "next
	// event", "close cq"), with the handle of the CQ if it is one of a CQ, and again after
	// those that poll, arm and fetch ("after poll"). No lock is held.
	Gate func(op string, handle uint64)
	Attr driver.DeviceAttr
	Port driver.PortAttr
	GIDs []driver.GIDEntry
}

// Provider implements driver.Provider. The exported methods beside that are for the
// test; all may be called from any goroutine.
type Provider struct {
	cfg Config

	mu         sync.Mutex
	devs       map[string]*Device
	calls      map[string]int
	total      int
	faults     []*fault
	violations []string
	keys       uint32
	qpn        ib.QPN
	openCM     func() (driver.CM, error)
}

var _ driver.Provider = (*Provider)(nil)

// New makes a provider.
func New(cfg *Config) *Provider {
	p := &Provider{devs: map[string]*Device{}, calls: map[string]int{}, qpn: 0x10}
	if cfg != nil {
		p.cfg = *cfg
	}
	if len(p.cfg.Devices) == 0 {
		p.cfg.Devices = []string{"fake0"}
	}
	if p.cfg.Attr.MaxQP == 0 {
		p.cfg.Attr = DefaultAttr()
	}
	if p.cfg.Port.State == 0 {
		p.cfg.Port = DefaultPort()
	}
	if p.cfg.GIDs == nil {
		p.cfg.GIDs = DefaultGIDs()
	}
	for i, name := range p.cfg.Devices {
		p.devs[name] = &Device{p: p, name: name, index: i, port: p.cfg.Port, gids: slices.Clone(p.cfg.GIDs)}
	}
	return p
}

// Name is "scripted".
func (p *Provider) Name() string { return "scripted" }

// Devices lists the devices that have not been removed.
func (p *Provider) Devices() ([]driver.DeviceInfo, error) {
	if err := p.call("list devices"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []driver.DeviceInfo
	for _, name := range p.cfg.Devices {
		if d := p.devs[name]; !d.gone {
			list = append(list, d.info())
		}
	}
	return list, nil
}

// OpenDevice opens a device.
func (p *Provider) OpenDevice(name string) (driver.Context, error) {
	if err := p.call("open device"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.devs[name]
	if d == nil || d.gone {
		return nil, driver.ErrDeviceGone
	}
	c := &Context{dev: d}
	c.object.init(p, "context", nil)
	c.async.init(p, c)
	d.contexts = append(d.contexts, c)
	return c, nil
}

// OpenCM gives what SetCM said.
func (p *Provider) OpenCM() (driver.CM, error) {
	if err := p.call("open cm"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	open := p.openCM
	p.mu.Unlock()
	if open == nil {
		return nil, fmt.Errorf("scripted: no connection manager: %w", errors.ErrUnsupported)
	}
	return open()
}

// SetCM gives the provider a connection manager.
func (p *Provider) SetCM(open func() (driver.CM, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.openCM = open
}

// Device gives a device by name, for the test to script; the empty name is the first.
func (p *Provider) Device(name string) *Device {
	if name == "" {
		name = p.cfg.Devices[0]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.devs[name]
}

// fault makes a call fail.
type fault struct {
	op   string // empty: any
	left int
	err  error
	ever bool
}

// FailAt lets the n-th call from now on fail, counted from 1 over all calls that can
// fail, Close included.
func (p *Provider) FailAt(n int, err error) { p.FailOp("", n, err) }

// FailOp lets the n-th call of a kind fail. The kinds are "create qp", "modify qp",
// "post send", "arm", "close cq" and so on; see Count.
func (p *Provider) FailOp(op string, n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, &fault{op: op, left: n, err: err})
}

// FailAlways lets all calls of a kind fail, until Heal.
func (p *Provider) FailAlways(op string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, &fault{op: op, left: 1, err: err, ever: true})
}

// Heal ends all faults.
func (p *Provider) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = nil
}

// Count gives the number of calls of a kind so far; the empty kind means all.
func (p *Provider) Count(op string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if op == "" {
		return p.total
	}
	return p.calls[op]
}

// call counts a call and gives the error that is due.
func (p *Provider) call(op string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.callLocked(op)
}

func (p *Provider) callLocked(op string) error {
	p.calls[op]++
	p.total++
	if len(p.faults) == 0 {
		return nil
	}
	for i, f := range p.faults {
		if f.op != "" && f.op != op {
			continue
		}
		if f.left--; f.left > 0 {
			continue
		}
		if f.ever {
			f.left = 1
		} else {
			p.faults = slices.Delete(p.faults, i, i+1)
		}
		return f.err
	}
	return nil
}

// Violations gives what the user did that the contract forbids.
func (p *Provider) Violations() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.violations)
}

func (p *Provider) violate(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.violateLocked(format, args...)
}

func (p *Provider) violateLocked(format string, args ...any) {
	p.violations = append(p.violations, fmt.Sprintf(format, args...))
}

// Open gives the number of objects that are open, contexts not counted.
func (p *Provider) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, d := range p.devs {
		for _, c := range d.contexts {
			n += c.kids
		}
	}
	return n
}

// DefaultAttr, DefaultPort and DefaultGIDs are what a zero Config has.
func DefaultAttr() driver.DeviceAttr {
	return driver.DeviceAttr{
		Firmware: "scripted", NodeGUID: 0x5A, SysImageGUID: 0x5A, VendorID: 1, VendorPartID: 1, HWVersion: 1,
		Caps:      ib.CapMemMgtExtensions | ib.CapMemoryWindow | ib.CapMW2B,
		MaxMRSize: 1 << 40, PageSizes: 0xFFFFF000,
		MaxQP: 1 << 16, MaxQPWR: 1 << 14, MaxSGE: 16, MaxSGERead: 16,
		MaxCQ: 1 << 16, MaxCQE: 1 << 16, MaxMR: 1 << 16, MaxPD: 1 << 16, MaxMW: 1 << 16, MaxAH: 1 << 16,
		MaxQPRDAtomic: 16, MaxQPInitRDAtomic: 16,
		MaxSRQ: 1 << 10, MaxSRQWR: 1 << 12, MaxSRQSGE: 16,
		MaxPKeys: 2, Ports: 1, CompVectors: 2, Atomic: ib.AtomicHCA,
		MaxModerationCount: 1 << 16, MaxModerationPeriod: 1 << 30,
	}
}

// DefaultPort: see DefaultAttr.
func DefaultPort() driver.PortAttr {
	return driver.PortAttr{
		State: ib.PortActive, Phys: 5, Link: ib.LinkEthernet, MaxMTU: ib.MTU4096, ActiveMTU: ib.MTU1024,
		GIDs: 16, PKeys: 2, MaxMessage: 1 << 30, SpeedMbps: 100000, GRHRequired: true,
	}
}

// DefaultGIDs: a link-local address at 0, 10.0.0.1 at 1, fd00::1 at 3.
func DefaultGIDs() []driver.GIDEntry {
	entry := func(i int, g ib.GID) driver.GIDEntry {
		return driver.GIDEntry{GID: g, Index: i, Port: 1, Type: ib.GIDTypeRoCEv2, IfIndex: 1}
	}
	return []driver.GIDEntry{
		entry(0, ib.GID{0: 0xFE, 1: 0x80, 15: 1}),
		entry(1, ib.GID{10: 0xFF, 11: 0xFF, 12: 10, 15: 1}),
		entry(3, ib.GID{0: 0xFD, 15: 1}),
	}
}

// wait is the Wait of all notifiers.
func (s *signal) wait(ctx context.Context) error {
	for {
		c, on := s.look()
		if on {
			return nil
		}
		select {
		case <-c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
