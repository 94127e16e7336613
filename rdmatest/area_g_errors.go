package rdmatest

import (
	"errors"
	"slices"
	"strings"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area G, first part: errors that one side or both detect.
func areaRCErrors() []check {
	return []check{
		{"C-119_ShortReceive", 0, shortReceive},
		{"C-120_LocalKeyOnSend", 0, localKeyOnSend},
		{"C-121_LocalKeyOnReceive", 0, localKeyOnReceive},
		{"C-122_ReadIntoReadOnly", 0, readIntoReadOnly},
		{"C-123_RemoteAccess", 0, remoteAccess},
		{"C-123_RemoteAccessWithReceives", 0, remoteAccessWithReceives},
		{"C-124_OperationNotEnabled", 0, operationNotEnabled},
		{"C-126_NoReadDepth", 0, noReadDepth},
		{"C-127_AtomicAlignment", 0, atomicAlignment},
		{"C-128_OpcodeOfAnotherType", 0, opcodeOfAnotherType},
		{"C-144_ErrorText", 0, errorText},
	}
}

// bothFailed checks the end of a pair: both in ERR, what was posted behind flushed,
// nothing else.
func bothFailed(a, b *end) {
	a.Helper()
	a.state(ib.StateError)
	b.state(ib.StateError)
	a.empty()
	b.empty()
}

func shortReceive(t *tb) {
	for _, n := range []int{65, 4000, 20000} {
		a, b := t.pair()
		for i := range b.mr.Bytes() {
			b.mr.Bytes()[i] = 0x77
		}
		b.recv(1, 1000, 64)
		b.recv(2, 2000, 64)
		a.send(verbs.Send(3, a.sge(0, n), ib.Signaled))
		a.send(verbs.Send(4, a.sge(0, 1), 0))
		a.sentAt(3, "C-119/sender", ib.StatusRemInvReq)
		a.sent(4, ib.StatusWRFlush)
		b.gotAt(1, "C-119/receiver", ib.StatusLocLen)
		b.got(2, ib.StatusWRFlush)
		bothFailed(a, b)
		mem := b.mr.Bytes()
		t.untouched(mem[:1000], 0x77, "before the buffer")
		t.untouched(mem[1064:], 0x77, "behind the buffer")
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}

// foreign makes a region in a domain of its own.
func (e *end) foreign(n int) *verbs.MR {
	e.Helper()
	return e.region(e.tb.pd(e.dev), n, allRights)
}

func localKeyOnSend(t *tb) {
	for _, c := range []struct {
		what  string
		point string
		sge   func(a *end) verbs.SGE
	}{
		{"unknown key", "C-120/key", func(a *end) verbs.SGE { return verbs.RawSGE(a.pd, a.mr.Remote(0, 0).Addr, 64, 0xDEAD00) }},
		{"key of another domain", "C-120/key", func(a *end) verbs.SGE {
			mr := a.foreign(4096)
			return verbs.RawSGE(a.pd, mr.Remote(0, 0).Addr, 64, mr.LKey())
		}},
		{"past the end", "C-120/range", func(a *end) verbs.SGE {
			return verbs.RawSGE(a.pd, a.mr.Remote(0, 0).Addr+uint64(a.mr.Len())-10, 64, a.mr.LKey())
		}},
		{"before the start", "C-120/range", func(a *end) verbs.SGE { return verbs.RawSGE(a.pd, a.mr.Remote(0, 0).Addr-1, 64, a.mr.LKey()) }},
		{"address that wraps", "C-120/range", func(a *end) verbs.SGE { return verbs.RawSGE(a.pd, ^uint64(0)-3, 64, a.mr.LKey()) }},
	} {
		for _, op := range []ib.Opcode{ib.OpSend, ib.OpWrite} {
			a, b := t.pair()
			b.recv(1, 0, 64)
			wr := verbs.Send(2, c.sge(a), ib.Signaled)
			if op == ib.OpWrite {
				wr = verbs.Write(2, b.mr.Remote(0, 64), c.sge(a), ib.Signaled)
			}
			a.send(wr)
			a.send(verbs.Send(3, a.sge(0, 1), 0))
			t.Logf("%v with %s", op, c.what)
			a.sentAt(2, c.point, ib.StatusLocProt)
			a.sent(3, ib.StatusWRFlush)
			a.state(ib.StateError)
			b.quiet() // nothing was sent
			b.state(ib.StateRTS)
			t.closed(a.qp, "queue pair")
			t.closed(b.qp, "queue pair")
		}
	}
	// What the library sees itself is refused at once, and harms nothing.
	a, b := t.pair()
	b.recv(1, 0, 64)
	other := a.foreign(64)
	t.isErr(a.qp.PostSend(verbs.Send(2, other.SGE(0, 8), 0)), verbs.ErrPDMismatch, "post memory of another domain")
	gone, err := a.pd.Alloc(64, allRights)
	t.ok(err, "register")
	sge := gone.SGE(0, 8)
	t.closed(gone, "region")
	t.isErr(a.qp.PostSend(verbs.Send(2, sge, 0)), nil, "post memory of a closed region")
	a.send(verbs.Send(3, a.sge(0, 8), ib.Signaled))
	a.sent(3, ib.StatusSuccess)
	b.got(1, ib.StatusSuccess)
}

func localKeyOnReceive(t *tb) {
	for _, c := range []struct {
		what  string
		point string
		sge   func(b *end) verbs.SGE
	}{
		{"unknown key", "C-121/key", func(b *end) verbs.SGE { return verbs.RawSGE(b.pd, b.mr.Remote(0, 0).Addr, 64, 0xDEAD00) }},
		{"region that may not be written", "C-121/right", func(b *end) verbs.SGE {
			mr := b.region(b.pd, 4096, ib.RemoteRead)
			return verbs.RawSGE(b.pd, mr.Remote(0, 0).Addr, 64, mr.LKey())
		}},
		{"past the end", "C-121/range", func(b *end) verbs.SGE {
			return verbs.RawSGE(b.pd, b.mr.Remote(0, 0).Addr+uint64(b.mr.Len())-10, 64, b.mr.LKey())
		}},
	} {
		a, b := t.pair()
		t.ok(b.qp.PostRecv(verbs.RecvWR{ID: 1, Local: c.sge(b)}), "post a receive with %s", c.what)
		b.recv(2, 0, 64)
		a.send(verbs.Send(3, a.sge(0, 64), ib.Signaled))
		a.send(verbs.Send(4, a.sge(0, 64), ib.Signaled))
		t.Logf("receive with %s", c.what)
		a.sent(3, ib.StatusRemOp)
		a.sent(4, ib.StatusWRFlush)
		b.gotAt(1, c.point, ib.StatusLocProt)
		b.got(2, ib.StatusWRFlush)
		bothFailed(a, b)
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
	_, b := t.pair()
	ro := b.region(b.pd, 64, ib.RemoteRead)
	t.isErr(b.qp.PostRecv(verbs.Recv(1, ro.SGE(0, 8))), verbs.ErrAccess, "post a receive into memory that may not be written")
	t.isErr(b.qp.PostRecv(verbs.Recv(1, b.foreign(64).SGE(0, 8))), verbs.ErrPDMismatch, "post a receive into another domain")
}

func readIntoReadOnly(t *tb) {
	for _, atomic := range []bool{false, true} {
		if atomic && t.a.Supports(verbs.FeatureAtomics) != nil {
			continue
		}
		for _, unknown := range []bool{false, true} {
			a, b := t.pair()
			ro := a.region(a.pd, 4096, ib.RemoteRead)
			sge := verbs.RawSGE(a.pd, ro.Remote(0, 0).Addr, 8, ro.LKey())
			if unknown {
				sge = verbs.RawSGE(a.pd, ro.Remote(0, 0).Addr, 8, 0xBAD00)
			}
			wr := verbs.Read(1, b.mr.Remote(0, 8), sge, ib.Signaled)
			if atomic {
				wr = verbs.FetchAdd(1, b.mr.Remote(0, 8), 1, sge, ib.Signaled)
			}
			a.send(wr)
			a.sent(1, ib.StatusLocProt)
			a.state(ib.StateError)
			b.quiet()
			b.state(ib.StateRTS)
			t.untouched(ro.Bytes(), 0, "memory that may not be written")
			t.closed(a.qp, "queue pair")
			t.closed(b.qp, "queue pair")
		}
	}
	a, b := t.pair()
	ro := a.region(a.pd, 64, ib.RemoteRead)
	t.isErr(a.qp.PostSend(verbs.Read(1, b.mr.Remote(0, 8), ro.SGE(0, 8), 0)), verbs.ErrAccess, "post a read into memory that may not be written")
}

// wrongRemotes are the ways to name memory that a peer may not touch.
func wrongRemotes(b *end) map[string]ib.Remote {
	n := b.mr.Len()
	wrongKey := remoteOf(b.mr, 0, 8)
	wrongKey.RKey ^= 1
	other := b.foreign(4096)
	gone, err := b.pd.Alloc(4096, allRights)
	b.ok(err, "register")
	freed := gone.Remote(0, 8)
	b.closed(gone, "region")
	local := b.region(b.pd, 4096, ib.LocalWrite)
	// A region without remote rights has no rkey that works; its lkey must not.
	localKey := ib.Remote{Addr: remoteOf(b.mr, 0, 0).Addr, RKey: ib.RKey(local.LKey()), Len: 8}
	return map[string]ib.Remote{
		"unknown key":           {Addr: remoteOf(b.mr, 0, 0).Addr, RKey: 0x7E57AB1E, Len: 8},
		"wrong key byte":        wrongKey,
		"last byte and one":     remoteOf(b.mr, n-7, 8),
		"below the start":       remoteOf(b.mr, -1, 8),
		"address that wraps":    {Addr: ^uint64(0) - 3, RKey: b.mr.RKey(), Len: 8},
		"another domain":        other.Remote(0, 8),
		"freed region":          freed,
		"key of a local region": localKey,
	}
}

func remoteAccess(t *tb) {
	type try struct {
		what string
		wr   func(a, b *end) verbs.SendWR
	}
	var tries []try
	_, probe := t.pair()
	for what := range wrongRemotes(probe) {
		tries = append(tries,
			try{"write, " + what, func(a, b *end) verbs.SendWR {
				return verbs.Write(1, wrongRemotes(b)[what], a.sge(0, 8), ib.Signaled)
			}},
			try{"read, " + what, func(a, b *end) verbs.SendWR {
				return verbs.Read(1, wrongRemotes(b)[what], a.sge(0, 8), ib.Signaled)
			}})
	}
	slices.SortFunc(tries, func(x, y try) int { return strings.Compare(x.what, y.what) })
	noRight := func(have ib.Access, wr func(a *end, r ib.Remote) verbs.SendWR) func(a, b *end) verbs.SendWR {
		return func(a, b *end) verbs.SendWR {
			mr := b.region(b.pd, 4096, have)
			return wr(a, remoteOf(mr, 0, 8))
		}
	}
	tries = append(tries,
		try{"write without RemoteWrite", noRight(ib.LocalWrite|ib.RemoteRead, func(a *end, r ib.Remote) verbs.SendWR {
			return verbs.Write(1, r, a.sge(0, 8), ib.Signaled)
		})},
		try{"read without RemoteRead", noRight(ib.LocalWrite|ib.RemoteWrite, func(a *end, r ib.Remote) verbs.SendWR {
			return verbs.Read(1, r, a.sge(0, 8), ib.Signaled)
		})})
	if t.a.Supports(verbs.FeatureAtomics) == nil {
		tries = append(tries, try{"atomic without RemoteAtomic", noRight(ib.LocalWrite|ib.RemoteWrite|ib.RemoteRead, func(a *end, r ib.Remote) verbs.SendWR {
			return verbs.FetchAdd(1, r, 1, a.sge(0, 8), ib.Signaled)
		})})
	}
	t.drainAsync(t.b)
	for _, c := range tries {
		a, b := t.pair()
		a.fill(0, 8, 0xFF)
		wr := c.wr(a, b)
		a.send(wr)
		wc, err := a.scq.Next(t.limit)
		t.ok(err, "%s: wait", c.what)
		if wc.Status != ib.StatusRemAccess {
			t.Errorf("%s: %v, want %v", c.what, wc.Status, ib.StatusRemAccess)
		}
		a.state(ib.StateError)
		b.state(ib.StateError)
		t.untouched(b.mr.Bytes(), 0, c.what)
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
	t.drainAsync(t.b)
}

// No receive is consumed by a request that is refused; all are flushed.
func remoteAccessWithReceives(t *tb) {
	t.drainAsync(t.b)
	a, b := t.pair()
	b.recvs(3, 64)
	bad := remoteOf(b.mr, 0, 8)
	bad.RKey ^= 1
	a.send(verbs.Write(1, bad, a.sge(0, 8), ib.Signaled))
	a.send(verbs.Send(2, a.sge(0, 8), 0))
	a.sent(1, ib.StatusRemAccess)
	a.sent(2, ib.StatusWRFlush)
	for i := range uint64(3) {
		b.got(i, ib.StatusWRFlush)
	}
	bothFailed(a, b)
	if !errors.Is(a.qp.Err(), ib.ErrRemAccess) {
		t.Errorf("the requester's cause is %v", a.qp.Err())
	}
	if b.qp.Err() == nil {
		t.Error("the responder has no cause")
	}
	t.drainAsync(t.b)
}

func operationNotEnabled(t *tb) {
	t.drainAsync(t.b)
	ops := map[string]func(a, b *end) verbs.SendWR{
		"write": func(a, b *end) verbs.SendWR {
			return verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled)
		},
		"read": func(a, b *end) verbs.SendWR { return verbs.Read(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled) },
	}
	deny := map[string]ib.Access{"write": ib.RemoteWrite, "read": ib.RemoteRead, "atomic": ib.RemoteAtomic}
	if t.a.Supports(verbs.FeatureAtomics) == nil {
		ops["atomic"] = func(a, b *end) verbs.SendWR {
			return verbs.FetchAdd(1, b.mr.Remote(0, 8), 1, a.sge(0, 8), ib.Signaled)
		}
	}
	for what, op := range ops {
		a, b := t.pair(func(l *link) { l.b.Access &^= deny[what] })
		b.recv(5, 0, 8)
		a.fill(0, 8, 0xFF)
		a.send(op(a, b))
		t.Logf("%s that is not enabled", what)
		a.sentAt(1, "C-124/requester", ib.StatusRemInvReq) // some hardware has REM_ACCESS_ERR
		b.got(5, ib.StatusWRFlush)
		bothFailed(a, b)
		t.untouched(b.mr.Bytes(), 0, what)
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
	t.drainAsync(t.b)
}

func noReadDepth(t *tb) {
	a, b := t.pair(func(l *link) { l.a.MaxRDAtomic = 0 })
	err := a.qp.PostSend(verbs.Read(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	t.isErr(err, nil, "post a read without depth")
	if t.a.Supports(verbs.FeatureAtomics) == nil {
		err = a.qp.PostSend(verbs.FetchAdd(1, b.mr.Remote(0, 8), 1, a.sge(0, 8), ib.Signaled))
		t.isErr(err, nil, "post an atomic without depth")
	}
	a.send(verbs.Write(2, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled)) // the rest works
	a.sent(2, ib.StatusSuccess)
}

func atomicAlignment(t *tb) {
	t.supports(verbs.FeatureAtomics)
	a, b := t.pair()
	for _, off := range []int{1, 4, 7} {
		r := b.mr.Remote(off, 8)
		t.isErr(a.qp.PostSend(verbs.FetchAdd(1, r, 1, a.sge(0, 8), ib.Signaled)), nil, "post an atomic at offset %d", off)
	}
	for _, n := range []int{4, 16} {
		t.isErr(a.qp.PostSend(verbs.FetchAdd(1, b.mr.Remote(0, 8), 1, a.sge(0, n), ib.Signaled)), nil, "post an atomic of %d bytes", n)
	}
	a.send(verbs.FetchAdd(2, b.mr.Remote(0, 8), 1, a.sge(0, 8), ib.Signaled))
	a.sent(2, ib.StatusSuccess)
	if word(b.mr, 0) != 1 {
		t.Errorf("the word is %d", word(b.mr, 0))
	}
}

func opcodeOfAnotherType(t *tb) {
	a, _ := t.pair()
	for _, op := range []ib.Opcode{ib.OpTSO, ib.OpBindMW, 77, 255} {
		wr := verbs.SendWR{ID: 1, Opcode: op, Local: a.sge(0, 8), Flags: ib.Signaled}
		t.isErr(a.qp.PostSend(wr), nil, "post opcode %d to a reliable connection", op)
	}
	a.state(ib.StateRTS)
	a.empty()
}

func errorText(t *tb) {
	a, b := t.pair()
	bad := remoteOf(b.mr, 0, 8)
	bad.RKey ^= 1
	a.send(verbs.Write(4711, bad, a.sge(0, 8), ib.Signaled))
	wc := a.sent(4711, ib.StatusRemAccess)
	err := wc.Err()
	if !errors.Is(err, ib.ErrRemAccess) || err.Error() == "" {
		t.Errorf("error of the completion: %v", err)
	}
	cause := a.qp.Err()
	if !errors.Is(cause, ib.ErrRemAccess) {
		t.Fatalf("cause %v", cause)
	}
	for what, want := range map[string]string{
		"the request": "4711", "the status": "REM_ACCESS_ERR", "the queue pair": a.qp.Num().String(),
		"the peer's queue pair": b.qp.Num().String(), "the peer": b.addr().String(),
	} {
		if !strings.Contains(cause.Error(), want) {
			t.Errorf("the cause %q does not name %s, %s", cause, what, want)
		}
	}
}
