//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package unix

import "golang.org/x/sys/unix"

// SetTrafficClass sets the type of service of IPv4, or the traffic class of IPv6, of what a
// socket sends.
func SetTrafficClass(fd int, v6 bool, class int) error {
	if v6 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, class)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, class)
}

// TrafficClass gives what SetTrafficClass has set.
func TrafficClass(fd int, v6 bool) (int, error) {
	if v6 {
		return unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS)
	}
	return unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS)
}
