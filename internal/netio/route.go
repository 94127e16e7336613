package netio

import (
	"net"
	"net/netip"
)

// RouteSource gives the address from which this host would send to dst: the system's
// choice. Nothing is sent. Without a route the error wraps the system's errno
// (syscall.ENETUNREACH, on Linux). A link-local destination needs its zone.
func RouteSource(dst netip.Addr) (netip.Addr, error) {
	dst = dst.Unmap()
	network := "udp6"
	if dst.Is4() {
		network = "udp4"
	}
	// Connecting a UDP socket makes the system choose; the port plays no part.
	c, err := net.DialUDP(network, nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, discardPort)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return addrPortOf(c.LocalAddr()).Addr(), nil
}

const discardPort = 9 // RFC 863
