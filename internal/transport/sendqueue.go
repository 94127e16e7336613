package transport

import (
	"math/bits"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// wqe is what the machine knows of a posted send request beside its slot. It is valid
// once the request was started.
type wqe struct {
	first seq    // of its first packet
	n     uint32 // packets; a READ has as many as its response
	len   uint32 // bytes
	parts [2]parts
}

// parts says how a long READ is cut: from packet base on, each READ request asks for
// size packets. The second takes over from the first at its base.
type parts struct{ base, size uint32 }

func (w *wqe) end() seq { return w.first + seq(w.n) }

// sendQueue is a ring. Indexes run on and are taken modulo its size, a power of two:
//
//	head: oldest request that is not complete
//	next: first that was not started, so that it has no PSN
//	tail: first free place
type sendQueue struct {
	slots            []driver.SendSlot
	wqes             []wqe
	sgl              []driver.SGE
	data             []byte
	caps             driver.Caps
	head, next, tail uint32
}

func (s *sendQueue) init(c driver.Caps) {
	s.caps = c
	n := ringSize(c.MaxSendWR)
	s.slots = make([]driver.SendSlot, n)
	s.wqes = make([]wqe, n)
	s.sgl = make([]driver.SGE, n*c.MaxSendSGE)
	s.data = make([]byte, n*c.MaxInline)
	for i := range s.slots {
		s.clean(uint32(i))
	}
}

// ringSize gives the power of two that holds n.
func ringSize(n int) int {
	if n == 0 {
		return 0
	}
	return 1 << bits.Len(uint(n-1))
}

func (s *sendQueue) slot(i uint32) *driver.SendSlot { return &s.slots[i&uint32(len(s.slots)-1)] }
func (s *sendQueue) wqe(i uint32) *wqe              { return &s.wqes[i&uint32(len(s.wqes)-1)] }

// clean makes a place ready to be filled in.
func (s *sendQueue) clean(i uint32) {
	i &= uint32(len(s.slots) - 1)
	p := &s.slots[i]
	m, n := int(i)*s.caps.MaxSendSGE, int(i)*s.caps.MaxInline
	p.SGL = s.sgl[m : m : m+s.caps.MaxSendSGE]
	p.Data = s.data[n : n : n+s.caps.MaxInline]
	p.Flags = 0
}

// SendSlots gives the free places of the send queue that follow one another, at least
// one unless the queue is full; CommitSend posts the first n. SGL and Data are empty,
// with the capacity of the queue pair, and Flags is 0; other fields have old values, and
// only those that the operation uses need be set. With ib.Inline the message is Data,
// else it is SGL. A place that was filled but not committed is not cleaned. The slice
// is valid until CommitSend or Modify. See driver.QP.
func (q *QP) SendSlots() []driver.SendSlot {
	s := &q.sq
	free := uint32(s.caps.MaxSendWR) - (s.tail - s.head)
	if free == 0 {
		return nil
	}
	i := s.tail & uint32(len(s.slots)-1)
	return s.slots[i:min(i+free, uint32(len(s.slots)))]
}

// CommitSend posts the first n of the places that SendSlots gave. In the error state
// they complete at once, flushed (IBTA Vol 1 §10.3.1.7, C10-42).
func (q *QP) CommitSend(n int) {
	q.sq.tail += uint32(n)
	if q.state == ib.StateError {
		q.flushSend()
	}
}

// finishSend completes the oldest request and frees its place. Success is reported if
// the request or the queue pair asks for it, failure always.
func (q *QP) finishSend(st ib.Status, vendor uint32) {
	s := &q.sq
	p := s.slot(s.head)
	if st != ib.StatusSuccess || p.Flags&ib.Signaled != 0 || q.cfg.SignalAll {
		c := q.complete()
		c.ID = p.ID
		c.Status = st
		c.VendorErr = vendor
		c.Solicited = st != ib.StatusSuccess
		if int(p.Opcode) < len(requests) {
			r := &requests[p.Opcode]
			c.Opcode = r.wc
			if r.reads && st == ib.StatusSuccess {
				c.ByteLen = s.wqe(s.head).len
			}
		}
	}
	s.clean(s.head)
	s.head++
}

// flushSend completes everything that is posted (IBTA Vol 1 §10.3.1.7).
func (q *QP) flushSend() {
	s := &q.sq
	for s.head != s.tail {
		q.finishSend(ib.StatusWRFlush, 0)
	}
	s.next = s.head
}

// forget empties the queue without completions (RESET, IBTA Vol 1 §10.3.1.1).
func (s *sendQueue) forget() {
	for ; s.head != s.tail; s.head++ {
		s.clean(s.head)
	}
	s.next = s.head
}
