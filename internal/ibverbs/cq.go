//go:build linux && cgo

package ibverbs

/*
#cgo noescape vb_poll
#cgo nocallback vb_poll
#cgo noescape vb_poll_for
#cgo nocallback vb_poll_for
#cgo noescape vb_arm
#cgo nocallback vb_arm
#cgo noescape vb_arm_poll
#cgo nocallback vb_arm_poll
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cq is a completion queue (struct ibv_cq).
type cq struct {
	d  *deviceContext
	ch *compChannel // nil: none
	c  *C.struct_vb_cq
	p  C.uintptr_t // c, as the hot calls take it
	wc []driver.WC // what the last Poll gave, in memory of C
}

var (
	_ driver.CQ         = (*cq)(nil)
	_ driver.Moderator  = (*cq)(nil)
	_ driver.Resizer    = (*cq)(nil)
	_ driver.SpinPoller = (*cq)(nil)
	_ driver.ArmPoller  = (*cq)(nil)
)

// The shim writes completions as Go reads them: a difference of layouts does not compile.
const (
	_ = -(unsafe.Sizeof(driver.WC{}) ^ C.sizeof_struct_vb_wc)
	_ = -(unsafe.Offsetof(driver.WC{}.ID) ^ unsafe.Offsetof(C.struct_vb_wc{}.id))
	_ = -(unsafe.Offsetof(driver.WC{}.ByteLen) ^ unsafe.Offsetof(C.struct_vb_wc{}.byte_len))
	_ = -(unsafe.Offsetof(driver.WC{}.Imm) ^ unsafe.Offsetof(C.struct_vb_wc{}.imm))
	_ = -(unsafe.Offsetof(driver.WC{}.QPN) ^ unsafe.Offsetof(C.struct_vb_wc{}.qpn))
	_ = -(unsafe.Offsetof(driver.WC{}.SrcQPN) ^ unsafe.Offsetof(C.struct_vb_wc{}.src_qpn))
	_ = -(unsafe.Offsetof(driver.WC{}.VendorErr) ^ unsafe.Offsetof(C.struct_vb_wc{}.vendor_err))
	_ = -(unsafe.Offsetof(driver.WC{}.Status) ^ unsafe.Offsetof(C.struct_vb_wc{}.status))
	_ = -(unsafe.Offsetof(driver.WC{}.Opcode) ^ unsafe.Offsetof(C.struct_vb_wc{}.opcode))
	_ = -(unsafe.Offsetof(driver.WC{}.Flags) ^ unsafe.Offsetof(C.struct_vb_wc{}.flags))
	_ = -(unsafe.Offsetof(driver.WC{}.SL) ^ unsafe.Offsetof(C.struct_vb_wc{}.sl))
	_ = -(unsafe.Offsetof(driver.WC{}.PathBits) ^ unsafe.Offsetof(C.struct_vb_wc{}.path_bits))
	_ = -(unsafe.Offsetof(driver.WC{}.SLID) ^ unsafe.Offsetof(C.struct_vb_wc{}.slid))
	_ = -(unsafe.Offsetof(driver.WC{}.PKeyIndex) ^ unsafe.Offsetof(C.struct_vb_wc{}.pkey_index))
)

// CreateCQ makes a completion queue (ibv_create_cq).
func (d *deviceContext) CreateCQ(cfg driver.CQConfig) (driver.CQ, error) {
	if err := d.err(); err != nil {
		return nil, err
	}
	q := &cq{d: d}
	var ch *C.struct_abi_comp_channel
	if cfg.Channel != nil {
		c, ok := cfg.Channel.(*compChannel)
		if !ok || c.d != d {
			return nil, fmt.Errorf("completion channel of another device: %w", syscall.EBADF)
		}
		q.ch, ch = c, c.c
	}
	if err := d.fail(C.vb_create_cq(d.c, ch, C.int(cfg.Entries), C.int(cfg.Vector), C.uint64_t(cfg.Handle), &q.c)); err != nil {
		return nil, err
	}
	d.born()
	q.p = address(unsafe.Pointer(q.c))
	q.wc = unsafe.Slice((*driver.WC)(unsafe.Pointer(&q.c.wc[0])), C.VB_BATCH)
	return q, nil
}

// Entries gives the capacity that the device chose.
func (q *cq) Entries() int { return int(q.c.entries) }

// Poll takes up to 64 completions in one call of C (ibv_poll_cq).
func (q *cq) Poll() ([]driver.WC, error) { return q.polled(C.vb_poll(q.p)) }

// PollFor polls inside one call of C until there is something, or limit is over; zero or
// less: once. It holds the thread and what Go runs on it, so it returns after 50 µs at
// the latest, whatever limit is. It does not allocate.
func (q *cq) PollFor(limit time.Duration) ([]driver.WC, error) {
	return q.polled(C.vb_poll_for(q.p, C.int64_t(limit)))
}

func (q *cq) polled(n C.int) ([]driver.WC, error) {
	if n > 0 {
		return q.wc[:n], nil
	}
	if n < 0 {
		return nil, q.d.fail(-n)
	}
	if q.d.gone.Load() {
		return nil, driver.ErrDeviceGone
	}
	return nil, nil
}

// Arm asks for one event (ibv_req_notify_cq).
func (q *cq) Arm(solicited bool) error {
	if q.d.gone.Load() {
		return driver.ErrDeviceGone
	}
	s := C.int(0)
	if solicited {
		s = 1
	}
	return q.d.fail(C.vb_arm(q.p, s))
}

// ArmPoll asks for one event, and polls, in one call of C.
func (q *cq) ArmPoll() (wc []driver.WC, armed, err error) {
	if q.d.gone.Load() {
		armed = driver.ErrDeviceGone
		wc, err = q.Poll()
		return wc, armed, err
	}
	n := C.vb_arm_poll(q.p)
	if n < C.VB_ARM_FAILED {
		armed = q.d.fail(C.VB_ARM_FAILED - n)
		wc, err = q.Poll()
		return wc, armed, err
	}
	wc, err = q.polled(n)
	return wc, nil, err
}

// Moderate delays events (ibv_modify_cq); many devices cannot (errors.ErrUnsupported).
func (q *cq) Moderate(count int, period time.Duration) error {
	us := (period + time.Microsecond - 1) / time.Microsecond
	if count < 0 || count > 0xFFFF || us < 0 || us > 0xFFFF {
		return fmt.Errorf("moderation by %d completions or %v is not in 0..65535 and 0..65.535ms: %w", count, period, syscall.EINVAL)
	}
	if err := q.d.err(); err != nil {
		return err
	}
	return q.d.fail(C.vb_modify_cq(q.c, C.uint16_t(count), C.uint16_t(us)))
}

// Resize changes the capacity (ibv_resize_cq).
func (q *cq) Resize(entries int) error {
	if err := q.d.err(); err != nil {
		return err
	}
	return q.d.fail(C.vb_resize_cq(q.c, C.int(entries)))
}

// Close acknowledges what was taken of the channel, and destroys the queue
// (ibv_destroy_cq). With the channel's lock held no event of it is in anybody's hands, so
// this does not wait.
func (q *cq) Close() error {
	return q.d.died(q.destroy())
}

func (q *cq) destroy() C.int {
	if q.ch != nil {
		q.ch.mu.Lock()
		defer q.ch.mu.Unlock()
	}
	q.d.async.mu.Lock()
	defer q.d.async.mu.Unlock()
	return C.vb_destroy_cq(q.c)
}
