package mem

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
)

const all = ib.LocalWrite | ib.RemoteAny

func newTable() *Table { return NewTable(rand.New(rand.NewPCG(1, 2)).Uint32) }

func (t *Table) must(tb testing.TB, d Domain, p []byte, iova uint64, a ib.Access) *Region {
	tb.Helper()
	r, err := t.Register(d, p, iova, a)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// C-026, C-028, C-030, C-031: what cannot be registered.
func TestRegisterErrors(t *testing.T) {
	t.Parallel()
	p := make([]byte, 64)
	for _, c := range []struct {
		name string
		p    []byte
		iova uint64
		a    ib.Access
		want error
	}{
		{"nil", nil, 0, 0, ErrEmpty},
		{"empty", p[:0], 16, 0, ErrEmpty},
		{"wrap", p, 1<<64 - 63, 0, ErrWrap},
		{"to the last byte", p, 1<<64 - 64, 0, nil},
		{"remote write without local", p, 0, ib.RemoteWrite, ErrAccess},
		{"remote atomic without local", p, 0, ib.RemoteAtomic, ErrAccess},
		{"remote read only", p, 0, ib.RemoteRead, nil},
		{"bit 9", p, 0, 1 << 9 << 1, ErrFlags},
		{"bit 15", p, 0, 1 << 15, ErrFlags},
		{"bit 31", p, 0, 1 << 31, ErrFlags},
		{"on demand", p, 0, ib.OnDemand, ErrFlags},
		{"flush", p, 0, ib.FlushGlobal, ErrFlags},
		{"hints", p, 0, ib.RelaxedOrdering | 1<<29 | ib.HugeTLB, nil},
		{"odd atomic", p[1:], 0, all, ErrAlign},
		{"odd, zero based atomic", p[1:], 8, all | ib.ZeroBased, ErrAlign},
		{"odd without atomic", p[1:], 0, ib.LocalWrite | ib.RemoteWrite, nil},
	} {
		tab := newTable()
		r, err := tab.Register(1, c.p, c.iova, c.a)
		if !errors.Is(err, c.want) || (r == nil) != (c.want != nil) {
			t.Errorf("%s: %v, %v", c.name, r, err)
		}
		if n := tab.Len(); (n == 0) != (c.want != nil) {
			t.Errorf("%s: %d regions", c.name, n)
		}
	}
}

// C-043, C-123: every kind of fault, and the edges of a region.
func TestAcquire(t *testing.T) {
	t.Parallel()
	tab := newTable()
	p := make([]byte, 100)
	const base = 1 << 40
	r := tab.must(t, 5, p, base, ib.LocalWrite|ib.RemoteRead)
	k := uint32(r.LKey())
	for _, c := range []struct {
		name string
		key  uint32
		d    Domain
		addr uint64
		n    int
		need ib.Access
		want Fault
	}{
		{"all", k, 5, base, 100, ib.RemoteRead, OK},
		{"first", k, 5, base, 1, 0, OK},
		{"last", k, 5, base + 99, 1, ib.LocalWrite, OK},
		{"none at the end", k, 5, base + 100, 0, 0, OK},
		{"none behind the end", k, 5, base + 101, 0, 0, NoBounds},
		{"one too many", k, 5, base, 101, 0, NoBounds},
		{"last + 1", k, 5, base + 100, 1, 0, NoBounds},
		{"first - 1", k, 5, base - 1, 1, 0, NoBounds},
		{"wrap", k, 5, 1<<64 - 1, 2, 0, NoBounds},
		{"huge", k, 5, base + 1, math.MaxInt, 0, NoBounds},
		{"negative", k, 5, base, -1, 0, NoBounds},
		{"right", k, 5, base, 1, ib.RemoteWrite, NoRight},
		{"one right of two", k, 5, base, 1, ib.RemoteRead | ib.RemoteWrite, NoRight},
		{"domain", k, 6, base, 1, 0, NoDomain},
		{"key", k + 1, 5, base, 1, 0, NoKey},
		{"key 0", 0, 5, base, 1, 0, NoKey},
	} {
		reg, b, f := tab.Acquire(c.key, c.d, c.addr, c.n, c.need)
		if f != c.want || (f == OK) != (reg == r) || f == OK && len(b) != c.n {
			t.Errorf("%s: %v, %d bytes", c.name, f, len(b))
		}
		if f == OK {
			if cap(b) != c.n {
				t.Errorf("%s: capacity %d", c.name, cap(b))
			}
			reg.Release()
		}
		if got := tab.Check(c.key, c.d, c.addr, c.n, c.need); got != c.want {
			t.Errorf("%s: check says %v", c.name, got)
		}
	}
	if r.state.Load() != 0 {
		t.Errorf("users are left: %#x", r.state.Load())
	}
	for f := OK; f <= NoInvalid; f++ {
		if f.String() == "" {
			t.Errorf("fault %d has no text", f)
		}
	}
	if r.Len() != 100 || r.Domain() != 5 || r.Access() != ib.LocalWrite|ib.RemoteRead {
		t.Errorf("%d bytes, domain %d, %v", r.Len(), r.Domain(), r.Access())
	}
}

// C-032: zero-based regions.
func TestZeroBased(t *testing.T) {
	t.Parallel()
	tab := newTable()
	p := make([]byte, 64)
	r := tab.must(t, 1, p, 0xdead0000, ib.LocalWrite|ib.RemoteWrite|ib.ZeroBased)
	reg, b, f := tab.Acquire(uint32(r.RKey()), 1, 32, 1, ib.RemoteWrite)
	if f != OK {
		t.Fatal(f)
	}
	b[0] = 7
	reg.Release()
	if p[32] != 7 {
		t.Error("not at byte 32")
	}
}

// C-034: keys are unique while they are alive, not 0, not used again at once, and those
// of regions without remote rights are none for peers.
func TestKeys(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]func() uint32{
		"random":   rand.New(rand.NewPCG(3, 4)).Uint32,
		"constant": func() uint32 { return 0xffffffff },
		"small":    func() func() uint32 { n := uint32(0); return func() uint32 { n++; return n % 7 } }(),
	} {
		tab := NewTable(source)
		p := make([]byte, 8)
		seen := map[uint32]bool{}
		var rs []*Region
		n := 2000
		if name != "random" {
			n = 400 // to find a free key takes the square of their number then
		}
		for range n {
			r := tab.must(t, 1, p, 0, ib.LocalWrite|ib.RemoteRead)
			k := uint32(r.LKey())
			if k == 0 || seen[k] {
				t.Fatalf("%s: key %#x again", name, k)
			}
			if uint32(r.RKey()) != k {
				t.Fatalf("%s: keys %#x and %#x", name, k, r.RKey())
			}
			seen[k] = true
			rs = append(rs, r)
		}
		for i := range n + n/2 {
			r := rs[i%len(rs)]
			old := uint32(r.LKey())
			tab.Remove(r)
			r = tab.must(t, 1, p, 0, 0)
			if uint32(r.LKey()) == old {
				t.Fatalf("%s: key %#x is used again at once", name, old)
			}
			if r.RKey() != 0 {
				t.Fatalf("%s: a local region has an R_Key", name)
			}
			rs[i%len(rs)] = r
		}
		if tab.Len() != n {
			t.Errorf("%s: %d regions", name, tab.Len())
		}
	}
}

