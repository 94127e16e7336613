package unix

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Eventfd makes a counter with a descriptor that is readable while it is not 0
// (eventfd(2)). It is non-blocking and close-on-exec.
func Eventfd() (int, error) {
	return unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
}

// EventfdSignal adds one: the descriptor becomes readable. It neither waits nor
// allocates; a counter that is full is readable already, which is no error.
func EventfdSignal(fd int) error {
	one := uint64(1)
	if e := counter(unix.SYS_WRITE, fd, &one); e != 0 && e != syscall.EAGAIN {
		return e
	}
	return nil
}

// EventfdDrain sets the counter to 0 and gives what it was. It neither waits nor
// allocates.
func EventfdDrain(fd int) (uint64, error) {
	var n uint64
	if e := counter(unix.SYS_READ, fd, &n); e != 0 && e != syscall.EAGAIN {
		return 0, e
	}
	return n, nil
}

// counter reads or writes an event descriptor. Through unix.Read the number would have
// to be on the heap.
func counter(call uintptr, fd int, n *uint64) syscall.Errno {
	for {
		_, _, e := syscall.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(n)), 8)
		if e != syscall.EINTR {
			return e
		}
	}
}

// Dup duplicates a descriptor, close-on-exec. Both share one description: the
// non-blocking flag, and the position.
func Dup(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// SetNonblock sets or clears O_NONBLOCK of the description.
func SetNonblock(fd int, on bool) error { return unix.SetNonblock(fd, on) }

// Close closes a descriptor. After EINTR it is closed on Linux, so that is no error.
func Close(fd int) error {
	if err := unix.Close(fd); err != nil && err != syscall.EINTR {
		return err
	}
	return nil
}

// Read is read(2). It does not allocate.
func Read(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// Write is write(2). It does not allocate.
func Write(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Write(fd, b)
		if err != syscall.EINTR {
			return n, err
		}
	}
}
