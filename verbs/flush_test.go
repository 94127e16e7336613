package verbs_test

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestC082_Reset(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	r.send(qp, 1, ib.Signaled)
	r.send(qp, 2, 0)
	r.send(qp, 3, ib.Signaled)
	r.recv(qp, 4)
	old := sqp.Sends()[1]
	sqp.CompleteSend(1, success)
	r.move(qp, ib.StateReset)
	all := r.poll(cq)
	sends, recvs := queues(all)
	r.want(sends, wcs{{1, success}, {2, flush}, {3, flush}})
	r.want(recvs, wcs{{4, flush}})
	if sends[0].Synthetic || !sends[1].Synthetic || !recvs[0].Synthetic || qp.Err() != nil {
		t.Errorf("%+v, cause %v", all, qp.Err())
	}
	r.rts(qp)
	r.send(qp, 5, ib.Signaled)
	sqp.Inject(driver.WC{ID: old.ID}, false)
	if got := r.poll(cq); len(got) != 0 {
		t.Errorf("what was before the reset completed: %v", got)
	}
	sqp.CompleteSend(1, success)
	r.want(r.poll(cq), wcs{{5, success}})
	// From the error state.
	r.send(qp, 6, 0)
	r.ok(qp.FailWith(io.EOF))
	r.move(qp, ib.StateReset)
	r.want(r.poll(cq), wcs{{6, flush}})
	if qp.Err() != nil || qp.State() != ib.StateReset {
		t.Errorf("%v, %v", qp.Err(), qp.State())
	}
	r.rts(qp)
	r.send(qp, 7, ib.Signaled)
	sqp.CompleteSend(1, success)
	r.want(r.poll(cq), wcs{{7, success}})
}

func TestC083_Flush(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, _, cq, _ := r.ready(verbs.QPConfig{})
	r.send(qp, 1, 0)
	r.send(qp, 2, ib.Signaled)
	r.send(qp, 3, 0)
	for i := range 3 {
		r.recv(qp, uint64(4+i))
	}
	r.move(qp, ib.StateError)
	sends, recvs := queues(r.poll(cq))
	r.want(sends, wcs{{1, flush}, {2, flush}, {3, flush}})
	r.want(recvs, wcs{{4, flush}, {5, flush}, {6, flush}})
	r.is(qp.Err(), verbs.ErrFailed, "cause")
	r.move(qp, ib.StateError) // again
	r.ok(qp.Fail())
}

// TestCause: the first one wins, but a flush is none if a better one follows.
// TestFlushAfterWhatWasThere: a request that is posted in the error state completes behind what the
// device had completed before, also of the other queue: who takes the first failure for the end
// must have seen all that came.
func TestFlushAfterWhatWasThere(t *testing.T) {
	t.Parallel()
	for _, post := range []string{"send", "recv"} {
		r := newRig(t, nil)
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
		r.recv(qp, 1)
		r.send(qp, 2, ib.Signaled)
		want := wcs{{1, success}, {3, flush}}
		if post == "send" { // the queue of sends is empty, that of receives is not
			sqp.CompleteSend(1, success)
			r.want(r.poll(cq), wcs{{2, success}})
			sqp.CompleteRecv(1, scripted.Received(8), false)
		} else {
			sqp.CompleteRecv(1, scripted.Received(8), false)
			r.want(r.poll(cq), wcs{{1, success}})
			sqp.CompleteSend(1, success)
			want = wcs{{2, success}, {3, flush}}
		}
		r.move(qp, ib.StateError)
		if post == "send" {
			r.send(qp, 3, ib.Signaled)
		} else {
			r.recv(qp, 3)
		}
		r.want(r.poll(cq), want)
	}
}