// C-323: all bits of a key are unpredictable.
func TestKeyBits(t *testing.T) {
	t.Parallel()
	tab := newTable()
	var ones [32]int
	const n = 2000
	for range n {
		k := uint32(tab.must(t, 1, make([]byte, 1), 0, 0).LKey())
		for i := range ones {
			ones[i] += int(k >> i & 1)
		}
	}
	for i, c := range ones {
		if c < n/2-150 || c > n/2+150 {
			t.Errorf("bit %d is set in %d of %d keys", i, c, n)
		}
	}
}

// C-046: many regions, freed in random order; the table stays in proportion.
func TestMany(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	tab := NewTable(r.Uint32)
	live := map[*Region]byte{}
	for i := range 30000 {
		if len(live) > 0 && r.IntN(5) < 2 {
			for x := range live {
				tab.Remove(x)
				tab.Remove(x) // again does nothing
				if f := tab.Check(uint32(x.LKey()), 1, 0, 1, 0); f != NoKey {
					t.Fatalf("a removed key gives %v", f)
				}
				delete(live, x)
				break
			}
			continue
		}
		p := []byte{byte(i)}
		live[tab.must(t, 1, p, 0, 0)] = byte(i)
	}
	for x, want := range live {
		reg, b, f := tab.Acquire(uint32(x.LKey()), 1, 0, 1, 0)
		if f != OK || reg != x || b[0] != want {
			t.Fatalf("%v", f)
		}
		reg.Release()
	}
	if n := len(*tab.slots.Load()); n > 4*len(live) {
		t.Errorf("%d places for %d regions", n, len(live))
	}
	for x := range live {
		tab.Remove(x)
	}
	for range 20000 { // until the table is built anew
		tab.Remove(tab.must(t, 1, []byte{1}, 0, 0))
	}
	if n := len(*tab.slots.Load()); n > 1024 || tab.Len() != 0 {
		t.Errorf("%d places for %d regions", n, tab.Len())
	}
}

