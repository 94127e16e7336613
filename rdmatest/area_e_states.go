package rdmatest

import (
	"errors"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area E, second part: the state table, and what is posted in each state.
func areaQPStates() []check {
	return []check{
		{"C-070_TransitionMatrix", 0, transitionMatrix},
		{"C-070_DrainedToError", 0, drainedToError},
		{"C-071_RequiredAttributes", 0, requiredAttributes},
		{"C-072_ForbiddenAttributes", 0, forbiddenAttributes},
		{"C-073_OptionalAttributes", 0, optionalAttributes},
		{"C-074_MaskOddities", 0, maskOddities},
		{"C-075_AllOrNothing", 0, allOrNothing},
		{"C-081_PostInEachState", 0, postInEachState},
		{"C-081_PostWhenDrained", 0, postWhenDrained},
		{"C-091_EndpointAndJoin", 0, endpointAndJoin},
	}
}

var allStates = []ib.QPState{ib.StateReset, ib.StateInit, ib.StateRTR, ib.StateRTS, ib.StateSQD, ib.StateSQE, ib.StateError}

// maskTo is what a transition of a reliable connection needs.
func maskTo(s ib.QPState) ib.QPAttrMask { return masksOf[ib.RC][s] }

// masksOf is the same for each type of queue pair.
var masksOf = map[ib.QPType]map[ib.QPState]ib.QPAttrMask{
	ib.RC: masks(maskInit, maskRTR, maskRTS),
	ib.UC: masks(maskInit, ib.AttrState|ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN, ib.AttrState|ib.AttrSQPSN),
	ib.UD: masks(ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrQKey, ib.AttrState, ib.AttrState|ib.AttrSQPSN),
}

func masks(toInit, toRTR, toRTS ib.QPAttrMask) map[ib.QPState]ib.QPAttrMask {
	m := map[ib.QPState]ib.QPAttrMask{}
	for _, s := range allStates {
		m[s] = ib.AttrState
	}
	m[ib.StateInit], m[ib.StateRTR], m[ib.StateRTS] = toInit, toRTR, toRTS
	return m
}

// bringTo moves a new queue pair to a state by the shortest way; false: there is none.
func (t *tb) bringTo(s ib.QPState) (*verbs.QP, verbs.QPAttr, bool) {
	t.Helper()
	return t.bringTypeTo(ib.RC, s)
}

func (t *tb) bringTypeTo(typ ib.QPType, s ib.QPState) (*verbs.QP, verbs.QPAttr, bool) {
	t.Helper()
	qp := t.looseQP(verbs.QPConfig{Type: typ})
	a := t.newLink().a
	g := t.gid(t.a, 0)
	a.AH = verbs.AHAttr{DGID: t.gid(t.b, 1).GID, SGIDIndex: g.Index, HopLimit: 64, Global: true, Port: g.Port}
	a.DestQPN, a.Port, a.QKey = 77, g.Port, testKey
	path := map[ib.QPState][]ib.QPState{
		ib.StateReset: {},
		ib.StateInit:  {ib.StateInit},
		ib.StateRTR:   {ib.StateInit, ib.StateRTR},
		ib.StateRTS:   {ib.StateInit, ib.StateRTR, ib.StateRTS},
		ib.StateSQD:   {ib.StateInit, ib.StateRTR, ib.StateRTS, ib.StateSQD},
		ib.StateError: {ib.StateInit, ib.StateError},
	}
	steps, ok := path[s]
	for _, to := range steps {
		a.State = to
		err := qp.Modify(&a, masksOf[typ][to])
		if to == ib.StateSQD && errors.Is(err, errors.ErrUnsupported) {
			return nil, a, false
		}
		t.ok(err, "%v: modify to %v", typ, to)
	}
	if s == ib.StateSQD { // until then a device may not let it go elsewhere
		t.drained(t.a, qp)
	}
	return qp, a, ok
}

// reachable is the table of the kernel, which is the standard's except that it does
// not let RESET go to ERR.
var reachable = map[ib.QPState][]ib.QPState{
	ib.StateReset: {ib.StateReset, ib.StateInit},
	ib.StateInit:  {ib.StateReset, ib.StateInit, ib.StateRTR, ib.StateError},
	ib.StateRTR:   {ib.StateReset, ib.StateRTS, ib.StateError},
	ib.StateRTS:   {ib.StateReset, ib.StateRTS, ib.StateSQD, ib.StateError},
	ib.StateSQD:   {ib.StateReset, ib.StateRTS, ib.StateSQD, ib.StateError},
	ib.StateError: {ib.StateReset, ib.StateError},
}

func transitionMatrix(t *tb) {
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		qp, err := t.pd(t.a).CreateQP(verbs.QPConfig{Type: typ, SendCQ: t.cq(t.a, 256, nil)})
		if errors.Is(err, errors.ErrUnsupported) && typ != ib.RC {
			t.Logf("%s: %v", t.a.Info().Name, err)
			continue
		}
		t.ok(err, "create a queue pair of type %v", typ)
		t.closed(qp, "queue pair")
		for _, from := range allStates {
			if from == ib.StateSQE {
				continue // reached only by a failed send of other types
			}
			for _, to := range allStates {
				t.transition(typ, from, to)
			}
		}
	}
}

