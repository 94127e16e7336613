package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// retry has the timers of the requester. There are three, of which the first excludes
// the others:
//
//   - rnrUntil: the peer has no receive posted and said how long to wait (IBTA Vol 1
//     §9.7.5.2.8). Nothing is sent, and the transport timer does not run: the peer is
//     alive (C-131).
//   - expires: the transport timer (§9.7.6.1.3). It runs while something is not
//     acknowledged, starts anew with each progress, and leads to a go-back. After
//     retry_cnt of them without progress the request fails.
//   - probeAt: a few measured round trips after the last progress, then twice as long
//     each time. A probe is one packet sent again. The peer sees a duplicate, which it
//     must acknowledge, or a gap, which it must report, so that the loss of the last
//     packet of a burst is noticed long before the transport timer. This is our own
//     addition; it changes no counter.
//
// A sequence NAK, an ACK that passes over an unanswered READ, and a READ response after
// a gap lead to a go-back at once. For each oldest packet that happens once: a peer
// reports a gap once, so what comes again is a copy.
type retry struct {
	rnrUntil time.Duration
	expires  time.Duration
	probeAt  time.Duration
	probe    bool // one is to be sent
	backoff  uint8

	left        int // retries
	rnrLeft     int
	recovered   seq // the oldest packet for which there was a fast go-back
	srtt, rttvr time.Duration
	timed       seq // the packet whose round trip is measured; 0: none
	timedAt     time.Duration
}

func (r *retry) stop() {
	r.rnrUntil, r.expires, r.probeAt, r.probe, r.timed = never, never, never, false, 0
}

func (r *retry) reset() {
	*r = retry{}
	r.stop()
}

// arm starts the timers if they do not run.
func (q *QP) arm(now time.Duration) {
	r := &q.retry
	if r.expires == never && q.attr.Timeout != 0 {
		r.expires = now + q.expiry()
	}
	if r.probeAt == never {
		r.probeAt = now + q.silence()
	}
}

// expiry is the transport time-out: the one that was asked for, or, as §9.7.6.1.3 allows
// up to four times of it, as much more as the measured round trips need.
func (q *QP) expiry() time.Duration {
	t := q.attr.Timeout
	return max(t, min(4*t, q.retry.srtt+4*q.retry.rttvr))
}

// silence is how long a peer may be silent before it is probed.
func (q *QP) silence() time.Duration {
	r := &q.retry
	d := firstProbe
	if r.srtt != 0 {
		d = max(minProbe, 2*r.srtt+4*r.rttvr)
	} else if q.attr.Timeout != 0 {
		d = max(minProbe, min(d, q.attr.Timeout/2))
	}
	return min(d<<min(r.backoff, 20), maxProbe)
}

// Deadline gives the time at which Advance must be called; false: no timer runs.
func (q *QP) Deadline() (time.Duration, bool) {
	r := &q.retry
	d := min(r.rnrUntil, r.expires, r.probeAt, q.resp.resume)
	return d, d != never
}

// Advance says that time has passed. It acts on timers that have expired and does
// nothing if none has; Transmit sends what follows from it.
func (q *QP) Advance(now time.Duration) {
	r := &q.retry
	if now >= q.resp.resume {
		q.resp.resume, q.resp.burst = never, 0
	}
	if now >= r.rnrUntil {
		r.rnrUntil = never
		return
	}
	if now >= r.expires {
		q.stats.Timeouts++
		if r.left == 0 {
			q.failSend(ib.StatusRetryExc, 0)
			return
		}
		r.left--
		q.cc.expired(q)
		q.goBack()
		r.recovered = 0
		r.expires = now + q.expiry()
		r.probeAt = now + q.silence()
		return
	}
	if now >= r.probeAt {
		r.probe = true
		r.backoff = min(r.backoff+1, 32)
		r.probeAt = now + q.silence()
	}
}

