//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// LibraryError says why a library cannot be used. It wraps errors.ErrUnsupported.
type LibraryError struct {
	Library string // file that was looked for
	Symbol  string // function that it should have and has not; empty: there is no such file
	Version string // of the function
	Reason  string // what the loader said, if there is no such file
}

func (e *LibraryError) Error() string {
	if e.Symbol == "" {
		return fmt.Sprintf("%s (%s): install libibverbs1 and librdmacm1, or rdma-core", e.Library, e.Reason)
	}
	return fmt.Sprintf("%s: it has no %s (%s): it is too old, or not that of rdma-core", e.Library, e.Symbol, e.Version)
}

// Unwrap gives errors.ErrUnsupported.
func (e *LibraryError) Unwrap() error { return errors.ErrUnsupported }

// FileError says which file the kernel refuses, and what to do.
type FileError struct {
	File string
	Err  error // syscall.Errno
	Hint string
}

func (e *FileError) Error() string {
	s := e.File + ": " + e.Err.Error()
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

// Unwrap gives the errno.
func (e *FileError) Unwrap() error { return e.Err }

// Remedy gives what to do; empty if that is not known.
func (e *FileError) Remedy() string { return e.Hint }

// noDevice is ENODEV with what the kernel has instead.
type noDevice string

func (e noDevice) Error() string { return syscall.ENODEV.Error() + ": " + string(e) }

// Unwrap gives the errno.
func (e noDevice) Unwrap() error { return syscall.ENODEV }

// Remedy gives what the kernel has.
func (e noDevice) Remedy() string { return string(e) }

const noDevices noDevice = "the kernel has no RDMA device (rdma link shows them)"

// fileError explains why a file of the kernel's RDMA stack, which a module serves, cannot
// be opened.
func fileError(file, module string, err error) error {
	if errors.Is(err, syscall.ENOENT) {
		err = cannotOpen(file, err)
	}
	f := &FileError{File: file, Err: err}
	switch {
	case errors.Is(err, syscall.ENOENT):
		f.Hint = "load the module " + module + ", or give the container the file"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		f.Hint = "it must be readable and writable for this user (see its group), and the container's device rules must allow it"
	case errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.EIO):
		f.Hint = "the device was removed, or its module is not loaded"
	case errors.Is(err, syscall.ENOMEM):
		f.Hint = memlock()
	}
	return f
}

// cannotOpen finds out why: the libraries look for a device's file elsewhere when they
// may not open it, and give the error of that.
func cannotOpen(file string, err error) error {
	fd, e := syscall.Open(file, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	switch e {
	case nil:
		syscall.Close(fd)
	case syscall.EACCES, syscall.EPERM:
		return e
	}
	return err
}

// memlock says what ENOMEM usually means: that the limit of locked memory is reached.
func memlock() string {
	n, err := unix.MemlockLimit()
	switch {
	case err != nil:
		return ""
	case n >= 1<<62:
		return "locked memory is not limited, so the system is out of it"
	}
	return fmt.Sprintf("locked memory is limited to %d bytes (RLIMIT_MEMLOCK): raise it with ulimit -l, LimitMEMLOCK= or --ulimit memlock", n)
}

// lackError says what a library does not offer.
type lackError struct{ what string }

func (e *lackError) Error() string { return e.what }

// Is makes it errors.ErrUnsupported, and the errno that C has for it.
func (e *lackError) Is(target error) bool {
	return target == errors.ErrUnsupported || target == syscall.EOPNOTSUPP
}

var lacking = [...]error{
	0:                                    errNil, // VB_NO_LIBRARY
	C.VB_NO_DATA_PATH - C.VB_NO_LIBRARY:  &lackError{"the device's library has no operations to post and to poll (ibv_post_send, ibv_post_recv, ibv_poll_cq, ibv_req_notify_cq)"},
	C.VB_NO_SRQ_POST - C.VB_NO_LIBRARY:   &lackError{"the device's library has no shared receive queues (ibv_post_srq_recv)"},
	C.VB_NO_IOVA - C.VB_NO_LIBRARY:       &lackError{"libibverbs is too old for a region that has another address for peers (it has no ibv_reg_mr_iova)"},
	C.VB_NO_DMABUF - C.VB_NO_LIBRARY:     &lackError{"libibverbs is too old for memory of other devices (it has no ibv_reg_dmabuf_mr)"},
	C.VB_NO_MW - C.VB_NO_LIBRARY:         &lackError{"the device's library has no memory windows (ibv_alloc_mw)"},
	C.VB_NO_CLOCK - C.VB_NO_LIBRARY:      &lackError{"the device has no clock, or does not tell its frequency (ibv_query_rt_values_ex)"},
	C.VB_NO_MODIFY_CQ - C.VB_NO_LIBRARY:  &lackError{"the device's library cannot moderate completion queues (ibv_modify_cq)"},
	C.VB_NO_JOIN_FLAGS - C.VB_NO_LIBRARY: &lackError{"librdmacm is too old for flags of a multicast group (it has no rdma_join_multicast_ex)"},
	C.VB_UNACKED - C.VB_NO_LIBRARY:       errUnacked,
}

// errUnacked is better than to wait for ever.
var errUnacked = fmt.Errorf("librdmacm did not take the acknowledgement of an event of this id, and would wait for it without end: %w", syscall.EDEADLK)

// lacks gives the error of a number that is no errno.
func lacks(e C.int) error {
	if i := int(e - C.VB_NO_LIBRARY); i < len(lacking) {
		return lacking[i]
	}
	return syscall.EINVAL
}

// errOf makes the error of a call that is not about a device.
func errOf(e C.int) error {
	switch {
	case e == 0:
		return nil
	case e >= C.VB_NO_LIBRARY:
		return lacks(e)
	}
	return syscall.Errno(e)
}
