package verbs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var allStates = []ib.QPState{ib.StateReset, ib.StateInit, ib.StateRTR, ib.StateRTS, ib.StateSQD, ib.StateSQE, ib.StateError}

// reach makes a queue pair of a type in a state.
func (r *rig) reach(typ ib.QPType, s ib.QPState) (*verbs.QP, *scripted.QP) {
	r.Helper()
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{Type: typ})
	switch s {
	case ib.StateReset:
		r.move(qp, ib.StateReset)
	case ib.StateInit, ib.StateRTR:
		r.move(qp, ib.StateReset)
		r.move(qp, ib.StateInit)
		if s == ib.StateRTR {
			r.move(qp, s)
		}
	case ib.StateRTS:
	case ib.StateSQD, ib.StateError:
		r.move(qp, s)
	case ib.StateSQE:
		sqp.SetState(ib.StateSQE)
		_, err := qp.Query(ib.AttrState)
		r.ok(err)
	}
	if qp.State() != s {
		r.Fatalf("%v: state %v, wanted %v", typ, qp.State(), s)
	}
	_ = cq
	return qp, sqp
}

// required is the mask that a transition needs.
func required(typ ib.QPType, from, to ib.QPState) ib.QPAttrMask {
	m := ib.AttrState
	switch {
	case from == ib.StateReset && to == ib.StateInit:
		m |= ib.AttrPKeyIndex | ib.AttrPort
		if typ == ib.UD {
			return m | ib.AttrQKey
		}
		return m | ib.AttrAccess
	case from == ib.StateInit && to == ib.StateRTR && typ != ib.UD:
		m |= ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN
		if typ == ib.RC {
			m |= ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer
		}
	case from == ib.StateRTR && to == ib.StateRTS:
		m |= ib.AttrSQPSN
		if typ == ib.RC {
			m |= ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrMaxRDAtomic
		}
	}
	return m
}

// allowed is the matrix of C-070.
func allowed(from, to ib.QPState) bool {
	next := map[ib.QPState][]ib.QPState{
		ib.StateReset: {ib.StateReset, ib.StateInit},
		ib.StateInit:  {ib.StateReset, ib.StateInit, ib.StateRTR, ib.StateError},
		ib.StateRTR:   {ib.StateReset, ib.StateRTS, ib.StateError},
		ib.StateRTS:   {ib.StateReset, ib.StateRTS, ib.StateSQD, ib.StateError},
		ib.StateSQD:   {ib.StateReset, ib.StateRTS, ib.StateSQD, ib.StateError},
		ib.StateSQE:   {ib.StateReset, ib.StateRTS, ib.StateError},
		ib.StateError: {ib.StateReset, ib.StateError},
	}
	for _, s := range next[from] {
		if s == to {
			return true
		}
	}
	return false
}

func TestC070_TransitionMatrix(t *testing.T) {
	t.Parallel()
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		r := newRig(t, nil)
		for _, from := range allStates {
			for _, to := range allStates {
				qp, sqp := r.reach(typ, from)
				before := len(sqp.Modified())
				a := attrs()
				a.State = to
				err := qp.Modify(&a, required(typ, from, to))
				what := fmt.Sprintf("%v %v → %v", typ, from, to)
				if allowed(from, to) {
					if err != nil || qp.State() != to {
						t.Errorf("%s: %v, state %v", what, err, qp.State())
					}
					continue
				}
				var te *verbs.TransitionError
				if !errors.As(err, &te) || !errors.Is(err, syscall.EINVAL) || te.From != from || te.To != to || te.Type != typ {
					t.Errorf("%s: %v", what, err)
				}
				if qp.State() != from || len(sqp.Modified()) != before {
					t.Errorf("%s was refused, and the state is %v", what, qp.State())
				}
			}
		}
	}
}