// goBack lets everything that is not acknowledged be sent again (go-back-N).
func (q *QP) goBack() {
	r := &q.req
	r.send = r.una
	r.cur = q.sq.head
	r.inflight = 0
	r.askHead = r.askTail
	r.relaxed = r.max
	r.sinceAck = 0
	q.retry.timed = 0
	q.retry.probe = false
}

// lossReported goes back because the peer has told that something was lost: by a
// sequence NAK, or by a response that passes over another. That uses up a retry
// (§9.7.5.2.4).
func (q *QP) lossReported(now time.Duration) {
	r := &q.retry
	if r.recovered == q.req.una || r.rnrUntil != never {
		q.drop(DropSyndrome)
		return
	}
	if r.left == 0 {
		q.failSend(ib.StatusRetryExc, uint32(wire.NAKSequence))
		return
	}
	r.left--
	r.recovered = q.req.una
	q.stats.Recoveries++
	q.cc.lost(q)
	q.goBack()
	if r.expires != never {
		r.expires = now + q.expiry()
	}
	r.probeAt = now + q.silence()
}

// progressed is called when the peer has acknowledged something new, of which cost was
// in flight.
func (q *QP) progressed(now time.Duration, cost uint64) {
	r := &q.retry
	r.left = q.attr.RetryCount
	r.rnrLeft = q.attr.RNRRetry
	r.backoff = 0
	r.probe = false
	r.rnrUntil = never
	q.req.cautious = false
	if r.timed != 0 && q.req.una > r.timed {
		q.roundTrip(now - r.timedAt)
		r.timed = 0
	}
	r.expires, r.probeAt = never, never
	if q.req.outstanding() {
		q.arm(now)
	}
	q.cc.acknowledged(cost, q.req.inflight, q.mtu)
}

// timeRoundTrip measures the round trip of packet s, which asks for an answer, unless
// one is being measured, or s is sent for the second time (Karn's rule).
func (q *QP) timeRoundTrip(now time.Duration, s seq) {
	if r := &q.retry; r.timed == 0 && s >= q.req.max {
		r.timed, r.timedAt = s, now
	}
}

// roundTrip takes a measurement into the estimates (RFC 6298 §2).
func (q *QP) roundTrip(d time.Duration) {
	r := &q.retry
	d = max(d, 1)
	if r.srtt == 0 {
		r.srtt, r.rttvr = d, d/2
		return
	}
	r.rttvr += ((r.srtt - d).Abs() - r.rttvr) / 4
	r.srtt += (d - r.srtt) / 8
}

// sendProbe sends one packet again: the last, which shows whether the end of a burst was
// lost, and the oldest in turn, for which the peer may wait without saying so a second
// time. Of a READ it asks for all that is missing of a part, the last or the oldest, and
// never for a later piece: Linux' Soft-RoCE takes the begin of what was asked for last as
// the begin of the READ, and is silent about what lies before it from then on.
func (q *QP) sendProbe(out *Output) (full bool) {
	r := &q.req
	q.retry.probe = false
	if !r.outstanding() {
		return false
	}
	s := r.send - 1
	i := r.cur
	if q.retry.backoff&1 == 0 {
		s = r.una
		i = q.sq.head
	}
	// cur is the request after the one that ends at send, or that one itself.
	if i == q.sq.next || q.sq.wqe(i).first > s {
		i--
	}
	n := uint32(1)
	if w := q.sq.wqe(i); q.sq.slot(i).Opcode == ib.OpRead {
		s = max(r.una, q.partStart(w, s))
		n = q.readPart(w, s)
	}
	if !q.begin(out, q.payload(q.sq.slot(i), q.sq.wqe(i), s)) {
		q.retry.probe = true
		return true
	}
	if q.emit(out, i, s, n, true) != mem.OK {
		return false
	}
	r.relaxed = r.max
	q.retry.timed = 0
	q.retry.recovered = 0 // what it brings to light is news
	q.stats.Probes++
	q.stats.Retransmits++
	return false
}