func TestCause(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	fresh := func() (*verbs.QP, *scripted.QP, *verbs.CQ) {
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
		r.recv(qp, 1)
		r.send(qp, 2, ib.Signaled)
		return qp, sqp, cq
	}
	qp, _, cq := fresh()
	r.ok(qp.FailWith(io.EOF))
	if qp.Err() != io.EOF { // before any flush was polled, and as it is
		t.Errorf("cause %v", qp.Err())
	}
	r.ok(qp.Fail())
	r.ok(qp.FailWith(errors.New("too late")))
	r.poll(cq)
	r.ok(qp.Close())
	if qp.Err() != io.EOF {
		t.Errorf("cause %v", qp.Err())
	}

	// Flush first, cause later.
	qp, sqp, cq := fresh()
	sqp.SetState(ib.StateError)
	sqp.Flush()
	r.poll(cq)
	r.is(qp.Err(), ib.ErrWRFlush, "only a flush is known")
	r.ok(qp.Fail())
	r.is(qp.Err(), ib.ErrWRFlush, "Fail is no news")
	r.ok(qp.FailWith(io.EOF))
	if qp.Err() != io.EOF {
		t.Errorf("cause %v", qp.Err())
	}

	qp, sqp, cq = fresh()
	sqp.CompleteSend(1, ib.StatusRNRRetryExc)
	r.poll(cq)
	r.ok(qp.FailWith(io.EOF))
	r.is(qp.Err(), ib.ErrRNRRetryExc, "completion")

	qp, sqp, _ = fresh()
	sqp.Event(ib.EventQPAccessErr)
	if ev, ok, err := r.dev.Async().TryEvent(); !ok || err != nil || ev.QP != qp {
		t.Error(ev, ok, err)
	}
	if err := qp.Err(); err != verbs.EventError(ib.EventQPAccessErr) || qp.State() != ib.StateError {
		t.Errorf("cause %v, state %v", err, qp.State())
	}

	qp, _, _ = fresh()
	r.ok(qp.Drain(bg))
	r.is(qp.Err(), verbs.ErrFailed, "Drain")
	qp, _, _ = fresh()
	r.ok(qp.Close())
	r.is(qp.Err(), net.ErrClosed, "Close")
	qp, _, _ = fresh()
	r.ok(qp.FailWith(nil))
	r.is(qp.Err(), verbs.ErrFailed, "FailWith(nil)")
	r.is((*verbs.QP)(nil).Err(), syscall.EINVAL, "nil")

	// The device says so.
	qp, sqp, _ = fresh()
	sqp.SetState(ib.StateError)
	a, err := qp.Query(ib.AttrState)
	r.ok(err)
	if a.State != ib.StateError || qp.State() != ib.StateError || qp.Err() == nil {
		t.Errorf("%v, %v, %v", a.State, qp.State(), qp.Err())
	}
}

// TestFailInReset: allowed in every state, though the device's table has no such way.
func TestFailInReset(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		for _, s := range allStates {
			qp, sqp := r.reach(typ, s)
			r.ok(qp.Fail())
			if qp.State() != ib.StateError {
				t.Errorf("%v in %v: state %v", typ, s, qp.State())
			}
			if s != ib.StateReset && sqp.Attr().State != ib.StateError {
				t.Errorf("%v in %v: the device was not told", typ, s)
			}
			a, err := qp.Query(ib.AttrState)
			if err != nil || a.State != ib.StateError {
				t.Errorf("%v in %v: query %v, %v", typ, s, a.State, err)
			}
			r.move(qp, ib.StateReset)
			r.rts(qp)
		}
	}
}

func TestC086_C158_SendErrorState(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{Type: ib.UC})
	r.recv(qp, 1)
	r.recv(qp, 2)
	r.send(qp, 3, ib.Signaled)
	r.send(qp, 4, 0)
	sqp.HoldFlush()
	sqp.CompleteSend(1, ib.StatusLocProt)
	sqp.SetState(ib.StateSQE)
	r.want(r.poll(cq), wcs{{3, ib.StatusLocProt}})
	if qp.State() != ib.StateSQE || qp.Err() == nil {
		t.Errorf("%v, %v", qp.State(), qp.Err())
	}
	// Sends are flushed, receives go on.
	r.send(qp, 5, ib.Signaled)
	r.recv(qp, 6)
	sqp.CompleteSend(1, flush)
	sqp.SetState(ib.StateSQE)
	sqp.CompleteRecv(1, scripted.Received(8), false)
	sends, recvs := queues(r.poll(cq))
	r.want(sends, wcs{{4, flush}, {5, flush}})
	r.want(recvs, wcs{{1, success}})
	if qp.State() != ib.StateSQE {
		t.Errorf("state %v", qp.State())
	}
	// And heals.
	r.move2(qp, ib.StateSQE, ib.StateRTS)
	if qp.State() != ib.StateRTS || qp.Err() != nil {
		t.Errorf("%v, %v", qp.State(), qp.Err())
	}
	r.send(qp, 7, ib.Signaled)
	sqp.CompleteSend(1, success)
	r.want(r.poll(cq), wcs{{7, success}})
	sqp.Flush()

	// C-155: a datagram that is too long for its receive.
	ud, sud, cq, _ := r.ready(verbs.QPConfig{Type: ib.UD})
	r.recv(ud, 1)
	w := scripted.Received(0)
	w.Status = ib.StatusLocLen
	sud.CompleteRecv(1, w, false)
	r.want(r.poll(cq), wcs{{1, ib.StatusLocLen}})
	if ud.State() != ib.StateRTS || ud.Err() != nil {
		t.Errorf("%v, %v", ud.State(), ud.Err())
	}
	// C-158 and then a flush in the error state.
	ud, sud, cq, _ = r.ready(verbs.QPConfig{Type: ib.UD})
	r.recv(ud, 1)
	w.Status = flush
	sud.CompleteRecv(1, w, false)
	r.poll(cq)
	if ud.State() != ib.StateError {
		t.Errorf("state %v", ud.State())
	}
}

