package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// connected reports whether requests of the peer are executed.
func (q *QP) connected() bool {
	return q.state == ib.StateRTR || q.state == ib.StateRTS || q.state == ib.StateSQD
}

// enterReset forgets everything that was posted, without completions, and everything
// that is known of the peer but the window (IBTA Vol 1 §10.3.1.1, C-082).
func (q *QP) enterReset() {
	q.state = ib.StateReset
	q.sq.forget()
	q.rq.forget()
	q.req.reset()
	q.resp.reset()
	q.retry.reset()
	q.cc.reset()
	q.attr = driver.QPAttr{Cap: q.attr.Cap}
}

// enterRTR begins to execute requests (§10.3.1.3).
func (q *QP) enterRTR() {
	q.state = ib.StateRTR
	q.mtu = uint32(q.attr.PathMTU.Bytes())
	q.resp.reset()
	q.resp.expected = firstSeq(q.attr.RQPSN)
	q.resp.plain = q.resp.expected
	q.tx.DestQP = q.attr.DestQPN
	q.tx.PKey = 0xffff
	q.tx.MigReq = true // as a migrated path has it; receivers do not look (rocev2 §1.2)
}

// enterRTS begins to send (§10.3.1.4); from SQD it goes on.
func (q *QP) enterRTS() {
	was := q.state
	q.state = ib.StateRTS
	if was != ib.StateRTR {
		return
	}
	q.req.reset()
	q.req.begin(q.attr.SQPSN)
	q.req.cur = q.sq.next
	q.retry.reset()
	q.retry.left = q.attr.RetryCount
	q.retry.rnrLeft = q.attr.RNRRetry
	q.cc.reset()
}

// enterSQD lets the requests that were started come to their end and starts no other
// (§10.3.1.5).
func (q *QP) enterSQD() {
	q.state = ib.StateSQD
	q.noteDrained()
}

func (q *QP) drained() bool { return q.sq.head == q.sq.next }

// noteDrained raises SQ_DRAINED when the last request that was started is complete.
func (q *QP) noteDrained() {
	if q.state == ib.StateSQD && q.drained() && q.attr.SQDNotify {
		q.attr.SQDNotify = false
		q.event(ib.EventSQDrained)
	}
}

// enterError flushes both queues (§10.3.1.7, C-083). What the peer is owed for requests
// that were executed is still sent: if its own request led here, all up to the answer to
// that, else what responder.withdraw leaves.
func (q *QP) enterError() {
	if q.state == ib.StateError {
		return
	}
	q.state = ib.StateError
	q.resp.withdraw()
	q.flushSend()
	q.flushRecv()
	q.retry.stop()
	r := &q.req
	r.send, r.inflight, r.reads, r.cur = r.una, 0, 0, q.sq.next
	r.askHead = r.askTail
	r.cautious = false
	q.resp.taken = false
	q.resp.resume, q.resp.burst = never, 0
}

// failSend completes the oldest send request with st, and flushes the rest (C-084).
func (q *QP) failSend(st ib.Status, vendor uint32) {
	if q.sq.head == q.sq.next {
		return
	}
	q.finishSend(st, vendor)
	q.enterError()
}
