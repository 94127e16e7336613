package netio

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// Vacant reports that nobody has the socket of an address of this host: the system says
// so to who sends there. False may mean that it does not say. One or two datagrams of
// one byte, which are not RoCEv2, go to whoever has it. It does not wait.
func Vacant(a netip.AddrPort) bool {
	if !a.IsValid() {
		return false
	}
	network := "udp6"
	if a.Addr().Unmap().Is4() {
		network = "udp4"
	}
	c, err := net.DialUDP(network, nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Addr().Unmap(), a.Port())))
	if err != nil {
		return false
	}
	defer c.Close()
	// On the loopback the refusal is there when the first send returns. It is given to
	// the next one.
	for range 2 {
		if _, err := c.Write([]byte{0}); err != nil {
			return errors.Is(err, syscall.ECONNREFUSED)
		}
	}
	return false
}
