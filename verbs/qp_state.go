package verbs

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

const opModify = "modify qp"

// Modify changes attributes and state (ibv_modify_qp). It checks the state table
// first (see TransitionError), then the values against the limits of port and device. On
// error nothing has changed. An empty mask changes nothing.
//
// To RESET, requests that are outstanding complete with StatusWRFlush and WC.Synthetic,
// as the device forgets them. To the error state, it is Fail.
func (qp *QP) Modify(a *QPAttr, m ib.QPAttrMask) error {
	if qp == nil || qp.name == nil || a == nil {
		return opError(opModify, nil, "", errNil)
	}
	if err := qp.op(opModify); err != nil {
		return err
	}
	defer qp.leave()
	qp.mu.Lock()
	woke, err := qp.modify(a, m)
	qp.mu.Unlock()
	if woke {
		qp.wakeCQs()
	}
	return qp.fail(opModify, err)
}

// modify is Modify with qp.mu held. woke: completions were made.
func (qp *QP) modify(a *QPAttr, m ib.QPAttrMask) (woke bool, err error) {
	if m == 0 {
		return false, nil
	}
	from := ib.QPState(qp.state.Load())
	to := from
	if m&ib.AttrState != 0 {
		to = a.State
	}
	switch {
	case m&^knownAttrs != 0:
		return false, fmt.Errorf("unknown attributes %#x: %w", uint32(m&^knownAttrs), syscall.EOPNOTSUPP)
	case m&ib.AttrCurState != 0 && a.CurState != from:
		return false, fmt.Errorf("current state is %v, not %v: %w", from, a.CurState, syscall.EINVAL)
	}
	if err := checkTransition(qp.typ, from, to, m); err != nil {
		return false, err
	}
	if to == ib.StateError {
		qp.setCause(ErrFailed, true)
		return false, qp.tell()
	}
	port, err := qp.checkValues(a, m)
	if err != nil {
		return false, err
	}
	if to != ib.StateReset || !qp.inReset {
		if err := qp.d.Modify(a, m); err != nil {
			return false, err
		}
	}
	qp.learn(a, m, port)
	switch {
	case to == ib.StateReset:
		qp.reset()
		return true, nil
	case from == ib.StateSQE && to == ib.StateRTS:
		qp.timer.Stop()
		qp.clearCause()
	}
	qp.inReset = false
	// It may have failed meanwhile: then that is its state.
	qp.state.CompareAndSwap(uint32(from), uint32(to))
	return false, nil
}

// reset follows a change to RESET: the device has forgotten the requests.
func (qp *QP) reset() {
	qp.timer.Stop()
	qp.withCQs(func() {
		qp.keep()
		qp.sendCQ.flushAll(qp, &qp.sq)
		qp.recvCQ.flushAll(qp, &qp.rq)
		// Completions that were still coming must not fail it again.
		qp.state.Store(uint32(ib.StateReset))
	})
	qp.clearCause()
	qp.sq.plain = 0
	qp.beacons.Store(0)
	qp.inReset, qp.told, qp.joined = true, false, false
	qp.endpoint = Endpoint{}
	qp.readDepth = 0
	qp.causeMu.Lock()
	qp.dest = destination{}
	qp.causeMu.Unlock()
}

const knownAttrs = ib.AttrDestQPN<<1 - 1 | ib.AttrRateLimit

// The longest ack time-out and RNR timer that their 5-bit codes can say.
const (
	maxAckTimeout = 4096 * time.Nanosecond << 31
	maxRNRTimer   = 655360 * time.Microsecond
)

