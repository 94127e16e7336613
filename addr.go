package rdma

import (
	"net"
	"net/netip"
)

// Addr is the address of a listener or of an end of a connection. Its network is
// "rdma": ports are those of the RDMA port space and not those of TCP, although one
// number may be served in both (see Config.Fallback). The text form, "10.0.0.1:7471", is
// what Dial takes.
type Addr struct{ netip.AddrPort }

// Network gives "rdma".
func (a Addr) Network() string { return "rdma" }

// String gives host:port as Dial takes it, and "<nil>" for the zero Addr.
func (a Addr) String() string {
	if !a.IsValid() {
		return "<nil>"
	}
	return a.AddrPort.String()
}

var _ net.Addr = Addr{}

// addrPortOf gives the numbers of an address of any network that has them.
func addrPortOf(a net.Addr) (netip.AddrPort, bool) {
	switch a := a.(type) {
	case nil:
		return netip.AddrPort{}, false
	case Addr:
		return unmapped(a.AddrPort), a.IsValid()
	case interface{ AddrPort() netip.AddrPort }: // net.TCPAddr, net.UDPAddr
		ap := a.AddrPort()
		if !ap.Addr().IsValid() { // a wildcard without family
			ap = netip.AddrPortFrom(netip.IPv6Unspecified(), ap.Port())
		}
		return unmapped(ap), true
	}
	ap, err := netip.ParseAddrPort(a.String())
	return unmapped(ap), err == nil
}

// unmapped gives an address of IPv4 that is written as one of IPv6 as what it is.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
