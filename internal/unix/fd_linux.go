package unix

import (
	"encoding/binary"
	"syscall"

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
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, err := Write(fd, one[:])
	if err == syscall.EAGAIN {
		return nil
	}
	return err
}

// EventfdDrain sets the counter to 0 and gives what it was. It neither waits nor
// allocates.
func EventfdDrain(fd int) (uint64, error) {
	var b [8]byte
	_, err := Read(fd, b[:])
	if err == syscall.EAGAIN {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(b[:]), nil
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
