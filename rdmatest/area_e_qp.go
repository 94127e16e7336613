package rdmatest

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area E, first part: making queue pairs, values of attributes, ends.
func areaQP() []check {
	return []check{
		{"C-065_Capabilities", 0, capabilities},
		{"C-066_BeyondLimits", 0, beyondLimits},
		{"C-067_Defaults", 0, zeroCapabilities},
		{"C-068_InitialState", 0, initialState},
		{"C-076_PathMTU", 0, pathMTU},
		{"C-076_DifferentMTUs", 0, differentMTUs},
		{"C-078_ReadDepths", 0, readDepths},
		{"C-079_TimersAndRetries", 0, timersAndRetries},
		{"C-080_AddressVector", 0, addressVector},
		{"C-082_ResetForgets", 0, resetForgets},
		{"C-083_FlushOnError", 0, flushOnError},
		{"C-084_OneCauseThenFlushes", 0, oneCause},
		{"C-087_CloseWithWorkInFlight", 0, closeInFlight},
		{"C-088_QueryReturnsWhatWasSet", 0, queryReturns},
		{"C-089_ConcurrentPosting", 0, concurrentPosting},
		{"C-089_CloseUnderPosting", 0, closeUnderPosting},
	}
}

func capabilities(t *tb) {
	cq := t.cq(t.a, 1024, nil)
	for _, c := range []verbs.QPConfig{
		{MaxSendWR: 100, MaxRecvWR: 100, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: 100},
		{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	} {
		c.SendCQ = cq
		qp := t.looseQP(c)
		got := qp.Config()
		if got.MaxSendWR < c.MaxSendWR || got.MaxRecvWR < c.MaxRecvWR || got.MaxSendSGE < c.MaxSendSGE ||
			got.MaxRecvSGE < c.MaxRecvSGE || got.MaxInline < c.MaxInline {
			t.Errorf("asked for %+v, got %+v", c, got)
		}
		a, err := qp.Query(ib.AttrCap)
		t.ok(err, "query")
		if a.Cap.MaxSendWR != got.MaxSendWR || a.Cap.MaxRecvWR != got.MaxRecvWR || a.Cap.MaxInline != got.MaxInline {
			t.Errorf("the device says %+v, the queue pair %+v", a.Cap, got)
		}
		if qp.Type() != ib.RC || qp.SendCQ() != cq || qp.RecvCQ() != cq {
			t.Errorf("type %v, queues not as asked", qp.Type())
		}
	}
}

func beyondLimits(t *tb) {
	a, err := t.a.Attr()
	t.ok(err, "query the device")
	pd, cq := t.pd(t.a), t.cq(t.a, a.MaxCQE, nil)
	for _, c := range []struct {
		what string
		cfg  verbs.QPConfig
	}{
		{"send SGEs", verbs.QPConfig{MaxSendSGE: a.MaxSGE + 1}},
		{"receive SGEs", verbs.QPConfig{MaxRecvSGE: a.MaxSGE + 1}},
		{"send requests", verbs.QPConfig{MaxSendWR: a.MaxQPWR + 1, AllowOverrun: true}},
		{"receive requests", verbs.QPConfig{MaxRecvWR: a.MaxQPWR + 1, AllowOverrun: true}},
		{"inline data", verbs.QPConfig{MaxInline: 1 << 20}},
		{"negative requests", verbs.QPConfig{MaxSendWR: -1}},
		{"negative SGEs", verbs.QPConfig{MaxRecvSGE: -1}},
		{"negative inline data", verbs.QPConfig{MaxInline: -1}},
		{"unknown type", verbs.QPConfig{Type: 77}},
	} {
		c.cfg.SendCQ = cq
		qp, err := pd.CreateQP(c.cfg)
		t.isErr(err, einval, "create with %s beyond the limit", c.what)
		if err == nil {
			qp.Close()
		}
	}
	for _, typ := range []ib.QPType{ib.RawPacket, ib.XRCSend, ib.XRCRecv} {
		qp, err := pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: cq})
		t.isErr(err, nil, "create a queue pair of type %v", typ)
		if err == nil {
			qp.Close()
		} else if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, einval) {
			t.Errorf("type %v: error %q", typ, err)
		}
	}
	_, err = pd.CreateQP(verbs.QPConfig{})
	t.isErr(err, einval, "create without a completion queue")
}

