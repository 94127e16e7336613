// Package verbs is libibverbs with Go's habits: devices, protection domains,
// memory, completion queues, queue pairs, and the events of a device.
//
// # Lifetime
//
// A child keeps its parents alive: QP → PD, CQs, SRQ; MR → PD, Buffer; CQ →
// CompChannel → Device. Close may come in any order: it says that the caller is
// done. The object takes no more calls and no more children, and is destroyed when
// its last child has been closed; so defers in any order are right, and there is no
// EBUSY. Close is idempotent, waits for calls on the object that are in progress,
// and later calls give an error that wraps net.ErrClosed. Nothing is closed by the
// garbage collector: a lost object leaks, is counted (Device.Objects) and fails
// tests that use rdmatest.CheckLeaks, but memory that a device may touch never goes
// away by itself.
//
// # Memory
//
// A context bounds a wait, never an operation. Memory named in a request belongs
// to the device from the post until the request's completion has been polled, or
// QP.Close has returned. Reading it early may give torn data, writing it early may
// send torn data. Freeing it early is impossible: a Buffer is unmapped when its last
// MR is closed, and MR.Close takes the device's right away before it returns
// (requests still in flight then fail with StatusLocProt).
//
// # Exactly one completion
//
// Every receive request and every signaled send request gives exactly one
// completion; an unsignaled one gives one only if it fails. After an error the
// device flushes them; what a device has not flushed after a second (some never do)
// the library completes, with StatusWRFlush and WC.Synthetic. QP.Close ends that: nothing
// of the queue pair is given after it.
//
// When a completion has failed, QP.Err says why the queue pair failed: io.EOF if
// the peer disconnected, else the first bad completion, event or call.
//
// # Concurrency
//
// All methods may be called from several goroutines. Order between posts of two
// goroutines is not defined. One goroutine should consume a CQ: a completion goes
// to whoever polls first.
//
// # Zero values
//
// Objects come from constructors. Methods of a nil or zero object give an error
// that wraps syscall.EINVAL. Zero fields of configurations mean the default that
// their comment states.
package verbs

import (
	"errors"
	"net"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// OpError says what failed, on what. It wraps the cause, so errors.Is works with
// net.ErrClosed, os.ErrDeadlineExceeded, errors.ErrUnsupported and syscall.Errno.
// Methods of the data path return the bare sentinels below instead, as they must
// not allocate.
type OpError struct {
	Op     string // "create qp"
	Device string // "mlx5_0"
	Object string // "QP 0x11 (RC, RTS)"
	Err    error
	Hint   string // "RLIMIT_MEMLOCK is 64 KiB", if the cause is known
}

func (e *OpError) Error() string { return e.Op }
func (e *OpError) Unwrap() error { return e.Err }

// TransitionError is the answer to a Modify that the state table forbids.
type TransitionError struct {
	Type             ib.QPType
	From, To         ib.QPState
	Missing, Invalid ib.QPAttrMask
}

func (e *TransitionError) Error() string { return "" }

// Errors of posting.
var (
	ErrQueueFull  = errors.New("verbs: queue is full")
	ErrTooManySGE = errors.New("verbs: more SGEs than the queue pair allows")
	ErrInlineSize = errors.New("verbs: inline data is larger than MaxInline")
	ErrPDMismatch = errors.New("verbs: memory region and queue pair have different protection domains")
	ErrAccess     = errors.New("verbs: memory region lacks the access right that the operation needs")
	ErrRemoteLen  = errors.New("verbs: local memory is longer than the remote segment")
	ErrBadOpcode  = errors.New("verbs: operation is not allowed on this type of queue pair")
	ErrState      = errors.New("verbs: queue pair is not in a state that takes this request")
	ErrClosed     = net.ErrClosed
)

// ErrCQRoom: the completion queue cannot hold what the new queue pair may produce.
var ErrCQRoom = errors.New("verbs: completion queue has no room for this queue pair")

// ErrDeviceGone: the device was removed or failed for good. Objects on it can only be
// closed.
var ErrDeviceGone = driver.ErrDeviceGone

// ErrOneConsumer: the channel is already consumed in another way.
var ErrOneConsumer = errors.New("verbs: channel has another consumer")
