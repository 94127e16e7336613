package rdmatest

import (
	"context"
	"net"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area C: memory regions.
func areaMR() []check {
	return []check{
		{"C-025_SmallRegions", 0, smallRegions},
		{"C-026_LengthZero", 0, lengthZero},
		{"C-027_MemoryNotThere", 0, memoryNotThere},
		{"C-028_RangesThatOverflow", 0, rangesOverflow},
		{"C-031_AccessBits", 0, accessBits},
		{"C-032_ZeroBased", 0, zeroBased},
		{"C-034_Keys", 0, keys},
		{"C-035_AccessAfterDereg", 0, accessAfterDereg},
		{"C-035_DeregUnderWrites", 0, deregUnderWrites},
		{"C-036_DeregUnderRead", 0, deregUnderRead},
		{"C-038_BufferClosedFirst", 0, bufferClosedFirst},
		{"C-041_LargeRegion", 0, largeRegion},
		{"C-042_GoMemory", 0, goMemory},
		{"C-043_Bounds", 0, boundaryAccess},
		{"C-046_ManyRegions", 0, manyRegions},
	}
}

// remoteOf names memory of a peer by numbers, without the checks of MR.Remote.
func remoteOf(mr *verbs.MR, off, n int) ib.Remote {
	base := mr.Remote(0, 0)
	return ib.Remote{Addr: base.Addr + uint64(off), RKey: mr.RKey(), Len: uint32(n)}
}

func smallRegions(t *tb) {
	a, b := t.pair()
	buf := make([]byte, 64)
	for _, p := range [][]byte{buf[7:8:8], buf[3:8:8], buf[1:64:64]} {
		mr, err := b.pd.RegisterBytes(p, allRights)
		t.ok(err, "register %d bytes", len(p))
		a.fill(0, len(p), 5)
		a.send(verbs.Write(1, mr.Remote(0, len(p)), a.sge(0, len(p)), ib.Signaled))
		a.sent(1, ib.StatusSuccess)
		t.same(p, pattern(len(p), 5), "what was written")
		t.closed(mr, "region")
	}
	mr, err := b.pd.RegisterBytes(buf[3:8:8], allRights)
	t.ok(err, "register 5 bytes")
	defer mr.Close()
	a.send(verbs.Write(2, remoteOf(mr, 0, 6), a.sge(0, 6), 0))
	a.sent(2, ib.StatusRemAccess)
}

func lengthZero(t *tb) {
	pd := t.pd(t.a)
	_, err := pd.Alloc(0, ib.LocalWrite)
	t.isErr(err, einval, "allocate and register nothing")
	buf := make([]byte, 8)
	for _, p := range [][]byte{buf[:0], buf[3:3]} {
		_, err := pd.RegisterBytes(p, ib.LocalWrite)
		t.isErr(err, einval, "register an empty slice")
	}
	_, err = verbs.AllocBuffer(0, nil)
	t.isErr(err, einval, "allocate a buffer of nothing")
}

func memoryNotThere(t *tb) {
	pd := t.pd(t.a)
	_, err := pd.RegisterBytes(nil, ib.LocalWrite)
	t.isErr(err, nil, "register nil")
	_, err = pd.Register(nil, ib.LocalWrite)
	t.isErr(err, nil, "register a nil buffer")
	buf, err := verbs.AllocBuffer(4096, nil)
	t.ok(err, "allocate a buffer")
	t.closed(buf, "buffer")
	_, err = pd.Register(buf, ib.LocalWrite)
	t.isErr(err, net.ErrClosed, "register a buffer that was unmapped")
}

func rangesOverflow(t *tb) {
	pd := t.pd(t.a)
	for _, n := range []int{-1, -4096, 1 << 62, int(^uint(0) >> 1)} {
		_, err := verbs.AllocBuffer(n, nil)
		t.isErr(err, nil, "allocate a buffer of %d bytes", n)
		_, err = pd.Alloc(n, ib.LocalWrite)
		t.isErr(err, nil, "register %d bytes", n)
	}
}

func accessBits(t *tb) {
	pd := t.pd(t.a)
	for _, a := range []ib.Access{0, ib.LocalWrite, ib.RemoteRead, allRights, ib.LocalWrite | ib.RelaxedOrdering} {
		mr, err := pd.Alloc(4096, a)
		t.ok(err, "register with %v", a)
		if mr.Access() != a {
			t.Errorf("registered with %v, has %v", a, mr.Access())
		}
		t.closed(mr, "region")
	}
	// A peer cannot write where the owner must not.
	for _, a := range []ib.Access{ib.RemoteWrite, ib.RemoteAtomic, 1 << 15, 1 << 31} {
		mr, err := pd.Alloc(4096, a)
		t.isErr(err, einval, "register with %#x", uint32(a))
		if err == nil {
			mr.Close()
		}
	}
	if t.a.Supports(verbs.FeatureOnDemand) != nil {
		mr, err := pd.Alloc(4096, ib.LocalWrite|ib.OnDemand)
		t.isErr(err, nil, "register on demand without the ability")
		if err == nil {
			mr.Close()
		}
	}
}

func zeroBased(t *tb) {
	a, b := t.pair()
	mr, err := b.pd.Alloc(4096, allRights|ib.ZeroBased)
	t.ok(err, "register zero-based")
	defer func() { t.closed(mr, "region") }()
	if r := mr.Remote(32, 8); r.Addr != 32 {
		t.Errorf("byte 32 has the address %#x", r.Addr)
	}
	a.fill(0, 8, 9)
	a.send(verbs.Write(1, ib.Remote{Addr: 32, RKey: mr.RKey(), Len: 8}, a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	t.same(mr.Bytes()[32:40], pattern(8, 9), "byte 32 of the region")
	t.untouched(mr.Bytes()[:32], 0, "before")
	// Local use of the same region.
	b.fill(0, 8, 1)
	a.recv(2, 1024, 8)
	b.send(verbs.Send(3, mr.SGE(32, 8), ib.Signaled))
	a.got(2, ib.StatusSuccess)
	b.sent(3, ib.StatusSuccess)
	a.check(1024, 8, 9, "what came from the zero-based region")
}

func keys(t *tb) {
	a, b := t.pair()
	pd := b.pd
	buf, err := verbs.AllocBuffer(8192, nil)
	t.ok(err, "allocate a buffer")
	defer func() { t.closed(buf, "buffer") }()
	lkeys, rkeys := map[ib.LKey]bool{}, map[ib.RKey]bool{}
	var open []*verbs.MR
	for i := range 50 {
		mr, err := pd.Register(buf, allRights) // the same range again and again
		t.ok(err, "register the same range for the time %d", i)
		if lkeys[mr.LKey()] || rkeys[mr.RKey()] {
			t.Errorf("key %#x or %#x is in use twice", mr.LKey(), mr.RKey())
		}
		lkeys[mr.LKey()], rkeys[mr.RKey()] = true, true
		open = append(open, mr)
	}
	for i, mr := range open { // every one works
		a.fill(0, 64, byte(i))
		a.send(verbs.Write(uint64(i), mr.Remote(0, 64), a.sge(0, 64), ib.Signaled))
		a.sent(uint64(i), ib.StatusSuccess)
		t.same(buf.Bytes()[:64], pattern(64, byte(i)), "region")
	}
	for _, mr := range open {
		t.closed(mr, "region")
	}
	last := map[ib.RKey]bool{}
	for range 6 {
		mr, err := pd.Register(buf, allRights)
		t.ok(err, "register")
		k := mr.RKey()
		t.closed(mr, "region")
		if last[k] || rkeys[k] {
			t.Errorf("key %#x was given again at once", k)
		}
		last[k] = true
	}
	// Overlapping regions of the domain of a connection, each used by its key.
	two := []*verbs.MR{}
	shared := make([]byte, 96)
	for _, p := range [][]byte{shared[:64:64], shared[32:96:96]} {
		mr, err := b.pd.RegisterBytes(p, allRights)
		t.ok(err, "register overlapping regions")
		two = append(two, mr)
	}
	for i, mr := range two {
		a.fill(0, 64, byte(i))
		a.send(verbs.Write(uint64(i), mr.Remote(0, 64), a.sge(0, 64), ib.Signaled))
		a.sent(uint64(i), ib.StatusSuccess)
		t.same(mr.Bytes(), pattern(64, byte(i)), "overlapping region")
	}
	for _, mr := range two {
		t.closed(mr, "region")
	}
}

func accessAfterDereg(t *tb) {
	a, b := t.pair()
	mr, err := b.pd.Alloc(4096, allRights)
	t.ok(err, "register")
	to := mr.Remote(0, 64)
	a.send(verbs.Write(1, to, a.sge(0, 64), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	t.closed(mr, "region")
	a.send(verbs.Write(2, to, a.sge(0, 64), ib.Signaled))
	a.sent(2, ib.StatusRemAccess)
	a.state(ib.StateError)
	b.state(ib.StateError)
}

// Once Close of a region has returned, no byte of its memory changes.
func deregUnderWrites(t *tb) {
	t.latency()
	for round := range 10 {
		a, b := t.pair()
		buf := make([]byte, 1<<16)
		mr, err := b.pd.RegisterBytes(buf, allRights)
		t.ok(err, "register")
		to := mr.Remote(0, len(buf))
		ctx, stop := context.WithCancel(t.limit)
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.fill(0, len(buf), 0xA5)
			for ctx.Err() == nil && a.qp.PostSend(verbs.Write(1, to, a.sge(0, len(buf)), ib.Signaled)) == nil {
				wc, err := a.scq.Next(ctx)
				if err != nil || wc.Err() != nil {
					return
				}
			}
		}()
		time.Sleep(time.Duration(round) * 50 * time.Microsecond)
		t.closed(mr, "region under writes")
		for i := range buf {
			buf[i] = 0x11
		}
		t.pass(2*time.Millisecond, 100*time.Millisecond)
		t.untouched(buf, 0x11, "memory of a closed region")
		stop()
		<-done
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}

func deregUnderRead(t *tb) {
	const n = 4 << 20
	a, b := t.pair(func(l *link) { l.mem = n })
	buf := make([]byte, n)
	copy(buf, pattern(n, 3))
	mr, err := b.pd.RegisterBytes(buf, allRights)
	t.ok(err, "register")
	if t.Fabric != nil { // responses take their time, so that the region goes in the middle
		t.Fabric.Rule(Rule{From: t.PeerAddr, To: t.Addr, Delay: time.Millisecond})
	}
	a.send(verbs.Read(1, mr.Remote(0, n), a.sge(0, n), ib.Signaled))
	time.Sleep(3500 * time.Microsecond)
	if mem := a.mr.Bytes(); t.Fabric != nil && (mem[0] == 0 || mem[n-1] != 0) {
		t.Fatal("the read has not begun, or is over")
	}
	t.closed(mr, "region under a read")
	for i := range buf {
		buf[i] = 0xEE
	}
	wc, err := a.scq.Next(t.limit)
	t.ok(err, "wait for the read")
	switch wc.Status {
	case ib.StatusSuccess:
		a.check(0, n, 3, "a read that succeeded")
	case ib.StatusRemAccess, ib.StatusRemOp:
	default:
		t.Errorf("read of a closed region: %v", wc.Status)
	}
	want := pattern(n, 3)
	for i, v := range a.mr.Bytes() {
		if v != 0 && v != want[i] {
			t.Fatalf("byte %d was read after the region was closed", i)
		}
	}
}

// A buffer that is closed while regions hold it stays for them.
func bufferClosedFirst(t *tb) {
	a, b := t.pair()
	buf, err := verbs.AllocBuffer(8192, nil)
	t.ok(err, "allocate a buffer")
	mr, err := b.pd.Register(buf, allRights)
	t.ok(err, "register")
	mem := mr.Bytes()
	t.closed(buf, "buffer with a region")
	_, err = b.pd.Register(buf, allRights)
	t.isErr(err, net.ErrClosed, "register a closed buffer")
	a.fill(0, 8192, 7)
	a.send(verbs.Write(1, mr.Remote(0, 8192), a.sge(0, 8192), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	t.same(mem, pattern(8192, 7), "buffer closed before its region")
	t.closed(mr, "region")
}

func largeRegion(t *tb) {
	const n = 1 << 30
	if os.Getpagesize() > 64<<10 {
		t.Skip("pages of this host make a sparse gigabyte expensive")
	}
	a, b := t.pair()
	mr, err := b.pd.Alloc(n, allRights)
	t.ok(err, "register a gigabyte")
	defer func() { t.closed(mr, "region") }()
	a.fill(0, 4096, 1)
	a.send(verbs.Write(1, mr.Remote(n-4096, 4096), a.sge(0, 4096), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	t.same(mr.Bytes()[n-4096:], pattern(4096, 1), "the last page of a gigabyte")
}

func goMemory(t *tb) {
	a, b := t.pair()
	buf := make([]byte, 4096)
	mr, err := b.pd.RegisterBytes(buf, allRights)
	t.ok(err, "register Go memory")
	if len(mr.Bytes()) != len(buf) || &mr.Bytes()[0] != &buf[0] {
		t.Error("the region is not the slice")
	}
	for i := range 20 {
		runtime.GC()
		growStack(64)
		a.fill(0, 4096, byte(i))
		a.send(verbs.Write(uint64(i), mr.Remote(0, 4096), a.sge(0, 4096), ib.Signaled))
		a.sent(uint64(i), ib.StatusSuccess)
		t.same(buf, pattern(4096, byte(i)), "Go memory")
	}
	t.closed(mr, "region")
	runtime.GC()
}

// growStack makes the stack of the goroutine move.
func growStack(n int) byte {
	var pad [1024]byte
	if n == 0 {
		return pad[0]
	}
	pad[n%1024] = byte(n)
	return growStack(n-1) + pad[n%1024]
}

func boundaryAccess(t *tb) {
	const n, guard = 4096, 512
	type access struct {
		what     string
		off, len int
		ok       bool
	}
	cases := []access{
		{"first byte", 0, 1, true}, {"last byte", n - 1, 1, true}, {"whole region", 0, n, true},
		{"one byte behind", n, 1, false}, {"last byte and one more", n - 1, 2, false},
		{"one byte before", -1, 1, false}, {"one byte before and the first", -1, 2, false},
	}
	for _, read := range []bool{false, true} {
		for _, c := range cases {
			a, b := t.pair()
			all := slices.Repeat([]byte{0x77}, n+2*guard)
			mr, err := b.pd.RegisterBytes(all[guard:guard+n:guard+n], allRights)
			t.ok(err, "register")
			from := remoteOf(mr, c.off, c.len)
			wr := verbs.Write(1, from, a.sge(0, c.len), ib.Signaled)
			if read {
				wr = verbs.Read(1, from, a.sge(0, c.len), ib.Signaled)
			}
			a.fill(0, n, 0x3C)
			a.send(wr)
			want := ib.StatusSuccess
			if !c.ok {
				want = ib.StatusRemAccess
			}
			a.sent(1, want)
			t.untouched(all[:guard], 0x77, c.what+": guard before")
			t.untouched(all[guard+n:], 0x77, c.what+": guard behind")
			switch {
			case !c.ok || read:
				t.untouched(all[guard:guard+n], 0x77, c.what)
			default:
				t.same(all[guard+c.off:guard+c.off+c.len], pattern(c.len, 0x3C), c.what)
			}
			if read && c.ok {
				t.untouched(a.mr.Bytes()[:c.len], 0x77, c.what+": read")
			}
			t.closed(mr, "region")
			t.closed(a.qp, "queue pair")
			t.closed(b.qp, "queue pair")
		}
	}
}

func manyRegions(t *tb) {
	const n = 2000
	a, b := t.pair(func(l *link) { l.cfg.SignalAll = true })
	buf := make([]byte, 8*n)
	open := make([]*verbs.MR, n)
	used := map[ib.RKey]bool{}
	for i := range open {
		mr, err := b.pd.RegisterBytes(buf[8*i:8*i+8:8*i+8], allRights)
		t.ok(err, "register region %d", i)
		if used[mr.RKey()] {
			t.Fatalf("key %#x is in use twice", mr.RKey())
		}
		used[mr.RKey()], open[i] = true, mr
	}
	for i := range n {
		k := i * 7919 % n // not in order
		a.fill(0, 8, byte(k))
		a.send(verbs.Write(uint64(k), open[k].Remote(0, 8), a.sge(0, 8), 0))
		a.sent(uint64(k), ib.StatusSuccess)
		t.closed(open[k], "region")
	}
	for i := range n {
		t.same(buf[8*i:8*i+8], pattern(8, byte(i)), "region")
	}
}
