package event

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// ErrClosed is net.ErrClosed: the loop, or what it watches, is closed.
var ErrClosed = net.ErrClosed

// ErrBusy is the error of Run and Turn while another goroutine, or a handler's caller, is
// in one of them: a loop has one goroutine at a time.
var ErrBusy = errors.New("event: the loop is in Run or Turn already")

// ErrWatched is the error of a registration of something that the loop watches already.
var ErrWatched = errors.New("event: is watched by this loop already")

// OpError is what the methods of a Loop and of a Watch give, and what ends Run.
type OpError struct {
	Op     string // "watch", "serve", "new loop", ...
	Source string // "descriptor 7", "completion queue", ...; empty: the loop
	Err    error
	Hint   string // how to mend it, if that is known
}

func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString("event: " + e.Op)
	if e.Source != "" {
		b.WriteString(" " + e.Source)
	}
	b.WriteString(": " + e.Err.Error())
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

func (e *OpError) Unwrap() error { return e.Err }

// DescriptorLimitError says that a descriptor is too large for select(2). errors.Is finds
// syscall.EINVAL in it.
type DescriptorLimitError struct {
	FD    int
	Limit int // descriptors must be below
}

func (e *DescriptorLimitError) Error() string {
	return fmt.Sprintf("descriptor %d is too large for select, which has room for those below %d", e.FD, e.Limit)
}

func (e *DescriptorLimitError) Unwrap() error { return syscall.EINVAL }

// opError names what failed.
func opError(op, source string, err error) error {
	if err == nil {
		return nil
	}
	e := &OpError{Op: op, Source: source, Err: err}
	var limit *DescriptorLimitError
	switch {
	case errors.As(err, &limit):
		e.Hint = "choose the backend Epoll or Poll"
	case errors.Is(err, syscall.EMFILE):
		e.Hint = "the process has as many descriptors open as RLIMIT_NOFILE allows"
	case errors.Is(err, syscall.EPERM):
		e.Hint = "regular files and directories are always ready and cannot be watched"
	case errors.Is(err, syscall.ELOOP):
		e.Hint = "loops and epoll descriptors are nested too deeply, or in a circle"
	}
	return e
}