// Zeros mean the documented defaults here, not queues without room.
func zeroCapabilities(t *tb) {
	qp := t.looseQP(verbs.QPConfig{})
	c := qp.Config()
	if c.Type != ib.RC || c.MaxSendWR < 64 || c.MaxRecvWR < 64 || c.MaxSendSGE < 1 || c.MaxRecvSGE < 1 {
		t.Errorf("defaults: %+v", c)
	}
}

func initialState(t *tb) {
	qp := t.looseQP(verbs.QPConfig{})
	a, err := qp.Query(ib.AttrState)
	t.ok(err, "query")
	if a.State != ib.StateReset || qp.State() != ib.StateReset {
		t.Errorf("a new queue pair is in %v, %v", a.State, qp.State())
	}
	if qp.Num() == 0 || qp.Num() == 1 || qp.Num() > 0xFFFFFF {
		t.Errorf("number %v", qp.Num())
	}
	if err := qp.Err(); err != nil {
		t.Errorf("a new queue pair has failed: %v", err)
	}
}

// readyForRTR gives a queue pair in INIT, and attributes that take it to RTR.
func (t *tb) readyForRTR() (*verbs.QP, verbs.QPAttr) {
	t.Helper()
	qp := t.looseQP(verbs.QPConfig{})
	a := t.newLink().a
	g := t.gid(t.a, 0)
	a.AH = verbs.AHAttr{DGID: t.gid(t.b, 1).GID, SGIDIndex: g.Index, HopLimit: 64, Global: true, Port: g.Port}
	a.DestQPN, a.Port, a.State = 77, g.Port, ib.StateInit
	t.ok(qp.Modify(&a, maskInit), "modify to INIT")
	a.State = ib.StateRTR
	return qp, a
}

// refused checks that a Modify fails and changes nothing.
func (t *tb) refused(qp *verbs.QP, a verbs.QPAttr, m ib.QPAttrMask, what string, args ...any) {
	t.Helper()
	before, err := qp.Query(^ib.QPAttrMask(0))
	t.ok(err, "query")
	t.isErr(qp.Modify(&a, m), einval, what, args...)
	after, err := qp.Query(^ib.QPAttrMask(0))
	t.ok(err, "query")
	if before != after {
		t.Errorf(what+": refused, but changed %+v to %+v", append(args, before, after)...)
	}
	if s := qp.State(); s != before.State {
		t.Errorf(what+": refused, but the state is %v", append(args, s)...)
	}
}

func pathMTU(t *tb) {
	p, err := t.a.Port(1)
	t.ok(err, "query port 1")
	for m := ib.MTU(0); m <= 7; m++ {
		qp, a := t.readyForRTR()
		a.PathMTU = m
		if m >= ib.MTU256 && m <= p.ActiveMTU {
			t.ok(qp.Modify(&a, maskRTR), "path MTU %d", m)
			got, err := qp.Query(ib.AttrPathMTU)
			t.ok(err, "query")
			if got.PathMTU != m {
				t.Errorf("path MTU %d became %d", m, got.PathMTU)
			}
			continue
		}
		t.refused(qp, a, maskRTR, "path MTU %d", m)
	}
}

