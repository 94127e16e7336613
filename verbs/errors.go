package verbs

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// OpError says what failed, on what. It wraps the cause, so errors.Is works with
// net.ErrClosed, errors.ErrUnsupported and syscall.Errno. Methods of the data path return
// the bare sentinels below instead, as they must not allocate, and waits whose context
// has ended give the context's error as it is.
type OpError struct {
	Op     string // "create qp"
	Device string // "mlx5_0"
	Object string // "QP 0x11 (RC, RTS)"
	Err    error
	Hint   string // "RLIMIT_MEMLOCK is 64 KiB", if the cause is known
}

// Error gives "verbs: create qp: mlx5_0: PD 3: cannot allocate memory (hint)", without
// the parts that are empty.
func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString("verbs")
	for _, s := range []string{e.Op, e.Device, e.Object} {
		if s != "" {
			b.WriteString(": ")
			b.WriteString(s)
		}
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(strings.TrimPrefix(e.Err.Error(), "verbs: "))
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

// dataError is an error of the data path: a value that exists before it is needed, and
// equals the errno that C gives.
type dataError struct {
	text  string
	errno syscall.Errno
}

func (e *dataError) Error() string { return "verbs: " + e.text }
func (e *dataError) Unwrap() error { return e.errno }

// Errors of posting. errors.Is finds the errno of ibv_post_send(3) in each: ENOMEM in
// ErrQueueFull, EINVAL in the others but ErrClosed.
var (
	ErrQueueFull  error = &dataError{"queue is full", syscall.ENOMEM}
	ErrTooManySGE error = &dataError{"more SGEs than the queue pair allows", syscall.EINVAL}
	ErrInlineSize error = &dataError{"inline data is larger than MaxInline", syscall.EINVAL}
	ErrPDMismatch error = &dataError{"memory region and queue pair have different protection domains", syscall.EINVAL}
	ErrAccess     error = &dataError{"memory region lacks the access right that the operation needs", syscall.EINVAL}
	ErrRemoteLen  error = &dataError{"local memory is longer than the remote segment", syscall.EINVAL}
	ErrBadOpcode  error = &dataError{"operation is not allowed on this type of queue pair", syscall.EINVAL}
	ErrState      error = &dataError{"queue pair is not in a state that takes this request", syscall.EINVAL}
	// ErrTooLong: the message is longer than the port, or a datagram of it, carries.
	ErrTooLong error = &dataError{"message is longer than the port allows", syscall.EINVAL}
	// ErrAtomic: an atomic operation names other than 8 bytes, or not at a multiple of 8.
	ErrAtomic error = &dataError{"atomic operation is not on 8 aligned bytes", syscall.EINVAL}
	// ErrReadDepth: a READ or atomic on a queue pair with MaxRDAtomic 0; it would never
	// be sent.
	ErrReadDepth error = &dataError{"queue pair has no depth for reads and atomics (MaxRDAtomic is 0)", syscall.EINVAL}
	// ErrNoAH: a datagram without address handle, or an address handle with a connected
	// queue pair.
	ErrNoAH error = &dataError{"address handle is missing, or not for this type of queue pair", syscall.EINVAL}
	// ErrSRQ: a receive was posted to a queue pair that takes them from an SRQ.
	ErrSRQ error = &dataError{"queue pair takes its receives from a shared receive queue", syscall.EINVAL}

	// ErrClosed: the queue pair, or a completion queue of it, was closed; or what the request
	// names: a memory region, an address handle, a memory window. It is net.ErrClosed.
	ErrClosed = net.ErrClosed
)

// errNil is what methods of nil and zero objects give.
var errNil error = &dataError{"nil or zero object", syscall.EINVAL}

// ErrCQRoom: the completion queue cannot hold what the new queue pair may produce.
var ErrCQRoom error = &dataError{"completion queue has no room for this queue pair", syscall.ENOMEM}

// ErrNoDevice: the provider has no device, or none of that name.
var ErrNoDevice error = &dataError{"no RDMA device", syscall.ENODEV}

// ErrDeviceGone: the device was removed or failed for good. Objects on it can only be
// closed.
var ErrDeviceGone = driver.ErrDeviceGone

// ErrOneConsumer: the channel is already consumed in another way.
var ErrOneConsumer = errors.New("verbs: channel has another consumer")

// ErrNoReceives: QP.Join was called before a receive was posted. The peer's first
// message would meet an empty queue. Post first, or set PathOptions.NoReceives if only
// one-sided operations will come. It is cm.ErrNoReceives too.
var ErrNoReceives error = &dataError{"no receive posted before the queue pair was connected: post receives, or set NoReceives if only one-sided operations will come", syscall.EINVAL}

// ErrFailed is what QP.Err gives after the program itself failed the queue pair: Fail,
// Drain, or a Modify to the error state.
var ErrFailed = errors.New("verbs: queue pair was failed by the program")

// EventError is an asynchronous event as the cause of an end; see QP.Err.
type EventError ib.EventType

// Error names the event.
func (e EventError) Error() string { return "verbs: asynchronous event " + ib.EventType(e).String() }

// Type gives the event.
func (e EventError) Type() ib.EventType { return ib.EventType(e) }

// CompletionError is a failed completion as the cause of an end; see QP.Err. It wraps
// the status as an ib.StatusError.
type CompletionError struct {
	ID        uint64
	Opcode    ib.WCOpcode
	Status    ib.Status
	VendorErr uint32
	QPN       ib.QPN
	Remote    string // the peer, if known: "QP 0x12 at 10.0.0.2"
}

// Error gives operation, queue pair, peer, status and what to look at.
func (e *CompletionError) Error() string {
	s := fmt.Sprintf("verbs: %v request %d of QP %v", e.Opcode, e.ID, e.QPN)
	if e.Remote != "" {
		s += " to " + e.Remote
	}
	s += ": " + ib.StatusError(e.Status).Error()
	if e.VendorErr != 0 {
		s += fmt.Sprintf(" (vendor error %#x)", e.VendorErr)
	}
	return s
}

// Unwrap gives the ib.StatusError.
func (e *CompletionError) Unwrap() error { return e.Status.Err() }

// opError wraps a cause; nil stays nil.
func opError(op string, d *Device, object string, err error) error {
	if err == nil {
		return nil
	}
	e := &OpError{Op: op, Object: object, Err: err}
	if d != nil {
		e.Device = d.info.Name
	}
	var own *dataError
	switch {
	case errors.Is(err, ErrCQRoom):
		e.Hint = "make the completion queue larger, or MaxSendWR and MaxRecvWR smaller"
	case errors.As(err, &own): // found by this library: its ENOMEM is no lack of memory
	case errors.Is(err, syscall.ENOMEM) && d != nil && d.info.Path != "":
		e.Hint = memlockHint() // a kernel device: rings and regions are locked memory
	}
	return e
}

// invalid is a wrong argument.
func invalid(op string, d *Device, object, format string, args ...any) error {
	return opError(op, d, object, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), syscall.EINVAL))
}

// memlockHint says what ENOMEM usually means on a kernel device.
func memlockHint() string {
	n, err := unix.MemlockLimit()
	switch {
	case err != nil:
		return ""
	case n >= 1<<62:
		return "RLIMIT_MEMLOCK is unlimited"
	}
	return "RLIMIT_MEMLOCK is " + formatBytes(n) + "; raise it with ulimit -l"
}

// formatBytes gives 65536 as "64 KiB".
func formatBytes(n uint64) string {
	for _, u := range []struct {
		size uint64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
