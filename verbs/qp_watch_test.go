package verbs_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

// watched gives a queue pair in RTS with two receives, and its other side.
func watched(t *testing.T) (*verbs.QP, *scripted.QP, *verbs.CQ) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := scripted.New(nil)
	d, err := verbs.Open(p, "")
	check(err)
	pd, err := d.AllocPD()
	check(err)
	cq, err := d.CreateCQ(64, nil)
	check(err)
	mr, err := pd.Alloc(64, ib.LocalWrite)
	check(err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
	check(err)
	check(qp.Modify(&verbs.QPAttr{State: ib.StateInit, Port: 1}, ib.AttrState|ib.AttrPort|ib.AttrPKeyIndex|ib.AttrAccess))
	for i := range uint64(2) {
		check(qp.PostRecv(verbs.Recv(i, mr.SGE(0, 8))))
	}
	t.Cleanup(func() { check(errors.Join(qp.Close(), mr.Close(), cq.Close(), pd.Close())) })
	return qp, p.Device("").Context().QP(0), cq
}

func TestOnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		qp, other, cq := watched(t)
		n := 0
		count := func() { n++ }
		calls := func(want int) {
			t.Helper()
			synctest.Wait()
			if n != want {
				t.Errorf("called %d times, want %d", n, want)
			}
			n = 0
		}
		qp.OnError(count)
		qp.OnError(nil)
		qp.OnError(func() { count() })
		calls(0)
		other.CompleteRecv(1, scripted.Received(1), false)
		if _, err := cq.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		calls(0)
		if err := qp.FailWith(errors.ErrUnsupported); err != nil {
			t.Fatal(err)
		}
		calls(1)
		qp.Fail()
		calls(0) // once
		qp.OnError(count)
		calls(1) // it is there already
		(*verbs.QP)(nil).OnError(count)
		new(verbs.QP).OnError(count)
		calls(0)
	})
}

func TestOnRecv(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		qp, other, cq := watched(t)
		n := 0
		count := func() { n++ }
		qp.OnRecv(count)
		qp.OnRecv(nil)
		qp.OnRecv(nil)
		other.CompleteRecv(1, scripted.Received(1), false)
		if _, err := cq.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n != 0 {
			t.Errorf("called after it was ended")
		}
		qp.OnRecv(count)
		qp.OnRecv(count)
		other.CompleteRecv(1, scripted.Received(1), false)
		synctest.Wait()
		if n != 0 {
			t.Errorf("called before the completion was taken")
		}
		if _, err := cq.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n != 1 {
			t.Errorf("called %d times", n)
		}
	})
}
