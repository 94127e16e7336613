//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// deviceContext is an open device (struct ibv_context).
type deviceContext struct {
	c      *C.struct_abi_context
	dev    C.uintptr_t   // the library's device, which all contexts of it have
	fd     C.int         // of the asynchronous events
	khz    atomic.Uint64 // of the clock; zero: not asked for yet
	info   driver.DeviceInfo
	shared bool // stays open
	gone   atomic.Bool
	closed atomic.Bool

	removed  atomic.Bool // the connection manager said so
	released atomic.Bool // c belongs to the connection manager alone
	objects  atomic.Int64
	async    asyncQueue
}

var _ driver.Context = (*deviceContext)(nil)

func newContext(c *C.struct_abi_context, info driver.DeviceInfo, shared bool) *deviceContext {
	d := &deviceContext{c: c, dev: C.vb_device_of(c), fd: C.vb_async_fd(c), info: info, shared: shared}
	d.async.ctx = d
	contexts.Lock()
	defer contexts.Unlock()
	if contexts.open == nil {
		contexts.open = make(map[*deviceContext]struct{})
	}
	contexts.open[d] = struct{}{}
	return d
}

// contexts are those that are open.
var contexts struct {
	sync.Mutex
	open map[*deviceContext]struct{}
}

// removed follows the connection manager, which knows that a device is being removed
// also where the kernel does not take it from its users (it waits until they close it).
func removed(dev C.uintptr_t) {
	contexts.Lock()
	defer contexts.Unlock()
	for d := range contexts.open {
		if d.dev == dev {
			d.removed.Store(true)
			d.gone.Store(true)
			delete(contexts.open, d)
			d.hangUp()
		}
	}
}

// born and died count the objects of the device that are open; those below a domain are
// closed before it.
func (d *deviceContext) born() { d.objects.Add(1) }

func (d *deviceContext) died(e C.int) error {
	err := d.end(e)
	if d.objects.Add(-1) == 0 {
		d.hangUp()
	}
	return err
}

// hangUp closes the kernel's files of a device that was removed, when it has no objects any
// more: until then the removal may be waiting. The context is given back to the connection
// manager, which frees it when it sees that the list of devices has changed.
func (d *deviceContext) hangUp() {
	if !d.removed.Load() || !d.shared || d.objects.Load() > 0 {
		return
	}
	d.async.mu.Lock()
	defer d.async.mu.Unlock()
	if !d.released.Swap(true) {
		C.vb_hang_up(d.c)
	}
}

func (d *deviceContext) Device() driver.DeviceInfo { return d.info }

// err says why the device takes no calls. It does not allocate.
func (d *deviceContext) err() error {
	switch {
	case d.closed.Load():
		return net.ErrClosed
	case d.gone.Load():
		return driver.ErrDeviceGone
	}
	return nil
}

// lost asks the kernel whether the device went away.
func (d *deviceContext) lost() bool {
	if !d.gone.Load() && !d.closed.Load() && C.vb_fd_gone(d.fd) != 0 {
		d.gone.Store(true)
	}
	return d.gone.Load()
}

// fail makes the error of a call. Some numbers may mean that the device went away. It does
// not allocate.
func (d *deviceContext) fail(e C.int) error {
	if e >= C.VB_NO_LIBRARY {
		return lacks(e)
	}
	switch errno := syscall.Errno(e); errno {
	case 0:
		return nil
	case syscall.EIO, syscall.ENODEV, syscall.ENXIO:
		if d.lost() {
			return driver.ErrDeviceGone
		}
		return errno
	default:
		return errno
	}
}

// end makes the error of a call that destroys. An object of a device that went away is
// destroyed.
func (d *deviceContext) end(e C.int) error {
	if err := d.fail(e); err != nil && !errors.Is(err, driver.ErrDeviceGone) {
		return err
	}
	return nil
}