// transition tries one, of a new queue pair.
func (t *tb) transition(typ ib.QPType, from, to ib.QPState) {
	t.Helper()
	qp, a, ok := t.bringTypeTo(typ, from)
	if !ok {
		return
	}
	a.State = to
	m := masksOf[typ][to]
	if from == to && from != ib.StateInit || from == ib.StateSQD && to == ib.StateRTS {
		m = ib.AttrState
	}
	if !slices.Contains(reachable[from], to) {
		t.refused(qp, a, m, "%v, %v to %v", typ, from, to)
		var te *verbs.TransitionError
		if err := qp.Modify(&a, m); !errors.As(err, &te) || te.From != from || te.To != to {
			t.Errorf("%v, %v to %v: error %v is no TransitionError of it", typ, from, to, err)
		}
		return
	}
	err := qp.Modify(&a, m)
	if to == ib.StateSQD && errors.Is(err, errors.ErrUnsupported) {
		return
	}
	t.ok(err, "%v, %v to %v", typ, from, to)
	got, err := qp.Query(ib.AttrState)
	t.ok(err, "query")
	if got.State != to || qp.State() != to {
		t.Errorf("%v, %v to %v: in %v, %v", typ, from, to, got.State, qp.State())
	}
}

// drained waits until the sends of a queue pair in SQD are.
func (t *tb) drained(d *verbs.Device, qp *verbs.QP) {
	t.Helper()
	for {
		if ev := t.asyncEvent(d); ev.QP == qp && ev.Type == ib.EventSQDrained {
			return
		}
	}
}

// A queue pair whose sends are drained can be made to fail.
func drainedToError(t *tb) {
	t.drainAsync(t.a)
	a, _ := t.pair()
	a.recv(1, 0, 8)
	a.drain()
	t.drained(t.a, a.qp)
	a.state(ib.StateSQD)
	a.fail()
	a.state(ib.StateError)
	a.got(1, ib.StatusWRFlush)
	a.quiet()
}

// singleBits gives the single bits of a mask.
func singleBits(m ib.QPAttrMask) []ib.QPAttrMask {
	var all []ib.QPAttrMask
	for b := ib.QPAttrMask(1); b != 0; b <<= 1 {
		if m&b != 0 {
			all = append(all, b)
		}
	}
	return all
}

func requiredAttributes(t *tb) {
	before := map[ib.QPState]ib.QPState{ib.StateInit: ib.StateReset, ib.StateRTR: ib.StateInit, ib.StateRTS: ib.StateRTR}
	for to, from := range before {
		for _, missing := range singleBits(maskTo(to) &^ ib.AttrState) {
			qp, a, _ := t.bringTo(from)
			a.State = to
			m := maskTo(to) &^ missing
			t.refused(qp, a, m, "%v without %#x", to, uint32(missing))
			var te *verbs.TransitionError
			if err := qp.Modify(&a, m); !errors.As(err, &te) || te.Missing != missing {
				t.Errorf("%v without %#x: error %v does not say so", to, uint32(missing), err)
			}
			t.ok(qp.Modify(&a, maskTo(to)), "%v with all attributes", to)
		}
	}
}

