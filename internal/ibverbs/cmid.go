//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cmID is an id of librdmacm (struct rdma_cm_id). It has no queue pair as far as the
// library knows: package verbs made that, cm moves it.
type cmID struct {
	c       *C.struct_vb_id
	request bool // made by a peer's request
}

var _ driver.CMID = (*cmID)(nil)

func (id *cmID) SetHandle(h uint64) { id.c.handle = C.uint64_t(h) }

// Info gives device and addresses as the library has them.
func (id *cmID) Info() driver.CMInfo {
	var i C.struct_vb_id_info
	cmLock.Lock() // the fetch of an event may be writing it
	C.vb_id_get(id.c, &i)
	cmLock.Unlock()
	return driver.CMInfo{
		Device: C.GoString(&i.device[0]),
		Port:   int(i.port),
		Local:  addrOut(&i.local),
		Remote: addrOut(&i.remote),
	}
}

func addrOut(a *C.struct_vb_addr) netip.AddrPort {
	var ip [16]byte
	for i := range ip {
		ip[i] = byte(a.ip[i])
	}
	switch a.family {
	case 4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[:4])), uint16(a.port))
	case 6:
		addr := netip.AddrFrom16(ip)
		if zone := C.GoString(&a.zone[0]); zone != "" {
			addr = addr.WithZone(zone)
		} else if a.scope != 0 {
			addr = addr.WithZone(strconv.Itoa(int(a.scope)))
		}
		return netip.AddrPortFrom(addr, uint16(a.port))
	}
	return netip.AddrPort{}
}

// addrIn gives the C form of an address; the zero AddrPort has none.
func addrIn(a netip.AddrPort) (v C.struct_vb_addr, err error) {
	ip := a.Addr()
	switch {
	case !ip.IsValid():
		return v, nil
	case ip.Is4():
		v.family = 4
	default:
		v.family = 6
	}
	for i, b := range ip.AsSlice() {
		v.ip[i] = C.uint8_t(b)
	}
	v.port = C.uint16_t(a.Port())
	if zone := ip.Zone(); zone != "" {
		v.scope, err = scope(zone)
	}
	return v, err
}

// scope finds the number of the interface that a zone names.
func scope(zone string) (C.uint32_t, error) {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return C.uint32_t(n), nil
	}
	z := C.CString(zone)
	defer C.vb_free(unsafe.Pointer(z))
	n := C.vb_scope(z)
	if n == 0 {
		return 0, fmt.Errorf("zone %q is no interface: %w", zone, syscall.ENODEV)
	}
	return n, nil
}

// millis rounds a limit up. The library tries once for 0.
func millis(d time.Duration) C.int {
	ms := (d + time.Millisecond - 1) / time.Millisecond
	return C.int(min(max(ms, 0), math.MaxInt32))
}

// BindAddr binds (rdma_bind_addr).
func (id *cmID) BindAddr(a netip.AddrPort) error {
	v, err := addrIn(a)
	if err != nil {
		return err
	}
	if v.family == 0 {
		return syscall.EINVAL
	}
	return errOf(C.vb_id_bind(id.c, &v))
}

// ResolveAddr finds the device towards dst (rdma_resolve_addr).
func (id *cmID) ResolveAddr(src, dst netip.AddrPort, limit time.Duration) error {
	s, err := addrIn(src)
	if err != nil {
		return err
	}
	d, err := addrIn(dst)
	if err != nil {
		return err
	}
	if d.family == 0 {
		return syscall.EINVAL
	}
	return errOf(C.vb_id_resolve_addr(id.c, &s, &d, millis(limit)))
}

// ResolveRoute finds the path (rdma_resolve_route).
func (id *cmID) ResolveRoute(limit time.Duration) error {
	return errOf(C.vb_id_resolve_route(id.c, millis(limit)))
}

// InitQPAttr gives the attributes of a state (rdma_init_qp_attr). The kernel has none for
// a request whose peer has given up; those of INIT are made up then, so that it is Accept
// that tells, no matter when the peer left.
func (id *cmID) InitQPAttr(s ib.QPState) (driver.QPAttr, ib.QPAttrMask, error) {
	var v C.struct_vb_qp_attr
	var m C.uint32_t
	e := syscall.Errno(C.vb_id_qp_attr(id.c, C.int(s), &v, &m))
	if e == syscall.EINVAL && id.request && s == ib.StateInit {
		if i := id.Info(); i.Device != "" {
			return driver.QPAttr{State: s, Port: i.Port}, ib.AttrState | ib.AttrPort | ib.AttrPKeyIndex | ib.AttrAccess, nil
		}
	}
	if e != 0 {
		return driver.QPAttr{}, 0, e
	}
	return attrOut(&v), ib.QPAttrMask(m), nil
}