func differentMTUs(t *tb) {
	if t.mtu() < ib.MTU512 {
		t.Skip("the ports have only one MTU")
	}
	a, b := t.pair(func(l *link) { l.b.PathMTU = ib.MTU256 })
	b.recv(1, 0, 8192)
	b.recv(2, 0, 8192)
	a.send(verbs.Send(3, a.sge(0, 100), ib.Signaled)) // small ones pass
	a.sent(3, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
	a.send(verbs.Send(4, a.sge(0, 4096), ib.Signaled))
	want := ib.StateError
	if wc, _ := a.sentAt(4, "C-076/sender", ib.StatusRemInvReq); wc.Status == ib.StatusSuccess {
		want = ib.StateRTS // who does not look at the length of packets
	}
	b.gotAt(2, "C-076/receiver", ib.StatusLocLen)
	a.state(want)
	b.state(want)
}

func readDepths(t *tb) {
	d, err := t.a.Attr()
	t.ok(err, "query the device")
	for _, n := range []int{0, 1, 3, d.MaxQPRDAtomic, d.MaxQPRDAtomic + 1, 255, 256, -1} {
		qp, a := t.readyForRTR()
		a.MaxDestRDAtomic = n
		if n < 0 || n > d.MaxQPRDAtomic {
			t.refused(qp, a, maskRTR, "max_dest_rd_atomic %d of %d", n, d.MaxQPRDAtomic)
			continue
		}
		t.ok(qp.Modify(&a, maskRTR), "max_dest_rd_atomic %d", n)
		got, err := qp.Query(ib.AttrMaxDestRDAtomic)
		t.ok(err, "query")
		if got.MaxDestRDAtomic < n {
			t.Errorf("max_dest_rd_atomic %d became %d", n, got.MaxDestRDAtomic)
		}
	}
	for _, n := range []int{0, 1, 3, d.MaxQPInitRDAtomic, d.MaxQPInitRDAtomic + 1, 256, -1} {
		qp, a := t.readyForRTR()
		t.ok(qp.Modify(&a, maskRTR), "modify to RTR")
		a.State, a.MaxRDAtomic = ib.StateRTS, n
		if n < 0 || n > d.MaxQPInitRDAtomic {
			t.refused(qp, a, maskRTS, "max_rd_atomic %d of %d", n, d.MaxQPInitRDAtomic)
			continue
		}
		t.ok(qp.Modify(&a, maskRTS), "max_rd_atomic %d", n)
		got, err := qp.Query(ib.AttrMaxRDAtomic)
		t.ok(err, "query")
		if got.MaxRDAtomic < n {
			t.Errorf("max_rd_atomic %d became %d", n, got.MaxRDAtomic)
		}
	}
}

// A time is never made shorter by its code.
func timersAndRetries(t *tb) {
	for _, c := range []struct {
		what string
		set  func(*verbs.QPAttr)
		ok   bool
	}{
		{"time-out 0", func(a *verbs.QPAttr) { a.Timeout = 0 }, true},
		{"time-out 67 ms", func(a *verbs.QPAttr) { a.Timeout = 67 * time.Millisecond }, true},
		{"the longest time-out", func(a *verbs.QPAttr) { a.Timeout = 4096 * time.Nanosecond << 31 }, true},
		{"a longer time-out", func(a *verbs.QPAttr) { a.Timeout = 4096 * time.Nanosecond << 32 }, false},
		{"a negative time-out", func(a *verbs.QPAttr) { a.Timeout = -1 }, false},
		{"retry 0", func(a *verbs.QPAttr) { a.RetryCount = 0 }, true},
		{"retry 8", func(a *verbs.QPAttr) { a.RetryCount = 8 }, false},
		{"retry -1", func(a *verbs.QPAttr) { a.RetryCount = -1 }, false},
		{"rnr_retry 8", func(a *verbs.QPAttr) { a.RNRRetry = 8 }, false},
		{"rnr_retry -1", func(a *verbs.QPAttr) { a.RNRRetry = -1 }, false},
	} {
		qp, a := t.readyForRTR()
		t.ok(qp.Modify(&a, maskRTR), "modify to RTR")
		a.State = ib.StateRTS
		c.set(&a)
		if !c.ok {
			t.refused(qp, a, maskRTS, "%s", c.what)
			continue
		}
		t.ok(qp.Modify(&a, maskRTS), "%s", c.what)
		got, err := qp.Query(ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry)
		t.ok(err, "query")
		if got.Timeout < a.Timeout || got.RetryCount != a.RetryCount || got.RNRRetry != a.RNRRetry {
			t.Errorf("%s: set %v %d %d, got %v %d %d", c.what, a.Timeout, a.RetryCount, a.RNRRetry, got.Timeout, got.RetryCount, got.RNRRetry)
		}
	}
	for _, c := range []struct {
		timer time.Duration
		ok    bool
	}{{10 * time.Microsecond, true}, {655 * time.Millisecond, true}, {700 * time.Millisecond, false}, {-1, false}} {
		qp, a := t.readyForRTR()
		a.MinRNRTimer = c.timer
		if !c.ok {
			t.refused(qp, a, maskRTR, "min RNR timer %v", c.timer)
			continue
		}
		t.ok(qp.Modify(&a, maskRTR), "min RNR timer %v", c.timer)
		got, err := qp.Query(ib.AttrMinRNRTimer)
		t.ok(err, "query")
		if got.MinRNRTimer < c.timer {
			t.Errorf("min RNR timer %v became %v", c.timer, got.MinRNRTimer)
		}
	}
}

func addressVector(t *tb) {
	p, err := t.a.Port(1)
	t.ok(err, "query port 1")
	for _, c := range []struct {
		what string
		set  func(*verbs.QPAttr)
		want error
	}{
		{"no global route", func(a *verbs.QPAttr) { a.AH.Global = false }, einval},
		{"GID index without an entry", func(a *verbs.QPAttr) { a.AH.SGIDIndex = t.emptyGID(p.GIDs) }, enodata},
		{"GID index beyond the table", func(a *verbs.QPAttr) { a.AH.SGIDIndex = p.GIDs }, einval},
		{"negative GID index", func(a *verbs.QPAttr) { a.AH.SGIDIndex = -1 }, einval},
		{"another port", func(a *verbs.QPAttr) { a.AH.Port = 9 }, einval},
		{"no destination GID", func(a *verbs.QPAttr) { a.AH.DGID = ib.GID{} }, einval},
		{"flow label of 21 bits", func(a *verbs.QPAttr) { a.AH.FlowLabel = 1 << 20 }, einval},
		{"queue pair number of 25 bits", func(a *verbs.QPAttr) { a.DestQPN = 1 << 24 }, einval},
		{"packet number of 25 bits", func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }, einval},
	} {
		qp, a := t.readyForRTR()
		c.set(&a)
		t.isErr(qp.Modify(&a, maskRTR), c.want, "%s", c.what)
		if s := qp.State(); s != ib.StateInit {
			t.Errorf("%s: state %v after a failed modify", c.what, s)
		}
	}
	qp, a := t.readyForRTR()
	a.AH.HopLimit = 0 // the default
	t.ok(qp.Modify(&a, maskRTR), "hop limit 0")
}

