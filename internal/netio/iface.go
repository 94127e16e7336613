package netio

import (
	"net"
	"net/netip"
)

// Interfaces lists the interfaces of this host. It asks the system each time.
func Interfaces() ([]Interface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	out := make([]Interface, 0, len(list))
	for i := range list {
		ifi := &list[i]
		addrs, err := ifi.Addrs()
		if err != nil {
			continue // it went away meanwhile
		}
		out = append(out, Interface{
			Name:  ifi.Name,
			Index: ifi.Index,
			MTU:   ifi.MTU,
			Up:    ifi.Flags&net.FlagUp != 0,
			Addrs: unicast(addrs, ifi.Name),
		})
	}
	return out, nil
}

func unicast(addrs []net.Addr, name string) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		if ip.IsMulticast() || ip.IsUnspecified() {
			continue
		}
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(name)
		}
		out = append(out, ip)
	}
	return out
}

// ethernetMTU is assumed where nothing is known.
const ethernetMTU = 1500

// interfaceOf gives the interface of a local address. Every address of 127.0.0.0/8 is
// on the interface of 127.0.0.1. The wildcard, and an address of no interface, give the
// smallest MTU of those that are up.
func interfaceOf(a netip.Addr) Interface {
	none := Interface{MTU: ethernetMTU}
	list, err := Interfaces()
	if err != nil {
		return none
	}
	if a.Is4() && a.IsLoopback() {
		a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	for _, ifi := range list {
		for _, b := range ifi.Addrs {
			if a == b {
				return ifi
			}
		}
		if ifi.Up && len(ifi.Addrs) > 0 {
			none.MTU = min(none.MTU, ifi.MTU)
		}
	}
	return none
}
