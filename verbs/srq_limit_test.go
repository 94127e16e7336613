package verbs_test

import (
	"context"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

// sharedRig has a shared queue of 16 with a queue pair on it.
type sharedRig struct {
	*rig
	srq  *verbs.SRQ
	ssrq *scripted.SRQ
	sqp  *scripted.QP
	cq   *verbs.CQ
}

func newShared(t testing.TB, cfg *scripted.Config, late bool) *sharedRig {
	t.Helper()
	r := &sharedRig{rig: newRig(t, cfg)}
	var err error
	r.srq, err = r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16})
	r.ok(err)
	r.closeLast(r.srq)
	r.ssrq = r.ctx.SRQ(0)
	if late {
		r.ssrq.LateLimit()
	}
	r.cq, _ = r.rig.cq(32, nil)
	var qp *verbs.QP
	qp, r.sqp = r.qp(verbs.QPConfig{SendCQ: r.cq, SRQ: r.srq, MaxSendWR: 4})
	r.rts(qp)
	return r
}

func (r *sharedRig) post(n int) {
	r.Helper()
	for range n {
		r.ok(r.srq.PostRecv(verbs.Recv(1, r.mr.SGE(0, 8))))
	}
}

// takes lets the device take receives, and polls their completions.
func (r *sharedRig) takes(n int) {
	r.Helper()
	r.sqp.CompleteRecv(n, scripted.Received(8), false)
	if got := len(r.poll(r.cq)); got != n {
		r.Fatalf("%d completions, want %d", got, n)
	}
}

func (r *sharedRig) limit(want int, what string) {
	r.Helper()
	_, limit, err := r.srq.Query()
	r.ok(err)
	if limit != want {
		r.Errorf("%s: limit %d, want %d", what, limit, want)
	}
}

// once wants one event of the limit, and no other event.
func (r *sharedRig) once(what string) {
	r.Helper()
	if ev := r.event(); ev.Type != ib.EventSRQLimitReached || ev.SRQ != r.srq || ev.Device != r.dev {
		r.Errorf("%s: %+v", what, ev)
	}
	r.limit(0, what)
	r.none(what)
}

func (r *sharedRig) none(what string) {
	r.Helper()
	if ev, ok, err := r.dev.Async().TryEvent(); ok || err != nil {
		r.Errorf("%s: %+v, %v", what, ev, err)
	}
}

// TestC168_LimitTooLate: a limit above what is left has its event without traffic, once, on a
// device that tells at once and on one that tells when the next receive is taken.
func TestC168_LimitTooLate(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		r := newShared(t, nil, late)
		r.post(2)
		r.ok(r.srq.SetLimit(5))
		r.once("2 left, limit 5")
		r.takes(2) // what the device would tell, is told
		r.none("the rest")

		// Again, and the next arm is one of its own.
		r.post(4)
		r.ok(r.srq.SetLimit(16))
		r.ok(r.srq.SetLimit(4)) // in place of that one, whose event has come
		if ev := r.event(); ev.SRQ != r.srq {
			t.Errorf("%+v", ev)
		}
		r.none("4 left, limit 4")
		r.limit(4, "4 left")
		r.takes(1)
		r.once("3 left, limit 4")
		r.takes(3)
		r.none("the rest")

		// None is left when the limit is set; zero asks for nothing.
		r.ok(r.srq.SetLimit(1))
		r.once("0 left, limit 1")
		r.ok(r.srq.SetLimit(0))
		r.none("limit 0")
	}
}

// TestC168_TakenBefore: receives that the device had taken when the limit was set, and whose
// completions nobody had polled. A device that tells late has no receive left to tell with, so the
// library does when it sees that.
func TestC168_TakenBefore(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		r := newShared(t, nil, late)
		r.post(3)
		r.sqp.CompleteRecv(3, scripted.Received(8), false)
		r.ok(r.srq.SetLimit(2)) // of 3, as far as is known
		if late {
			r.none("nothing polled")
		}
		if got := len(r.poll(r.cq)); got != 3 {
			t.Fatalf("%d completions", got)
		}
		r.once("0 left, limit 2")
		r.post(3)
		r.takes(3)
		r.none("not armed")
	}
}

// TestC168_DeviceToo: the event that a device raises for an arm whose event the library has given
// is dropped, whichever is read first.
func TestC168_DeviceToo(t *testing.T) {
	t.Parallel()
	r := newShared(t, nil, false)
	r.post(1)
	r.ok(r.srq.SetLimit(1))
	r.takes(1) // the device tells; the library sees none left
	r.once("0 left, limit 1")
	r.post(2)
	r.ok(r.srq.SetLimit(1))
	r.limit(1, "2 left")
	r.takes(1)
	r.none("1 left, limit 1")
	r.takes(1)
	r.once("0 left again")
}

// TestC168_Refused: a limit that the device refuses leaves the one before.
func TestC168_Refused(t *testing.T) {
	t.Parallel()
	r := newShared(t, nil, false)
	r.post(3)
	r.ok(r.srq.SetLimit(2))
	for _, n := range []int{3, 16} {
		r.p.FailOp("modify srq", 1, syscall.EOPNOTSUPP)
		r.is(r.srq.SetLimit(n), syscall.EOPNOTSUPP, "set the limit")
		r.none("refused")
		r.limit(2, "refused")
	}
	r.takes(1)
	r.none("2 left, limit 2")
	r.takes(1)
	r.once("1 left, limit 2")
}

// TestC168_Waiter: who waits for an event is woken by one that the library makes, however the
// device's notifier is waited for.
func TestC168_Waiter(t *testing.T) {
	t.Parallel()
	t.Run("Waiter", func(t *testing.T) { bubble(t, func(t *testing.T) { limitWaiter(t, nil, synctest.Wait) }) })
	t.Run("Descriptor", func(t *testing.T) {
		t.Parallel()
		limitWaiter(t, &scripted.Config{Descriptors: true}, func() {})
	})
}

func limitWaiter(t *testing.T, cfg *scripted.Config, asleep func()) {
	r := newShared(t, cfg, true)
	ctx, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	for i := range 20 {
		for _, c := range []context.Context{bg, ctx} {
			got := make(chan error, 2)
			for range 2 { // one leads
				go func() {
					ev, err := r.dev.Async().Event(c)
					if err == nil && (ev.Type != ib.EventSRQLimitReached || ev.SRQ != r.srq) {
						t.Errorf("%+v", ev)
					}
					got <- err
				}()
			}
			if i%2 == 0 {
				asleep()
			}
			for range 2 {
				r.ok(r.srq.SetLimit(1))
				r.ok(<-got)
			}
		}
	}
}
