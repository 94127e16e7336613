package verbs_test

import (
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestP10_EdgeWithManyEvents: the events of 64 queues come behind one edge of the
// descriptor that Go's poller watches. There is no re-check: what is not taken with that
// edge stays for ever.
func TestP10_EdgeWithManyEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, &scripted.Config{Descriptors: true})
	r.dev.SetRecheck(-1)
	ch, sch := r.channel()
	const queues = 64
	ctx, cancel := contextWithTimeout(30 * time.Second)
	defer cancel()
	done := make(chan error, queues)
	var cqs []*verbs.CQ
	var scqs []*scripted.CQ
	var sqps []*scripted.QP
	for range queues {
		cq, scq := r.cq(4, &verbs.CQConfig{Channel: ch})
		qp, sqp := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 1, MaxRecvWR: 2})
		r.move(qp, ib.StateInit)
		r.recv(qp, 1)
		cqs, scqs, sqps = append(cqs, cq), append(scqs, scq), append(sqps, sqp)
	}
	for _, cq := range cqs {
		go func() {
			_, err := cq.Next(ctx)
			done <- err
		}()
	}
	for _, scq := range scqs {
		for !scq.Asleep() {
			time.Sleep(time.Millisecond)
		}
	}
	sch.Together(func() { // the events are there before anybody looks
		for _, sqp := range sqps {
			sqp.CompleteRecv(1, scripted.Received(8), false)
		}
	})
	for range queues {
		r.ok(<-done)
	}
	if n := sch.Queued(); n != 0 {
		t.Errorf("%d events were left", n)
	}
	for _, cq := range cqs {
		if s := cq.Stats(); s.Rescued != 0 {
			t.Errorf("%+v", s)
		}
	}
}