// QueryDevice asks for limits and abilities (ibv_query_device_ex).
func (d *deviceContext) QueryDevice() (driver.DeviceAttr, error) {
	if err := d.err(); err != nil {
		return driver.DeviceAttr{}, err
	}
	var a C.struct_vb_device_attr
	if err := d.fail(C.vb_query_device(d.c, &a)); err != nil {
		return driver.DeviceAttr{}, err
	}
	return driver.DeviceAttr{
		Firmware:            C.GoString(&a.fw[0]),
		NodeGUID:            ib.GUID(a.node_guid),
		SysImageGUID:        ib.GUID(a.sys_image_guid),
		VendorID:            uint32(a.vendor_id),
		VendorPartID:        uint32(a.vendor_part_id),
		HWVersion:           uint32(a.hw_ver),
		Caps:                ib.DeviceCaps(a.caps),
		MaxMRSize:           uint64(a.max_mr_size),
		PageSizes:           uint64(a.page_sizes),
		MaxQP:               int(a.max_qp),
		MaxQPWR:             int(a.max_qp_wr),
		MaxSGE:              int(a.max_sge),
		MaxSGERead:          int(a.max_sge_rd),
		MaxCQ:               int(a.max_cq),
		MaxCQE:              int(a.max_cqe),
		MaxMR:               int(a.max_mr),
		MaxPD:               int(a.max_pd),
		MaxMW:               int(a.max_mw),
		MaxAH:               int(a.max_ah),
		MaxQPRDAtomic:       int(a.max_qp_rd_atom),
		MaxQPInitRDAtomic:   int(a.max_qp_init_rd_atom),
		MaxSRQ:              int(a.max_srq),
		MaxSRQWR:            int(a.max_srq_wr),
		MaxSRQSGE:           int(a.max_srq_sge),
		MaxMcastGroups:      int(a.max_mcast_grp),
		MaxMcastQPAttach:    int(a.max_mcast_qp_attach),
		MaxPKeys:            int(a.max_pkeys),
		Ports:               int(a.ports),
		CompVectors:         int(a.comp_vectors),
		Atomic:              ib.AtomicCap(a.atomic_cap),
		AckDelay:            ib.AckTimeoutDuration(uint8(a.ack_delay)),
		MaxModerationCount:  int(a.max_cq_count),
		MaxModerationPeriod: time.Duration(a.max_cq_period) * time.Microsecond,
		MaxDMSize:           uint64(a.max_dm_size),
		ODP:                 ib.ODPCaps(a.odp_rc),
	}, nil
}

// QueryPort asks for the state of a port (ibv_query_port).
func (d *deviceContext) QueryPort(n int) (driver.PortAttr, error) {
	if err := d.err(); err != nil {
		return driver.PortAttr{}, err
	}
	if err := checkPort(n); err != nil {
		return driver.PortAttr{}, err
	}
	var a C.struct_vb_port_attr
	if err := d.fail(C.vb_query_port(d.c, C.int(n), &a)); err != nil {
		return driver.PortAttr{}, err
	}
	return driver.PortAttr{
		State:      ib.PortState(a.state),
		Phys:       ib.PhysState(a.phys),
		Link:       ib.LinkLayer(a.link),
		MaxMTU:     ib.MTU(a.max_mtu),
		ActiveMTU:  ib.MTU(a.active_mtu),
		GIDs:       int(a.gids),
		PKeys:      int(a.pkeys),
		MaxMessage: uint32(a.max_msg),
		LID:        ib.LID(a.lid),
		SMLID:      ib.LID(a.sm_lid),
		Caps:       ib.PortCaps(a.caps),
		Caps2:      ib.PortCaps2(a.caps2),
		SpeedMbps:  lanes(uint8(a.width)) * laneMbps(uint8(a.speed)),
		// Drivers of RoCE devices need not set the flag.
		GRHRequired: a.grh != 0 || ib.LinkLayer(a.link) == ib.LinkEthernet,
	}, nil
}

func checkPort(n int) error {
	if n < 1 || n > 255 {
		return fmt.Errorf("port %d: %w", n, syscall.EINVAL)
	}
	return nil
}

// lanes decodes active_width (IBTA Vol 1 §14.2.5.6).
func lanes(code uint8) int {
	switch code {
	case 1:
		return 1
	case 2:
		return 4
	case 4:
		return 8
	case 8:
		return 12
	case 16:
		return 2
	}
	return 0
}

// laneMbps decodes active_speed, rounded as ibv_devinfo does.
func laneMbps(code uint8) int {
	switch code {
	case 1:
		return 2500
	case 2:
		return 5000
	case 4, 8:
		return 10000
	case 16:
		return 14000
	case 32:
		return 25000
	case 64:
		return 50000
	case 128:
		return 100000
	}
	return 0
}

// PKey asks for an entry of the P_Key table (ibv_query_pkey).
func (d *deviceContext) PKey(port, index int) (ib.PKey, error) {
	if err := d.err(); err != nil {
		return 0, err
	}
	if err := checkPort(port); err != nil {
		return 0, err
	}
	var k C.uint16_t
	if err := d.fail(C.vb_query_pkey(d.c, C.int(port), C.int(index), &k)); err != nil {
		return 0, err
	}
	return ib.PKey(k), nil
}

// Async gives the queue of the device's asynchronous events.
func (d *deviceContext) Async() driver.AsyncQueue { return &d.async }

// Close closes the device (ibv_close_device), unless it is the connection manager's.
func (d *deviceContext) Close() error {
	if d.shared || d.closed.Swap(true) {
		return nil
	}
	contexts.Lock()
	delete(contexts.open, d)
	contexts.Unlock()
	return d.end(C.vb_close(d.c))
}
