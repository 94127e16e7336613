package unix

import (
	"time"

	"golang.org/x/sys/unix"
)

// EpollOneshot disables a descriptor once it was reported, until EpollModKey.
const EpollOneshot = unix.EPOLLONESHOT

// EpollAddKey is EpollAdd with a key in place of the descriptor in the events.
func EpollAddKey(ep, fd int, events uint32, key uint64) error {
	e := epollEvent(events, key)
	return unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &e)
}

// EpollModKey changes what is watched, and allows a one-shot descriptor again. ENOENT: the
// number belongs to another file than the one that was added.
func EpollModKey(ep, fd int, events uint32, key uint64) error {
	e := epollEvent(events, key)
	return unix.EpollCtl(ep, unix.EPOLL_CTL_MOD, fd, &e)
}

func epollEvent(events uint32, key uint64) EpollEvent {
	return EpollEvent{Events: events, Fd: int32(key), Pad: int32(key >> 32)}
}

// EpollKey gives the key of an event.
func EpollKey(e *EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// FDSet is fd_set: descriptors from 0 to FDSetSize-1.
type FDSet = unix.FdSet

// FDSetSize is the number of descriptors in an FDSet.
const FDSetSize = unix.FD_SETSIZE

// Select is select(2) for reading and writing, without a limit of time if wait is set, else
// without waiting. It holds the thread. EINTR ends it with n == 0 and no error.
func Select(nfd int, r, w *FDSet, wait bool) (n int, err error) {
	var tv *unix.Timeval
	if !wait {
		tv = new(unix.Timeval)
	}
	n, err = unix.Select(nfd, r, w, nil, tv)
	if err == unix.EINTR {
		return 0, nil
	}
	return n, err
}

// Timerfd makes a descriptor that is readable after a time (timerfd_create(2)), of the
// clock that Go's monotonic times have. It is non-blocking and close-on-exec.
func Timerfd() (int, error) {
	return unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
}

// TimerfdSet has the descriptor become readable after d, once; it is not readable before,
// whatever it was. Zero or less: never.
func TimerfdSet(fd int, d time.Duration) error {
	its := unix.ItimerSpec{}
	if d > 0 {
		its.Value = unix.NsecToTimespec(int64(d))
	}
	return unix.TimerfdSettime(fd, 0, &its, nil)
}
