package verbs_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/verbena-rdma/verbena/internal/gosched"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestC259_Keep: who polls or posts without end lets others run, if the provider calls C. It is not
// parallel, as it takes all processors but one away, so that nobody runs else; the monitor would
// interrupt after 10 ms. The scheduler may hand one turn in 61 back, never two in succession.
func TestC259_Keep(t *testing.T) {
	const keep = 10e6 // ns, more than the time between two turns
	for gosched.Now() < keep {
		runtime.Gosched()
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for what, do := range map[string]func(*rig, *verbs.QP, *verbs.CQ){
		"polls": func(r *rig, _ *verbs.QP, cq *verbs.CQ) {
			var wcs [1]verbs.WC
			for range 64 {
				_, err := cq.Poll(wcs[:])
				r.ok(err)
			}
		},
		"posts": func(r *rig, qp *verbs.QP, _ *verbs.CQ) {
			for range 2 {
				r.ok(qp.PostSend(verbs.Send(1, r.mr.SGE(0, 32<<10), 0)))
			}
		},
		"waits": func(r *rig, qp *verbs.QP, cq *verbs.CQ) {
			r.ok(qp.Close()) // so that there is something
			_, err := cq.Wait(bg, nil)
			r.ok(err)
		},
	} {
		t.Run(what, func(t *testing.T) {
			for range 2 {
				r := newRig(t, nil)
				qp, _, cq, _ := r.ready(verbs.QPConfig{})
				var ran atomic.Bool
				go func() { ran.Store(true) }()
				if do(r, qp, cq); ran.Load() {
					return
				}
			}
			t.Error("nobody else ran")
		})
	}
}
