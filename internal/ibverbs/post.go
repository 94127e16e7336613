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
	for i := range q.slots[:n] {
		s, w := &q.slots[i], &q.send[i]
		w.id = C.uint64_t(s.ID)
		w.addr = C.uint64_t(s.Addr)
		w.compare = C.uint64_t(s.Compare)
		w.swap = C.uint64_t(s.Swap)
		w.sges = C.uint32_t(len(s.SGL))
		w.inline_len = C.uint32_t(len(s.Data))
		w.opcode = C.uint32_t(s.Opcode)
		w.flags = C.uint32_t(s.Flags)
		w.imm = C.uint32_t(s.Imm)
		w.rkey = C.uint32_t(s.RKey)
		if q.ud {
			w.ah = C.uint64_t(s.AH)
			w.qpn = C.uint32_t(s.QPN)
			w.qkey = C.uint32_t(s.QKey)
		}
		s.SGL, s.Data = s.SGL[:0], s.Data[:0]
	}
	return q.d.posted(C.vb_post_send(q.p, C.uint32_t(n)))
}

// CommitRecv posts the first n places in one call of C (ibv_post_recv). It does not
// allocate.
func (q *qp) CommitRecv(n int) (int, error) {
	if q.d.gone.Load() {
		return 0, driver.ErrDeviceGone
	}
	q.fill(n)
	return q.d.posted(C.vb_post_recv(q.p, C.uint32_t(n)))
}

// posted takes the answer of a post apart.
func (d *deviceContext) posted(r C.uint64_t) (int, error) {
	return int(uint32(r)), d.fail(C.int(r >> 32))
}

// recvBatch is a batch of receives, of a queue pair or of a shared receive queue.
type recvBatch struct {
	recvSlots []driver.RecvSlot // SGEs are in memory of C
	recv      []C.struct_vb_recv
}

func newRecvBatch(r *C.struct_vb_rq) recvBatch {
	b := recvBatch{make([]driver.RecvSlot, r.n), unsafe.Slice(r.recv, r.n)}
	n := int(r.max_sge)
	sges := unsafe.Slice((*driver.SGE)(unsafe.Pointer(r.sge)), max(1, int(r.n)*n))
	for i := range b.recvSlots {
		b.recvSlots[i].SGL = sges[i*n : i*n : i*n+n]
	}
	return b
}

func (b *recvBatch) RecvSlots() []driver.RecvSlot { return b.recvSlots }

func (b *recvBatch) fill(n int) {
	for i := range b.recvSlots[:n] {
		s, w := &b.recvSlots[i], &b.recv[i]
		w.id = C.uint64_t(s.ID)
		w.sges = C.uint32_t(len(s.SGL))
		s.SGL = s.SGL[:0]
	}
}

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
	s.fill(n)
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
