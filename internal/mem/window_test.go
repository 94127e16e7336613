package mem

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// C-174, C-176, C-178: a window reaches what it was bound to, for one queue pair, until it
// is invalidated; and never longer than its region.
func TestWindow(t *testing.T) {
	t.Parallel()
	tab := newTable()
	p := make([]byte, 100)
	const base = 1 << 40
	r := tab.must(t, 5, p, base, ib.LocalWrite|ib.MWBind)
	w := tab.NewWindow(5)
	mine, other := Domain(5).QP(7), Domain(5).QP(8)
	check := func(what string, d Domain, addr uint64, n int, need ib.Access, want Fault) {
		t.Helper()
		if f := tab.Check(uint32(w.RKey()), d, addr, n, need); f != want {
			t.Errorf("%s: %v, want %v", what, f, want)
		}
	}
	check("unbound", mine, base+10, 1, ib.RemoteRead, NoKey)
	b := Bind{Domain: mine, LKey: r.LKey(), RKey: w.RKey().Next(), Addr: base + 10, Len: 20, Rights: ib.RemoteRead | ib.RemoteWrite}
	for what, c := range map[string]struct {
		change func(*Bind)
		want   Fault
	}{
		"unknown region":     {func(b *Bind) { b.LKey++ }, NoKey},
		"other domain":       {func(b *Bind) { b.Domain = Domain(6).QP(7) }, NoDomain},
		"right of its owner": {func(b *Bind) { b.Rights |= ib.LocalWrite }, NoRight},
		"other family":       {func(b *Bind) { b.RKey += 256 }, NoInvalid},
		"before":             {func(b *Bind) { b.Addr = base - 1 }, NoBounds},
		"behind":             {func(b *Bind) { b.Len = 91 }, NoBounds},
		"nothing":            {func(b *Bind) { b.Len = 0 }, NoBounds},
		"odd atomics":        {func(b *Bind) { b.Addr, b.Rights = base+1, ib.RemoteAtomic|ib.ZeroBased }, NoAtomic},
	} {
		bad := b
		c.change(&bad)
		if f := tab.Bind(w, bad); f != c.want {
			t.Errorf("%s: %v, want %v", what, f, c.want)
		}
	}
	if f := tab.Bind(w, b); f != OK {
		t.Fatal(f)
	}
	check("all", mine, base+10, 20, ib.RemoteWrite, OK)
	check("before", mine, base+9, 1, ib.RemoteWrite, NoBounds)
	check("behind", mine, base+30, 1, ib.RemoteWrite, NoBounds)
	check("right", mine, base+10, 8, ib.RemoteAtomic, NoRight)
	check("other queue pair", other, base+10, 1, ib.RemoteRead, NoDomain)
	again := b
	again.RKey = again.RKey.Next()
	if f := tab.Bind(w, again); f != NoInvalid {
		t.Errorf("a window that is bound: %v", f)
	}
	if f := tab.Invalidate(b.RKey, other); f != NoDomain {
		t.Errorf("invalidated by another queue pair: %v", f)
	}
	if f := tab.Invalidate(b.RKey, mine); f != OK {
		t.Fatal(f)
	}
	check("invalidated", mine, base+10, 1, ib.RemoteRead, NoKey)
	if f := tab.Bind(w, again); f != OK {
		t.Fatal(f)
	}
	if f := tab.Check(uint32(b.RKey), mine, base+10, 1, ib.RemoteRead); f != NoKey {
		t.Errorf("the old key: %v", f)
	}
	tab.Unbind(other)
	check("another queue pair has gone", mine, base+10, 1, ib.RemoteRead, OK)
	// A copy that has begun keeps the region, and so its memory.
	user, _, f := tab.Acquire(uint32(w.RKey()), mine, base+10, 1, ib.RemoteRead)
	if f != OK {
		t.Fatal(f)
	}
	tab.Remove(r)
	if r.Idle() {
		t.Error("the region is idle, and used through a window")
	}
	user.Release()
	if !r.Idle() {
		t.Error("the region is never idle")
	}
	check("the region has gone", mine, base+10, 1, ib.RemoteRead, NoKey)
	tab.RemoveWindow(w)
	tab.RemoveWindow(w)
	if tab.Len() != 0 {
		t.Errorf("%d regions", tab.Len())
	}
	// The queue pair goes first.
	r = tab.must(t, 5, p, base, ib.LocalWrite|ib.MWBind)
	w = tab.NewWindow(5)
	b.LKey, b.RKey = r.LKey(), w.RKey().Next()
	if f := tab.Bind(w, b); f != OK {
		t.Fatal(f)
	}
	tab.Unbind(mine)
	check("the queue pair has gone", mine, base+10, 1, ib.RemoteRead, NoKey)
}

// No region gets a key of a window's family, nor a window one of a region's.
func TestWindowKeys(t *testing.T) {
	t.Parallel()
	n := uint32(0x1234_5600)
	tab := NewTable(func() uint32 { n += 3; return n &^ 0xF00 }) // few keys
	p := make([]byte, 8)
	var rs []*Region
	var ws []*Window
	for i := range 300 {
		if i%30 == 0 {
			ws = append(ws, tab.NewWindow(1))
		} else {
			rs = append(rs, tab.must(t, 1, p, 0, 0))
		}
	}
	families := map[uint32]bool{}
	for _, w := range ws {
		f := uint32(w.RKey()) >> 8
		if families[f] {
			t.Errorf("family %#x twice", f)
		}
		families[f] = true
	}
	for _, r := range rs {
		if families[uint32(r.LKey())>>8] {
			t.Errorf("key %v belongs to a window", r.LKey())
		}
	}
}
