package rdmatest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// Fabric is a network in memory with hosts that each have a device. It uses no
// descriptor and no real time: it works in a testing/synctest bubble, to which it
// then belongs.
//
// A datagram arrives in the moment in which it is sent, in order, unless a rule says
// otherwise. A receive queue that is full loses datagrams, as a socket does. All
// methods may be called from any goroutine; none blocks.
type Fabric struct {
	tb   testing.TB
	seed uint64

	mu      sync.Mutex
	rand    *rand.Rand
	mtu     int
	conns   map[netip.AddrPort]*packetConn
	hosts   []*host
	filters []*Filter
	later   laterQueue
	behind  map[route][]*behindItem
	stats   FabricStats
	capture *capture
	uplink  Carry // nil: to nowhere
	closed  bool
}

// FabricStats counts datagrams.
type FabricStats struct {
	Sent      int // given to the fabric by hosts
	Delivered int // put into the queue of a socket, or given to the uplink; a duplicate counts again
	Dropped   int // by a rule
	NoRoute   int // nobody has the address, and there is no uplink
	Overflow  int // the queue of the socket was full
	Injected  int // by Inject and Forge
}

// host is a device of the fabric.
type host struct {
	addrs    []netip.Addr
	provider *softroce.Provider
}

// route is a direction between two addresses.
type route struct{ from, to netip.Addr }

// DefaultMTU is the MTU of the fabric's interfaces: path MTU 4096 fits.
const DefaultMTU = 4200

// SeedEnv names the environment variable with the seed of fabrics that are made without one,
// and of the suite's, which otherwise depend on the names of the tests only.
const SeedEnv = "VERBENA_SEED"

// seedOr gives the seed of the environment, or another if there is none.
func seedOr(t testing.TB, other uint64) uint64 {
	t.Helper()
	s := os.Getenv(SeedEnv)
	if s == "" {
		return other
	}
	seed, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatalf("%s: %v", SeedEnv, err)
	}
	return seed
}

// NewFabric makes a fabric. It is closed, and checked for leaks, when the test ends.
// A zero seed is that of the environment (SeedEnv), or taken at random; the seed is
// logged, for the random faults and the devices' own choices (numbers, keys) follow from
// it.
func NewFabric(t testing.TB, seed uint64) *Fabric {
	t.Helper()
	if seed == 0 {
		seed = seedOr(t, 0)
	}
	for seed == 0 {
		seed = rand.Uint64()
	}
	f := &Fabric{
		tb:     t,
		seed:   seed,
		rand:   rand.New(rand.NewPCG(seed, 0)),
		mtu:    DefaultMTU,
		conns:  map[netip.AddrPort]*packetConn{},
		behind: map[route][]*behindItem{},
	}
	t.Logf("fabric: seed %#x", seed)
	f.capture = captureFromEnv(t)
	t.Cleanup(f.close)
	return f
}

// Seed gives the seed.
func (f *Fabric) Seed() uint64 { return f.seed }

// SetMTU sets the MTU of the interfaces of hosts that are made later, IP header
// included. Larger datagrams are refused, as with the flag that forbids
// fragmentation.
func (f *Fabric) SetMTU(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mtu = n
}

// Stats gives the counters.
func (f *Fabric) Stats() FabricStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// Host gives the provider of the host with that address. The first call makes it.
func (f *Fabric) Host(a netip.Addr) verbs.Provider { return f.MultiHost(a) }