func forbiddenAttributes(t *tb) {
	for _, c := range []struct {
		from, to ib.QPState
		extra    ib.QPAttrMask
	}{
		{ib.StateReset, ib.StateInit, ib.AttrQKey},
		{ib.StateReset, ib.StateInit, ib.AttrSQPSN},
		{ib.StateReset, ib.StateInit, ib.AttrAV},
		{ib.StateReset, ib.StateInit, ib.AttrCap},
		{ib.StateInit, ib.StateRTR, ib.AttrSQPSN},
		{ib.StateInit, ib.StateRTR, ib.AttrQKey},
		{ib.StateRTR, ib.StateRTS, ib.AttrAV},
		{ib.StateRTR, ib.StateRTS, ib.AttrDestQPN},
		{ib.StateInit, ib.StateError, ib.AttrPort},
		{ib.StateInit, ib.StateReset, ib.AttrAccess},
	} {
		qp, a, _ := t.bringTo(c.from)
		a.State = c.to
		m := maskTo(c.to) | c.extra
		t.refused(qp, a, m, "%v with %#x", c.to, uint32(c.extra))
		var te *verbs.TransitionError
		if err := qp.Modify(&a, m); !errors.As(err, &te) || te.Invalid != c.extra {
			t.Errorf("%v with %#x: error %v does not say so", c.to, uint32(c.extra), err)
		}
	}
}

func optionalAttributes(t *tb) {
	for _, c := range []struct {
		what     string
		from, to ib.QPState
		m        ib.QPAttrMask
		ok       bool
	}{
		{"RTR with access", ib.StateInit, ib.StateRTR, maskRTR | ib.AttrAccess, true},
		{"RTR with P_Key", ib.StateInit, ib.StateRTR, maskRTR | ib.AttrPKeyIndex, true},
		{"RTS with RNR timer", ib.StateRTR, ib.StateRTS, maskRTS | ib.AttrMinRNRTimer, true},
		{"RTS with current state", ib.StateRTR, ib.StateRTS, maskRTS | ib.AttrCurState, true},
		{"RTS with access", ib.StateRTR, ib.StateRTS, maskRTS | ib.AttrAccess, true},
		{"access in RTS", ib.StateRTS, ib.StateRTS, ib.AttrState | ib.AttrAccess, true},
		{"RNR timer in RTS", ib.StateRTS, ib.StateRTS, ib.AttrMinRNRTimer, true},
		{"access in INIT", ib.StateInit, ib.StateInit, ib.AttrState | ib.AttrAccess, true},
		{"port in INIT", ib.StateInit, ib.StateInit, ib.AttrState | ib.AttrPort, true},
		{"time-out in RTS", ib.StateRTS, ib.StateRTS, ib.AttrState | ib.AttrTimeout, false},
		{"RNR timer in RTR", ib.StateRTR, ib.StateRTR, ib.AttrState | ib.AttrMinRNRTimer, false},
	} {
		qp, a, _ := t.bringTo(c.from)
		a.CurState, a.State = c.from, c.to
		a.MinRNRTimer = 20 * time.Millisecond
		if c.ok {
			t.ok(qp.Modify(&a, c.m), "%s", c.what)
		} else {
			t.refused(qp, a, c.m, "%s", c.what)
		}
	}
}

func maskOddities(t *tb) {
	qp, a, _ := t.bringTo(ib.StateRTS)
	before, err := qp.Query(^ib.QPAttrMask(0))
	t.ok(err, "query")
	t.ok(qp.Modify(&verbs.QPAttr{}, 0), "an empty mask")
	after, err := qp.Query(^ib.QPAttrMask(0))
	t.ok(err, "query")
	if before != after {
		t.Errorf("an empty mask changed %+v to %+v", before, after)
	}
	a.State = ib.StateRTS
	t.anyErr(qp.Modify(&a, ib.AttrState|1<<30), []error{einval, eopnot, errors.ErrUnsupported}, "an unknown bit")
	a.State = 9
	t.refused(qp, a, ib.AttrState, "state 9")
	a.State, a.CurState = ib.StateRTS, ib.StateInit
	t.refused(qp, a, ib.AttrState|ib.AttrCurState, "a wrong current state")
	t.isErr(qp.Modify(nil, ib.AttrState), nil, "no attributes")
}

// A legal mask with one illegal value changes nothing at all.
func allOrNothing(t *tb) {
	for _, c := range []struct {
		what string
		from ib.QPState
		to   ib.QPState
		set  func(*verbs.QPAttr)
	}{
		{"P_Key index", ib.StateReset, ib.StateInit, func(a *verbs.QPAttr) { a.PKeyIndex = 5000 }},
		{"port", ib.StateReset, ib.StateInit, func(a *verbs.QPAttr) { a.Port = 9 }},
		{"path MTU", ib.StateInit, ib.StateRTR, func(a *verbs.QPAttr) { a.PathMTU = 9 }},
		{"read depth", ib.StateInit, ib.StateRTR, func(a *verbs.QPAttr) { a.MaxDestRDAtomic = 1 << 20 }},
		{"retry count", ib.StateRTR, ib.StateRTS, func(a *verbs.QPAttr) { a.RetryCount = 99 }},
		{"initiator depth", ib.StateRTR, ib.StateRTS, func(a *verbs.QPAttr) { a.MaxRDAtomic = 1 << 20 }},
	} {
		qp, a, _ := t.bringTo(c.from)
		good := a
		good.State = c.to
		bad := good
		c.set(&bad)
		t.refused(qp, bad, maskTo(c.to), "%v with a bad %s", c.to, c.what)
		t.ok(qp.Modify(&good, maskTo(c.to)), "%v with good values afterwards", c.to)
	}
}

