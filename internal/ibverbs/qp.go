//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// qp is a queue pair (struct ibv_qp).
type qp struct {
	d    *deviceContext
	c    *C.struct_vb_qp
	p    C.uintptr_t // c, as the hot calls take it
	num  ib.QPN
	caps driver.Caps

	slots []driver.SendSlot // in memory of C
	recvBatch
}

var _ driver.QP = (*qp)(nil)

// CreateQP makes a queue pair (ibv_create_qp).
func (p *pd) CreateQP(cfg driver.QPConfig) (driver.QP, error) {
	if err := p.d.err(); err != nil {
		return nil, err
	}
	switch cfg.Type {
	case ib.RC, ib.UC, ib.UD, ib.RawPacket:
	case ib.XRCSend, ib.XRCRecv, ib.DriverQP:
		return nil, fmt.Errorf("queue pair of type %v: %w", cfg.Type, errors.ErrUnsupported)
	default:
		return nil, fmt.Errorf("queue pair of type %d: %w", uint8(cfg.Type), syscall.EINVAL)
	}
	send, ok1 := cfg.SendCQ.(*cq)
	recv, ok2 := cfg.RecvCQ.(*cq)
	if !ok1 || !ok2 || send.d != p.d || recv.d != p.d {
		return nil, fmt.Errorf("completion queue of another device: %w", syscall.EINVAL)
	}
	c := C.struct_vb_qp_config{
		handle:  C.uint64_t(cfg.Handle),
		send_cq: send.c,
		recv_cq: recv.c,
		caps:    capsIn(&cfg.Cap),
		_type:   C.int32_t(cfg.Type),
	}
	if cfg.SRQ != nil {
		s, ok := cfg.SRQ.(*srq)
		if !ok || s.d != p.d {
			return nil, fmt.Errorf("shared receive queue of another device: %w", syscall.EINVAL)
		}
		c.srq = s.c
	}
	if cfg.SignalAll {
		c.signal_all = 1
	}
	if cfg.Cap.MaxInline > 0 && cfg.Cap.MaxSendSGE == 0 {
		c.caps.send_sge = 1 // which inline data takes
	}
	q := &qp{d: p.d}
	if err := p.d.fail(C.vb_create_qp(p.c, &c, &q.c)); err != nil {
		return nil, err
	}
	q.p = address(unsafe.Pointer(q.c))
	q.num = ib.QPN(q.c.num)
	q.caps = capsOut(&q.c.caps)
	q.slots = unsafe.Slice((*driver.SendSlot)(unsafe.Pointer(q.c.send)), q.c.n)
	q.recvBatch = newRecvBatch(&q.c.rq)
	return q, nil
}

func capsIn(c *driver.Caps) C.struct_vb_qp_caps {
	return C.struct_vb_qp_caps{
		send_wr:     C.uint32_t(c.MaxSendWR),
		recv_wr:     C.uint32_t(c.MaxRecvWR),
		send_sge:    C.uint32_t(c.MaxSendSGE),
		recv_sge:    C.uint32_t(c.MaxRecvSGE),
		inline_data: C.uint32_t(c.MaxInline),
	}
}

func capsOut(c *C.struct_vb_qp_caps) driver.Caps {
	return driver.Caps{
		MaxSendWR:  int(c.send_wr),
		MaxRecvWR:  int(c.recv_wr),
		MaxSendSGE: int(c.send_sge),
		MaxRecvSGE: int(c.recv_sge),
		MaxInline:  int(c.inline_data),
	}
}

func (q *qp) Num() ib.QPN       { return q.num }
func (q *qp) Caps() driver.Caps { return q.caps }

// Attach and Detach say whether the queue pair gets a multicast group (ibv_attach_mcast,
// ibv_detach_mcast).
func (q *qp) Attach(g ib.GID, l ib.LID) error { return q.mcast(g, l, 1) }
func (q *qp) Detach(g ib.GID, l ib.LID) error { return q.mcast(g, l, 0) }

func (q *qp) mcast(g ib.GID, l ib.LID, attach C.int) error {
	if err := q.d.err(); err != nil {
		return err
	}
	return q.d.fail(C.vb_mcast(q.c, (*C.uint8_t)(&g[0]), C.uint16_t(l), attach))
}

// Close destroys the queue pair (ibv_destroy_qp). With the lock of the asynchronous events
// held none of its events is in anybody's hands, so this does not wait.
func (q *qp) Close() error {
	q.d.async.mu.Lock()
	defer q.d.async.mu.Unlock()
	return q.d.end(C.vb_destroy_qp(q.c))
}
