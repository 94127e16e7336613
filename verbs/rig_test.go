package verbs_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

// rig is a device that does what the test says, with a queue pair on it. When the test
// ends everything must be closed, and the provider's contract kept.
type rig struct {
	testing.TB
	p   *scripted.Provider
	dev *verbs.Device
	ctx *scripted.Context
	pd  *verbs.PD
	mr  *verbs.MR
}

func newRig(t testing.TB, cfg *scripted.Config) *rig {
	t.Helper()
	r := &rig{TB: t, p: scripted.New(cfg)}
	dev, err := verbs.Open(r.p, "")
	if err != nil {
		t.Fatal(err)
	}
	r.dev, r.ctx = dev, r.p.Device("").Context()
	t.Cleanup(func() {
		if left := dev.Objects(); len(left) > 0 {
			t.Errorf("objects left: %q", left)
		}
		if n := r.p.Open(); n > 0 {
			t.Errorf("%d objects of the provider left", n)
		}
		for _, v := range r.p.Violations() {
			t.Errorf("contract: %s", v)
		}
	})
	r.pd = must(t)(dev.AllocPD())
	r.closeLast(r.pd)
	r.mr = must1(t, r.pd, func() (*verbs.MR, error) {
		return r.pd.Alloc(1<<16, ib.LocalWrite|ib.RemoteWrite|ib.RemoteRead|ib.RemoteAtomic)
	})
	r.closeLast(r.mr)
	return r
}

func must(t testing.TB) func(*verbs.PD, error) *verbs.PD {
	return func(pd *verbs.PD, err error) *verbs.PD {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return pd
	}
}

func must1[T any](t testing.TB, _ any, f func() (T, error)) T {
	t.Helper()
	v, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

type closer interface{ Close() error }

func (r *rig) closeLast(c closer) {
	r.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.Errorf("close: %v", err)
		}
	})
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) is(err, want error, what string) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (r *rig) cq(n int, cfg *verbs.CQConfig) (*verbs.CQ, *scripted.CQ) {
	r.Helper()
	cq, err := r.dev.CreateCQ(n, cfg)
	r.ok(err)
	r.closeLast(cq)
	return cq, r.ctx.CQ(-1)
}

func (r *rig) channel() (*verbs.CompChannel, *scripted.Channel) {
	r.Helper()
	ch, err := r.dev.CreateCompChannel()
	r.ok(err)
	r.closeLast(ch)
	return ch, r.ctx.Channel(-1)
}

// qp makes a queue pair in RESET.
func (r *rig) qp(cfg verbs.QPConfig) (*verbs.QP, *scripted.QP) {
	r.Helper()
	qp, err := r.pd.CreateQP(cfg)
	r.ok(err)
	r.closeLast(qp)
	return qp, r.ctx.QP(-1)
}

const (
	maskInit = ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccess
	maskRTR  = ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN |
		ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer
	maskRTS = ib.AttrState | ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrSQPSN | ib.AttrMaxRDAtomic
)

// attrs are the attributes of a queue pair that works.
func attrs() verbs.QPAttr {
	return verbs.QPAttr{
		Port: 1, PathMTU: ib.MTU1024, DestQPN: 0x77, RQPSN: 5, SQPSN: 6, QKey: 0x11,
		AH:          verbs.AHAttr{DGID: ib.GID{10: 0xFF, 11: 0xFF, 12: 10, 15: 2}, SGIDIndex: 1, Global: true, Port: 1},
		MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: time.Millisecond, Timeout: 67 * time.Millisecond, RetryCount: 7, RNRRetry: 7,
	}
}

// move goes to a state of a reliable connection.
func (r *rig) move(qp *verbs.QP, s ib.QPState) {
	r.Helper()
	a := attrs()
	a.State = s
	m := map[ib.QPState]ib.QPAttrMask{ib.StateInit: maskInit, ib.StateRTR: maskRTR, ib.StateRTS: maskRTS}[s]
	if qp.Type() == ib.UC {
		m &^= ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer | ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrMaxRDAtomic
	}
	if qp.Type() == ib.UD {
		m = map[ib.QPState]ib.QPAttrMask{
			ib.StateInit: ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrQKey,
			ib.StateRTR:  ib.AttrState, ib.StateRTS: ib.AttrState | ib.AttrSQPSN,
		}[s]
	}
	if m == 0 {
		m = ib.AttrState
	}
	r.ok(qp.Modify(&a, m))
}

func (r *rig) rts(qp *verbs.QP) {
	r.Helper()
	for _, s := range []ib.QPState{ib.StateInit, ib.StateRTR, ib.StateRTS} {
		r.move(qp, s)
	}
}

// ready makes a queue pair that works, on one CQ with room for it.
func (r *rig) ready(cfg verbs.QPConfig) (*verbs.QP, *scripted.QP, *verbs.CQ, *scripted.CQ) {
	r.Helper()
	if cfg.MaxSendWR == 0 {
		cfg.MaxSendWR = 16
	}
	if cfg.MaxRecvWR == 0 {
		cfg.MaxRecvWR = 16
	}
	cq, scq := r.cq(cfg.MaxSendWR+cfg.MaxRecvWR, nil)
	cfg.SendCQ = cq
	qp, sqp := r.qp(cfg)
	r.rts(qp)
	return qp, sqp, cq, scq
}

func (r *rig) send(qp *verbs.QP, id uint64, f ib.SendFlags) {
	r.Helper()
	r.ok(qp.PostSend(verbs.Send(id, r.mr.SGE(0, 8), f)))
}

func (r *rig) recv(qp *verbs.QP, id uint64) {
	r.Helper()
	r.ok(qp.PostRecv(verbs.Recv(id, r.mr.SGE(0, 64))))
}

// poll takes everything that is there.
func (r *rig) poll(cq *verbs.CQ) []verbs.WC {
	r.Helper()
	var all []verbs.WC
	var dst [3]verbs.WC
	for {
		n, err := cq.Poll(dst[:])
		r.ok(err)
		all = append(all, dst[:n]...)
		if n < len(dst) {
			return all
		}
	}
}

// wcs checks ids and statuses of completions.
type wcs []struct {
	id uint64
	st ib.Status
}

func (r *rig) want(got []verbs.WC, want wcs) {
	r.Helper()
	for i, w := range want {
		if i >= len(got) {
			r.Errorf("completion %d is missing: %d with %v", i, w.id, w.st)
			return
		}
		if got[i].ID != w.id || got[i].Status != w.st {
			r.Errorf("completion %d: %d with %v, want %d with %v", i, got[i].ID, got[i].Status, w.id, w.st)
		}
	}
	for _, w := range got[len(want):] {
		r.Errorf("completion too many: %d with %v (%v)", w.ID, w.Status, w.Opcode)
	}
}

// queues separates completions, as there is an order only within a queue.
func queues(all []verbs.WC) (sends, recvs []verbs.WC) {
	for _, wc := range all {
		if wc.Opcode.IsRecv() {
			recvs = append(recvs, wc)
		} else {
			sends = append(sends, wc)
		}
	}
	return sends, recvs
}

const (
	success = ib.StatusSuccess
	flush   = ib.StatusWRFlush
)

var bg = context.Background()

func contains(s, sub string) bool { return strings.Contains(s, sub) }

var errDeadline = context.DeadlineExceeded

func contextWithTimeout(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(bg, d)
}