// checkValues checks values against the limits of the device and of the port, whose
// attributes it gives if the mask concerns them.
func (qp *QP) checkValues(a *QPAttr, m ib.QPAttrMask) (*PortAttr, error) {
	d := qp.dev
	no := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), syscall.EINVAL)
	}
	for _, f := range []struct {
		bit    ib.QPAttrMask
		name   string
		n, max int
	}{
		{ib.AttrMaxRDAtomic, "MaxRDAtomic", a.MaxRDAtomic, d.limits.MaxQPInitRDAtomic},
		{ib.AttrMaxDestRDAtomic, "MaxDestRDAtomic", a.MaxDestRDAtomic, d.limits.MaxQPRDAtomic},
		{ib.AttrRetryCount, "RetryCount", a.RetryCount, 7},
		{ib.AttrRNRRetry, "RNRRetry", a.RNRRetry, 7},
		{ib.AttrPKeyIndex, "PKeyIndex", a.PKeyIndex, max(d.limits.MaxPKeys-1, 0)},
		{ib.AttrRQPSN, "RQPSN", int(a.RQPSN), 1<<24 - 1},
		{ib.AttrSQPSN, "SQPSN", int(a.SQPSN), 1<<24 - 1},
		{ib.AttrDestQPN, "DestQPN", int(a.DestQPN), 1<<24 - 1},
	} {
		if m&f.bit != 0 && (f.n < 0 || f.n > f.max) {
			return nil, no("%s %d is not in 0..%d", f.name, f.n, f.max)
		}
	}
	switch {
	case m&ib.AttrTimeout != 0 && (a.Timeout < 0 || a.Timeout > maxAckTimeout):
		return nil, no("Timeout %v is not in 0..%v", a.Timeout, maxAckTimeout)
	case m&ib.AttrMinRNRTimer != 0 && (a.MinRNRTimer < 0 || a.MinRNRTimer > maxRNRTimer):
		return nil, no("MinRNRTimer %v is not in 0..%v", a.MinRNRTimer, maxRNRTimer)
	case m&ib.AttrAccess != 0 && a.Access&^(ib.LocalWrite|remoteAccess|ib.MWBind|d.flushAccess()) != 0:
		return nil, no("Access %v has bits that are not for queue pairs", a.Access)
	}
	if m&(ib.AttrPort|ib.AttrPathMTU|ib.AttrAV) == 0 {
		return nil, nil
	}
	n := qp.port
	if m&ib.AttrPort != 0 {
		n = a.Port
	}
	port, err := d.Port(n)
	if err != nil {
		return nil, err
	}
	if m&ib.AttrPathMTU != 0 && (!a.PathMTU.Valid() || a.PathMTU > port.ActiveMTU) {
		return nil, no("PathMTU %v is not in %v..%v", a.PathMTU, ib.MTU256, port.ActiveMTU)
	}
	if m&ib.AttrAV != 0 {
		v := a.AH
		if v.Port == 0 {
			v.Port = n
		}
		if v.Port != n {
			return nil, no("address vector for port %d, the queue pair is on port %d", v.Port, n)
		}
		if err := d.checkAH(opModify, &v, &port); err != nil {
			return nil, err
		}
	}
	return &port, nil
}

// learn keeps what posts and errors need to know of attributes that were set.
func (qp *QP) learn(a *QPAttr, m ib.QPAttrMask, port *PortAttr) {
	if m&ib.AttrPort != 0 {
		qp.port = a.Port
	}
	if port != nil {
		switch {
		case qp.typ == ib.UD:
			qp.maxMessage = uint64(port.ActiveMTU.Bytes())
		case port.MaxMessage != 0:
			qp.maxMessage = min(uint64(port.MaxMessage), 1<<31)
		}
	}
	if m&ib.AttrMaxRDAtomic != 0 {
		qp.readDepth = a.MaxRDAtomic
	}
	qp.causeMu.Lock()
	defer qp.causeMu.Unlock()
	if m&ib.AttrDestQPN != 0 {
		qp.dest.qpn = a.DestQPN
	}
	if m&ib.AttrAV != 0 {
		qp.dest.gid = a.AH.DGID
	}
}

// Query asks the device (ibv_query_qp). It gives at least the attributes of the mask.
func (qp *QP) Query(m ib.QPAttrMask) (QPAttr, error) {
	var a QPAttr
	err := qp.control("query qp", func() (err error) {
		if a, err = qp.d.Query(m); err != nil {
			return err
		}
		qp.observe(&a)
		return nil
	})
	if err != nil {
		return QPAttr{}, err
	}
	return a, nil
}

// observe compares what the device says with what is known. qp.mu is held.
func (qp *QP) observe(a *QPAttr) {
	c := &qp.cfg
	a.Cap.MaxSendWR, a.Cap.MaxRecvWR = c.MaxSendWR, c.MaxRecvWR
	a.Cap.MaxSendSGE, a.Cap.MaxRecvSGE, a.Cap.MaxInline = c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline
	have := ib.QPState(qp.state.Load())
	switch {
	case a.State == have:
	case qp.inReset && have == ib.StateError:
		a.State = have // Fail in RESET: the device need not know
	case a.State == ib.StateError:
		qp.setCause(errLeft, true)
		if have == ib.StateSQE {
			qp.state.Store(uint32(ib.StateRTS)) // it is worse than that
		}
		qp.left(ib.StateError)
	case have == ib.StateError && !qp.told:
		// A completion has failed, and the device thinks that it lives: it is failed here.
	default:
		qp.state.CompareAndSwap(uint32(have), uint32(a.State))
	}
	a.CurState = a.State
}

// errLeft is the cause if nothing but the state is known.
var errLeft = errors.New("verbs: the device reports the error state")

// flushAccess is what a queue pair may give beyond the usual: Linux' connection manager
// (from 6.2 on) gives every peer the right to FLUSH if the device has it.
func (d *Device) flushAccess() (a ib.Access) {
	if d.limits.Caps&ib.CapFlushGlobal != 0 {
		a |= ib.FlushGlobal
	}
	if d.limits.Caps&ib.CapFlushPersistent != 0 {
		a |= ib.FlushPersistent
	}
	return a
}
