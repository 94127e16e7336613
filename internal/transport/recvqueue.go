package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// recvQueue is the ring of posted receives; see sendQueue. The responder uses the one
// at head. A shared receive queue will take its place by giving the next slot to the
// responder.
type recvQueue struct {
	slots      []driver.RecvSlot
	sgl        []driver.SGE
	caps       driver.Caps
	head, tail uint32
}

func (r *recvQueue) init(c driver.Caps) {
	r.caps = c
	n := ringSize(c.MaxRecvWR)
	r.slots = make([]driver.RecvSlot, n)
	r.sgl = make([]driver.SGE, n*c.MaxRecvSGE)
	for i := range r.slots {
		r.clean(uint32(i))
	}
}

func (r *recvQueue) clean(i uint32) {
	i &= uint32(len(r.slots) - 1)
	m := int(i) * r.caps.MaxRecvSGE
	r.slots[i].SGL = r.sgl[m : m : m+r.caps.MaxRecvSGE]
}

func (r *recvQueue) empty() bool { return r.head == r.tail }

// first gives the receive that the next message takes.
func (r *recvQueue) first() *driver.RecvSlot { return &r.slots[r.head&uint32(len(r.slots)-1)] }

// RecvSlots and CommitRecv are to receives what SendSlots and CommitSend are to sends.
func (q *QP) RecvSlots() []driver.RecvSlot {
	r := &q.rq
	free := uint32(r.caps.MaxRecvWR) - (r.tail - r.head)
	if free == 0 {
		return nil
	}
	i := r.tail & uint32(len(r.slots)-1)
	return r.slots[i:min(i+free, uint32(len(r.slots)))]
}

// CommitRecv posts the first n of the places that RecvSlots gave.
func (q *QP) CommitRecv(n int) {
	q.rq.tail += uint32(n)
	if q.state == ib.StateError {
		q.flushRecv()
	}
}

// finishRecv completes the oldest receive and frees its place.
func (q *QP) finishRecv(st ib.Status, vendor uint32) *Completion {
	r := &q.rq
	c := q.complete()
	c.ID = r.first().ID
	c.Recv = true
	c.Opcode = ib.WCRecv
	c.Status = st
	c.VendorErr = vendor
	c.Solicited = st != ib.StatusSuccess
	r.clean(r.head)
	r.head++
	return c
}

func (q *QP) flushRecv() {
	for !q.rq.empty() {
		q.finishRecv(ib.StatusWRFlush, 0)
	}
}

// forget empties the queue without completions.
func (r *recvQueue) forget() {
	for ; r.head != r.tail; r.head++ {
		r.clean(r.head)
	}
}