// TestC071_RequiredAttributes leaves out each in turn; the error names it.
func TestC071_RequiredAttributes(t *testing.T) {
	t.Parallel()
	n := 0
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		r := newRig(t, nil)
		for _, step := range [][2]ib.QPState{{ib.StateReset, ib.StateInit}, {ib.StateInit, ib.StateRTR}, {ib.StateRTR, ib.StateRTS}} {
			qp, sqp := r.reach(typ, step[0])
			before := len(sqp.Modified())
			full := required(typ, step[0], step[1])
			for bit := ib.QPAttrMask(1); bit <= ib.AttrDestQPN; bit <<= 1 {
				if full&bit == 0 || bit == ib.AttrState {
					continue
				}
				n++
				a := attrs()
				a.State = step[1]
				err := qp.Modify(&a, full&^bit)
				var te *verbs.TransitionError
				if !errors.As(err, &te) || te.Missing != bit || te.Invalid != 0 || !strings.Contains(err.Error(), bit.String()) {
					t.Errorf("%v %v without %v: %v", typ, step, bit, err)
				}
			}
			if qp.State() != step[0] || len(sqp.Modified()) != before {
				t.Errorf("%v %v: something changed", typ, step)
			}
		}
	}
	if n != 14+8+4 {
		t.Errorf("%d attributes are required, want 26", n)
	}
}

func TestC072_ForbiddenAttributes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range []struct {
		typ      ib.QPType
		from, to ib.QPState
		more     ib.QPAttrMask
	}{
		{ib.RC, ib.StateReset, ib.StateInit, ib.AttrQKey},
		{ib.RC, ib.StateReset, ib.StateInit, ib.AttrSQPSN},
		{ib.RC, ib.StateReset, ib.StateInit, ib.AttrAV},
		{ib.RC, ib.StateReset, ib.StateInit, ib.AttrCap},
		{ib.RC, ib.StateInit, ib.StateRTR, ib.AttrSQPSN},
		{ib.RC, ib.StateRTR, ib.StateRTS, ib.AttrAV},
		{ib.UD, ib.StateReset, ib.StateInit, ib.AttrAccess},
		{ib.UD, ib.StateInit, ib.StateRTR, ib.AttrAV},
		{ib.UD, ib.StateRTR, ib.StateRTS, ib.AttrTimeout},
		{ib.UC, ib.StateRTR, ib.StateRTS, ib.AttrRetryCount},
		{ib.RC, ib.StateRTS, ib.StateError, ib.AttrAccess},
		{ib.RC, ib.StateRTS, ib.StateReset, ib.AttrPort},
		{ib.RC, ib.StateRTS, ib.StateRTS, ib.AttrTimeout},
		{ib.RC, ib.StateError, ib.StateError, ib.AttrAccess},
	} {
		qp, sqp := r.reach(c.typ, c.from)
		before := len(sqp.Modified())
		a := attrs()
		a.State = c.to
		err := qp.Modify(&a, required(c.typ, c.from, c.to)|c.more)
		var te *verbs.TransitionError
		if !errors.As(err, &te) || te.Invalid != c.more || te.Missing != 0 || !strings.Contains(err.Error(), c.more.String()) {
			t.Errorf("%+v: %v", c, err)
		}
		if qp.State() != c.from || len(sqp.Modified()) != before {
			t.Errorf("%+v: something changed", c)
		}
	}
	// Both at once.
	qp, _ := r.reach(ib.RC, ib.StateReset)
	a := attrs()
	a.State = ib.StateInit
	err := qp.Modify(&a, ib.AttrState|ib.AttrQKey|ib.AttrPort|ib.AttrAccess)
	var te *verbs.TransitionError
	if !errors.As(err, &te) || te.Invalid != ib.AttrQKey || te.Missing != ib.AttrPKeyIndex {
		t.Errorf("both: %v", err)
	}
}

func TestC073_OptionalAttributes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range []struct {
		from, to ib.QPState
		more     ib.QPAttrMask
	}{
		{ib.StateInit, ib.StateRTR, ib.AttrAccess},
		{ib.StateInit, ib.StateRTR, ib.AttrPKeyIndex},
		{ib.StateRTR, ib.StateRTS, ib.AttrMinRNRTimer},
		{ib.StateRTR, ib.StateRTS, ib.AttrCurState},
		{ib.StateRTR, ib.StateRTS, ib.AttrAccess},
		{ib.StateRTS, ib.StateRTS, ib.AttrAccess | ib.AttrMinRNRTimer},
		{ib.StateInit, ib.StateInit, ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccess},
		{ib.StateSQD, ib.StateSQD, ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrAV | ib.AttrMaxRDAtomic | ib.AttrMaxDestRDAtomic},
		{ib.StateRTS, ib.StateSQD, ib.AttrSQDNotify},
	} {
		qp, _ := r.reach(ib.RC, c.from)
		a := attrs()
		a.State, a.CurState = c.to, c.from
		if err := qp.Modify(&a, required(ib.RC, c.from, c.to)|c.more); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// Without a state the attributes are those of the state that it has.
	qp, _ := r.reach(ib.RC, ib.StateRTS)
	a := attrs()
	r.ok(qp.Modify(&a, ib.AttrMinRNRTimer))
	qp, _ = r.reach(ib.RC, ib.StateRTR)
	if err := qp.Modify(&a, ib.AttrMinRNRTimer); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RTR → RTR: %v", err)
	}
}