// emptyGID is an index of the table that has no entry.
func (t *tb) emptyGID(n int) int {
	t.Helper()
	gids, err := t.a.GIDs()
	t.ok(err, "read the GID table")
	used := map[int]bool{}
	for _, g := range gids {
		used[g.Index] = true
	}
	for i := range n {
		if !used[i] {
			return i
		}
	}
	t.Fatalf("all %d entries of the GID table are used", n)
	return 0
}

func resetForgets(t *tb) {
	a, b := t.pair()
	for i := range uint64(3) {
		b.recv(i, 0, 8)
	}
	a.send(verbs.Send(10, a.sge(0, 8), ib.Signaled))
	a.sent(10, ib.StatusSuccess)
	b.got(0, ib.StatusSuccess)
	for _, e := range []*end{a, b} {
		e.reset()
		e.state(ib.StateReset)
		if s, r := e.qp.Outstanding(); s != 0 || r != 0 {
			t.Errorf("%s: %d sends and %d receives outstanding after RESET", e.name, s, r)
		}
	}
	// Receives 1 and 2 are dropped, or completed by the library; never later.
	var wcs [8]verbs.WC
	n, err := b.rcq.Poll(wcs[:])
	t.ok(err, "poll")
	for i, wc := range wcs[:n] {
		if wc.ID != uint64(1+i) || wc.Status != ib.StatusWRFlush {
			t.Errorf("after RESET: %d with %v", wc.ID, wc.Status)
		}
	}
	t.join(a, b)
	b.recv(20, 0, 64)
	a.fill(0, 64, 2)
	a.send(verbs.Send(21, a.sge(0, 64), ib.Signaled))
	a.sent(21, ib.StatusSuccess)
	b.got(20, ib.StatusSuccess)
	b.check(0, 64, 2, "after RESET")
	a.empty()
	b.empty()
}