// MultiHost gives the provider of a host with several addresses: one device, one
// port, a GID for each.
func (f *Fabric) MultiHost(addrs ...netip.Addr) verbs.Provider {
	f.tb.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		f.tb.Fatal("fabric: Host after the end of the test")
	}
	for _, h := range f.hosts {
		if slices.Equal(h.addrs, addrs) {
			return h.provider
		}
		for _, a := range addrs {
			if slices.Contains(h.addrs, a) {
				f.tb.Fatalf("fabric: %v belongs to another host", a)
			}
		}
	}
	p, err := softroce.New(&softroce.Config{
		Addrs:        slices.Clone(addrs),
		MTU:          f.mtu,
		ListenPacket: func(a netip.AddrPort) (net.PacketConn, error) { return f.listen(a, true) },
		Seed:         f.rand.Uint64() | 1,
	})
	if err != nil {
		f.tb.Fatalf("fabric: host %v: %v", addrs, err)
	}
	f.hosts = append(f.hosts, &host{addrs: slices.Clone(addrs), provider: p})
	return p
}

// ListenPacket gives a socket of the fabric. It is what the hosts use, and may be
// used by a test that plays a peer itself, packet by packet. Port 0 is not chosen
// for the caller: it is refused.
func (f *Fabric) ListenPacket(a netip.AddrPort) (net.PacketConn, error) { return f.listen(a, false) }

func (f *Fabric) listen(a netip.AddrPort, device bool) (net.PacketConn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, opError("listen", a, net.ErrClosed)
	case !a.Addr().IsValid() || a.Addr().IsUnspecified() || a.Port() == 0:
		return nil, opError("listen", a, errNoAddress)
	case f.conns[a] != nil:
		return nil, opError("listen", a, errInUse)
	}
	c := newPacketConn(f, a, device)
	f.conns[a] = c
	return c, nil
}

// Inject puts a datagram into the socket at to, as if it came from from. No rule
// sees it, and captures leave it out. tos is the IPv4 TOS or IPv6 traffic class.
func (f *Fabric) Inject(from, to netip.AddrPort, payload []byte, tos uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Injected++
	f.deliver(newDatagram(from, to, payload, tos), false)
}

// Forge sends a RoCEv2 packet from one address to another: b goes from the base
// transport header to the pad; the correct ICRC is appended. Whether from exists, or
// would send such a thing, does not matter. See Inject.
func (f *Fabric) Forge(from, to netip.Addr, b []byte) {
	f.ForgeMarked(from, to, b, 0)
}

// ForgeMarked is Forge with a traffic class.
func (f *Fabric) ForgeMarked(from, to netip.Addr, b []byte, tos uint8) {
	src, dst := netip.AddrPortFrom(from, wire.Port), netip.AddrPortFrom(to, wire.Port)
	f.Inject(src, dst, Seal(src, dst, b), tos)
}

// Seal gives a copy of the packet b, from the base transport header to the pad, with
// the ICRC that it has on the way from src to dst.
func Seal(src, dst netip.AddrPort, b []byte) []byte {
	p := make([]byte, len(b)+wire.ICRCLen)
	copy(p, b)
	flow := wire.NewFlow(src, dst)
	flow.Put(p, 0)
	return p
}

// send takes a datagram from a socket and does what the rules say.
func (f *Fabric) send(d *datagram) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		d.free()
		return
	}
	f.stats.Sent++
	v := verdict{d: d}
	for _, r := range f.filters {
		r.apply(&v)
	}
	f.carryOut(&v)
}

// carryOut delivers a datagram, now or later, and its copies.
func (f *Fabric) carryOut(v *verdict) {
	d := v.d
	way := route{d.from.Addr(), d.to.Addr()}
	if v.drop {
		f.stats.Dropped++
		d.free()
		return
	}
	var copies []*datagram
	for range v.copies {
		copies = append(copies, d.clone())
	}
	// Who waits for others to pass is counted down by what passes now.
	passed := 0
	if v.hold == nil && v.delay == 0 && v.behind == 0 {
		passed = 1
	}
	switch {
	case v.hold != nil:
		v.hold.held = append(v.hold.held, d)
	case v.behind > 0 && v.copies == 0:
		f.putBehind(way, d, v.behind)
	default:
		f.deliverAfter(v.delay, d)
	}
	for _, c := range copies {
		if v.behind > 0 {
			f.putBehind(way, c, v.behind)
		} else {
			f.deliverAfter(v.delay, c)
		}
	}
	if passed > 0 {
		f.countBehind(way)
	}
}

