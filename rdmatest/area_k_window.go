package rdmatest

import (
	"net"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area K: memory windows, and keys that are taken away.
func areaWindows() []check {
	return []check{
		{"C-174_WindowBounds", 0, windowBounds},
		{"C-174_WindowRights", 0, windowRights},
		{"C-175_BindsThatFail", 0, bindsThatFail},
		{"C-176_Invalidation", 0, invalidation},
		{"C-176_KeyOfCompletion", 0, keyOfCompletion},
		{"C-176_OneList", 0, bindsInOneList},
		{"C-177_NoWindow", 0, invalidateNoWindow},
		{"C-178_OtherQueuePair", 0, windowOfOtherPair},
		{"C-180_ZeroBased", 0, zeroBasedWindow},
	}
}

const (
	windowAt   = 4096 // the window lies inside of the region
	windowSize = 4096
)

// windowed is a pair whose b has a region for windows, and one bound to a.
type windowed struct {
	a, b *end
	mr   *verbs.MR
	w    *verbs.MW
}

func (t *tb) windowed(rights ib.Access, change ...func(*link)) *windowed {
	t.Helper()
	t.supports(verbs.FeatureMemoryWindows)
	t.supports(verbs.FeatureInvalidate)
	x := &windowed{}
	x.a, x.b = t.pair(change...)
	x.mr = t.region(x.b.pd, 4*4096, ib.LocalWrite|ib.MWBind)
	x.w = x.b.window()
	x.b.bind(10, x.w, x.mr, rights)
	return x
}

// window makes one that lives as long as the test.
func (e *end) window() *verbs.MW {
	e.Helper()
	w, err := e.pd.AllocMW(ib.MWType2)
	e.ok(err, "allocate a memory window")
	e.Cleanup(func() { e.closed(w, "memory window") })
	return w
}

// bind binds and waits.
func (e *end) bind(id uint64, w *verbs.MW, mr *verbs.MR, rights ib.Access) {
	e.Helper()
	was := w.RKey()
	e.send(verbs.BindMW(id, w, mr, windowAt, windowSize, rights, ib.Signaled))
	if wc := e.sent(id, ib.StatusSuccess); wc.Opcode != ib.WCBindMW {
		e.Errorf("%s: a bind completes as %v", e.name, wc.Opcode)
	}
	if k := w.RKey(); k != was.Next() || w.Remote().RKey != k || w.Remote().Len != windowSize {
		e.Errorf("%s: key %v after %v; %v", e.name, k, was, w.Remote())
	}
}

// refused has a write through the window, which must fail.
func (x *windowed) refused(to ib.Remote, what string) {
	x.a.Helper()
	x.a.send(verbs.Write(900, to, x.a.sge(0, int(to.Len)), ib.Signaled))
	wc, err := x.a.scq.Next(x.a.limit)
	x.a.ok(err, "%s: wait for a write", what)
	if wc.ID != 900 || wc.Status != ib.StatusRemAccess {
		x.a.Errorf("%s: %d with %v, want %v", what, wc.ID, wc.Status, ib.StatusRemAccess)
	}
	x.a.untouched(x.mr.Bytes(), 0, what)
}

// The window reaches from its first byte to its last.
func windowBounds(t *tb) {
	x := t.windowed(ib.RemoteWrite)
	x.a.fill(0, windowSize, 0x5A)
	x.a.send(verbs.Write(1, x.w.Remote(), x.a.sge(0, windowSize), ib.Signaled))
	x.a.sent(1, ib.StatusSuccess)
	x.only(windowAt, windowSize, 0x5A, "a write of the whole window")
	for _, c := range []struct {
		what  string
		at, n int // from the begin of the window
	}{
		{"the byte before", -1, 1},
		{"the byte behind", windowSize, 1},
		{"over the begin", -4, 8},
		{"over the end", windowSize - 4, 8},
	} {
		x := t.windowed(ib.RemoteWrite)
		to := x.w.Remote()
		to.Addr += uint64(c.at)
		to.Len = uint32(c.n)
		x.a.fill(0, c.n, 0x5A)
		x.a.send(verbs.Write(2, to, x.a.sge(0, c.n), ib.Signaled))
		t.Logf("write to %s", c.what)
		wc, _ := x.a.sentAt(2, "C-174/outside", ib.StatusRemAccess)
		if wc.Status == ib.StatusSuccess { // then the bounds are those of the region
			x.only(windowAt+c.at, c.n, 0x5A, c.what)
			continue
		}
		x.a.state(ib.StateError)
		x.b.state(ib.StateError)
		t.untouched(x.mr.Bytes(), 0, c.what)
	}
}

// only checks that n bytes of the region were written, and clears them.
func (x *windowed) only(off, n int, seed byte, what string) {
	x.a.Helper()
	mem := x.mr.Bytes()
	x.a.same(mem[off:off+n], pattern(n, seed), what)
	clear(mem[off : off+n])
	x.a.untouched(mem, 0, what+": the rest")
}

// A window gives the rights it was bound with, and no others.
func windowRights(t *tb) {
	x := t.windowed(ib.RemoteWrite)
	x.a.send(verbs.Read(1, x.w.Remote().Slice(0, 8), x.a.sge(0, 8), ib.Signaled))
	x.a.sent(1, ib.StatusRemAccess)
	x.a.state(ib.StateError)
	y := t.windowed(ib.RemoteRead)
	y.refused(y.w.Remote().Slice(0, 8), "a write to a window for reads")
}

// What the library sees it refuses; what only the device knows fails the queue pair.
func bindsThatFail(t *tb) {
	x := t.windowed(ib.RemoteWrite)
	b := x.b
	none := t.region(b.pd, 8192, allRights)
	readOnly := t.region(b.pd, 8192, ib.MWBind)
	other := t.region(t.pd(b.dev), 8192, ib.LocalWrite|ib.MWBind)
	closed, err := b.pd.AllocMW(ib.MWType2)
	t.ok(err, "allocate a memory window")
	t.closed(closed, "memory window")
	for what, c := range map[string]struct {
		wr   verbs.SendWR
		want error
	}{
		"a region without the right to be bound": {verbs.BindMW(1, x.w, none, 0, 8, ib.RemoteRead, 0), verbs.ErrAccess},
		"remote write to a region of no write":   {verbs.BindMW(1, x.w, readOnly, 0, 8, ib.RemoteWrite, 0), verbs.ErrAccess},
		"a right that is not a peer's":           {verbs.BindMW(1, x.w, x.mr, 0, 8, ib.LocalWrite, 0), verbs.ErrAccess},
		"a region of another domain":             {verbs.BindMW(1, x.w, other, 0, 8, ib.RemoteRead, 0), verbs.ErrPDMismatch},
		"no bytes":                               {verbs.BindMW(1, x.w, x.mr, 0, 0, ib.RemoteRead, 0), verbs.ErrWindow},
		"no window":                              {verbs.BindMW(1, nil, x.mr, 0, 8, ib.RemoteRead, 0), verbs.ErrWindow},
		"a closed window":                        {verbs.BindMW(1, closed, x.mr, 0, 8, ib.RemoteRead, 0), net.ErrClosed},
	} {
		k := x.w.RKey()
		t.isErr(b.qp.PostSend(c.wr), c.want, "bind %s", what)
		if x.w.RKey() != k {
			t.Errorf("bind %s: the key changed", what)
		}
	}
	// A window that is bound.
	b.send(verbs.BindMW(1, x.w, x.mr, 0, 8, ib.RemoteRead, ib.Signaled))
	b.sentAt(1, "C-175/bound", ib.StatusMWBind)
	b.state(ib.StateError)
}

// LOCAL_INV, the peer's SEND, and closing the window make its key void; then it can be
// bound again, and the new key works.
func invalidation(t *tb) {
	for _, how := range []string{"local", "remote", "close"} {
		x := t.windowed(ib.RemoteWrite | ib.RemoteRead)
		a, b := x.a, x.b
		old := x.w.Remote().Slice(0, 8)
		for range 3 { // the key counts on
			a.send(verbs.Write(1, x.w.Remote().Slice(8, 8), a.sge(0, 8), ib.Signaled))
			a.sent(1, ib.StatusSuccess)
			old = x.w.Remote().Slice(0, 8)
			switch how {
			case "local":
				b.send(verbs.LocalInv(2, old.RKey, ib.Signaled))
				if wc := b.sent(2, ib.StatusSuccess); wc.Opcode != ib.WCLocalInv {
					t.Errorf("an invalidation completes as %v", wc.Opcode)
				}
			case "remote":
				b.recv(3, 0, 64)
				a.send(verbs.SendInv(4, old.RKey, a.sge(0, 8), ib.Signaled))
				a.sent(4, ib.StatusSuccess)
				b.got(3, ib.StatusSuccess)
			case "close":
				t.closed(x.w, "memory window")
				x.w = b.window()
			}
			b.bind(5, x.w, x.mr, ib.RemoteWrite)
		}
		clear(x.mr.Bytes())
		x.refused(old, how+": a key that was taken away")
	}
}

// The receive that brings an invalidation says which key.
func keyOfCompletion(t *tb) {
	x := t.windowed(ib.RemoteWrite)
	k := x.w.RKey()
	x.b.recv(3, 0, 64)
	x.a.send(verbs.SendInv(4, k, x.a.sge(0, 8), ib.Signaled))
	x.a.sent(4, ib.StatusSuccess)
	wc := x.b.got(3, ib.StatusSuccess)
	t.differs(func() {
		if wc.Flags&ib.WithInv == 0 || wc.InvRKey != k {
			t.Errorf("the receive says %v, key %v; want key %v", wc.Flags, wc.InvRKey, k)
		}
	})
	x.refused(ib.Remote{Addr: x.w.Remote().Addr, RKey: k, Len: 8}, "a key that was taken away")
}

// Binds and invalidations of one window may be posted together, among other requests.
func bindsInOneList(t *tb) {
	x := t.windowed(ib.RemoteWrite)
	k := x.w.RKey()
	x.a.recv(1, 0, 64)
	n, err := x.b.qp.PostSendList([]verbs.SendWR{
		verbs.LocalInv(1, k, ib.Signaled),
		verbs.BindMW(2, x.w, x.mr, 0, 64, ib.RemoteRead, ib.Signaled),
		verbs.LocalInv(3, k.Next(), ib.Signaled),
		verbs.BindMW(4, x.w, x.mr, windowAt, windowSize, ib.RemoteWrite, ib.Signaled),
		verbs.Send(5, x.b.sge(0, 8), ib.Signaled), // as if it told the peer
	})
	if n != 5 || err != nil {
		t.Fatalf("posted %d of 5: %v", n, err)
	}
	for id := range uint64(5) {
		x.b.sent(1+id, ib.StatusSuccess)
	}
	x.a.got(1, ib.StatusSuccess)
	if want := k.Next().Next(); x.w.RKey() != want {
		t.Errorf("key %v, want %v", x.w.RKey(), want)
	}
	x.a.fill(0, 8, 0x33)
	x.a.send(verbs.Write(6, x.w.Remote().Slice(0, 8), x.a.sge(0, 8), ib.Signaled))
	x.a.sent(6, ib.StatusSuccess)
	t.same(x.mr.Bytes()[windowAt:windowAt+8], pattern(8, 0x33), "a write through the last bind")
}

// A key that is no window's cannot be invalidated by the peer: the message arrives, the
// receive fails, and the region stays.
func invalidateNoWindow(t *tb) {
	t.supports(verbs.FeatureInvalidate)
	for _, what := range []string{"unknown key", "region"} {
		a, b := t.pair()
		k := b.mr.RKey()
		if what == "unknown key" {
			k ^= 0x5A5A5A
		}
		b.recv(1, 0, 64)
		b.recv(2, 64, 64)
		a.send(verbs.SendInv(3, k, a.sge(0, 8), ib.Signaled))
		a.sent(3, ib.StatusSuccess)
		b.got(1, ib.StatusRemInvReq)
		b.got(2, ib.StatusWRFlush)
		b.state(ib.StateError)
	}
	a, b := t.pair()
	a.send(verbs.LocalInv(1, a.mr.RKey(), ib.Signaled))
	a.sentAt(1, "C-177/local", ib.StatusLocQPOp)
	a.state(ib.StateError)
	t.closed(b.qp, "queue pair")
}

// A window of type 2 is for one queue pair: others of the domain have no use of its key.
func windowOfOtherPair(t *tb) {
	x := t.windowed(ib.RemoteWrite)
	l := t.newLink()
	c := t.newEnd("c", t.a, 0, l, l.a, nil)
	d := t.newEnd("d", t.b, 1, l, l.b, nil)
	t.closed(d.qp, "queue pair") // one of b's domain takes its place
	cfg := l.cfg
	cfg.SendCQ, cfg.RecvCQ = x.b.scq, x.b.rcq
	d.pd, d.qp = x.b.pd, x.b.newQP(cfg)
	t.connectEnds(c, d)
	c.send(verbs.Write(1, x.w.Remote().Slice(0, 8), c.sge(0, 8), ib.Signaled))
	c.sent(1, ib.StatusRemAccess)
	t.untouched(x.mr.Bytes(), 0, "memory written to through another queue pair")
	// It still works where it belongs.
	x.a.send(verbs.Write(2, x.w.Remote().Slice(0, 8), x.a.sge(0, 8), ib.Signaled))
	x.a.sent(2, ib.StatusSuccess)
}

// A zero-based window begins at address 0.
func zeroBasedWindow(t *tb) {
	x := t.windowed(ib.RemoteWrite | ib.ZeroBased)
	r := x.w.Remote()
	if r.Addr != 0 {
		t.Errorf("the window begins at %#x", r.Addr)
	}
	x.a.fill(0, 8, 0x77)
	x.a.send(verbs.Write(1, r.Slice(16, 8), x.a.sge(0, 8), ib.Signaled))
	x.a.sent(1, ib.StatusSuccess)
	mem := x.mr.Bytes()
	t.same(mem[windowAt+16:windowAt+24], pattern(8, 0x77), "a write to byte 16 of the window")
	clear(mem[windowAt+16 : windowAt+24])
	t.untouched(mem, 0, "the rest")
}