func TestC074_MaskOddities(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp := r.reach(ib.RC, ib.StateRTS)
	before := len(sqp.Modified())
	a := attrs()
	r.ok(qp.Modify(&a, 0))
	err := qp.Modify(&a, 1<<30)
	r.is(err, errors.ErrUnsupported, "unknown bit")
	r.is(err, syscall.EOPNOTSUPP, "its errno")
	a.State = 9
	r.is(qp.Modify(&a, ib.AttrState), syscall.EINVAL, "state 9")
	a.State, a.CurState = ib.StateRTS, ib.StateRTR
	r.is(qp.Modify(&a, ib.AttrState|ib.AttrCurState), syscall.EINVAL, "wrong current state")
	r.is(qp.Modify(nil, ib.AttrState), syscall.EINVAL, "nil attributes")
	if len(sqp.Modified()) != before || qp.State() != ib.StateRTS {
		t.Error("something changed")
	}
	var none *verbs.QP
	r.is(none.Modify(&a, 0), syscall.EINVAL, "nil queue pair")
}

// TestC075_Values: one illegal value, and nothing changes; the error names field and
// limit. C-006, C-076, C-078, C-079, C-080.
func TestC075_Values(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range []struct {
		what   string
		from   ib.QPState
		change func(*verbs.QPAttr)
		want   error
		text   string
	}{
		{"C-006 port 0", ib.StateReset, func(a *verbs.QPAttr) { a.Port = 0 }, syscall.EINVAL, "port"},
		{"C-006 port 2", ib.StateReset, func(a *verbs.QPAttr) { a.Port = 2 }, syscall.EINVAL, "port"},
		{"C-006 port 255", ib.StateReset, func(a *verbs.QPAttr) { a.Port = 255 }, syscall.EINVAL, "port"},
		{"P_Key index", ib.StateReset, func(a *verbs.QPAttr) { a.PKeyIndex = 2 }, syscall.EINVAL, "PKeyIndex"},
		{"access", ib.StateReset, func(a *verbs.QPAttr) { a.Access = 1 << 12 }, syscall.EINVAL, "Access"},
		{"C-076 MTU 0", ib.StateInit, func(a *verbs.QPAttr) { a.PathMTU = 0 }, syscall.EINVAL, "PathMTU"},
		{"C-076 MTU 6", ib.StateInit, func(a *verbs.QPAttr) { a.PathMTU = 6 }, syscall.EINVAL, "PathMTU"},
		{"C-076 above active", ib.StateInit, func(a *verbs.QPAttr) { a.PathMTU = ib.MTU2048 }, syscall.EINVAL, "PathMTU"},
		{"C-078 depth", ib.StateInit, func(a *verbs.QPAttr) { a.MaxDestRDAtomic = 17 }, syscall.EINVAL, "MaxDestRDAtomic"},
		{"C-078 negative", ib.StateInit, func(a *verbs.QPAttr) { a.MaxDestRDAtomic = -1 }, syscall.EINVAL, "MaxDestRDAtomic"},
		{"QPN", ib.StateInit, func(a *verbs.QPAttr) { a.DestQPN = 1 << 24 }, syscall.EINVAL, "DestQPN"},
		{"PSN", ib.StateInit, func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }, syscall.EINVAL, "RQPSN"},
		{"C-079 RNR timer", ib.StateInit, func(a *verbs.QPAttr) { a.MinRNRTimer = time.Second }, syscall.EINVAL, "MinRNRTimer"},
		{"C-079 RNR timer", ib.StateInit, func(a *verbs.QPAttr) { a.MinRNRTimer = -1 }, syscall.EINVAL, "MinRNRTimer"},
		{"C-080 no GRH", ib.StateInit, func(a *verbs.QPAttr) { a.AH.Global = false }, syscall.EINVAL, "Global"},
		{"C-080 empty index", ib.StateInit, func(a *verbs.QPAttr) { a.AH.SGIDIndex = 2 }, syscall.ENODATA, "index 2"},
		{"C-080 index", ib.StateInit, func(a *verbs.QPAttr) { a.AH.SGIDIndex = 16 }, syscall.EINVAL, "index 16"},
		{"C-080 port", ib.StateInit, func(a *verbs.QPAttr) { a.AH.Port = 2 }, syscall.EINVAL, "port 2"},
		{"C-020 zero GID", ib.StateInit, func(a *verbs.QPAttr) { a.AH.DGID = ib.GID{} }, syscall.EINVAL, "zero"},
		{"C-020 family", ib.StateInit, func(a *verbs.QPAttr) { a.AH.DGID = ib.GID{0: 0xFD, 15: 2} }, syscall.EINVAL, "family"},
		{"C-020 flow label", ib.StateInit, func(a *verbs.QPAttr) { a.AH.FlowLabel = 1 << 20 }, syscall.EINVAL, "flow label"},
		{"PSN", ib.StateRTR, func(a *verbs.QPAttr) { a.SQPSN = 1 << 24 }, syscall.EINVAL, "SQPSN"},
		{"C-078 depth", ib.StateRTR, func(a *verbs.QPAttr) { a.MaxRDAtomic = 17 }, syscall.EINVAL, "MaxRDAtomic"},
		{"C-079 time-out", ib.StateRTR, func(a *verbs.QPAttr) { a.Timeout = 3 * time.Hour }, syscall.EINVAL, "Timeout"},
		{"C-079 retry", ib.StateRTR, func(a *verbs.QPAttr) { a.RetryCount = 8 }, syscall.EINVAL, "RetryCount"},
		{"C-079 RNR retry", ib.StateRTR, func(a *verbs.QPAttr) { a.RNRRetry = 8 }, syscall.EINVAL, "RNRRetry"},
	} {
		qp, sqp := r.reach(ib.RC, c.from)
		before := sqp.Attr()
		a := attrs()
		a.State = c.from + 1
		c.change(&a)
		err := qp.Modify(&a, required(ib.RC, c.from, a.State))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v and %q", c.what, err, c.want, c.text)
		}
		if qp.State() != c.from || sqp.Attr() != before {
			t.Errorf("%s: something changed", c.what)
		}
		// The legal ones still work.
		a = attrs()
		a.State = c.from + 1
		if err := qp.Modify(&a, required(ib.RC, c.from, a.State)); err != nil {
			t.Errorf("%s, afterwards: %v", c.what, err)
		}
	}
	// The device says no.
	qp, _ := r.reach(ib.RC, ib.StateInit)
	r.p.FailOp("modify qp", 1, syscall.ETIMEDOUT)
	a := attrs()
	a.State = ib.StateRTR
	err := qp.Modify(&a, maskRTR)
	r.is(err, syscall.ETIMEDOUT, "the device's error")
	var oe *verbs.OpError
	if !errors.As(err, &oe) || oe.Op != "modify qp" || oe.Device != "fake0" || !strings.Contains(oe.Object, "QP") || qp.State() != ib.StateInit {
		t.Errorf("%#v, state %v", oe, qp.State())
	}
}

