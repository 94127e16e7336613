package softroce

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var (
	anyIPv4       = netip.IPv4Unspecified()
	loopbackIPv4  = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	loopbackIPv6  = netip.IPv6Loopback()
	broadcastIPv4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})
)

// BindAddr binds to a local address and a port (rdma_bind_addr). Port 0 takes a free
// one, which Info gives. Binding to one address opens its socket; binding to the
// wildcard opens nothing yet.
func (id *cmID) BindAddr(a netip.AddrPort) error {
	const op = "bind"
	m := id.core
	m.mu.Lock()
	err := id.need(op, idIdle)
	h := m.host
	m.mu.Unlock()
	if err != nil {
		return err
	}
	addr, err := bindable(op, h, a.Addr())
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := id.need(op, idIdle); err != nil {
		return err
	}
	return id.bind(op, addr, a.Port())
}

// bind takes the port. The lock is held.
func (id *cmID) bind(op string, addr netip.Addr, port uint16) error {
	got, errno := id.core.ports.claim(id, addr, port)
	if errno != 0 {
		return portFail(op, id.space, netip.AddrPortFrom(addr, port), errno)
	}
	id.hasPort = true
	id.local = netip.AddrPortFrom(addr, got)
	id.attached = !addr.IsUnspecified()
	id.state = idBound
	return nil
}

// bindable checks a local address and opens it, unless it is the wildcard. It gives
// the address as the device has it.
func bindable(op string, h cmHost, a netip.Addr) (netip.Addr, error) {
	a = canonical(a)
	switch {
	case !a.IsValid():
		return a, cmFail(op, "no address", syscall.EINVAL)
	case a.IsMulticast(), a == broadcastIPv4:
		return a, cmFail(op, a.String()+" is not the address of a host", syscall.EADDRNOTAVAIL)
	case needsZone(a):
		return a, cmFail(op, a.String()+" needs a zone", syscall.EINVAL)
	case h == nil:
		return a, cmGone(op)
	case a.IsUnspecified():
		return a, nil
	}
	if _, known := h.index(a); !known && !a.IsLoopback() {
		all, err := h.addresses() // it may be new
		if err != nil {
			return a, cmWrap(op, err)
		}
		switch {
		case slices.Contains(all, a):
		case a.Zone() != "":
			return a, cmFail(op, "no interface has "+a.String(), syscall.ENODEV)
		default:
			return a, cmFail(op, a.String()+" is not an address of this device", syscall.EADDRNOTAVAIL)
		}
	}
	if err := h.open(a); err != nil {
		return a, cmWrap(op, err)
	}
	return a, nil
}

// canonical gives an address as the GID table has it: IPv4 as such, a zone only where
// it means something, and as a name.
func canonical(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Zone() == "" {
		return a
	}
	if !a.IsLinkLocalUnicast() && !a.IsLinkLocalMulticast() {
		return a.WithZone("")
	}
	if n, err := strconv.Atoi(a.Zone()); err == nil {
		if i, err := net.InterfaceByIndex(n); err == nil {
			return a.WithZone(i.Name)
		}
	}
	return a
}

// needsZone reports whether an address means nothing as it has no zone.
func needsZone(a netip.Addr) bool {
	return a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == ""
}