// Listen listens (rdma_listen).
func (id *cmID) Listen(backlog int) error {
	return errOf(C.vb_id_listen(id.c, C.int(min(max(backlog, 0), math.MaxInt32))))
}

func connIn(p *driver.ConnParam) (v C.struct_vb_conn_param, err error) {
	if len(p.Private) > 255 {
		return v, syscall.EINVAL
	}
	v.private_len = C.uint8_t(len(p.Private))
	for i, b := range p.Private {
		v.private_data[i] = C.uint8_t(b)
	}
	v.responder_resources = C.uint8_t(p.ResponderResources)
	v.initiator_depth = C.uint8_t(p.InitiatorDepth)
	v.flow_control = flag(p.FlowControl)
	v.retry_count = C.uint8_t(p.RetryCount)
	v.rnr_retry_count = C.uint8_t(p.RNRRetryCount)
	v.srq = flag(p.SRQ)
	v.qpn = C.uint32_t(p.QPN)
	return v, nil
}

// Connect asks the peer (rdma_connect).
func (id *cmID) Connect(p driver.ConnParam) error {
	v, err := connIn(&p)
	if err != nil {
		return err
	}
	return errOf(C.vb_id_connect(id.c, &v))
}

// Accept says yes (rdma_accept).
func (id *cmID) Accept(p driver.ConnParam) error {
	v, err := connIn(&p)
	if err != nil {
		return err
	}
	return errOf(C.vb_id_accept(id.c, &v))
}

// Reject says no (rdma_reject).
func (id *cmID) Reject(private []byte) error {
	if len(private) > 255 {
		return syscall.EINVAL
	}
	return errOf(C.vb_id_reject(id.c, (*C.uint8_t)(unsafe.SliceData(private)), C.uint8_t(len(private))))
}

// Establish tells the peer that this side is ready (rdma_establish).
func (id *cmID) Establish() error { return errOf(C.vb_id_establish(id.c)) }

// Notify passes an event of the queue pair on (rdma_notify).
func (id *cmID) Notify(ev ib.EventType) error { return errOf(C.vb_id_notify(id.c, C.int(ev))) }

// Disconnect ends the connection (rdma_disconnect).
func (id *cmID) Disconnect() error { return errOf(C.vb_id_disconnect(id.c)) }

// Migrate moves the id to another channel (rdma_migrate_id).
func (id *cmID) Migrate(to driver.CMChannel) error {
	ch, ok := to.(*cmChannel)
	if !ok {
		return syscall.EINVAL
	}
	cmLock.Lock()
	defer cmLock.Unlock()
	return errOf(C.vb_id_migrate(id.c, ch.c))
}

// SetOption sets an option (rdma_set_option).
func (id *cmID) SetOption(level, name int, value []byte) error {
	if len(value) == 0 {
		return syscall.EINVAL
	}
	return errOf(C.vb_id_option(id.c, C.int(level), C.int(name), unsafe.Pointer(&value[0]), C.size_t(len(value))))
}

// Join joins a group (rdma_join_multicast_ex).
func (id *cmID) Join(group netip.Addr, f ib.JoinFlags, handle uint64) error {
	v, err := addrIn(netip.AddrPortFrom(group, 0))
	if err != nil {
		return err
	}
	if v.family == 0 {
		return syscall.EINVAL
	}
	cmLock.Lock()
	defer cmLock.Unlock()
	return errOf(C.vb_id_join(id.c, &v, C.uint32_t(f), C.uint64_t(handle)))
}

// Leave leaves a group (rdma_leave_multicast).
func (id *cmID) Leave(group netip.Addr) error {
	v, err := addrIn(netip.AddrPortFrom(group, 0))
	if err != nil {
		return err
	}
	if v.family == 0 {
		return syscall.EINVAL
	}
	cmLock.Lock()
	defer cmLock.Unlock()
	return errOf(C.vb_id_leave(id.c, &v))
}

// Close destroys the id (rdma_destroy_id).
func (id *cmID) Close() error {
	cmLock.Lock()
	defer cmLock.Unlock()
	return errOf(C.vb_id_destroy(id.c))
}