func TestC065_Caps(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(1000, nil)
	qp, _ := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 100, MaxRecvWR: 90, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 10, UserData: "mine"})
	c := qp.Config()
	if c.MaxSendWR != 100 || c.MaxRecvWR != 90 || c.MaxSendSGE != 4 || c.MaxRecvSGE != 2 || c.MaxInline != 16 || c.Type != ib.RC || c.RecvCQ != cq {
		t.Errorf("%+v", c)
	}
	a, err := qp.Query(ib.AttrCap | ib.AttrState)
	r.ok(err)
	if a.Cap.MaxSendWR != c.MaxSendWR || a.Cap.MaxSendSGE != c.MaxSendSGE || a.Cap.MaxInline != c.MaxInline || a.State != ib.StateReset {
		t.Errorf("query: %+v", a.Cap)
	}
	if qp.State() != ib.StateReset || qp.Err() != nil || qp.UserData() != "mine" || qp.Type() != ib.RC || qp.PD() != r.pd || qp.SendCQ() != cq || qp.RecvCQ() != cq {
		t.Error("C-068, or a getter")
	}
	qp.SetUserData(5)
	if qp.UserData() != 5 {
		t.Error("user data")
	}
}

func TestC066_BeyondTheLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(100, nil)
	private, err := r.dev.Info().OpenPrivate()
	r.ok(err)
	defer private.Close()
	foreign, err := private.CreateCQ(10, nil)
	r.ok(err)
	defer foreign.Close()
	fpd := must(t)(private.AllocPD())
	defer fpd.Close()
	made := r.p.Count("create qp")
	for _, c := range []struct {
		cfg  verbs.QPConfig
		want error
		text string
	}{
		{verbs.QPConfig{SendCQ: cq, MaxSendSGE: 17}, syscall.EINVAL, "MaxSendSGE 17 is not in 0..16"},
		{verbs.QPConfig{SendCQ: cq, MaxRecvSGE: 17}, syscall.EINVAL, "MaxRecvSGE"},
		{verbs.QPConfig{SendCQ: cq, MaxSendWR: 1<<14 + 1}, syscall.EINVAL, "MaxSendWR"},
		{verbs.QPConfig{SendCQ: cq, MaxRecvWR: 1<<14 + 1}, syscall.EINVAL, "MaxRecvWR"},
		{verbs.QPConfig{SendCQ: cq, MaxSendWR: -1}, syscall.EINVAL, "MaxSendWR -1"},
		{verbs.QPConfig{SendCQ: cq, MaxInline: -1}, syscall.EINVAL, "MaxInline"},
		{verbs.QPConfig{SendCQ: cq, Type: 77}, syscall.EINVAL, "type"},
		{verbs.QPConfig{SendCQ: cq, Type: ib.RawPacket}, errors.ErrUnsupported, "RAW_PACKET"},
		{verbs.QPConfig{SendCQ: cq, Type: ib.XRCSend}, errors.ErrUnsupported, "XRC"},
		{verbs.QPConfig{}, syscall.EINVAL, "SendCQ"},
		{verbs.QPConfig{SendCQ: &verbs.CQ{}}, syscall.EINVAL, "SendCQ"},
		{verbs.QPConfig{SendCQ: foreign}, syscall.EINVAL, "SendCQ belongs to another device"},
		{verbs.QPConfig{SendCQ: cq, RecvCQ: foreign}, syscall.EINVAL, "RecvCQ belongs to another device"},
	} {
		_, err := r.pd.CreateQP(c.cfg)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v, want %v and %q", c.cfg, err, c.want, c.text)
		}
	}
	_, err = fpd.CreateQP(verbs.QPConfig{SendCQ: cq})
	r.is(err, syscall.EINVAL, "C-004 PD of another device")
	ch, _ := r.channel()
	_, err = private.CreateCQ(4, &verbs.CQConfig{Channel: ch})
	r.is(err, syscall.EINVAL, "C-004 channel of another device")
	var none *verbs.PD
	_, err = none.CreateQP(verbs.QPConfig{SendCQ: cq})
	r.is(err, syscall.EINVAL, "nil")
	if r.p.Count("create qp") != made {
		t.Error("the device was asked")
	}
	// The room of a refused one is free again.
	r.p.FailOp("create qp", 1, syscall.ENOMEM)
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 50, MaxRecvWR: 50})
	r.is(err, syscall.ENOMEM, "the device's error")
	r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 50, MaxRecvWR: 50})
}

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