func (r *rig) move2(qp *verbs.QP, from, to ib.QPState) {
	r.Helper()
	a := attrs()
	a.State = to
	r.ok(qp.Modify(&a, required(qp.Type(), from, to)))
}

// TestP26_NeverFlushes: a device that does not flush.
func TestP26_NeverFlushes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.dev.SetRecheck(time.Minute) // or it looks at the same instant
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
		sqp.NeverFlush()
		r.recv(qp, 1)
		r.send(qp, 2, ib.Signaled)
		r.send(qp, 3, 0)
		// Nobody drains: the library completes them after a second.
		start := time.Now()
		r.ok(qp.Fail())
		if got := r.poll(cq); len(got) != 0 {
			t.Errorf("completed at once: %v", got)
		}
		wc, err := cq.Next(bg)
		r.ok(err)
		if d := time.Since(start); d != time.Second || !wc.Synthetic || wc.Status != flush {
			t.Errorf("%+v after %v", wc, d)
		}
		sends, recvs := queues(append(r.poll(cq), wc))
		if len(sends) != 2 || len(recvs) != 1 {
			t.Errorf("%v, %v", sends, recvs)
		}
		// What the device says later is dropped.
		r.move(qp, ib.StateReset)
		r.rts(qp)
		if got := r.poll(cq); len(got) != 0 {
			t.Errorf("twice: %v", got)
		}
		// It is not waited for again: Drain and Close answer at once.
		r.recv(qp, 4)
		start = time.Now()
		r.ok(qp.Drain(bg))
		r.want(r.poll(cq), wcs{{4, flush}})
		qp2, sqp2, _, _ := r.ready(verbs.QPConfig{})
		sqp2.NeverFlush()
		r.recv(qp2, 5)
		r.ok(qp2.Close())
		if d := time.Since(start); d != 0 {
			t.Errorf("waited again: %v", d)
		}
		// Close alone waits a second, once.
		r2 := newRig(t, nil)
		qp, sqp, cq, _ = r2.ready(verbs.QPConfig{})
		sqp.NeverFlush()
		r2.recv(qp, 6)
		start = time.Now()
		r2.ok(qp.Close())
		if d := time.Since(start); d < time.Second || d > 2*time.Second {
			t.Errorf("Close took %v", d)
		}
		if got := r2.poll(cq); len(got) != 0 {
			t.Errorf("given after Close: %v", got)
		}
		// The limit is a setting.
		r3 := newRig(t, nil)
		r3.dev.SetFlushLimit(time.Minute)
		qp, sqp, cq, _ = r3.ready(verbs.QPConfig{})
		sqp.HoldFlush()
		r3.recv(qp, 7)
		start = time.Now()
		go func() {
			time.Sleep(50 * time.Second)
			sqp.Flush()
		}()
		r3.ok(qp.Drain(bg))
		if d := time.Since(start); d < 50*time.Second || d > 51*time.Second {
			t.Errorf("Drain took %v", d)
		}
		if got := r3.poll(cq); len(got) != 1 || got[0].Synthetic {
			t.Errorf("%+v", got)
		}
	})
}