func postInEachState(t *tb) {
	a, b := t.pair(func(l *link) { l.upTo = ib.StateReset })
	b.recvRefused("RESET")
	b.sendRefused("RESET")
	b.init()
	b.recv(1, 0, 64)
	b.sendRefused("INIT")
	b.rtr()
	b.recv(2, 0, 64)
	b.sendRefused("RTR")
	b.rts()
	b.recv(3, 0, 64)
	// Both ends work: the receives of all states count.
	for i := range uint64(3) {
		a.send(verbs.Send(10+i, a.sge(0, 8), ib.Signaled))
		a.sent(10+i, ib.StatusSuccess)
		b.got(1+i, ib.StatusSuccess)
	}
	// In ERR both are taken, and flushed.
	b.fail()
	b.recv(20, 0, 8)
	b.got(20, ib.StatusWRFlush)
	b.send(verbs.Send(21, b.sge(0, 8), 0))
	b.sent(21, ib.StatusWRFlush)
	b.quiet()
}

// In SQD receives work on, and sends wait until the queue pair is in RTS again.
func postWhenDrained(t *tb) {
	t.drainAsync(t.b)
	a, b := t.pair()
	a.recvs(2, 64)
	b.drain()
	t.drained(t.b, b.qp)
	b.send(verbs.Send(1, b.sge(0, 8), ib.Signaled))
	b.recv(2, 0, 64)
	a.send(verbs.Send(3, a.sge(0, 8), ib.Signaled))
	a.sent(3, ib.StatusSuccess)
	b.got(2, ib.StatusSuccess)
	b.quiet()
	a.empty()
	b.state(ib.StateSQD)
	b.move(ib.StateRTS, ib.AttrState)
	b.send(verbs.Send(4, b.sge(0, 8), ib.Signaled)) // a device may need a post to go on
	b.sent(1, ib.StatusSuccess)
	b.sent(4, ib.StatusSuccess)
	a.got(0, ib.StatusSuccess)
	a.got(1, ib.StatusSuccess)
}

func (e *end) recvRefused(state string) {
	e.Helper()
	e.isErr(e.qp.PostRecv(verbs.Recv(99, e.sge(0, 8))), verbs.ErrState, "post a receive in %s", state)
}

func (e *end) sendRefused(state string) {
	e.Helper()
	e.isErr(e.qp.PostSend(verbs.Send(99, e.sge(0, 8), 0)), verbs.ErrState, "post a send in %s", state)
}

// The short way without a connection manager.
func endpointAndJoin(t *tb) {
	a, b := t.pair(func(l *link) { l.upTo = ib.StateReset })
	a.reset()
	ea, err := a.qp.Endpoint(1, -1)
	t.ok(err, "endpoint of a")
	eb, err := b.qp.Endpoint(b.gid.Port, b.gid.Index)
	t.ok(err, "endpoint of b")
	if ea.QPN != a.qp.Num() || eb.GID != b.gid.GID || eb.MTU == 0 {
		t.Errorf("endpoints %+v, %+v", ea, eb)
	}
	a.state(ib.StateInit)
	if err := a.qp.Join(eb, nil); err == nil {
		t.Error("joined without receives")
	}
	a.recv(1, 0, 64)
	b.recv(2, 0, 64)
	o := &verbs.PathOptions{Access: remoteAll, MaxRDAtomic: 2, MaxDestRDAtomic: 2}
	t.ok(a.qp.Join(eb, o), "join b")
	t.ok(b.qp.Join(ea, o), "join a")
	a.fill(0, 64, 4)
	a.send(verbs.Send(3, a.sge(0, 64), ib.Signaled))
	a.sent(3, ib.StatusSuccess)
	b.got(2, ib.StatusSuccess)
	b.check(0, 64, 4, "message")
	a.send(verbs.Read(4, b.mr.Remote(0, 64), a.sge(128, 64), ib.Signaled))
	a.sent(4, ib.StatusSuccess)
}