func flushOnError(t *tb) {
	// No receive at the peer: the sends wait.
	a, b := t.pair(func(l *link) { l.b.MinRNRTimer = 100 * time.Millisecond })
	for i := range uint64(3) {
		a.recv(10+i, 0, 8)
	}
	a.send(verbs.Send(1, a.sge(0, 8), ib.Signaled))
	a.send(verbs.Send(2, a.sge(0, 8), 0))
	a.send(verbs.Send(3, a.sge(0, 8), 0))
	a.fail()
	for i := range uint64(3) {
		wc := a.sent(1+i, ib.StatusWRFlush)
		if wc.Opcode != ib.WCSend {
			t.Errorf("flushed send has opcode %v", wc.Opcode)
		}
	}
	for i := range uint64(3) {
		wc := a.got(10+i, ib.StatusWRFlush)
		if !wc.Opcode.IsRecv() {
			t.Errorf("flushed receive has opcode %v", wc.Opcode)
		}
	}
	a.state(ib.StateError)
	a.quiet()
	b.state(ib.StateRTS)
	if a.qp.Err() == nil {
		t.Error("a failed queue pair without a cause")
	}
	t.ok(a.qp.Fail(), "fail again")
}

func oneCause(t *tb) {
	a, b := t.pair()
	bad := remoteOf(b.mr, 0, 8)
	bad.RKey ^= 0x55
	wrs := []verbs.SendWR{verbs.Write(0, bad, a.sge(0, 8), ib.Signaled)}
	for i := range uint64(9) {
		wrs = append(wrs, verbs.Write(1+i, b.mr.Remote(0, 8), a.sge(0, 8), ib.SendFlags(i%2)*ib.Signaled))
	}
	n, err := a.qp.PostSendList(wrs)
	t.ok(err, "post a list")
	if n != len(wrs) {
		t.Fatalf("posted %d of %d", n, len(wrs))
	}
	a.sent(0, ib.StatusRemAccess)
	for i := range uint64(9) {
		a.sent(1+i, ib.StatusWRFlush)
	}
	a.quiet()
	if !errors.Is(a.qp.Err(), ib.ErrRemAccess) {
		t.Errorf("cause %v, want %v", a.qp.Err(), ib.ErrRemAccess)
	}
}

func closeInFlight(t *tb) {
	a, b := t.pair(func(l *link) {
		l.mem = 1 << 20
		l.a.RetryCount, l.a.Timeout = 1, time.Millisecond
		l.b.RetryCount, l.b.Timeout = 1, time.Millisecond
	})
	for i := range uint64(8) {
		b.recv(i, 0, 64)
		a.recv(i, 0, 64)
	}
	for i := range uint64(4) {
		a.send(verbs.Read(i, b.mr.Remote(0, 256<<10), a.sge(0, 256<<10), ib.Signaled))
		b.send(verbs.Write(i, a.mr.Remote(512<<10, 256<<10), b.sge(0, 256<<10), ib.Signaled))
	}
	a.send(verbs.Send(9, a.sge(0, 64), ib.Signaled))
	mem := a.mr.Bytes()
	t.closed(a.qp, "queue pair in flight")
	a.empty()
	// Nothing of the closed queue pair touches memory any more.
	for i := range mem {
		mem[i] = 0x42
	}
	err := b.qp.PostSend(verbs.Write(20, a.mr.Remote(0, 64), b.sge(0, 64), ib.Signaled))
	// The peer's requests, old and new, end.
	sawRetry := false
	for id := uint64(0); ; {
		wc, werr := b.scq.Next(t.limit)
		t.ok(werr, "wait for the peer's sends")
		if wc.Status == ib.StatusRetryExc {
			sawRetry = true
		}
		if id = wc.ID; id == 20 || err != nil && id == 3 {
			break
		}
	}
	if !sawRetry && err == nil {
		t.Error("the peer did not see that nobody answers")
	}
	t.untouched(mem, 0x42, "memory of a closed queue pair")
	b.state(ib.StateError)
}