func TestC086_SendErrorState(t *testing.T) {
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

func TestEndpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(200, nil)
	a, sa := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	b, sb := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	ea, err := a.Endpoint(1, -1)
	r.ok(err)
	again, err := a.Endpoint(1, -1)
	r.ok(err)
	eb, err := b.Endpoint(1, 1)
	r.ok(err)
	if ea != again || ea.QPN != a.Num() || ea.GID != r.gid(1) || ea.MTU != ib.MTU1024 || ea.PSN >= 1<<24 || a.State() != ib.StateInit || eb.GID != ea.GID {
		t.Errorf("%v, %v, %v", ea, again, eb)
	}
	r.is(a.Join(eb, nil), verbs.ErrNoReceives, "Join")
	r.recv(a, 1)
	eb.MTU = ib.MTU512
	r.ok(a.Join(eb, &verbs.PathOptions{Access: ib.RemoteWrite, TrafficClass: 8}))
	seven := 0
	r.ok(b.Join(ea, &verbs.PathOptions{NoReceives: true, RNRRetry: &seven, MaxRDAtomic: 3, Timeout: time.Second}))
	qa, qb := sa.Attr(), sb.Attr()
	if qa.State != ib.StateRTS || qa.DestQPN != b.Num() || qa.RQPSN != eb.PSN || qa.SQPSN != ea.PSN || qa.PathMTU != ib.MTU512 ||
		qa.AH.DGID != eb.GID || qa.AH.SGIDIndex != 1 || !qa.AH.Global || qa.AH.TrafficClass != 8 || qa.Access != ib.RemoteWrite ||
		qa.RetryCount != 7 || qa.RNRRetry != 7 || qa.MinRNRTimer != 640*time.Microsecond || qa.MaxRDAtomic != 1 || qa.Timeout < 60*time.Millisecond {
		t.Errorf("%+v", qa)
	}
	if qb.RNRRetry != 0 || qb.MaxRDAtomic != 3 || qb.Timeout != time.Second || qb.AH.HopLimit != 64 {
		t.Errorf("%+v", qb)
	}
	r.is(a.Join(eb, nil), syscall.EINVAL, "Join twice")
	c, _ := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	r.is(c.Join(ea, nil), syscall.EINVAL, "Join without Endpoint")
	_, err = c.Endpoint(2, -1)
	r.is(err, syscall.EINVAL, "port 2")
	_, err = c.Endpoint(1, 2)
	r.is(err, syscall.ENODATA, "empty index")
	uc, suc := r.qp(verbs.QPConfig{Type: ib.UC, SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	_, err = uc.Endpoint(1, 3)
	r.ok(err)
	r.ok(uc.Join(verbs.Endpoint{QPN: 1, GID: ib.GID{0: 0xFD, 15: 9}, MTU: ib.MTU1024}, &verbs.PathOptions{NoReceives: true}))
	if suc.Attr().State != ib.StateRTS {
		t.Error("UC")
	}
	ud, _ := r.qp(verbs.QPConfig{Type: ib.UD, SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	_, err = ud.Endpoint(1, -1)
	r.is(err, syscall.EINVAL, "UD")

	// Text and JSON.
	for _, e := range []verbs.Endpoint{ea, eb, {QPN: 1<<24 - 1, PSN: 1<<24 - 1, GID: ib.GID{0: 0xFE, 1: 0x80, 15: 1}, LID: 0xFFFF, MTU: ib.MTU256}} {
		j, err := json.Marshal(e)
		r.ok(err)
		var back verbs.Endpoint
		r.ok(json.Unmarshal(j, &back))
		if back != e {
			t.Errorf("%s became %v", j, back)
		}
	}
	good, _ := ea.MarshalText()
	for i := range good {
		var e verbs.Endpoint
		if err := e.UnmarshalText(good[:i]); err == nil && i < len(good)-3 {
			t.Errorf("%q was taken", good[:i])
		}
	}
	for _, s := range []string{
		"", "x", "qpn=1000000 psn=0 gid=:: lid=0 mtu=1024", "qpn=0 psn=1000000 gid=:: lid=0 mtu=1024",
		"qpn=0 psn=0 gid=1.2.3 lid=0 mtu=1024", "qpn=0 psn=0 gid=:: lid=10000 mtu=1024", "qpn=0 psn=0 gid=:: lid=0 mtu=1000",
		"qpn=0 psn=0 gid=:: lid=0 mtu=1024 more", "qpn=-1 psn=0 gid=:: lid=0 mtu=1024", "qpn=0x psn=0 gid=:: lid=0 mtu=1024",
	} {
		var e verbs.Endpoint
		r.is(e.UnmarshalText([]byte(s)), syscall.EINVAL, s)
	}
}

func (r *rig) gid(index int) ib.GID {
	r.Helper()
	g, err := r.dev.GID(1, index)
	r.ok(err)
	return g.GID
}

func FuzzEndpoint(f *testing.F) {
	f.Add("qpn=000011 psn=3a5f01 gid=::ffff:10.0.0.1 lid=0000 mtu=1024")
	f.Add("qpn=0 psn=0 gid=:: lid=0 mtu=256")
	f.Fuzz(func(t *testing.T, s string) {
		var e, again verbs.Endpoint
		if e.UnmarshalText([]byte(s)) != nil {
			return
		}
		b, err := e.MarshalText()
		if err != nil || again.UnmarshalText(b) != nil || again != e {
			t.Errorf("%q gave %v, then %v", s, e, again)
		}
	})
}
