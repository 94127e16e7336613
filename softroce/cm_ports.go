package softroce

import (
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// cmPorts says who has which port. Ports of the connection manager are not those of
// UDP or TCP: they are part of the service id of a request (IBTA Vol 1 annex A11).
type cmPorts struct {
	owners map[cmPort][]*cmID
	rand   func() uint64
}

type cmPort struct {
	space ib.PortSpace
	port  uint16
}

// Ports that are given to who asks for none, as Linux and IANA have them, and where to
// look if they are all in use.
const (
	firstEphemeral  = 32768
	lastEphemeral   = 60999
	firstLastResort = 1024
	lastLastResort  = 65535
)

// claim gives a port of the id's space to an id that is bound to addr, as
// rdma_bind_addr does; port 0 takes a free one.
func (p *cmPorts) claim(id *cmID, addr netip.Addr, port uint16) (uint16, syscall.Errno) {
	if port != 0 {
		key := cmPort{id.space, port}
		if errno := conflict(p.owners[key], id, addr, id.reuse); errno != 0 {
			return 0, errno
		}
		p.owners[key] = append(p.owners[key], id)
		return port, 0
	}
	for _, r := range [...]struct{ first, n uint32 }{
		{firstEphemeral, lastEphemeral - firstEphemeral + 1},
		{firstLastResort, lastLastResort - firstLastResort + 1},
	} {
		start := uint32(p.rand() % uint64(r.n))
		for i := range r.n {
			port := uint16(r.first + (start+i)%r.n)
			key := cmPort{id.space, port}
			if len(p.owners[key]) == 0 {
				p.owners[key] = []*cmID{id}
				return port, 0
			}
		}
	}
	return 0, syscall.EADDRNOTAVAIL
}

// release gives the port of an id back.
func (p *cmPorts) release(id *cmID) {
	key := cmPort{id.space, id.local.Port()}
	all := p.owners[key]
	for i, o := range all {
		if o == id {
			all = append(all[:i:i], all[i+1:]...)
			break
		}
	}
	if len(all) == 0 {
		delete(p.owners, key)
		return
	}
	p.owners[key] = all
}

// listenable reports whether an id may start to listen on the port that it has: what
// REUSEADDR lets several ids bind, one may listen on.
func (p *cmPorts) listenable(id *cmID) syscall.Errno {
	return conflict(p.owners[cmPort{id.space, id.local.Port()}], id, id.local.Addr(), false)
}

// conflict says what stands against addr beside the owners of its port. The two
// answers are those of the kernel's cma_check_port.
func conflict(owners []*cmID, id *cmID, addr netip.Addr, reuse bool) syscall.Errno {
	for _, o := range owners {
		have := o.local.Addr()
		switch {
		case o == id:
		case reuse && o.reuse:
		case id.onlyFamily(addr) && o.onlyFamily(have) && addr.Is4() != have.Is4():
		case addr.IsUnspecified() || have.IsUnspecified():
			return syscall.EADDRNOTAVAIL
		case addr == have:
			return syscall.EADDRINUSE
		}
	}
	return 0
}

// onlyFamily reports whether an id bound to addr has to do with the family of addr only:
// always, but for the IPv6 wildcard without AFONLY.
func (id *cmID) onlyFamily(addr netip.Addr) bool {
	return addr.Is4() || !addr.IsUnspecified() || id.afOnly
}

// listener finds the id that takes requests for a port at a local address. any tells
// whether somebody listens on the port at all.
func (p *cmPorts) listener(space ib.PortSpace, port uint16, local netip.Addr) (l *cmID, any bool) {
	for _, o := range p.owners[cmPort{space, port}] {
		if o.state != idListening {
			continue
		}
		any = true
		have := o.local.Addr()
		switch {
		case have == local:
			return o, true
		case !have.IsUnspecified():
		case have.Is4() == local.Is4() || !o.onlyFamily(have):
			l = o
		}
	}
	return l, any
}
