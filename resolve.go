package rdma

import (
	"context"
	"net"
	"net/netip"
	"slices"
)

// family is what a network name says of addresses.
type family uint8

const (
	anyFamily family = iota
	onlyIPv4
	onlyIPv6
)

// parseNetwork takes the names of networks: rdma, rdma4, rdma6.
func parseNetwork(network string) (family, error) {
	switch network {
	case "rdma":
		return anyFamily, nil
	case "rdma4":
		return onlyIPv4, nil
	case "rdma6":
		return onlyIPv6, nil
	}
	return 0, net.UnknownNetworkError(network)
}

// allows reports whether an address fits. IPv4 comes unmapped.
func (f family) allows(a netip.Addr) bool {
	return f == anyFamily || a.Is4() == (f == onlyIPv4)
}

// tcp gives the TCP network of the same family.
func (f family) tcp() string { return [...]string{"tcp", "tcp4", "tcp6"}[f] }

// wildcard gives what an empty host means to a listener.
func (f family) wildcard() netip.Addr {
	if f == onlyIPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// thisHost gives what an empty or unspecified host means to a dialer: listeners on a
// wildcard are met there.
func (f family) thisHost() netip.Addr {
	if f == onlyIPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// target is an address as a program wrote it, looked up.
type target struct {
	family family
	host   string // empty: none was given
	port   uint16
	addrs  []netip.AddrPort // in the order of the resolver; never empty without an error
}

// lookup resolves host:port as package net does: names, service names, zones, literals.
// For a listener an empty host is the wildcard, else it is this host. Errors are those of
// package net. It blocks for the resolver, within ctx.
func lookup(ctx context.Context, network, address string, listen bool) (target, error) {
	f, err := parseNetwork(network)
	if err != nil {
		return target{}, err
	}
	t := target{family: f}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return t, err
	}
	t.host = host
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return t, err
	}
	t.port = uint16(n)
	if host == "" {
		a := f.thisHost()
		if listen {
			a = f.wildcard()
		}
		t.addrs = []netip.AddrPort{netip.AddrPortFrom(a, t.port)}
		return t, nil
	}
	ips, err := lookupHost(ctx, host)
	if err != nil {
		return t, err
	}
	for _, ip := range ips {
		// A listener on [::] stays what it is; to a dialer it is this host.
		if ip.IsUnspecified() && !listen {
			g := f
			if g == anyFamily && ip.Is6() {
				g = onlyIPv6
			}
			if f == anyFamily && ip.Is6() {
				// Whoever listens on [::] takes IPv4 too, and over ::1 two processes with
				// embedded devices cannot meet: try IPv4 first.
				t.add(onlyIPv4.thisHost())
			}
			ip = g.thisHost()
		}
		if f.allows(ip) {
			t.add(ip)
		}
	}
	if len(t.addrs) == 0 {
		return t, &net.AddrError{Err: "no suitable address found", Addr: host}
	}
	return t, nil
}

// add appends an address that is not there yet.
func (t *target) add(ip netip.Addr) {
	a := netip.AddrPortFrom(ip, t.port)
	if !slices.Contains(t.addrs, a) {
		t.addrs = append(t.addrs, a)
	}
}

// lookupHost gives the addresses of a literal or a name, IPv4 unmapped.
func lookupHost(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, err
}

// partition splits addresses into those of the family of the first, and the others
// (RFC 8305 §4).
func partition(addrs []netip.AddrPort) (primaries, fallbacks []netip.AddrPort) {
	for _, a := range addrs {
		if a.Addr().Is4() == addrs[0].Addr().Is4() {
			primaries = append(primaries, a)
		} else {
			fallbacks = append(fallbacks, a)
		}
	}
	return primaries, fallbacks
}