// C-176, C-177: invalidation.
func TestInvalidate(t *testing.T) {
	t.Parallel()
	tab := newTable()
	p := make([]byte, 64)
	ordinary := tab.must(t, 1, p, 0, all)
	r := tab.must(t, 1, p, 0, all|ib.MWBind)
	k := uint32(r.RKey())
	for name, c := range map[string]struct {
		key  ib.RKey
		d    Domain
		want Fault
	}{
		"unknown":  {r.RKey() + 1, 1, NoKey},
		"domain":   {r.RKey(), 2, NoDomain},
		"ordinary": {ordinary.RKey(), 1, NoInvalid},
	} {
		if f := tab.Invalidate(c.key, c.d); f != c.want {
			t.Errorf("%s: %v, want %v", name, f, c.want)
		}
	}
	if f := tab.Check(k, 1, 0, 8, ib.RemoteAny); f != OK {
		t.Fatal(f)
	}
	reg, _, _ := tab.Acquire(k, 1, 0, 8, ib.RemoteRead) // one that has begun goes on
	if f := tab.Invalidate(r.RKey(), 1); f != OK {
		t.Fatal(f)
	}
	reg.Release()
	for need, want := range map[ib.Access]Fault{
		ib.RemoteRead: NoKey, ib.RemoteWrite: NoKey, ib.RemoteAtomic: NoKey, ib.LocalWrite: OK, 0: OK,
	} {
		if f := tab.Check(k, 1, 0, 8, need); f != want {
			t.Errorf("after invalidation %v gives %v, want %v", need, f, want)
		}
	}
	if f := tab.Invalidate(r.RKey(), 1); f != NoKey {
		t.Errorf("again: %v", f)
	}
	if r.Idle() {
		t.Error("idle although it is registered")
	}
	tab.Remove(r)
	if !r.Idle() {
		t.Error("not idle")
	}
	if f := tab.Invalidate(r.RKey(), 1); f != NoKey {
		t.Errorf("after removal: %v", f)
	}
}

// C-096, C-127: values, alignment, rights.
func TestAtomics(t *testing.T) {
	t.Parallel()
	tab := newTable()
	p := make([]byte, 64)
	r := tab.must(t, 1, p, 0, all)
	noright := tab.must(t, 1, p, 0, ib.LocalWrite|ib.RemoteWrite)
	k := uint32(r.RKey())
	put := func(v uint64) { binary.NativeEndian.PutUint64(p[8:], v) }
	get := func() uint64 { return binary.NativeEndian.Uint64(p[8:]) }
	put(5)
	if old, f := tab.CompareSwap(k, 1, 8, 5, 9); old != 5 || f != OK || get() != 9 {
		t.Errorf("hit: %d, %v, %d", old, f, get())
	}
	if old, f := tab.CompareSwap(k, 1, 8, 5, 11); old != 9 || f != OK || get() != 9 {
		t.Errorf("miss: %d, %v, %d", old, f, get())
	}
	put(1<<64 - 1)
	if old, f := tab.FetchAdd(k, 1, 8, 3); old != 1<<64-1 || f != OK || get() != 2 {
		t.Errorf("wrap: %d, %v, %d", old, f, get())
	}
	for _, c := range []struct {
		key  uint32
		addr uint64
		want Fault
	}{{k, 9, NoAtomic}, {k, 4, NoAtomic}, {k, 64, NoBounds}, {k, 56, OK}, {k + 1, 8, NoKey}, {uint32(noright.RKey()), 8, NoRight}} {
		if _, f := tab.FetchAdd(c.key, 1, c.addr, 0); f != c.want {
			t.Errorf("add at %d: %v, want %v", c.addr, f, c.want)
		}
		if _, f := tab.CompareSwap(c.key, 1, c.addr, 77, 78); f != c.want {
			t.Errorf("swap at %d: %v, want %v", c.addr, f, c.want)
		}
	}
}

