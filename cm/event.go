package cm

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Event is a value; nothing in it refers to the library's memory, so it may be kept.
type Event struct {
	Type     EventType
	ID       *ID       // for ConnectRequest the new id
	Listener *ID       // ConnectRequest only
	Err      error     // of the error events: syscall.Errno, *RejectError; Disconnected: nil, or ETIMEDOUT if the peer did not confirm
	Private  []byte    // ConnectRequest, Rejected, and Established on the side that connected
	Param    ConnParam // ConnectRequest, Established: what the peer asked for
	UD       UDParam   // UD Established, MulticastJoin
	Group    netip.Addr
}

// UDParam is where a datagram service or group is reached.
type UDParam struct {
	AH   verbs.AHAttr
	QPN  ib.QPN
	QKey ib.QKey
}

// statusError makes an error of the status of an event: 0 is none, negative an errno,
// positive a code of the transport.
func statusError(ev *driver.CMEvent, ps ib.PortSpace) error {
	switch {
	case ev.Status < 0:
		return syscall.Errno(-ev.Status)
	case ev.Status > 0 && datagram(ps):
		return &RejectError{Reason: sidrReason(ev.Status), Private: ev.Private}
	case ev.Status > 0 || ev.Type == Rejected:
		return &RejectError{Reason: ib.RejectReason(ev.Status), Private: ev.Private}
	}
	return nil
}

// sidrReason gives the reason that a status of a SIDR reply (IBTA Vol 1 §12.7.2) has
// among those of a REJ: datagram services answer with the one, connections with the
// other, and programs want to know one set.
func sidrReason(status int) ib.RejectReason {
	switch status {
	case 1:
		return ib.RejectInvalidServiceID
	case 2:
		return ib.RejectConsumer
	case 3:
		return ib.RejectNoQP
	case 4:
		return ib.RejectPortCMRedirect
	case 5:
		return ib.RejectInvalidClassVersion
	}
	return ib.RejectUnsupported
}

// errFailed is the error of an event that reports a failure and does not say which.
var errFailed = errors.New("cm: failed, and the system does not say why")

// terminal reports whether an event ends a connection, or the attempt to make one.
func terminal(t EventType) bool {
	switch t {
	case ConnectError, Unreachable, Rejected, Disconnected, DeviceRemoval:
		return true
	}
	return false
}

// endCause gives the cause that a terminal event sets.
func endCause(t EventType, err error, local bool) error {
	switch {
	case t == DeviceRemoval:
		return verbs.ErrDeviceGone
	case t == Disconnected && local:
		return net.ErrClosed
	case t == Disconnected:
		return io.EOF
	}
	return err
}
