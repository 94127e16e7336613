package scripted

import (
	"os"
	"syscall"
	"unsafe"
)

// socketPair makes two datagram sockets that are connected with each other.
func socketPair() (fd, peer int, err error) {
	p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, -1, os.NewSyscallError("socketpair", err)
	}
	return p[0], p[1], nil
}

// disconnect ends the connection of a datagram socket, upon which the other end has an
// error, as its messages are lost (connect(2) with AF_UNSPEC).
func disconnect(fd int) {
	none := syscall.RawSockaddr{Family: syscall.AF_UNSPEC}
	if _, _, e := syscall.Syscall(syscall.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); e != 0 {
		panic("scripted: disconnect: " + e.Error())
	}
}
