package softroce

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const (
	portNumber = 1
	maxGIDs    = 256 // entries of the GID table; more addresses are left out

	minLinkMTU     = 576   // what IPv4 hosts must take
	maxLinkMTU     = 65536 // loopback
	defaultLinkMTU = 4200  // of a ListenPacket: room for the largest path MTU
)

// gid is an entry of the GID table. Its index stays while the address exists.
type gid struct {
	addr    netip.Addr // not valid: the entry is free
	ifIndex int
	mtu     int // of the link
}

// port is the only port of the device: its addresses and their links. There is no
// listener for changes: the table is brought up to date by who asks.
type port struct {
	d          *device
	interfaces func() ([]netio.Interface, error)

	mu      sync.Mutex
	fixed   []netip.Addr // from the configuration; nil: what the interfaces have
	claimed []netip.Addr // loopback addresses that this process has taken
	table   []gid
	loaded  bool
	active  bool
	unplug  bool // SetLink(false)
}

func (p *port) init(d *device) {
	p.d = d
	p.interfaces = freshInterfaces(netio.Interfaces)
	p.active = true
	p.fixed = slices.Clone(d.cfg.Addrs)
}

// linkMTU is the MTU of a link whose interface says n.
func (p *port) linkMTU(n int) int {
	switch {
	case p.d.cfg.MTU != 0:
		return p.d.cfg.MTU
	case p.d.cfg.ListenPacket != nil:
		return defaultLinkMTU
	}
	return n
}

// pathMTU gives the largest path MTU that fits a link; small links give 256 though it
// does not fit, as there is no smaller one.
func pathMTU(link int) ib.MTU { return max(ib.MTUFromLink(link), ib.MTU256) }

// refresh reads the interfaces and brings the table up to date.
func (p *port) refresh() error {
	p.mu.Lock()
	events, err := p.update()
	p.mu.Unlock()
	p.d.tell(events)
	return err
}

// update is refresh with p.mu held; it gives the events to be raised.
func (p *port) update() ([]ib.EventType, error) {
	want, err := p.wanted()
	if err != nil {
		return nil, err
	}
	changes := 0
	for i := range p.table {
		e := &p.table[i]
		if !e.addr.IsValid() {
			continue
		}
		j := slices.IndexFunc(want, func(g gid) bool { return g.addr == e.addr })
		if j < 0 {
			*e = gid{}
			changes++
			continue
		}
		*e = want[j]
		want[j].addr = netip.Addr{}
	}
	for _, g := range want {
		if !g.addr.IsValid() {
			continue
		}
		if p.insert(g) {
			changes++
		}
	}
	first := !p.loaded
	p.loaded = true
	if first {
		changes = 0
	}
	return append(p.settleState(), slices.Repeat([]ib.EventType{ib.EventGIDChange}, changes)...), nil
}

// insert puts an address in the first free entry.
func (p *port) insert(g gid) bool {
	i := slices.IndexFunc(p.table, func(e gid) bool { return !e.addr.IsValid() })
	switch {
	case i >= 0:
		p.table[i] = g
	case len(p.table) < maxGIDs:
		p.table = append(p.table, g)
	default:
		return false
	}
	return true
}

// settleState derives the state of the port; a change is an event.
func (p *port) settleState() []ib.EventType {
	up := !p.unplug && (!p.loaded || p.occupied() > 0)
	if up == p.active {
		return nil
	}
	p.active = up
	if up {
		return []ib.EventType{ib.EventPortActive}
	}
	return []ib.EventType{ib.EventPortErr}
}

func (p *port) occupied() (n int) {
	for _, e := range p.table {
		if e.addr.IsValid() {
			n++
		}
	}
	return n
}

// wanted lists what the table should have.
func (p *port) wanted() ([]gid, error) {
	var want []gid
	add := func(g gid) {
		if !slices.ContainsFunc(want, func(e gid) bool { return e.addr == g.addr }) {
			want = append(want, g)
		}
	}
	var ifs []netio.Interface
	if p.d.cfg.ListenPacket == nil {
		var err error
		if ifs, err = p.interfaces(); err != nil {
			return nil, fmt.Errorf("softroce: list of interfaces: %w", err)
		}
	}
	for _, a := range p.fixed {
		g := gid{addr: a, mtu: p.linkMTU(maxLinkMTU)}
		for _, i := range ifs {
			if slices.ContainsFunc(i.Addrs, func(x netip.Addr) bool { return x.WithZone("") == a.WithZone("") }) {
				g.ifIndex, g.mtu = i.Index, p.linkMTU(i.MTU)
			}
		}
		add(g)
	}
	if p.fixed == nil {
		for _, i := range ifs {
			if !i.Up {
				continue
			}
			for _, a := range i.Addrs {
				if a = a.Unmap(); !a.IsLoopback() {
					add(gid{addr: a, ifIndex: i.Index, mtu: p.linkMTU(i.MTU)})
				}
			}
		}
	}
	for _, a := range p.claimed {
		add(gid{addr: a, ifIndex: 1, mtu: p.linkMTU(maxLinkMTU)})
	}
	return want, nil
}

