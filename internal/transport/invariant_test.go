package transport

import (
	"fmt"

	"github.com/verbena-rdma/verbena/ib"
)

// broken says what is wrong inside of a queue pair between two calls; empty if nothing.
func (q *QP) broken() string {
	r, s := &q.req, &q.sq
	if q.state != ib.StateRTS && q.state != ib.StateSQD {
		return ""
	}
	var cost uint64
	var reads, asked uint32
	at := r.next
	for i := s.next; i != s.head; {
		i--
		w := s.wqe(i)
		if w.end() != at {
			return fmt.Sprintf("request %d ends at %d, the next begins at %d", i, w.end(), at)
		}
		at = w.first
		cost += q.cost(w, max(w.first, r.una), min(w.end(), r.send))
		if requests[s.slot(i).Opcode].reads {
			reads++
		}
	}
	if s.head != s.next && at > r.una || s.head == s.next && r.una != r.next {
		return fmt.Sprintf("una %d is outside of the requests that begin at %d", r.una, at)
	}
	for i := r.askHead; i != r.askTail; i++ {
		a := r.asked[i&uint32(len(r.asked)-1)]
		if a.end <= r.una || a.end > r.send || a.start >= a.end {
			return fmt.Sprintf("asked for %d to %d with una %d and send %d", a.start, a.end, r.una, r.send)
		}
		asked++
	}
	pending := 0
	for i := q.resp.replay.head; i < q.resp.replay.tail; i++ {
		x := q.resp.replay.at(i)
		if x.cur > x.end || x.end > x.n {
			return fmt.Sprintf("response %d of %d packets is at %d up to %d", i, x.n, x.cur, x.end)
		}
		if x.cur != x.end {
			pending++
			if i < q.resp.replay.sending {
				return fmt.Sprintf("response %d is passed over, %d is being sent", i, q.resp.replay.sending)
			}
		}
	}
	switch {
	case r.una > r.send || r.send > r.max || r.max > r.next:
		return fmt.Sprintf("una %d, send %d, max %d, next %d", r.una, r.send, r.max, r.next)
	case cost != r.inflight:
		return fmt.Sprintf("%d bytes are in flight, not %d", cost, r.inflight)
	case reads != r.reads:
		return fmt.Sprintf("%d READs and atomics, not %d", reads, r.reads)
	case asked > uint32(q.attr.MaxRDAtomic):
		return fmt.Sprintf("%d READs asked for, the depth is %d", asked, q.attr.MaxRDAtomic)
	case pending != q.resp.replay.pending:
		return fmt.Sprintf("%d responses to send, not %d", pending, q.resp.replay.pending)
	case int32(r.cur-s.head) < 0 || int32(s.next-r.cur) < 0:
		return fmt.Sprintf("request %d of %d to %d is being sent", r.cur, s.head, s.next)
	}
	return ""
}
