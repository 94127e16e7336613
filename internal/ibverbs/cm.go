//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"errors"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cmLock is held by calls that change or read librdmacm's table of ids: those that make,
// destroy and move an id, and the fetch of an event. The library takes an id out of the
// table without its lock, and may free a part of the table then. With the lock held no
// event is in anybody's hands, so destroying an id does not wait either.
var cmLock sync.Mutex

// manager opens channels of librdmacm.
type manager struct{}

// OpenCM gives the connection manager. errors.ErrUnsupported: librdmacm is missing.
func (p *Provider) OpenCM() (driver.CM, error) {
	if err := p.valid(); err != nil {
		return nil, err
	}
	if p.cm != nil {
		return nil, p.cm
	}
	return manager{}, nil
}

// cmChannel is an event channel (struct rdma_event_channel). Its descriptor is readable
// while the kernel has an event, which may be one that the library drops.
type cmChannel struct {
	c  *C.struct_abi_event_channel
	fd int
	ev *C.struct_vb_cm_event // of Next, under cmLock
}

var _ driver.CMChannel = (*cmChannel)(nil)

// OpenChannel opens a channel (rdma_create_event_channel). ENODEV: there is no device;
// other errors are a FileError about /dev/infiniband/rdma_cm.
func (manager) OpenChannel() (driver.CMChannel, error) {
	ch := &cmChannel{ev: new(C.struct_vb_cm_event)}
	var fd C.int
	cmLock.Lock()
	defer cmLock.Unlock()
	if e := C.vb_cm_open(&ch.c, &fd); e != 0 {
		if err := errOf(e); !errors.Is(err, syscall.ENODEV) {
			return nil, fileError("/dev/infiniband/rdma_cm", "rdma_ucm", err)
		}
		return nil, noDevices
	}
	ch.fd = int(fd)
	return ch, nil
}

func (ch *cmChannel) FD() (int, error) { return ch.fd, nil }

// Close closes the channel (rdma_destroy_event_channel).
func (ch *cmChannel) Close() error {
	C.vb_cm_close(ch.c)
	return nil
}

// CreateID makes an id (rdma_create_id). The port space decides on the type of queue pair.
func (ch *cmChannel) CreateID(handle uint64, ps ib.PortSpace, t ib.QPType) (driver.CMID, error) {
	want := ib.RC
	if ps == ib.PortSpaceUDP || ps == ib.PortSpaceIPoIB {
		want = ib.UD
	}
	if t != want {
		return nil, syscall.EOPNOTSUPP
	}
	id := &cmID{}
	cmLock.Lock()
	defer cmLock.Unlock()
	if e := C.vb_id_create(ch.c, C.uint64_t(handle), C.int(ps), &id.c); e != 0 {
		return nil, errOf(e)
	}
	return id, nil
}

// Next takes one event (rdma_get_cm_event, rdma_ack_cm_event). It allocates for what an
// event carries only.
func (ch *cmChannel) Next() (driver.CMEvent, bool, error) {
	cmLock.Lock()
	defer cmLock.Unlock()
	switch e := syscall.Errno(C.vb_cm_next(ch.c, ch.ev)); e {
	case 0:
		return ch.event(), true, nil
	case syscall.EAGAIN:
		return driver.CMEvent{}, false, nil
	case syscall.ENODEV: // the descriptor is dead
		return driver.CMEvent{}, false, driver.ErrDeviceGone
	default:
		return driver.CMEvent{}, false, e
	}
}

func (ch *cmChannel) event() driver.CMEvent {
	v := ch.ev
	if v.removed != 0 {
		removed(v.removed)
	}
	ev := driver.CMEvent{
		Type:   ib.CMEventType(v._type),
		Handle: uint64(v.handle),
		Status: int(v.status),
	}
	if v.child != nil {
		ev.Child = &cmID{c: v.child, request: true}
	}
	if n := v.conn.private_len; n > 0 {
		ev.Private = make([]byte, n)
		for i := range ev.Private {
			ev.Private[i] = byte(v.conn.private_data[i])
		}
	}
	if v.datagram != 0 {
		ev.UD = driver.UDParam{AH: ahOut(&v.ah), QPN: ib.QPN(v.conn.qpn), QKey: ib.QKey(v.qkey)}
		return ev
	}
	ev.Conn = driver.ConnParam{
		ResponderResources: uint8(v.conn.responder_resources),
		InitiatorDepth:     uint8(v.conn.initiator_depth),
		FlowControl:        v.conn.flow_control != 0,
		RetryCount:         uint8(v.conn.retry_count),
		RNRRetryCount:      uint8(v.conn.rnr_retry_count),
		SRQ:                v.conn.srq != 0,
		QPN:                ib.QPN(v.conn.qpn),
	}
	return ev
}