// configured gives the addresses of the configuration, or of SetAddrs.
func (p *port) configured() []netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.fixed)
}

// claim adds a loopback address that this process has just taken. It raises no event:
// the process did it itself.
func (p *port) claim(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.claimed, a) || slices.ContainsFunc(p.table, func(e gid) bool { return e.addr == a }) {
		return
	}
	p.claimed = append(p.claimed, a)
	if p.loaded {
		p.insert(gid{addr: a, ifIndex: 1, mtu: p.linkMTU(maxLinkMTU)})
	}
}

// entry gives an entry of the table as it was last read: ENODATA if it is free, EINVAL
// if there is no such index.
func (p *port) entry(index int) (gid, error) {
	p.mu.Lock()
	loaded := p.loaded
	p.mu.Unlock()
	if !loaded {
		if err := p.refresh(); err != nil {
			return gid{}, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case index < 0 || index >= maxGIDs:
		return gid{}, fmt.Errorf("softroce: GID index %d is not in 0..%d: %w", index, maxGIDs-1, syscall.EINVAL)
	case index >= len(p.table) || !p.table[index].addr.IsValid():
		return gid{}, fmt.Errorf("softroce: GID index %d is empty: %w", index, syscall.ENODATA)
	}
	return p.table[index], nil
}

// find gives the index and the entry of an address.
func (p *port) find(a netip.Addr) (int, gid, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range p.table {
		if e.addr == a || e.addr.IsValid() && e.addr.WithZone("") == a {
			return i, e, true
		}
	}
	return 0, gid{}, false
}

// addrs lists the addresses of the table, brought up to date.
func (p *port) addrs() ([]gid, error) {
	err := p.refresh()
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []gid
	for _, e := range p.table {
		if e.addr.IsValid() {
			all = append(all, e)
		}
	}
	return all, err
}

// gids is the table as users see it.
func (p *port) gids() ([]driver.GIDEntry, error) {
	if err := p.refresh(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	empty := p.fixed == nil && p.occupied() == 0 && p.active
	p.mu.Unlock()
	if empty {
		// A host without a network still has itself.
		if _, err := p.d.loopback(); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []driver.GIDEntry
	for i, e := range p.table {
		if e.addr.IsValid() {
			all = append(all, driver.GIDEntry{
				GID:     ib.GIDFromAddr(e.addr),
				Index:   i,
				Port:    portNumber,
				Type:    ib.GIDTypeRoCEv2,
				IfIndex: e.ifIndex,
				MTU:     pathMTU(e.mtu),
			})
		}
	}
	return all, nil
}

// mtu gives the MTU of the port: the largest of the links with a GID. What each of them
// carries is in its GIDEntry, and checked when a queue pair is given its address.
func (p *port) mtu() ib.MTU {
	p.mu.Lock()
	defer p.mu.Unlock()
	link := minLinkMTU
	for _, e := range p.table {
		if e.addr.IsValid() {
			link = max(link, e.mtu)
		}
	}
	return pathMTU(link)
}

// isUp reports whether packets can go in and out.
func (p *port) isUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active
}

// setAddrs and setLink do what Provider.SetAddrs and SetLink say.
func (p *port) setAddrs(addrs []netip.Addr) {
	p.refresh() // so that what comes now is a change
	p.mu.Lock()
	p.fixed = make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		p.fixed = append(p.fixed, a.Unmap())
	}
	p.mu.Unlock()
	p.refresh()
	p.d.eps.mu.Lock()
	p.d.eps.relink()
	p.d.eps.mu.Unlock()
}

func (p *port) setLink(up bool) {
	p.mu.Lock()
	p.unplug = !up
	events := p.settleState()
	p.mu.Unlock()
	p.d.eps.setLink(up)
	p.d.tell(events)
}