// deliverAfter delivers at once, or later.
func (f *Fabric) deliverAfter(delay time.Duration, d *datagram) {
	if delay <= 0 {
		f.deliver(d, true)
		return
	}
	f.later.push(f, time.Now().Add(delay), func() { f.deliver(d, true) })
}

// deliver puts a datagram into the queue of its socket.
func (f *Fabric) deliver(d *datagram, record bool) {
	c := f.conns[d.to]
	if f.closed || c == nil && f.uplink == nil {
		f.stats.NoRoute++
		d.free()
		return
	}
	if record && !d.altered {
		f.capture.write(d)
	}
	if c == nil {
		f.uplink(d.from, d.to, d.b, d.tos)
		f.stats.Delivered++
		d.free()
		return
	}
	select {
	case c.in <- d:
		f.stats.Delivered++
	default:
		f.stats.Overflow++
		d.free()
	}
}

// RemoveDevice takes the device of the host with that address away, as if it had been
// unplugged. The test fails if there is no such host.
func (f *Fabric) RemoveDevice(a netip.Addr) { f.host(a).RemoveDevice() }

// SetAddrs gives the host with the address a, one of those it was made with, other
// addresses: its GID table changes, with an event for each that comes or goes.
func (f *Fabric) SetAddrs(a netip.Addr, addrs ...netip.Addr) {
	f.tb.Helper()
	if err := f.host(a).SetAddrs(addrs); err != nil {
		f.tb.Fatalf("fabric: host %v: addresses %v: %v", a, addrs, err)
	}
}

// SetLink takes the link of a host down, or up again.
func (f *Fabric) SetLink(a netip.Addr, up bool) {
	f.tb.Helper()
	if err := f.host(a).SetLink(up); err != nil {
		f.tb.Fatalf("fabric: host %v: link: %v", a, err)
	}
}

// host finds the host that was made with an address.
func (f *Fabric) host(a netip.Addr) *softroce.Provider {
	f.tb.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hosts {
		if slices.Contains(h.addrs, a) {
			return h.provider
		}
	}
	f.tb.Fatalf("fabric: no host has the address %v", a)
	return nil
}

// forget takes the socket out.
func (f *Fabric) forget(c *packetConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns[c.local] == c {
		delete(f.conns, c.local)
	}
}

// close ends the fabric: what is left of the hosts is reported and closed.
func (f *Fabric) close() {
	f.tb.Helper()
	f.mu.Lock()
	hosts := f.hosts
	f.mu.Unlock()
	for _, h := range hosts {
		for _, o := range openObjects(h.provider) {
			f.tb.Errorf("fabric: host %v: left open: %s", h.addrs, o)
		}
		if err := h.provider.Close(); err != nil {
			f.tb.Errorf("fabric: host %v: close: %v", h.addrs, err)
		}
	}
	f.mu.Lock()
	f.closed = true
	f.later.stop()
	conns := f.conns
	f.conns = nil
	err := f.capture.close()
	s := f.stats
	f.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	if err != nil {
		f.tb.Errorf("fabric: capture: %v", err)
	}
	if f.tb.Failed() {
		f.tb.Logf("fabric: seed %#x, %+v", f.seed, s)
	}
}

// openObjects lists what is open of a provider: of its connection manager, and on its devices.
func openObjects(p verbs.Provider) []string {
	open := cm.ObjectsOf(p)
	infos, err := verbs.Devices(p)
	if err != nil {
		return open
	}
	for _, i := range infos {
		d, err := i.Open()
		if err != nil {
			open = append(open, fmt.Sprintf("device %s cannot be asked: %v", i.Name, err))
			continue
		}
		open = append(open, d.Objects()...)
	}
	return open
}
