package verbs_test

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestC057_Overrun(t *testing.T) {
	t.Parallel()
	for _, read := range []bool{false, true} { // the event is read before, or not at all
		t.Run(fmt.Sprint("event ", read), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			cq, scq := r.cq(4, nil)
			good, _ := r.cq(64, nil)
			qp, sqp := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 16, MaxRecvWR: 16, AllowOverrun: true})
			half, shalf := r.qp(verbs.QPConfig{SendCQ: good, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 4, AllowOverrun: true})
			lives, _ := r.qp(verbs.QPConfig{SendCQ: good, MaxSendWR: 4, MaxRecvWR: 4})
			for _, q := range []*verbs.QP{qp, half, lives} {
				r.rts(q)
			}
			for i := range 6 {
				r.send(qp, uint64(i), ib.Signaled)
			}
			r.send(half, 100, ib.Signaled)
			r.recv(half, 101)
			sqp.CompleteSend(6, success) // four fit
			if read {
				ev, ok, err := r.dev.Async().TryEvent()
				if err != nil || !ok || ev.Type != ib.EventCQErr || ev.CQ != cq {
					t.Fatalf("event %+v, %v, %v", ev, ok, err)
				}
			}
			dst := make([]verbs.WC, 64)
			n, err := cq.Poll(dst)
			r.ok(err)
			sends, recvs := queues(dst[:n])
			r.want(sends, wcs{{0, success}, {1, success}, {2, success}, {3, success}, {4, flush}, {5, flush}})
			r.want(recvs, wcs{{101, flush}})
			if !sends[5].Synthetic {
				t.Error("a completion that was lost is not marked")
			}
			_, err = cq.Poll(dst)
			if err == nil {
				t.Error("a broken queue gives no error")
			}
			_, err = cq.Wait(bg, dst)
			if err == nil {
				t.Error("waiting for a broken queue gives no error")
			}
			r.want(r.poll(good), wcs{{100, flush}})
			for _, q := range []*verbs.QP{qp, half} {
				if q.State() != ib.StateError || q.Err() == nil {
					t.Errorf("%v: state %v, cause %v", q.Num(), q.State(), q.Err())
				}
			}
			if lives.State() != ib.StateRTS || lives.Err() != nil {
				t.Errorf("a queue pair of another queue: %v, %v", lives.State(), lives.Err())
			}
			for _, s := range []*scripted.QP{sqp, shalf} {
				if s.Attr().State != ib.StateError {
					t.Error("the device was not told")
				}
			}
			_ = scq
		})
	}
}

func TestC058_Admission(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(20, nil)
	recv, _ := r.cq(4, nil)
	r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
	r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
	made := r.p.Count("create qp")
	for _, cfg := range []verbs.QPConfig{
		{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4},
		{SendCQ: cq, RecvCQ: recv, MaxSendWR: 5, MaxRecvWR: 1},
		{SendCQ: cq, RecvCQ: recv, MaxSendWR: 1, MaxRecvWR: 5},
	} {
		_, err := r.pd.CreateQP(cfg)
		r.is(err, verbs.ErrCQRoom, "one too many")
		r.is(err, syscall.ENOMEM, "its errno")
		if err != nil && (!strings.Contains(err.Error(), "MaxSendWR") || strings.Contains(err.Error(), "RLIMIT_MEMLOCK")) {
			t.Errorf("%q does not say how to mend it", err)
		}
	}
	if r.p.Count("create qp") != made {
		t.Error("the device was asked all the same")
	}
	last, _ := r.qp(verbs.QPConfig{SendCQ: cq, RecvCQ: recv, MaxSendWR: 4, MaxRecvWR: 4})
	r.is(cq.Resize(19), verbs.ErrCQRoom, "C-060 shrink below what is reserved")
	r.ok(cq.Resize(40))
	if cq.Cap() != 40 {
		t.Errorf("room %d", cq.Cap())
	}
	for _, n := range []int{0, -1, 1 << 20} {
		r.is(cq.Resize(n), syscall.EINVAL, "C-060")
	}
	r.ok(last.Close())
	r.ok(cq.Resize(16))
	over, _ := r.qp(verbs.QPConfig{SendCQ: cq, AllowOverrun: true})
	if over.Config().MaxSendWR != 64 {
		t.Errorf("default of MaxSendWR: %d", over.Config().MaxSendWR)
	}
}

// TestC060_ResizeKeeps: completions that wait stay, in order.
func TestC060_ResizeKeeps(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 32, MaxRecvWR: 4})
	for i := range 32 {
		r.send(qp, uint64(i), ib.Signaled)
	}
	sqp.CompleteSend(32, success)
	var one [1]verbs.WC
	for i := range 32 {
		n, err := cq.Poll(one[:])
		if n != 1 || err != nil || one[0].ID != uint64(i) {
			t.Fatalf("%d: %+v, %v", i, one[0], err)
		}
		if i%10 == 3 {
			r.ok(cq.Resize(100 + i))
		}
	}
}

func TestCQClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	r.send(qp, 1, ib.Signaled)
	sqp.CompleteSend(1, success)
	r.ok(cq.Close())
	r.ok(cq.Close())
	dst := make([]verbs.WC, 1)
	_, err := cq.Poll(dst)
	r.is(err, net.ErrClosed, "Poll")
	_, err = cq.Wait(bg, dst)
	r.is(err, net.ErrClosed, "Wait")
	_, err = cq.Next(bg)
	r.is(err, net.ErrClosed, "Next")
	for _, err := range cq.Completions(bg) {
		r.is(err, net.ErrClosed, "Completions")
	}
	_, err = cq.Arm(ib.NotifyAny)
	r.is(err, net.ErrClosed, "Arm")
	_, err = cq.Channel()
	r.is(err, net.ErrClosed, "Channel")
	r.is(cq.Resize(4), net.ErrClosed, "Resize")
	r.is(cq.Moderate(1, time.Millisecond), net.ErrClosed, "Moderate")
	r.is(qp.PostSend(verbs.Send(1, r.mr.SGE(0, 8), 0)), net.ErrClosed, "PostSend")
	r.is(qp.PostRecv(verbs.Recv(1, r.mr.SGE(0, 8))), net.ErrClosed, "PostRecv")
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	r.is(err, net.ErrClosed, "CreateQP")
	if r.p.Count("close cq") != 0 {
		t.Error("the device's queue is gone although a queue pair uses it")
	}
	r.ok(qp.Close())
	if r.p.Count("close cq") != 1 {
		t.Error("the device's queue is not gone")
	}
}
