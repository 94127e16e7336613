package softroce

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Kinds of objects whose number is limited.
type objectKind int

const (
	kindPD objectKind = iota
	kindMR
	kindMW
	kindCQ
	kindQP
	objectKinds
)

// Limits of the device. They are large: each exists so that a program that loses
// objects meets an error and not the end of its memory.
const (
	maxPD       = 1 << 15
	maxMR       = 1 << 18
	maxMW       = 1 << 16
	maxCQ       = 1 << 16
	maxQPWR     = 1 << 15
	maxSGE      = 32
	maxInline   = 1024
	maxRDAtomic = 128
	maxMRSize   = 1 << 46
	compVectors = 1
	maxMessage  = 1 << 31
	ackDelay    = time.Millisecond
	vendorID    = 0x564552
)

var objectLimits = [objectKinds]struct {
	name string
	max  int64
}{
	kindPD: {"protection domains", maxPD},
	kindMR: {"memory regions", maxMR},
	kindMW: {"memory windows", maxMW},
	kindCQ: {"completion queues", maxCQ},
	kindQP: {"queue pairs", maxQP},
}

// acquire counts an object that is about to be made; ENOMEM: there are too many.
func (d *device) acquire(k objectKind) error {
	if err := d.err(); err != nil {
		return err
	}
	l := objectLimits[k]
	if d.objects[k].Add(1) > l.max {
		d.objects[k].Add(-1)
		return fmt.Errorf("softroce: more than %d %s: %w", l.max, l.name, syscall.ENOMEM)
	}
	return nil
}

func (d *device) release(k objectKind) { d.objects[k].Add(-1) }

// deviceContext is an opening of the device.
type deviceContext struct {
	d      *device
	async  asyncQueue
	closed atomic.Bool

	mu   sync.Mutex
	ends map[ender]struct{} // who is to know when the device goes away
}

// ender is an object that wakes its users when the device goes away.
type ender interface{ terminate(err error) }

var (
	_ driver.Context = (*deviceContext)(nil)
	_ driver.Clock   = (*deviceContext)(nil)
)

func (d *device) open() *deviceContext {
	c := &deviceContext{d: d, ends: make(map[ender]struct{})}
	// Its descriptor is no reason to read sockets on a thread of their own: nobody waits
	// there for packets, and that of a shared opening stays as long as the process.
	c.async.notifier.init(nil)
	d.mu.Lock()
	d.contexts[c] = struct{}{}
	d.mu.Unlock()
	return c
}

// keep and drop say which objects there are to be ended with the device.
func (c *deviceContext) keep(e ender) {
	c.mu.Lock()
	c.ends[e] = struct{}{}
	c.mu.Unlock()
	if err := c.err(); err != nil {
		e.terminate(err) // it came while the device went, or the opening was closed
	}
}

func (c *deviceContext) drop(e ender) {
	c.mu.Lock()
	delete(c.ends, e)
	c.mu.Unlock()
}

// end tells all objects that the device is gone, the queues of completions first, as
// their last events come before the news.
func (c *deviceContext) end(fatal bool, err error) {
	c.mu.Lock()
	all := make([]ender, 0, len(c.ends))
	for e := range c.ends {
		all = append(all, e)
	}
	c.mu.Unlock()
	for _, e := range all {
		if _, ok := e.(*cq); ok {
			e.terminate(err)
		}
	}
	for _, e := range all {
		if _, ok := e.(*cq); !ok {
			e.terminate(err)
		}
	}
	if fatal {
		c.async.post(driver.AsyncEvent{Type: ib.EventDeviceFatal, Port: portNumber})
	}
	c.async.end(err)
}

func (c *deviceContext) err() error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return c.d.err()
}

func (d *device) info() driver.DeviceInfo {
	return driver.DeviceInfo{
		Name:      DeviceName,
		GUID:      d.guid,
		NodeType:  ib.NodeCA,
		Transport: ib.TransportIB,
		Index:     0,
	}
}

func (c *deviceContext) Device() driver.DeviceInfo { return c.d.info() }

// Clock gives the time since the device was made.
func (c *deviceContext) Clock() (time.Duration, error) {
	if err := c.err(); err != nil {
		return 0, err
	}
	return c.d.now(), nil
}

