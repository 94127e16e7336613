package unix

import "golang.org/x/sys/unix"

// StreamPair gives two connected, non-blocking sockets.
func StreamPair() (a, b int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return fds[0], fds[1], err
}
