package scripted_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestP25_SharedQueueWithoutLastEvent: a queue pair with a shared receive queue ends in a
// limited time, whether the device tells of its last receive (QP_LAST_WQE_REACHED), tells
// late, or never, and whether it flushes or not. What is in the shared queue stays.
func TestP25_SharedQueueWithoutLastEvent(t *testing.T) {
	t.Parallel()
	for _, tells := range []string{"never", "late", "at once"} {
		for _, flushes := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				ok := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				p := scripted.New(nil)
				dev, err := verbs.Open(p, "")
				ok(err)
				ctx := p.Device("").Context()
				pd, err := dev.AllocPD()
				ok(err)
				cq, err := dev.CreateCQ(32, nil)
				ok(err)
				srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 8})
				ok(err)
				for i := range 4 {
					ok(srq.PostRecv(verbs.RecvWR{ID: uint64(i)}))
				}
				qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 4})
				ok(err)
				ready(t, qp)
				sqp := ctx.QP(-1)
				ok(qp.PostSend(verbs.SendWR{ID: 99, Opcode: ib.OpSend}))
				if !flushes {
					sqp.NeverFlush()
				}
				sqp.CompleteRecv(1, scripted.Received(8), false)
				last := driver.AsyncEvent{Type: ib.EventQPLastWQEReached, Handle: sqp.Handle(), Port: 1}
				switch tells {
				case "late":
					time.AfterFunc(time.Hour, func() { ctx.PostAsync(last) })
				case "at once":
					ctx.PostAsync(last)
				}
				start := time.Now()
				ok(qp.Fail())
				ok(qp.Close())
				if d := time.Since(start); d > 2*time.Second {
					t.Errorf("tells %s, flushes %v: Close took %v", tells, flushes, d)
				}
				if tells == "late" {
					time.Sleep(2 * time.Hour)
				}
				for {
					ev, there, err := dev.Async().TryEvent()
					ok(err)
					if !there {
						break
					}
					if ev.QP != nil {
						t.Errorf("an event names a queue pair that is closed: %+v", ev)
					}
				}
				// The receives serve the next.
				next, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 4})
				ok(err)
				ready(t, next)
				ctx.QP(-1).CompleteRecv(3, scripted.Received(8), false)
				var dst [8]verbs.WC
				n, err := cq.Poll(dst[:])
				ok(err)
				if n != 3 || dst[0].ID != 1 || dst[0].QP != next {
					t.Errorf("%d receives of the shared queue are left: %+v", n, dst[:n])
				}
				for _, c := range []interface{ Close() error }{next, srq, cq, pd} {
					ok(c.Close())
				}
				for _, v := range p.Violations() {
					t.Errorf("contract: %s", v)
				}
			})
		}
	}
}

// ready moves a queue pair to RTS.
func ready(t *testing.T, qp *verbs.QP) {
	t.Helper()
	a := verbs.QPAttr{
		Port: 1, PathMTU: ib.MTU1024, DestQPN: 0x77, RQPSN: 5, SQPSN: 6,
		AH:          verbs.AHAttr{DGID: ib.GID{10: 0xFF, 11: 0xFF, 12: 10, 15: 2}, SGIDIndex: 1, Global: true, Port: 1},
		MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: time.Millisecond, Timeout: 67 * time.Millisecond, RetryCount: 7, RNRRetry: 7,
	}
	for _, step := range []struct {
		s ib.QPState
		m ib.QPAttrMask
	}{
		{ib.StateInit, ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccess},
		{ib.StateRTR, ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer},
		{ib.StateRTS, ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrSQPSN | ib.AttrMaxRDAtomic},
	} {
		a.State = step.s
		if err := qp.Modify(&a, ib.AttrState|step.m); err != nil {
			t.Fatal(err)
		}
	}
}