// QueryDevice gives the limits of the device.
func (c *deviceContext) QueryDevice() (driver.DeviceAttr, error) {
	if err := c.err(); err != nil {
		return driver.DeviceAttr{}, err
	}
	return driver.DeviceAttr{
		Firmware:     "verbena",
		NodeGUID:     c.d.guid,
		SysImageGUID: c.d.guid,
		VendorID:     vendorID,
		VendorPartID: 1,
		HWVersion:    1,
		Caps: ib.CapPortActiveEvent | ib.CapSysImageGUID | ib.CapRCRNRNAKGen | ib.CapCurQPStateMod |
			ib.CapMemMgtExtensions | ib.CapMemoryWindow | ib.CapMW2B,
		MaxMRSize:           maxMRSize,
		PageSizes:           0xFFFFF000,
		MaxQP:               maxQP,
		MaxQPWR:             maxQPWR,
		MaxSGE:              maxSGE,
		MaxSGERead:          maxSGE,
		MaxCQ:               maxCQ,
		MaxCQE:              maxCQE,
		MaxMR:               maxMR,
		MaxMW:               maxMW,
		MaxPD:               maxPD,
		MaxQPRDAtomic:       maxRDAtomic,
		MaxQPInitRDAtomic:   maxRDAtomic,
		MaxPKeys:            1,
		Ports:               1,
		CompVectors:         compVectors,
		Atomic:              ib.AtomicHCA,
		AckDelay:            ackDelay,
		MaxModerationCount:  maxModeration,
		MaxModerationPeriod: maxPeriod,
	}, nil
}

func checkPort(port int) error {
	if port != portNumber {
		return fmt.Errorf("softroce: port %d, there is port %d: %w", port, portNumber, syscall.EINVAL)
	}
	return nil
}

// QueryPort gives the state of port 1 as it is now.
func (c *deviceContext) QueryPort(n int) (driver.PortAttr, error) {
	if err := c.err(); err != nil {
		return driver.PortAttr{}, err
	}
	if err := checkPort(n); err != nil {
		return driver.PortAttr{}, err
	}
	p := &c.d.port
	if err := p.refresh(); err != nil {
		return driver.PortAttr{}, err
	}
	a := driver.PortAttr{
		State:     ib.PortActive,
		Phys:      ib.PhysLinkUp,
		Link:      ib.LinkEthernet,
		MaxMTU:    ib.MTU4096,
		ActiveMTU: p.mtu(),
		GIDs:      maxGIDs,
		PKeys:     1,
		// A message may be 2 GiB, the largest that the protocol knows.
		MaxMessage:  maxMessage,
		SpeedMbps:   speedMbps,
		GRHRequired: true,
	}
	if !p.isUp() {
		a.State, a.Phys = ib.PortDown, ib.PhysDisabled
	}
	return a, nil
}

// speedMbps is what the port says of its speed; it is as fast as the processor.
const speedMbps = 10000

// GIDs gives the occupied entries of the GID table as it is now.
func (c *deviceContext) GIDs() ([]driver.GIDEntry, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	return c.d.port.gids()
}

// PKey gives an entry of the P_Key table; it has one, the default.
func (c *deviceContext) PKey(n, index int) (ib.PKey, error) {
	if err := c.err(); err != nil {
		return 0, err
	}
	if err := checkPort(n); err != nil {
		return 0, err
	}
	if index != 0 {
		return 0, fmt.Errorf("softroce: P_Key index %d, the table has index 0 only: %w", index, syscall.EINVAL)
	}
	return defaultPKey, nil
}

const defaultPKey ib.PKey = 0xFFFF

// AllocPD makes a protection domain.
func (c *deviceContext) AllocPD() (driver.PD, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	return newPD(c)
}

// CreateCompChannel makes a completion channel.
func (c *deviceContext) CreateCompChannel() (driver.CompChannel, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	ch := &compChannel{ctx: c}
	ch.notifier.init(c.d.foreign)
	ch.notifier.interrupt = ch.leader.interrupt
	c.keep(ch)
	return ch, nil
}

// CreateCQ makes a completion queue with exactly the entries that are asked for.
func (c *deviceContext) CreateCQ(cfg driver.CQConfig) (driver.CQ, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	if err := checkEntries(cfg.Entries); err != nil {
		return nil, err
	}
	if cfg.Vector < 0 || cfg.Vector >= compVectors {
		return nil, fmt.Errorf("softroce: completion vector %d, %d is the only one: %w", cfg.Vector, compVectors-1, syscall.EINVAL)
	}
	var ch *compChannel
	if cfg.Channel != nil {
		var ok bool
		if ch, ok = cfg.Channel.(*compChannel); !ok || ch.ctx != c {
			return nil, fmt.Errorf("softroce: completion channel of another device: %w", syscall.EBADF)
		}
	}
	if err := c.d.acquire(kindCQ); err != nil {
		return nil, err
	}
	q := newCQ(c, cfg, ch)
	c.keep(q)
	return q, nil
}

// Async gives the asynchronous events of this opening.
func (c *deviceContext) Async() driver.AsyncQueue { return &c.async }

// Close ends the opening. Its objects should have been closed; the device goes on for
// the others.
func (c *deviceContext) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.d.mu.Lock()
	delete(c.d.contexts, c)
	c.d.mu.Unlock()
	c.end(false, net.ErrClosed)
	c.async.close()
	return nil
}
