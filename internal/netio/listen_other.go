//go:build !linux

package netio

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

func listen(a netip.AddrPort, _ options) (Conn, error) {
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	network := "udp6"
	if a.Addr().Is4() {
		network = "udp4"
	}
	udp, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(a))
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, addressInUse) {
		return nil, &InUseError{Addr: a, Holder: otherProcess, Err: syscall.EADDRINUSE}
	}
	if err != nil {
		return nil, err
	}
	return newPlainConn(udp), nil
}

// addressInUse is WSAEADDRINUSE, the number that Windows gives; no other system uses
// it.
const addressInUse = syscall.Errno(10048)
