package verbs_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
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
