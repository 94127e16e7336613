package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// wrong is an error of use that is syscall.EINVAL for errors.Is, as C has it.
type wrong string

func (e wrong) Error() string        { return string(e) }
func (e wrong) Is(target error) bool { return target == syscall.EINVAL }

var (
	// ErrNoReceives: Accept or Connect was called before a receive was posted. The
	// peer's first message would meet an empty queue. Post first, or set
	// ConnParam.NoReceives if only one-sided operations will come. It is
	// verbs.ErrNoReceives.
	ErrNoReceives = verbs.ErrNoReceives
	// ErrNoQP: the id has no queue pair and ConnParam names none.
	ErrNoQP error = wrong("cm: no queue pair: call CreateQP or UseQP, or name one in ConnParam.QPN")
	// ErrPending: the id has an operation in progress.
	ErrPending error = wrong("cm: operation in progress")
	// ErrState: the call is not allowed in the state of the id. The error around it
	// says which state that is and what is missing. Like the three above it is
	// syscall.EINVAL for errors.Is, which is what C gives.
	ErrState error = wrong("cm: wrong state of the id")
)

// errUnexpected is the cause when an event comes that nobody can make sense of; who
// waits is woken with it.
var errUnexpected = errors.New("cm: unexpected event")

// RejectError: the peer, or its kernel, said no. Reason is an error too, for
// errors.Is; errors.Is with syscall.ECONNREFUSED is true for the reasons "nobody
// listens" and "program said no".
type RejectError struct {
	Reason  ib.RejectReason
	Private []byte // zero-padded by IB and RoCE
}

// Error gives the reason in words.
func (e *RejectError) Error() string { return e.Reason.Error() }

// Unwrap gives the reason.
func (e *RejectError) Unwrap() error { return e.Reason }

// refused is what calls that wait make of a rejection: as in librdmacm it is
// ECONNREFUSED whatever the reason is.
type refused struct{ *RejectError }

func (e refused) Is(target error) bool { return target == syscall.ECONNREFUSED }
func (e refused) Unwrap() error        { return e.RejectError }

// OpError says which step failed, between which addresses, and why. It is a net.Error.
type OpError struct {
	Op            string // "resolve address", "connect"
	Local, Remote netip.AddrPort
	Device        string // empty: not known yet
	Err           error  // the cause
	Hint          string // what to look at, if that is known
}

// Error gives one line: step, addresses, device, cause, hint.
func (e *OpError) Error() string {
	if e == nil {
		return "cm: <nil>"
	}
	var b strings.Builder
	b.WriteString("cm: ")
	b.WriteString(e.Op)
	switch {
	case e.Local.IsValid() && e.Remote.IsValid():
		fmt.Fprintf(&b, " %v->%v", e.Local, e.Remote)
	case e.Remote.IsValid():
		fmt.Fprintf(&b, " %v", e.Remote)
	case e.Local.IsValid():
		fmt.Fprintf(&b, " %v", e.Local)
	}
	if e.Device != "" {
		b.WriteString(" on ")
		b.WriteString(e.Device)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(strings.TrimPrefix(e.Err.Error(), "cm: "))
	}
	if e.Hint != "" {
		b.WriteString(" (")
		b.WriteString(e.Hint)
		b.WriteString(")")
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Is has the end of a context's time found as os.ErrDeadlineExceeded, which is what programs of
// package net look for; it is found as context.DeadlineExceeded as well.
func (e *OpError) Is(target error) bool {
	return target == os.ErrDeadlineExceeded && errors.Is(e.Err, context.DeadlineExceeded)
}

// Timeout reports whether time ran out: the context's, the id's, or the network's.
func (e *OpError) Timeout() bool {
	return errors.Is(e.Err, os.ErrDeadlineExceeded) || errors.Is(e.Err, context.DeadlineExceeded) || errors.Is(e.Err, syscall.ETIMEDOUT)
}

// Temporary is there for net.Error: it reports whether a new try may succeed.
func (e *OpError) Temporary() bool { return e.Timeout() }

var _ net.Error = (*OpError)(nil)

// Steps, as OpError names them.
const (
	opChannel      = "open event channel"
	opEvent        = "get event"
	opCreate       = "create id"
	opBind         = "bind"
	opOption       = "set option"
	opResolveAddr  = "resolve address"
	opResolveRoute = "resolve route"
	opQP           = "create qp"
	opQPAttr       = "query qp attributes"
	opConnect      = "connect"
	opEstablish    = "establish"
	opListen       = "listen"
	opRequest      = "get request"
	opAccept       = "accept"
	opReject       = "reject"
	opDisconnect   = "disconnect"
	opNotify       = "notify"
	opMigrate      = "migrate"
	opJoin         = "join multicast group"
	opLeave        = "leave multicast group"
	opClose        = "close id"
	opLookup       = "look up"
)

// hint says what usually lies behind an error of a step.
func hint(op string, ps ib.PortSpace, err error) string {
	var rej *RejectError
	var held interface{ HeldBy() string }
	var said interface{ Remedy() string }
	switch {
	case errors.As(err, &said) && said.Remedy() != "":
		return "" // the provider has said what to do
	case errors.As(err, &rej):
		if rej.Reason == ib.RejectStaleConn {
			return "the peer still remembers an old connection: try again with a new id and queue pair"
		}
	case errors.Is(err, errors.ErrUnsupported) && op == opChannel:
		return "this provider has no connection manager"
	case errors.Is(err, verbs.ErrDeviceGone):
		return "the device was removed: close the id"
	case errors.Is(err, syscall.ENODEV) && op == opChannel:
		return "there is no RDMA device"
	case errors.Is(err, syscall.ENODEV):
		return "no RDMA device has, or reaches, this address"
	case errors.Is(err, syscall.ENOENT) && op == opChannel:
		return "/dev/infiniband/rdma_cm is missing: is the module rdma_ucm loaded?"
	case errors.Is(err, syscall.EACCES) && op == opBind:
		return "ports below 1024 need a privilege"
	case errors.Is(err, syscall.EACCES):
		return "not allowed to use the connection manager, or the credentials changed after the channel was opened"
	case errors.As(err, &held):
		return "one process at a time has an address: use another, or end that process"
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("the ports of RDMA port space %v are not those of TCP or UDP", ps)
	case errors.Is(err, syscall.EADDRNOTAVAIL) && (op == opBind || op == opListen):
		return "not an address of an RDMA device of this host, or a wildcard beside a listener on one address"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "no route to that address"
	case errors.Is(err, syscall.ETIMEDOUT) && op == opResolveAddr:
		return "nobody on the network answers for that address"
	case errors.Is(err, syscall.ETIMEDOUT) && op == opConnect:
		return "the peer does not answer connection requests: is RDMA set up there, and UDP port 4791 open?"
	}
	return ""
}
