// Package driver defines what a provider implements: the kernel's devices, the
// embedded device, the test fabric. Most code should use packages verbs and cm.
// The contract is unstable until v1.
//
// Rules of the contract, in order of importance:
//
//  1. Providers never call back. Completions, events and their descriptors are
//     pulled. So no lock of a provider is ever held while user code runs.
//  2. Slots and entries belong to the provider. On the data path no pointer or
//     slice of a caller crosses the interface: the caller's stack stays a stack.
//  3. Identity and accounting belong to package verbs. SendSlot.ID is an index
//     that verbs chose; a provider returns it and gives it no meaning.
//  4. verbs has checked the arguments: protection domain, bounds, room, state.
//     Providers check again only what a hostile peer could influence.
//  5. Every call but Poll, Arm, *Slots, Commit* and Next may sleep for a short
//     time (a system call). None waits for a peer. None waits for an
//     acknowledgement of an event: what Next handed out is acknowledged.
//  6. Calls on one object come one at a time, with Close as the last; but FD and
//     Waiter.Wait of a Notifier may run beside its other calls. Children are closed
//     before their parents.
//  7. Optional abilities are optional interfaces; a missing one, or an error that
//     wraps errors.ErrUnsupported, means the same.
//
// Poll, Arm, *Slots, Commit* and Next must not allocate, not even when they fail:
// verbs promises that of its own calls. Other errors should carry a syscall.Errno
// with the meaning that it has in C, and their own text only where it says more.
package driver

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// Provider is a source of devices. Its dynamic type must be comparable (a pointer):
// verbs shares devices by it.
type Provider interface {
	// Name is a word for logs: "kernel", "soft".
	Name() string
	// Devices lists the devices that can be opened. None is no error.
	Devices() ([]DeviceInfo, error)
	// OpenDevice opens a device once more (ibv_open_device). Objects of two openings
	// need not fit together.
	OpenDevice(name string) (Context, error)
	// OpenCM gives the connection manager. errors.ErrUnsupported: there is none.
	OpenCM() (CM, error)
}

// DeviceInfo names a device (struct ibv_device).
type DeviceInfo struct {
	Name      string
	Path      string // /sys path, empty for soft devices
	GUID      ib.GUID
	NodeType  ib.NodeType
	Transport ib.Transport
	Index     int
}

// Notifier is how a consumer learns that Next has something.
type Notifier interface {
	// FD gives a non-blocking descriptor that is readable exactly while Next has
	// an event, or an error to report. It may be made by the first call. The provider
	// keeps ownership, and closes it with the object.
	FD() (int, error)
}

// Waiter is an optional ability of a Notifier: to wait without a descriptor, for
// pure Go providers. verbs then opens no descriptor unless a user asks for one,
// and tests may run in a testing/synctest bubble.
type Waiter interface {
	// Wait blocks, on Go's own primitives, until Next has an event or an error, or ctx
	// ends; then it gives ctx's error. Returning too early is allowed, returning always
	// is not. One goroutine at a time is in Wait. It should not allocate.
	Wait(ctx context.Context) error
}

// ErrDeviceGone is the answer of every call on a device that was removed or failed
// for good; Close still works. Next gives it after the last event, Poll after the last
// completion.
var ErrDeviceGone = errors.New("device is gone")

// Clock is an optional ability of a Context.
type Clock interface {
	// Clock gives the device's time now (ibv_query_rt_values_ex).
	Clock() (time.Duration, error)
}

// Context is an open device (struct ibv_context).
type Context interface {
	Device() DeviceInfo
	QueryDevice() (DeviceAttr, error)
	QueryPort(port int) (PortAttr, error)
	// GIDs gives the occupied entries of the GID tables of all ports, as they are now.
	GIDs() ([]GIDEntry, error)
	PKey(port, index int) (ib.PKey, error)
	AllocPD() (PD, error)
	CreateCompChannel() (CompChannel, error)
	CreateCQ(CQConfig) (CQ, error)
	// Async gives the device's only queue of asynchronous events, the same each time.
	// It ends with the Context.
	Async() AsyncQueue
	// Close closes the device, after all objects that were made of it.
	Close() error
}

// AsyncQueue gives the asynchronous events of a device (ibv_get_async_event).
type AsyncQueue interface {
	Notifier
	// Next takes one event, acknowledged. It never blocks.
	Next() (AsyncEvent, bool, error)
}

// AsyncEvent is struct ibv_async_event. An event about an object may come after the
// object was closed: verbs finds that out by the handle.
type AsyncEvent struct {
	Type   ib.EventType
	Handle uint64 // of the CQ, QP, SRQ or WQ that it is about
	Port   int
}
