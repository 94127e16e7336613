package softroce

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// DeviceName is the name of the only device of a Provider.
const DeviceName = "soft0"

// Config says how the embedded device meets the network. A nil *Config, and every
// zero field, means the default.
type Config struct {
	// Addrs are the addresses of the device, in the order of its GID table. None: all
	// addresses of the interfaces of this host that are up.
	Addrs []netip.Addr

	// MTU of the links in bytes, IP header included, like that of a network
	// interface. The path MTU of queue pairs is the largest of 256, 512, 1024, 2048
	// and 4096 that leaves 96 bytes for headers. Zero: what the interfaces say, or
	// 4200 with ListenPacket.
	MTU int

	// ListenPacket makes the sockets; tests put an in-memory network here. Nil: UDP
	// sockets of the operating system. It is called at most once at a time for each
	// address, with port 4791.
	ListenPacket func(a netip.AddrPort) (net.PacketConn, error)

	// Seed makes queue pair numbers, keys and GUIDs repeatable, for tests. Zero:
	// random. Keys protect memory: never set a seed where peers are not trusted.
	Seed uint64
}

// Provider is the embedded device as a source of devices; it implements
// driver.Provider. Its methods may be called from any goroutine.
type Provider struct {
	cfg  Config
	seed [32]byte

	// life is held while a device comes or goes, until that is complete: what follows
	// finds the sockets closed, and the connection manager without a device. It is taken
	// before mu.
	life sync.Mutex

	foreign foreign

	mu     sync.Mutex
	dev    *device   // nil: removed
	gone   []*device // removed, to be closed with the provider
	cm     *cmCore   // of all devices, one after the other; nil: nobody has opened it
	count  int       // devices made
	closed bool
}

var _ driver.Provider = (*Provider)(nil)

// New makes a provider with one device. It opens no socket and starts no goroutine:
// both happen when an address is first needed. It fails if cfg contradicts itself
// (the error wraps syscall.EINVAL). cfg is copied.
func New(cfg *Config) (*Provider, error) {
	p := &Provider{}
	if cfg != nil {
		p.cfg = *cfg
		p.cfg.Addrs = append([]netip.Addr(nil), cfg.Addrs...)
	}
	for i, a := range p.cfg.Addrs {
		if err := checkAddr(a); err != nil {
			return nil, fmt.Errorf("softroce: address %d of the configuration: %w", i, err)
		}
		p.cfg.Addrs[i] = a.Unmap()
	}
	if m := p.cfg.MTU; m != 0 && (m < minLinkMTU || m > maxLinkMTU) {
		return nil, fmt.Errorf("softroce: MTU %d is not in %d..%d: %w", m, minLinkMTU, maxLinkMTU, syscall.EINVAL)
	}
	if p.cfg.Seed != 0 {
		binary.LittleEndian.PutUint64(p.seed[:], p.cfg.Seed)
	} else {
		rand.Read(p.seed[:]) // never fails
	}
	p.addDevice()
	return p, nil
}

func checkAddr(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return fmt.Errorf("no address: %w", syscall.EINVAL)
	case a.IsUnspecified(), a.IsMulticast():
		return fmt.Errorf("%v is not an address of a host: %w", a, syscall.EINVAL)
	}
	return nil
}

func (p *Provider) addDevice() {
	p.seed[31] += byte(p.count)
	p.dev = newDevice(&p.cfg, p.seed)
	p.dev.foreign = &p.foreign
	p.foreign.serve(&p.dev.eps)
	p.count++
	if p.cm != nil {
		p.attachCM(p.cm, p.dev)
	}
}

// Name gives "soft".
func (p *Provider) Name() string { return "soft" }

// Devices lists the device; the list is empty after RemoveDevice.
func (p *Provider) Devices() ([]driver.DeviceInfo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errProviderClosed
	}
	if p.dev == nil {
		return nil, nil
	}
	return []driver.DeviceInfo{p.dev.info()}, nil
}

// OpenDevice opens the device: the name is "soft0", or empty. All openings share the
// device, its addresses and its queue pair numbers; objects of one do not fit those
// of another.
func (p *Provider) OpenDevice(name string) (driver.Context, error) {
	d, err := p.device()
	if err != nil {
		return nil, err
	}
	if name != "" && name != DeviceName {
		return nil, fmt.Errorf("softroce: no device %q, there is %q: %w", name, DeviceName, syscall.ENODEV)
	}
	return d.open(), nil
}

var errProviderClosed = fmt.Errorf("softroce: provider: %w", net.ErrClosed)

// device gives the device, if there is one.
func (p *Provider) device() (*device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, errProviderClosed
	case p.dev == nil:
		return nil, fmt.Errorf("softroce: %s was removed: %w", DeviceName, errors.Join(syscall.ENODEV, driver.ErrDeviceGone))
	}
	return p.dev, nil
}

// Stats gives the counters of the device; zeros if it was removed.
func (p *Provider) Stats() Stats {
	d, err := p.device()
	if err != nil {
		return Stats{}
	}
	return d.stats.snapshot()
}

// RemoveDevice is for tests: it takes the device away as if it had been unplugged.
// Every opening of it gets ib.EventDeviceFatal, connections end with
// ib.CMDeviceRemoval, requests are flushed, who waits is woken, and calls fail with
// driver.ErrDeviceGone from then on.
func (p *Provider) RemoveDevice() {
	p.life.Lock()
	defer p.life.Unlock()
	p.mu.Lock()
	d := p.dev
	p.dev = nil
	if d != nil {
		p.gone = append(p.gone, d)
	}
	p.mu.Unlock()
	if d != nil {
		d.remove()
	}
}

// RestoreDevice is for tests: it plugs a new device in after RemoveDevice.
func (p *Provider) RestoreDevice() {
	p.life.Lock()
	defer p.life.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && p.dev == nil {
		p.addDevice()
	}
}

// SetAddrs is for tests: it replaces the addresses of the configuration, as if the
// administrator had changed the interfaces. Each address that comes or goes raises
// one ib.EventGIDChange.
func (p *Provider) SetAddrs(addrs []netip.Addr) error {
	for _, a := range addrs {
		if err := checkAddr(a); err != nil {
			return fmt.Errorf("softroce: set addresses: %w", err)
		}
	}
	d, err := p.device()
	if err != nil {
		return err
	}
	d.port.setAddrs(addrs)
	return nil
}

// SetLink is for tests: it takes the link down or up. A device whose link is down
// neither sends nor receives; it raises ib.EventPortErr and ib.EventPortActive.
func (p *Provider) SetLink(up bool) error {
	d, err := p.device()
	if err != nil {
		return err
	}
	d.port.setLink(up)
	return nil
}

// Close ends the device: sockets are closed and their goroutines have ended when it
// returns. Objects that are still open fail with net.ErrClosed.
func (p *Provider) Close() error {
	p.life.Lock()
	defer p.life.Unlock()
	p.mu.Lock()
	all := p.gone
	if p.dev != nil {
		all = append(all, p.dev)
	}
	p.dev, p.gone, p.closed = nil, nil, true
	p.mu.Unlock()
	for _, d := range all {
		d.close()
	}
	return nil
}
