package softroce

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
)

// registry finds queue pairs by number, without a lock. A number has a place in its
// lower 16 bits; the upper 8 count how often the place was used. Places are taken in
// turn from a random one, so a number comes back after 16 million others.
type registry struct {
	chunks [chunkCount]atomic.Pointer[chunk]

	mu   sync.Mutex
	next uint32 // number to be tried next
	used int
}

const (
	chunkBits  = 8
	chunkSize  = 1 << chunkBits
	chunkCount = 1 << (16 - chunkBits)
	maxQP      = 1<<16 - 16 // a few places always free, so that search ends soon
)

type chunk [chunkSize]atomic.Pointer[qp]

// init takes a random number to start from.
func (r *registry) init(base uint32) { r.next = base & 0xFFFFFF }

// find gives the queue pair of a number, or nil. It neither locks nor allocates.
func (r *registry) find(n ib.QPN) *qp {
	c := r.chunks[n>>chunkBits&(chunkCount-1)].Load()
	if c == nil {
		return nil
	}
	q := c[n&(chunkSize-1)].Load()
	if q == nil || q.num != n {
		return nil
	}
	return q
}

// add gives q a number; false: all are taken.
func (r *registry) add(q *qp) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used >= maxQP {
		return false
	}
	for {
		n := r.next
		r.next = (n + 1) & 0xFFFFFF  // the carry into the upper bits marks the next round
		if n <= 1 || n == 0xFFFFFF { // reserved: QP0, QP1, multicast
			continue
		}
		p := &r.chunks[n>>chunkBits&(chunkCount-1)]
		c := p.Load()
		if c == nil {
			c = new(chunk)
			p.Store(c)
		}
		if c[n&(chunkSize-1)].Load() != nil {
			continue
		}
		q.num = ib.QPN(n)
		c[n&(chunkSize-1)].Store(q)
		r.used++
		return true
	}
}

// remove frees the number of q.
func (r *registry) remove(q *qp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.chunks[q.num>>chunkBits&(chunkCount-1)].Load(); c != nil && c[q.num&(chunkSize-1)].CompareAndSwap(q, nil) {
		r.used--
	}
}

// all lists the queue pairs at this moment.
func (r *registry) all() []*qp {
	var qs []*qp
	for i := range r.chunks {
		c := r.chunks[i].Load()
		if c == nil {
			continue
		}
		for j := range c {
			if q := c[j].Load(); q != nil {
				qs = append(qs, q)
			}
		}
	}
	return qs
}