// C-097: atomics are atomic against each other, and against sync/atomic.
func TestAtomicsConcurrent(t *testing.T) {
	t.Parallel()
	tab := newTable()
	words := make([]uint64, 2)
	p := make([]byte, 16)
	r := tab.must(t, 1, p, 0, all)
	k := uint32(r.RKey())
	const goroutines, rounds = 8, 5000
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				tab.FetchAdd(k, 1, 0, 1)
				for { // a counter made of CompareSwap
					old, _ := tab.CompareSwap(k, 1, 8, 0, 0)
					if was, _ := tab.CompareSwap(k, 1, 8, old, old+1); was == old {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	words[0], words[1] = binary.NativeEndian.Uint64(p), binary.NativeEndian.Uint64(p[8:])
	if words[0] != goroutines*rounds || words[1] != goroutines*rounds {
		t.Errorf("sums %d, want %d", words, goroutines*rounds)
	}
}

// C-035: look-ups run beside Register and Remove. Once a removed region was idle nothing
// touches its memory, and idle stays true.
func TestRemoveConcurrent(t *testing.T) {
	t.Parallel()
	tab := newTable()
	var current atomic.Pointer[Region]
	var stop atomic.Bool
	var wg sync.WaitGroup
	var uses atomic.Int64
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				r := current.Load()
				if r == nil {
					runtime.Gosched()
					continue
				}
				reg, b, f := tab.Acquire(uint32(r.LKey()), 1, 0, 8, ib.RemoteAtomic)
				if f != OK {
					runtime.Gosched()
					continue
				}
				atomic.AddUint64(wordOf(b), 1)
				reg.Release()
				uses.Add(1)
			}
		})
	}
	for i := range 200 {
		p := make([]byte, 8)
		r := tab.must(t, 1, p, 0, all)
		extra := tab.must(t, 1, p, 0, all) // moves the table
		current.Store(r)
		for n := uses.Load(); uses.Load() == n; {
			tab.Check(uint32(r.LKey()), 1, 0, 8, 0)
			runtime.Gosched()
		}
		tab.Remove(r)
		for !r.Idle() {
			runtime.Gosched()
		}
		was := atomic.LoadUint64(wordOf(p))
		for range 20 {
			if !r.Idle() {
				t.Fatal("idle became false")
			}
		}
		if atomic.LoadUint64(wordOf(p)) != was {
			t.Fatal("memory changed after its region was idle")
		}
		if i%3 != 0 {
			tab.Remove(extra)
		}
	}
	stop.Store(true)
	wg.Wait()
}

func TestAllocations(t *testing.T) {
	tab := newTable()
	p := make([]byte, 64)
	r := tab.must(t, 1, p, 0, all|ib.MWBind)
	k := uint32(r.RKey())
	if n := testing.AllocsPerRun(1000, func() {
		reg, _, _ := tab.Acquire(k, 1, 0, 64, ib.RemoteWrite)
		reg.Release()
		tab.Check(k+1, 1, 0, 64, 0)
		tab.Check(k, 2, 0, 64, 0)
		tab.Check(k, 1, 1, 64, 0)
		tab.FetchAdd(k, 1, 8, 1)
		tab.CompareSwap(k, 1, 8, 1, 1)
		tab.Invalidate(ib.RKey(k+1), 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAcquire(b *testing.B) {
	tab := newTable()
	p := make([]byte, 4096)
	var keys []uint32
	for range 1000 {
		keys = append(keys, uint32(tab.must(b, 1, p, 0, all).RKey()))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r, _, f := tab.Acquire(keys[i%len(keys)], 1, 64, 1024, ib.RemoteWrite)
		if f != OK {
			b.Fatal(f)
		}
		r.Release()
	}
}

func wordOf(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[0])) }
