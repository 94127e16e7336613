//go:build linux && cgo

package ibverbs

/*
#cgo noescape vb_post_send
#cgo nocallback vb_post_send
#cgo noescape vb_post_recv
#cgo nocallback vb_post_recv
#cgo noescape vb_post_srq
#cgo nocallback vb_post_srq
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// The shim gives SGEs to the library as verbs wrote them.
const (
	_ = -(unsafe.Sizeof(driver.SGE{}) ^ C.sizeof_struct_vb_sge)
	_ = -(unsafe.Offsetof(driver.SGE{}.Addr) ^ unsafe.Offsetof(C.struct_vb_sge{}.addr))
	_ = -(unsafe.Offsetof(driver.SGE{}.Len) ^ unsafe.Offsetof(C.struct_vb_sge{}.len))
	_ = -(unsafe.Offsetof(driver.SGE{}.LKey) ^ unsafe.Offsetof(C.struct_vb_sge{}.lkey))
)

// It reads places as verbs writes them. They lie in memory of C, and so does all that
// their slices point to.
const (
	_ = -(unsafe.Sizeof(driver.SendSlot{}) ^ C.sizeof_struct_vb_send)
	_ = -(unsafe.Offsetof(driver.SendSlot{}.ID) ^ unsafe.Offsetof(C.struct_vb_send{}.id))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.SGL) ^ unsafe.Offsetof(C.struct_vb_send{}.sgl))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.Data) ^ unsafe.Offsetof(C.struct_vb_send{}.data))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.Addr) ^ unsafe.Offsetof(C.struct_vb_send{}.addr))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.Compare) ^ unsafe.Offsetof(C.struct_vb_send{}.compare))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.Swap) ^ unsafe.Offsetof(C.struct_vb_send{}.swap))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.AH) ^ unsafe.Offsetof(C.struct_vb_send{}.ah))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.MW) ^ unsafe.Offsetof(C.struct_vb_send{}.mw))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.MR) ^ unsafe.Offsetof(C.struct_vb_send{}.mr))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.Len) ^ unsafe.Offsetof(C.struct_vb_send{}.len))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.Rights) ^ unsafe.Offsetof(C.struct_vb_send{}.rights))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.RKey) ^ unsafe.Offsetof(C.struct_vb_send{}.rkey))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.Imm) ^ unsafe.Offsetof(C.struct_vb_send{}.imm))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.QPN) ^ unsafe.Offsetof(C.struct_vb_send{}.qpn))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.QKey) ^ unsafe.Offsetof(C.struct_vb_send{}.qkey))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.SRQN) ^ unsafe.Offsetof(C.struct_vb_send{}.srqn))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.Opcode) ^ unsafe.Offsetof(C.struct_vb_send{}.opcode))
	_ = -(unsafe.Offsetof(driver.SendSlot{}.Flags) ^ unsafe.Offsetof(C.struct_vb_send{}.flags))
	_ = -(unsafe.Sizeof(driver.RecvSlot{}) ^ C.sizeof_struct_vb_recv)
	_ = -(unsafe.Offsetof(driver.RecvSlot{}.ID) ^ unsafe.Offsetof(C.struct_vb_recv{}.id))
	_ = -(unsafe.Offsetof(driver.RecvSlot{}.SGL) ^ unsafe.Offsetof(C.struct_vb_recv{}.sgl))
	_ = -(unsafe.Sizeof([]byte(nil)) ^ C.sizeof_struct_vb_slice)
)

// address gives an address in C's memory as the hot calls take it: no pointer, so that cgo
// has nothing to check.
func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(uintptr(p)) }

// SendSlots gives the places of one batch. The library copies a request when it is
// posted, so they are free again after each CommitSend.
func (q *qp) SendSlots() []driver.SendSlot { return q.slots }

// CommitSend posts the first n places in one call of C (ibv_post_send). It does not
// allocate.
func (q *qp) CommitSend(n int) (int, error) {
	if q.d.gone.Load() {
		return 0, driver.ErrDeviceGone
	}
	return q.d.posted(C.vb_post_send(q.p, C.uint32_t(n)))
}

// CommitRecv posts the first n places in one call of C (ibv_post_recv). It does not
// allocate.
func (q *qp) CommitRecv(n int) (int, error) {
	if q.d.gone.Load() {
		return 0, driver.ErrDeviceGone
	}
	return q.d.posted(C.vb_post_recv(q.p, C.uint32_t(n)))
}

// posted takes the answer of a post apart.
func (d *deviceContext) posted(r C.uint64_t) (int, error) {
	return int(uint32(r)), d.fail(C.int(r >> 32))
}

// recvBatch is a batch of receives, of a queue pair or of a shared receive queue.
type recvBatch struct{ recvSlots []driver.RecvSlot } // in memory of C

func newRecvBatch(r *C.struct_vb_rq) recvBatch {
	return recvBatch{unsafe.Slice((*driver.RecvSlot)(unsafe.Pointer(r.recv)), r.n)}
}

func (b *recvBatch) RecvSlots() []driver.RecvSlot { return b.recvSlots }

// srq is a shared receive queue (struct ibv_srq).
type srq struct {
	d *deviceContext
	c *C.struct_vb_srq
	p C.uintptr_t
	recvBatch
}

var _ driver.SRQ = (*srq)(nil)

// CreateSRQ makes a shared receive queue (ibv_create_srq).
func (p *pd) CreateSRQ(cfg driver.SRQConfig) (driver.SRQ, error) {
	if err := p.d.err(); err != nil {
		return nil, err
	}
	s := &srq{d: p.d}
	e := C.vb_create_srq(p.c, C.uint64_t(cfg.Handle), C.uint32_t(cfg.MaxWR), C.uint32_t(cfg.MaxSGE), C.uint32_t(cfg.Limit), &s.c)
	if err := p.d.fail(e); err != nil {
		return nil, err
	}
	s.p = address(unsafe.Pointer(s.c))
	s.recvBatch = newRecvBatch(&s.c.rq)
	return s, nil
}

// CommitRecv posts the first n places in one call of C (ibv_post_srq_recv). It does not
// allocate.
func (s *srq) CommitRecv(n int) (int, error) {
	if s.d.gone.Load() {
		return 0, driver.ErrDeviceGone
	}
	return s.d.posted(C.vb_post_srq(s.p, C.uint32_t(n)))
}

// Modify changes what is not negative (ibv_modify_srq), one at a time, as devices take
// it.
func (s *srq) Modify(maxWR, limit int) error {
	if err := s.d.err(); err != nil {
		return err
	}
	return s.d.fail(C.vb_modify_srq(s.c, C.int64_t(maxWR), C.int64_t(limit)))
}

// Query gives size and limit (ibv_query_srq).
func (s *srq) Query() (maxWR, limit int, err error) {
	if err := s.d.err(); err != nil {
		return 0, 0, err
	}
	var m, l C.uint32_t
	if err := s.d.fail(C.vb_query_srq(s.c, &m, &l)); err != nil {
		return 0, 0, err
	}
	return int(m), int(l), nil
}

// Close destroys the queue (ibv_destroy_srq).
func (s *srq) Close() error {
	s.d.async.mu.Lock()
	defer s.d.async.mu.Unlock()
	return s.d.end(C.vb_destroy_srq(s.c))
}
