package rdmatest

import "github.com/verbena-rdma/verbena/internal/unix"

// readable asks poll(2) whether a descriptor is readable now.
func readable(fd int) (bool, error) {
	fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}
	_, err := unix.Poll(fds, 0)
	return fds[0].Revents&unix.PollIn != 0, err
}