// ResolveAddr finds the local address towards dst (rdma_resolve_addr). An id that is
// not bound is bound to src, or, if src is not valid, to the system's choice. There is
// nothing to ask the network for, so limit does not matter: the answer is in the
// channel when the call returns. What cannot be is an error at once, and leaves the id
// as it was.
func (id *cmID) ResolveAddr(src, dst netip.AddrPort, _ time.Duration) error {
	const op = "resolve address"
	m := id.core
	m.mu.Lock()
	err := id.need(op, idIdle, idBound)
	h, bound := m.host, id.state == idBound
	if bound {
		src = id.local
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	from := src.Addr()
	if from.IsValid() && !bound {
		if from, err = bindable(op, h, from); err != nil {
			return err
		}
	}
	local, remote, err := choose(op, h, from, canonical(dst.Addr()))
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := id.need(op, idIdle, idBound); err != nil {
		return err
	}
	if m.host != h {
		return cmGone(op)
	}
	if id.state == idIdle {
		if err := id.bind(op, local, src.Port()); err != nil {
			return err
		}
	}
	id.local = netip.AddrPortFrom(local, id.local.Port())
	id.remote = netip.AddrPortFrom(remote, dst.Port())
	id.attached = true
	id.state = idAddrResolved
	id.post(driver.CMEvent{Type: ib.CMAddrResolved})
	return nil
}

// choose finds the two ends of a connection: the local address, opened, and the peer's,
// as it is reached. from is the local address that was asked for, if any.
func choose(op string, h cmHost, from, dst netip.Addr) (local, remote netip.Addr, err error) {
	specific := from.IsValid() && !from.IsUnspecified()
	switch {
	case !dst.IsValid():
		return from, dst, cmFail(op, "no destination", syscall.EINVAL)
	case dst.IsMulticast(), dst == broadcastIPv4:
		return from, dst, cmFail(op, dst.String()+" is not the address of one host", syscall.ENETUNREACH)
	case from.IsValid() && from.Is4() != dst.Is4():
		return from, dst, cmFail(op, "source and destination are of different families", syscall.EINVAL)
	case needsZone(dst) && from.Zone() != "":
		dst = dst.WithZone(from.Zone())
	case needsZone(dst):
		return from, dst, cmFail(op, dst.String()+" needs a zone", syscall.EINVAL)
	case h == nil:
		return from, dst, cmGone(op)
	}
	if dst.IsUnspecified() {
		// This host, as for sockets.
		if dst.Is4() {
			dst = loopbackIPv4
		} else {
			dst = loopbackIPv6
		}
	}
	if specific {
		return from, dst, reachable(op, h, from, dst)
	}
	if dst.IsLoopback() {
		local, err = besideLoopback(h, dst)
	} else {
		local, err = besideHost(h, dst)
	}
	if err != nil {
		return local, dst, cmWrap(op, err)
	}
	return local, dst, nil
}

// reachable checks that packets from a local address can go to dst.
func reachable(op string, h cmHost, from, dst netip.Addr) error {
	if dst.IsLoopback() || from == dst {
		return nil
	}
	at, err := h.route(dst)
	if err != nil {
		return cmWrap(op, err)
	}
	if from.IsLoopback() && at != dst {
		return cmFail(op, dst.String()+" cannot be reached from "+from.String(), syscall.ENETUNREACH)
	}
	return nil
}

// besideLoopback gives the local address for a peer on the loopback. A peer in this
// process is reached from its own address: both ends then share one socket. A peer in
// another process needs an address that it does not have.
func besideLoopback(h cmHost, dst netip.Addr) (netip.Addr, error) {
	if dst.Is4() && !h.holds(dst) {
		return h.loopback()
	}
	// There is one ::1 only: whoever has it has both ends.
	return dst, h.open(dst)
}

// besideHost gives the local address for any other peer.
func besideHost(h cmHost, dst netip.Addr) (netip.Addr, error) {
	if h.holds(dst) {
		return dst, nil
	}
	local, err := h.route(dst)
	if err != nil {
		return local, err
	}
	err = h.open(local)
	var used *netio.InUseError
	if local == dst && dst.Is4() && errors.As(err, &used) {
		// An address of this host that another process has: it is met over the loopback.
		return h.loopback()
	}
	return local, err
}

// ResolveRoute finds the path (rdma_resolve_route), which on this device is there. The
// answer is in the channel when the call returns.
func (id *cmID) ResolveRoute(time.Duration) error {
	id.core.mu.Lock()
	defer id.core.mu.Unlock()
	if err := id.need("resolve route", idAddrResolved); err != nil {
		return err
	}
	id.state = idRouteResolved
	id.post(driver.CMEvent{Type: ib.CMRouteResolved})
	return nil
}
