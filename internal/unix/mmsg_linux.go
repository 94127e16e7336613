package unix

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pieces of a message for Sendmmsg and Recvmmsg, laid out as the kernel wants them.
type (
	Msghdr        = unix.Msghdr
	Iovec         = unix.Iovec
	Cmsghdr       = unix.Cmsghdr
	SockaddrInet4 = unix.RawSockaddrInet4
	SockaddrInet6 = unix.RawSockaddrInet6
)

// Mmsghdr is struct mmsghdr.
type Mmsghdr struct {
	Hdr Msghdr
	Len uint32 // bytes sent or received
}

// Sizes, families, flags and message types.
const (
	SizeofSockaddrInet4 = unix.SizeofSockaddrInet4
	SizeofSockaddrInet6 = unix.SizeofSockaddrInet6
	SizeofCmsghdr       = unix.SizeofCmsghdr

	AFInet  = unix.AF_INET
	AFInet6 = unix.AF_INET6

	MsgDontwait = unix.MSG_DONTWAIT
	MsgTrunc    = unix.MSG_TRUNC
	MsgCtrunc   = unix.MSG_CTRUNC

	SolSocket    = unix.SOL_SOCKET
	IPProtoIP    = unix.IPPROTO_IP
	IPProtoIPv6  = unix.IPPROTO_IPV6
	IPProtoUDP   = unix.IPPROTO_UDP
	IPTOS        = unix.IP_TOS
	IPTTL        = unix.IP_TTL
	IPv6TClass   = unix.IPV6_TCLASS
	IPv6HopLimit = unix.IPV6_HOPLIMIT
	UDPSegment   = unix.UDP_SEGMENT
	UDPGRO       = unix.UDP_GRO
	SoRxqOvfl    = unix.SO_RXQ_OVFL

	IPMTUDiscover    = unix.IP_MTU_DISCOVER
	IPv6MTUDiscover  = unix.IPV6_MTU_DISCOVER
	PMTUDiscProbe    = unix.IP_PMTUDISC_PROBE // the same number in both families
	IPRecvTOS        = unix.IP_RECVTOS
	IPRecvTTL        = unix.IP_RECVTTL
	IPv6RecvTClass   = unix.IPV6_RECVTCLASS
	IPv6RecvHopLimit = unix.IPV6_RECVHOPLIMIT
	UDPNoCheck6Rx    = unix.UDP_NO_CHECK6_RX
	SoRcvbuf         = unix.SO_RCVBUF
	SoRcvbufForce    = unix.SO_RCVBUFFORCE
	SoSndbuf         = unix.SO_SNDBUF
	SoSndbufForce    = unix.SO_SNDBUFFORCE
)

// CmsgSpace gives the bytes that a control message with n bytes of data takes.
func CmsgSpace(n int) int { return unix.CmsgSpace(n) }

// CmsgLen gives the value of its length field.
func CmsgLen(n int) int { return unix.CmsgLen(n) }

// SetsockoptInt is setsockopt(2) with an int.
func SetsockoptInt(fd, level, opt, value int) error {
	return unix.SetsockoptInt(fd, level, opt, value)
}

// GetsockoptInt is getsockopt(2) with an int.
func GetsockoptInt(fd, level, opt int) (int, error) { return unix.GetsockoptInt(fd, level, opt) }

// rawMessages is how many messages move in a call of which Go's scheduler is not told. None
// of these calls waits, so the processor need not be free for others meanwhile. To tell it
// costs as much as a look at an empty socket, and the first time after a sleep it wakes the
// runtime's monitor: another thread, for each message of a ping-pong. But a long batch takes
// some 100 microseconds, and that long neither the garbage collector nor another goroutine
// would get the processor.
const rawMessages = 8

// Sendmmsg is sendmmsg(2) without waiting. An error means that the first message
// failed; later failures show as a short count. It does not allocate; everything that
// h points to must be on the heap. A single message goes by sendmsg(2), which is cheaper.
func Sendmmsg(fd uintptr, h []Mmsghdr) (int, syscall.Errno) {
	raceRelease()
	if len(h) == 1 {
		n, _, e := syscall.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&h[0].Hdr)), MsgDontwait)
		if e != 0 {
			return -1, e
		}
		h[0].Len = uint32(n)
		return 1, 0
	}
	return mmsg(unix.SYS_SENDMMSG, fd, h)
}

// Recvmmsg is recvmmsg(2) without waiting. It does not allocate; everything that h
// points to must be on the heap. A single message comes by recvmsg(2), which is cheaper.
func Recvmmsg(fd uintptr, h []Mmsghdr) (int, syscall.Errno) {
	if len(h) == 1 {
		n, _, e := syscall.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&h[0].Hdr)), MsgDontwait)
		raceAcquire()
		if e != 0 {
			return -1, e
		}
		h[0].Len = uint32(n)
		return 1, 0
	}
	n, e := mmsg(unix.SYS_RECVMMSG, fd, h)
	raceAcquire()
	return n, e
}

func mmsg(call, fd uintptr, h []Mmsghdr) (n int, e syscall.Errno) {
	var r uintptr
	if len(h) <= rawMessages {
		r, _, e = syscall.RawSyscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(h))), uintptr(len(h)), MsgDontwait, 0, 0)
	} else {
		r, _, e = syscall.Syscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(h))), uintptr(len(h)), MsgDontwait, 0, 0)
	}
	return int(r), e
}
