package transport

import (
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Modify changes attributes and state (IBTA Vol 1 §11.2.5.2). The caller has checked
// the transition and that required attributes are there; values are checked here. On
// error, which is a *ValueError, nothing has changed.
func (q *QP) Modify(now time.Duration, a *driver.QPAttr, m ib.QPAttrMask) error {
	if err := q.checkAttr(a, m); err != nil {
		return err
	}
	q.setAttr(a, m)
	if m&ib.AttrState == 0 {
		return nil
	}
	switch a.State {
	case ib.StateReset:
		q.enterReset()
	case ib.StateInit:
		q.state = ib.StateInit
	case ib.StateRTR:
		q.enterRTR()
	case ib.StateRTS:
		q.enterRTS()
	case ib.StateSQD:
		if q.state != ib.StateSQD {
			q.attr.SQDNotify = m&ib.AttrSQDNotify == 0 || a.SQDNotify
			q.enterSQD()
		}
	case ib.StateError:
		q.enterError()
	}
	return nil
}

// checkAttr looks at every value that m names (C-075 to C-079).
func (q *QP) checkAttr(a *driver.QPAttr, m ib.QPAttrMask) error {
	bad := func(f ib.QPAttrMask, name, format string, v ...any) error {
		return &ValueError{Attr: f, Field: name, Reason: fmt.Sprintf(format, v...)}
	}
	intIn := func(f ib.QPAttrMask, name string, v, top int) error {
		if m&f != 0 && (v < 0 || v > top) {
			return bad(f, name, "%d is not in 0 to %d", v, top)
		}
		return nil
	}
	timeIn := func(f ib.QPAttrMask, name string, v, top time.Duration) error {
		if m&f != 0 && (v < 0 || v > top) {
			return bad(f, name, "%v is not in 0 to %v", v, top)
		}
		return nil
	}
	if m&ib.AttrCurState != 0 && a.CurState != q.state {
		return bad(ib.AttrCurState, "CurState", "%v, but the state is %v", a.CurState, q.state)
	}
	if m&ib.AttrState != 0 && a.State > ib.StateError {
		return bad(ib.AttrState, "State", "%d is no state", a.State)
	}
	if m&ib.AttrState != 0 && a.State == ib.StateSQE {
		return bad(ib.AttrState, "State", "a reliable connection has no SQE")
	}
	if m&ib.AttrCap != 0 {
		return bad(ib.AttrCap, "Cap", "queues cannot be resized")
	}
	mtu := q.attr.PathMTU
	if m&ib.AttrPathMTU != 0 {
		mtu = a.PathMTU
	}
	toRTR := m&ib.AttrState != 0 && a.State == ib.StateRTR
	if (m&ib.AttrPathMTU != 0 || toRTR) && (mtu < ib.MTU256 || mtu > ib.MTU4096) {
		return bad(ib.AttrPathMTU, "PathMTU", "code %d is not in 1 to 5", mtu)
	}
	for _, err := range [...]error{
		intIn(ib.AttrRQPSN, "RQPSN", int(a.RQPSN), int(ib.PSNMask)),
		intIn(ib.AttrSQPSN, "SQPSN", int(a.SQPSN), int(ib.PSNMask)),
		intIn(ib.AttrDestQPN, "DestQPN", int(a.DestQPN), 1<<24-1),
		intIn(ib.AttrMaxRDAtomic, "MaxRDAtomic", a.MaxRDAtomic, MaxRDAtomic),
		intIn(ib.AttrMaxDestRDAtomic, "MaxDestRDAtomic", a.MaxDestRDAtomic, MaxRDAtomic),
		intIn(ib.AttrRetryCount, "RetryCount", a.RetryCount, 7),
		intIn(ib.AttrRNRRetry, "RNRRetry", a.RNRRetry, 7),
		timeIn(ib.AttrTimeout, "Timeout", a.Timeout, ib.AckTimeoutDuration(31)),
		timeIn(ib.AttrMinRNRTimer, "MinRNRTimer", a.MinRNRTimer, ib.RNRTimerDuration(0)),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// setAttr takes the values that m names.
func (q *QP) setAttr(a *driver.QPAttr, m ib.QPAttrMask) {
	d := &q.attr
	for _, f := range [...]struct {
		mask ib.QPAttrMask
		set  func()
	}{
		{ib.AttrAccess, func() { d.Access = a.Access }},
		{ib.AttrPKeyIndex, func() { d.PKeyIndex = a.PKeyIndex }},
		{ib.AttrPort, func() { d.Port = a.Port }},
		{ib.AttrQKey, func() { d.QKey = a.QKey }},
		{ib.AttrAV, func() { d.AH = a.AH }},
		{ib.AttrPathMTU, func() { d.PathMTU = a.PathMTU }},
		{ib.AttrTimeout, func() { d.Timeout = ib.AckTimeoutDuration(ib.AckTimeout(a.Timeout)) }},
		{ib.AttrRetryCount, func() { d.RetryCount = a.RetryCount }},
		{ib.AttrRNRRetry, func() { d.RNRRetry = a.RNRRetry }},
		{ib.AttrRQPSN, func() { d.RQPSN = a.RQPSN }},
		{ib.AttrMaxRDAtomic, func() { d.MaxRDAtomic = a.MaxRDAtomic }},
		{ib.AttrAltPath, func() {
			d.AltAH, d.AltPort, d.AltPKeyIndex, d.AltTimeout = a.AltAH, a.AltPort, a.AltPKeyIndex, a.AltTimeout
		}},
		{ib.AttrMinRNRTimer, func() { d.MinRNRTimer = ib.RNRTimerDuration(ib.RNRTimer(a.MinRNRTimer)) }},
		{ib.AttrSQPSN, func() { d.SQPSN = a.SQPSN }},
		{ib.AttrMaxDestRDAtomic, func() { d.MaxDestRDAtomic = a.MaxDestRDAtomic }},
		{ib.AttrPathMigState, func() { d.PathMigState = a.PathMigState }},
		{ib.AttrDestQPN, func() { d.DestQPN = a.DestQPN }},
		{ib.AttrRateLimit, func() { d.RateLimitKbps = a.RateLimitKbps }},
	} {
		if m&f.mask != 0 {
			f.set()
		}
	}
	if m&ib.AttrMaxRDAtomic != 0 {
		q.req.reserve(d.MaxRDAtomic)
	}
	if m&ib.AttrMaxDestRDAtomic != 0 {
		q.resp.replay.resize(d.MaxDestRDAtomic)
	}
}

// reserve makes room for n READ requests outstanding. Nothing is outstanding, or n is
// not less than before.
func (r *requester) reserve(n int) {
	size := max(1, ringSize(n))
	if size <= len(r.asked) {
		return
	}
	old := *r
	r.asked = make([]span, size)
	r.askHead, r.askTail = 0, 0
	for i := old.askHead; i != old.askTail; i++ {
		r.ask(old.asked[i&uint32(len(old.asked)-1)])
	}
}
