package rdma

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/verbena-rdma/verbena/cm"
)

// ErrWouldBlock is what TryRead and TryWrite give when there is nothing that they can do
// now: syscall.EAGAIN with a name.
var ErrWouldBlock error = syscall.EAGAIN

// ErrTruncated is in the error of Read if the connection ended before the peer said that
// its stream was complete: what was read is a part. It wraps syscall.ECONNRESET and
// io.ErrUnexpectedEOF.
var ErrTruncated error = truncated{}

type truncated struct{}

func (truncated) Error() string   { return "stream ended before its end: " + syscall.ECONNRESET.Error() }
func (truncated) Unwrap() []error { return []error{syscall.ECONNRESET, io.ErrUnexpectedEOF} }

// errnoError is an error of the system, as the calls of package net wrap them, that knows
// more about its cause.
type errnoError struct {
	errno syscall.Errno
	cause error
}

func (e *errnoError) Error() string {
	if e.cause == nil {
		return e.errno.Error()
	}
	return e.errno.Error() + " (" + e.cause.Error() + ")"
}

// Unwrap gives both.
func (e *errnoError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.errno}
	}
	return []error{e.errno, e.cause}
}

// Timeout and Temporary are asked for by net.OpError.
func (e *errnoError) Timeout() bool   { return e.errno.Timeout() }
func (e *errnoError) Temporary() bool { return e.errno.Temporary() }

// neitherError is that of a dial that got neither RDMA nor, in its place, TCP. To who asks it
// is first of all the error of TCP, which was tried last.
type neitherError struct{ tcp, rdma error }

func (e *neitherError) Error() string {
	return e.tcp.Error() + " (over TCP; over RDMA: " + e.rdma.Error() + ")"
}
func (e *neitherError) Unwrap() []error { return []error{e.tcp, e.rdma} }

// Timeout and Temporary are asked for by net.OpError.
func (e *neitherError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.tcp, &t) && t.Timeout()
}

func (e *neitherError) Temporary() bool {
	var t interface{ Temporary() bool }
	return errors.As(e.tcp, &t) && t.Temporary()
}

// timeoutError is the end of a dial by its time; like that of package net it is both
// context.DeadlineExceeded and os.ErrDeadlineExceeded.
type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }
func (timeoutError) Is(target error) bool {
	return target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded
}

// canceledError is the end of a dial by its context, worded as package net does.
type canceledError struct{}

func (canceledError) Error() string        { return "operation was canceled" }
func (canceledError) Is(target error) bool { return target == context.Canceled }

// plainCause gives the errors of contexts the form that they have in package net.
func plainCause(err error) error {
	var op *cm.OpError
	switch {
	case errors.As(err, &op) && op.Err == context.Canceled, err == context.Canceled:
		return canceledError{}
	case errors.As(err, &op) && op.Err == context.DeadlineExceeded, err == context.DeadlineExceeded, err == os.ErrDeadlineExceeded:
		return timeoutError{}
	}
	return err
}

// opError wraps the error of a step that has no connection yet. One of package net for the step
// itself is enough; one further down, as that of a device's socket, is not.
func opError(op, network string, source, addr net.Addr, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*net.OpError); ok {
		return err
	}
	return &net.OpError{Op: op, Net: network, Source: source, Addr: addr, Err: plainCause(err)}
}