// TestDrain: completions stay for their consumer, in order, whoever polls.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		cq, _ := r.cq(64, nil)
		qp, sqp := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
		other, sother := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
		r.rts(qp)
		r.rts(other)
		for i := range 4 {
			r.recv(qp, uint64(i))
			r.recv(other, 100+uint64(i))
		}
		sqp.CompleteRecv(2, scripted.Received(8), false)
		sother.CompleteRecv(1, scripted.Received(8), false)
		r.ok(qp.Drain(bg))
		if s, v := qp.Outstanding(); s+v != 0 {
			t.Errorf("outstanding %d, %d", s, v)
		}
		sother.CompleteRecv(1, scripted.Received(8), false)
		r.ok(qp.Drain(bg))
		r.want(r.poll(cq), wcs{{0, success}, {1, success}, {100, success}, {2, flush}, {3, flush}, {101, success}})

		// Unsignaled requests that succeeded give no completion, and Drain does not wait for
		// one; those that did not, do.
		other.Fail()
		r.poll(cq)
		for _, done := range []int{0, 1, 3} {
			qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 8})
			for i := range 3 {
				r.send(qp, uint64(i), 0)
			}
			sqp.CompleteSend(done, success)
			start := time.Now()
			r.ok(qp.Drain(bg))
			if d := time.Since(start); d != 0 {
				t.Errorf("%d done: Drain took %v", done, d)
			}
			if s, v := qp.Outstanding(); s+v != 0 {
				t.Errorf("%d done: outstanding %d, %d", done, s, v)
			}
			got := r.poll(cq)
			if len(got) != 3-done {
				t.Errorf("%d done: completions %v", done, got)
			}
			for i, wc := range got {
				if wc.ID != uint64(done+i) || wc.Status != flush || wc.Synthetic {
					t.Errorf("%d done: %+v", done, wc)
				}
			}
		}
		// The device takes no request in the error state: after the limit they are
		// flushed.
		qp, sqp, cq, _ = r.ready(verbs.QPConfig{MaxSendWR: 8})
		sqp.RefuseInError()
		r.send(qp, 1, 0)
		sqp.CompleteSend(1, success)
		start := time.Now()
		r.ok(qp.Drain(bg))
		if d := time.Since(start); d < time.Second || d > 2*time.Second {
			t.Errorf("Drain took %v", d)
		}
		got := r.poll(cq)
		r.want(got, wcs{{1, flush}})

		// A context ends the wait, not the flush.
		r4 := newRig(t, nil)
		qp, sqp, cq, _ = r4.ready(verbs.QPConfig{})
		sqp.HoldFlush()
		r4.recv(qp, 9)
		ctx, cancel := contextWithTimeout(100 * time.Millisecond)
		defer cancel()
		r4.is(qp.Drain(ctx), errDeadline, "Drain")
		sqp.Flush()
		r4.ok(qp.Drain(bg))
		r4.want(r4.poll(cq), wcs{{9, flush}})

		// Close beside Drain.
		qp, sqp, _, _ = r4.ready(verbs.QPConfig{})
		sqp.HoldFlush()
		r4.recv(qp, 9)
		done := make(chan error)
		go func() { done <- qp.Drain(bg) }()
		synctest.Wait()
		r4.ok(qp.Close())
		r4.is(<-done, net.ErrClosed, "Drain beside Close")
		r4.is(qp.Drain(bg), net.ErrClosed, "Drain after Close")
	})
}

// TestFailRefused: the device does not go to the error state. Then its requests are not
// completed behind its back: only Close gives the memory back.
func TestFailRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		qp, _, cq, _ := r.ready(verbs.QPConfig{})
		r.recv(qp, 1)
		r.p.FailAlways("modify qp", syscall.EIO)
		r.is(qp.Fail(), syscall.EIO, "Fail")
		r.is(qp.Drain(bg), syscall.EIO, "Drain")
		time.Sleep(time.Minute)
		if got := r.poll(cq); len(got) != 0 {
			t.Errorf("completed: %v", got)
		}
		start := time.Now()
		r.ok(qp.Close())
		if time.Since(start) != 0 {
			t.Error("Close waited for a device that was not told")
		}
		r.p.Heal()
		qp, _, _, _ = r.ready(verbs.QPConfig{})
		r.p.FailOp("close qp", 1, syscall.EBUSY)
		r.is(qp.Close(), syscall.EBUSY, "Close")
		r.ok(qp.Close())
	})
}
