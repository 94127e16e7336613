package cm

import (
	"context"
	"net"
	"net/netip"
	"strings"
)

// Addr is the address of a listener or of an end of a connection; its network is
// "rdma". Its ports are those of the RDMA port space, not those of TCP.
type Addr struct{ netip.AddrPort }

// Network gives "rdma".
func (a Addr) Network() string { return "rdma" }

// String gives host:port as Resolve takes it, and "<nil>" for the zero Addr.
func (a Addr) String() string {
	if !a.IsValid() {
		return "<nil>"
	}
	return a.AddrPort.String()
}

var _ net.Addr = Addr{}

// lookup turns host:port into addresses, in the order of the resolver. An empty host
// gives none and the port. It is Go's resolver, never librdmacm's, which blocks a
// thread and may give addresses that listeners refuse.
func lookup(ctx context.Context, addr string) ([]netip.AddrPort, uint16, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, 0, opError(opLookup, err)
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, 0, opError(opLookup, err)
	}
	port := uint16(n)
	if host == "" {
		return nil, port, nil
	}
	ips := make([]netip.Addr, 1)
	if ips[0], err = netip.ParseAddr(host); err != nil {
		if ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
			return nil, 0, opError(opLookup, err)
		}
	}
	addrs := make([]netip.AddrPort, 0, len(ips))
	seen := make(map[netip.Addr]bool, len(ips))
	for _, ip := range ips {
		if ip = ip.Unmap(); !seen[ip] {
			seen[ip] = true
			addrs = append(addrs, netip.AddrPortFrom(ip, port))
		}
	}
	return addrs, port, nil
}

// addrErrors are the errors of several addresses, none of which worked.
type addrErrors []error

func (e addrErrors) Error() string {
	s := make([]string, len(e))
	for i, err := range e {
		s[i] = err.Error()
	}
	return strings.Join(s, "; ")
}

func (e addrErrors) Unwrap() []error { return e }

// err gives the error of no address, of one, or of all.
func (e addrErrors) err() error {
	if len(e) == 1 {
		return e[0]
	}
	return e
}
