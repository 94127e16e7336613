//go:build linux && cgo

package ibverbs

/*
#cgo noescape vb_channel_next
#cgo nocallback vb_channel_next
#cgo noescape vb_async_next
#cgo nocallback vb_async_next
#include "shim.h"
*/
import "C"

import (
	"net"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// compChannel is a completion channel (struct ibv_comp_channel). The kernel's descriptor
// is readable exactly while it has an event, so it is what FD gives.
type compChannel struct {
	d  *deviceContext
	c  *C.struct_abi_comp_channel
	p  C.uintptr_t // c, as Next takes it
	fd int

	// mu is held from the fetch of an event until it is counted, and while a queue is
	// destroyed, which waits for the acknowledgement of all that was fetched.
	mu     sync.Mutex
	handle C.uint64_t // of the event
}

var _ driver.CompChannel = (*compChannel)(nil)

// CreateCompChannel makes a channel (ibv_create_comp_channel).
func (d *deviceContext) CreateCompChannel() (driver.CompChannel, error) {
	if err := d.err(); err != nil {
		return nil, err
	}
	ch := &compChannel{d: d}
	var fd C.int
	if err := d.fail(C.vb_create_channel(d.c, &ch.c, &fd)); err != nil {
		return nil, err
	}
	d.born()
	ch.fd = int(fd)
	ch.p = address(unsafe.Pointer(ch.c))
	return ch, nil
}

func (ch *compChannel) FD() (int, error) { return ch.fd, nil }

// Next takes one event (ibv_get_cq_event, ibv_ack_cq_events).
func (ch *compChannel) Next() (uint64, bool, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	e := C.vb_channel_next(ch.p, &ch.handle)
	if e == 0 {
		return uint64(ch.handle), true, nil
	}
	return 0, false, ch.d.nothing(e)
}

// nothing makes the error of a queue of events that gave none. It does not allocate.
func (d *deviceContext) nothing(e C.int) error {
	switch errno := syscall.Errno(e); errno {
	case syscall.EAGAIN:
		if d.gone.Load() {
			return driver.ErrDeviceGone
		}
		return nil
	case syscall.ENODEV:
		d.gone.Store(true)
		return driver.ErrDeviceGone
	default:
		return errno
	}
}

// Close destroys the channel (ibv_destroy_comp_channel).
func (ch *compChannel) Close() error { return ch.d.died(C.vb_destroy_channel(ch.c)) }

// asyncQueue gives the asynchronous events of a context.
type asyncQueue struct {
	ctx *deviceContext

	// mu is held from the fetch of an event until it is acknowledged, and while the
	// object of one may be destroyed.
	mu    sync.Mutex
	ev    C.struct_vb_async
	fatal bool // EventDeviceFatal was given
}

var _ driver.AsyncQueue = (*asyncQueue)(nil)

func (a *asyncQueue) FD() (int, error) {
	if a.ctx.released.Load() {
		return -1, driver.ErrDeviceGone
	}
	return int(a.ctx.fd), nil
}

// Next takes one event (ibv_get_async_event, ibv_ack_async_event).
func (a *asyncQueue) Next() (driver.AsyncEvent, bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx.closed.Load() {
		return driver.AsyncEvent{}, false, net.ErrClosed
	}
	e := C.int(syscall.ENODEV)
	if !a.ctx.released.Load() {
		e = C.vb_async_next(a.ctx.c, &a.ev)
	}
	if e != 0 {
		err := a.ctx.nothing(e)
		if err == driver.ErrDeviceGone && a.ctx.removed.Load() && !a.fatal {
			// A kernel that cannot take a device from its users does not tell them here.
			a.fatal = true
			return driver.AsyncEvent{Type: ib.EventDeviceFatal}, true, nil
		}
		return driver.AsyncEvent{}, false, err
	}
	ev := driver.AsyncEvent{Type: ib.EventType(a.ev._type), Handle: uint64(a.ev.handle), Port: int(a.ev.port)}
	if ev.Type == ib.EventDeviceFatal {
		a.fatal = true
		a.ctx.gone.Store(true)
	}
	return ev, true, nil
}
