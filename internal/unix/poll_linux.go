package unix

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// PollFD is struct pollfd.
type PollFD = unix.PollFd

// Conditions of a descriptor, for Poll and for epoll.
const (
	PollIn  = unix.POLLIN
	PollOut = unix.POLLOUT
	PollErr = unix.POLLERR
	PollHup = unix.POLLHUP
	PollNul = unix.POLLNVAL
)

// Poll waits until a condition holds or the time is over (ppoll(2)); negative: no
// limit. It gives the number of descriptors with Revents. It holds the thread. EINTR
// ends it with n == 0 and no error, as the time left is then for the caller to say.
func Poll(fds []PollFD, limit time.Duration) (n int, err error) {
	var ts *unix.Timespec
	if limit >= 0 {
		t := unix.NsecToTimespec(int64(limit))
		ts = &t
	}
	n, err = unix.Ppoll(fds, ts, nil)
	if err == unix.EINTR {
		return 0, nil
	}
	return n, err
}

// EpollEvent is struct epoll_event: conditions, and the descriptor given to EpollAdd.
type EpollEvent = unix.EpollEvent

// EpollCreate makes an epoll instance, close-on-exec. End it with Close.
func EpollCreate() (int, error) { return unix.EpollCreate1(unix.EPOLL_CLOEXEC) }

// EpollAdd watches a descriptor, level-triggered.
func EpollAdd(ep, fd int, events uint32) error {
	return unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// EpollMod changes what is watched.
func EpollMod(ep, fd int, events uint32) error {
	return unix.EpollCtl(ep, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// EpollDel stops watching a descriptor.
func EpollDel(ep, fd int) error { return unix.EpollCtl(ep, unix.EPOLL_CTL_DEL, fd, nil) }

// EpollWait waits like Poll; the limit is rounded up to milliseconds.
func EpollWait(ep int, events []EpollEvent, limit time.Duration) (n int, err error) {
	msec := -1
	if limit >= 0 {
		msec = int(min((limit+time.Millisecond-1)/time.Millisecond, 1<<31-1))
	}
	n, err = unix.EpollWait(ep, events, msec)
	if err == unix.EINTR {
		return 0, nil
	}
	return n, err
}

// Yield lets other threads run first, if there are more than processors (sched_yield(2)).
// runtime.Gosched does not: it chooses among the goroutines of this process.
func Yield() {
	// It cannot fail, and it does not block in the sense of Go's scheduler.
	_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