func queryReturns(t *tb) {
	a, b := t.pair()
	got, err := a.qp.Query(^ib.QPAttrMask(0))
	t.ok(err, "query")
	w := a.attr
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"state", got.State, ib.StateRTS},
		{"path MTU", got.PathMTU, w.PathMTU},
		{"destination", got.DestQPN, b.qp.Num()},
		{"RQ PSN", got.RQPSN, w.RQPSN},
		{"SQ PSN", got.SQPSN, w.SQPSN},
		{"access", got.Access & remoteAll, w.Access & remoteAll},
		{"retry", got.RetryCount, w.RetryCount},
		{"RNR retry", got.RNRRetry, w.RNRRetry},
		{"port", got.Port, w.Port},
		{"destination GID", got.AH.DGID, w.AH.DGID},
		{"source GID index", got.AH.SGIDIndex, w.AH.SGIDIndex},
		{"traffic class", got.AH.TrafficClass, w.AH.TrafficClass},
		{"global", got.AH.Global, true},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, set was %v", c.what, c.got, c.want)
		}
	}
	if got.MaxRDAtomic < w.MaxRDAtomic || got.MaxDestRDAtomic < w.MaxDestRDAtomic ||
		got.Timeout < w.Timeout || got.MinRNRTimer < w.MinRNRTimer {
		t.Errorf("rounded down: %+v", got)
	}
	if cfg := a.qp.Config(); got.Cap.MaxSendWR != cfg.MaxSendWR || got.Cap.MaxRecvSGE != cfg.MaxRecvSGE {
		t.Errorf("capabilities %+v, configuration %+v", got.Cap, cfg)
	}
}

func concurrentPosting(t *tb) {
	const each, posters = 2000, 2
	a, b := t.pair(func(l *link) { l.cfg.MaxSendWR = 64 })
	var wg sync.WaitGroup
	for p := range uint64(posters) {
		wg.Go(func() {
			for i := range uint64(each) {
				for {
					err := a.qp.PostSend(verbs.Write(p<<32|i, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
					if err == nil {
						break
					}
					if !errors.Is(err, verbs.ErrQueueFull) || t.limit.Err() != nil {
						t.Errorf("post: %v", err)
						return
					}
					t.pass(20*time.Microsecond, 20*time.Microsecond)
				}
			}
		})
	}
	var next [posters]uint64
	for range posters * each {
		wc, err := a.scq.Next(t.limit)
		t.ok(err, "wait")
		p, i := wc.ID>>32, wc.ID&0xFFFFFFFF
		if wc.Status != ib.StatusSuccess || p >= posters || i != next[p] {
			t.Fatalf("completion %#x with %v; next are %v", wc.ID, wc.Status, next)
		}
		next[p]++
	}
	wg.Wait()
	a.empty()
}

func closeUnderPosting(t *tb) {
	for range 20 {
		a, b := t.pair()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for t.limit.Err() == nil {
					err := a.qp.PostSend(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
					switch {
					case err == nil, errors.Is(err, verbs.ErrQueueFull):
						t.pass(10*time.Microsecond, 10*time.Microsecond)
					case errors.Is(err, net.ErrClosed), errors.Is(err, verbs.ErrState):
						return
					default:
						t.Errorf("post: %v", err)
						return
					}
				}
			})
		}
		t.pass(100*time.Microsecond, 100*time.Microsecond)
		t.closed(a.qp, "queue pair under posts")
		wg.Wait()
		a.empty()
		t.closed(b.qp, "queue pair")
	}
}
