package rdmatest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area F, first part: operations that succeed.
func areaRC() []check {
	return []check{
		{"C-091_SendRecv", 0, sendRecv},
		{"C-092_Immediate", 0, immediate},
		{"C-094_WriteImmediate", 0, writeImmediate},
		{"C-095_Read", 0, readScattered},
		{"C-096_Atomics", 0, atomics},
		{"C-097_AtomicsAreAtomic", 0, atomicsAreAtomic},
		{"C-097_SpinLock", 0, spinLock},
		{"C-098_Inline", 0, inline},
		{"C-099_ScatterGather", 0, scatterGather},
		{"C-100_ZeroLength", 0, zeroLength},
		{"C-102_LargestMessage", 0, largestMessage},
		{"C-104_UnsignaledSlots", 0, unsignaledSlots},
		{"C-105_FullQueues", 0, fullQueues},
		{"C-106_BadListElement", 0, badListElement},
		{"C-107_Fence", 0, fence},
	}
}

func sendRecv(t *tb) {
	a, b := t.pair(func(l *link) { l.mem = 1 << 20 })
	m := t.mtu().Bytes()
	for i, n := range []int{1, 2, 3, 4, 5, 64, m - 1, m, m + 1, 2*m + 3, 65536, 1 << 20} {
		seed := byte(i + 1)
		clear(b.mr.Bytes())
		a.fill(0, n, seed)
		id := uint64(i)
		b.recv(id, 0, n)
		a.send(verbs.Send(id+100, a.sge(0, n), ib.Signaled))
		wc := b.got(id, ib.StatusSuccess)
		if wc.Opcode != ib.WCRecv || wc.ByteLen != uint32(n) {
			t.Errorf("%d bytes: opcode %v, %d bytes", n, wc.Opcode, wc.ByteLen)
		}
		b.check(0, n, seed, fmt.Sprintf("message of %d bytes", n))
		a.sent(id+100, ib.StatusSuccess)
	}
	// The other way, into a buffer that is larger.
	a.recv(1, 0, 4096)
	b.fill(0, 100, 9)
	b.send(verbs.Send(2, b.sge(0, 100), ib.Signaled))
	if wc := a.got(1, ib.StatusSuccess); wc.ByteLen != 100 {
		t.Errorf("%d bytes, want 100", wc.ByteLen)
	}
	a.check(0, 100, 9, "message into a larger buffer")
	b.sent(2, ib.StatusSuccess)
}

func immediate(t *tb) {
	a, b := t.pair()
	for i, imm := range []uint32{0, 1, 0x01020304, 0xFFFFFFFF} {
		for _, n := range []int{0, 100} {
			id := uint64(i)
			b.recv(id, 0, 128)
			a.send(verbs.SendImm(id, imm, a.sge(0, n), ib.Signaled))
			wc := b.got(id, ib.StatusSuccess)
			if wc.Imm != imm || wc.Flags&ib.WithImm == 0 || wc.ByteLen != uint32(n) {
				t.Errorf("immediate %#x with %d bytes: %+v", imm, n, wc)
			}
			a.sent(id, ib.StatusSuccess)
		}
	}
	b.recv(9, 0, 128)
	a.send(verbs.Send(9, a.sge(0, 1), ib.Signaled))
	if wc := b.got(9, ib.StatusSuccess); wc.Flags&ib.WithImm != 0 {
		t.Error("a plain send has the flag for immediate data")
	}
	a.sent(9, ib.StatusSuccess)
}

func writeImmediate(t *tb) {
	a, b := t.pair()
	for i, n := range []int{3000, 0, 1} {
		for _, room := range []int{4, 0} {
			id := uint64(i)
			for j := range b.mr.Bytes() {
				b.mr.Bytes()[j] = 0x77
			}
			if room > 0 {
				b.recv(id, 0, room)
			} else {
				t.ok(b.qp.PostRecv(verbs.RecvWR{ID: id}), "post a receive without memory")
			}
			a.fill(0, n, byte(i))
			a.send(verbs.WriteImm(id, b.mr.Remote(8192, n), 0xABCD, a.sge(0, n), ib.Signaled))
			wc := b.got(id, ib.StatusSuccess)
			if wc.Opcode != ib.WCRecvWriteImm || wc.ByteLen != uint32(n) || wc.Imm != 0xABCD || wc.Flags&ib.WithImm == 0 {
				t.Errorf("%d bytes: %+v", n, wc)
			}
			a.sent(id, ib.StatusSuccess)
			b.check(8192, n, byte(i), "written data")
			t.untouched(b.mr.Bytes()[:8192], 0x77, "the receive's memory")
			t.untouched(b.mr.Bytes()[8192+n:], 0x77, "behind the written data")
		}
	}
}

func readScattered(t *tb) {
	a, b := t.pair()
	b.fill(1, 3001, 6)
	wr := verbs.Read(1, b.mr.Remote(1, 3001), a.sge(0, 7), ib.Signaled)
	wr.More = []verbs.SGE{a.sge(101, 1001), a.sge(5003, 1), a.sge(9001, 1992)}
	a.send(wr)
	a.sent(1, ib.StatusSuccess)
	mem := a.mr.Bytes()
	got := slices.Concat(mem[:7], mem[101:1102], mem[5003:5004], mem[9001:10993])
	t.same(got, pattern(3001, 6), "scattered read")
	t.untouched(mem[7:101], 0, "between the pieces")
	t.untouched(mem[1102:5003], 0, "between the pieces")
	t.untouched(mem[10993:], 0, "behind the pieces")
}

// word gives the 8 bytes at off in the byte order of the host.
func word(mr *verbs.MR, off int) uint64 { return binary.NativeEndian.Uint64(mr.Bytes()[off:]) }

func setWord(mr *verbs.MR, off int, v uint64) { binary.NativeEndian.PutUint64(mr.Bytes()[off:], v) }

func atomics(t *tb) {
	t.supports(verbs.FeatureAtomics)
	a, b := t.pair()
	at := b.mr.Remote(16, 8)
	step := func(what string, wr verbs.SendWR, before, after uint64) {
		t.Helper()
		setWord(b.mr, 16, before)
		setWord(a.mr, 0, 0xDEAD)
		a.send(wr)
		a.sent(wr.ID, ib.StatusSuccess)
		if old := word(a.mr, 0); old != before {
			t.Errorf("%s: gave %#x, was %#x", what, old, before)
		}
		if now := word(b.mr, 16); now != after {
			t.Errorf("%s: is %#x, want %#x", what, now, after)
		}
	}
	const v = 0x0102030405060708
	step("swap that hits", verbs.CompareSwap(1, at, v, 42, a.sge(0, 8), ib.Signaled), v, 42)
	step("swap that misses", verbs.CompareSwap(2, at, v+1, 42, a.sge(0, 8), ib.Signaled), v, v)
	step("add", verbs.FetchAdd(3, at, 5, a.sge(0, 8), ib.Signaled), v, v+5)
	step("add that wraps", verbs.FetchAdd(4, at, 3, a.sge(0, 8), ib.Signaled), ^uint64(0), 2)
	t.untouched(b.mr.Bytes()[:16], 0, "before the word")
	t.untouched(b.mr.Bytes()[24:], 0, "behind the word")
}

// contend gives queue pairs that reach the same memory of b, each with a completion queue of
// its own.
func (t *tb) contend(n int) (ends []*end, b *end) {
	t.Helper()
	t.supports(verbs.FeatureAtomics)
	a, b := t.pair(func(l *link) { l.cqs = 2048 })
	ends = append(ends, a)
	for len(ends) < n {
		s, c := t.sibling(a), t.sibling(b)
		s.scq = t.cq(t.a, 64, nil)
		cfg := a.qp.Config()
		cfg.SendCQ, cfg.RecvCQ = s.scq, s.scq
		s.qp, s.rcq = s.newQP(cfg), s.scq
		t.join(s, c)
		ends = append(ends, s)
	}
	return ends, b
}

// do posts a request and waits for its end.
func (e *end) do(wr verbs.SendWR) error {
	wr.Flags |= ib.Signaled
	if err := e.qp.PostSend(wr); err != nil {
		return err
	}
	wc, err := e.scq.Next(e.limit)
	if err != nil {
		return err
	}
	if wc.ID != wr.ID {
		return fmt.Errorf("completion %d, want %d", wc.ID, wr.ID)
	}
	return wc.Err()
}

func atomicsAreAtomic(t *tb) {
	const pairs = 8
	each, enough := uint64(10000), time.Now().Add(3*time.Second)
	if t.Virtual {
		each = 2000
	}
	t.latency()
	ends, b := t.contend(pairs)
	at := b.mr.Remote(0, 8)
	var sums [pairs]uint64
	var wg sync.WaitGroup
	for i, e := range ends {
		wg.Go(func() {
			last := uint64(0)
			for n := uint64(1); n <= each && (t.Virtual || time.Now().Before(enough)); n++ {
				if err := e.do(verbs.FetchAdd(n, at, uint64(i+1), e.sge(8*(i+1), 8), 0)); err != nil {
					t.Errorf("fetch and add %d: %v", n, err)
					return
				}
				sums[i] += uint64(i + 1)
				old := word(e.mr, 8*(i+1))
				if n > 1 && old < last {
					t.Errorf("the word was %d, and then %d", last, old)
				}
				last = old + uint64(i+1)
			}
		})
	}
	wg.Wait()
	want := uint64(0)
	for _, s := range sums {
		want += s
	}
	if got := word(b.mr, 0); got != want {
		t.Errorf("sum %d, want %d", got, want)
	}
}

// A lock that is taken with a compare-and-swap protects a number that is read, and written back.
func spinLock(t *tb) {
	const pairs, each = 4, 25
	t.latency()
	ends, b := t.contend(pairs)
	lock, number := b.mr.Remote(0, 8), b.mr.Remote(64, 8)
	var wg sync.WaitGroup
	for i, e := range ends {
		own, mine, off := uint64(i+1), e.sge(256*i, 8), 256*i
		round := func() error {
			for {
				if err := e.do(verbs.CompareSwap(1, lock, 0, own, mine, 0)); err != nil {
					return err
				}
				if word(e.mr, off) == 0 {
					break
				}
			}
			if err := e.do(verbs.Read(2, number, mine, 0)); err != nil {
				return err
			}
			setWord(e.mr, off, word(e.mr, off)+1)
			if err := e.do(verbs.Write(3, number, mine, 0)); err != nil {
				return err
			}
			if err := e.do(verbs.CompareSwap(4, lock, own, 0, mine, 0)); err != nil {
				return err
			}
			if holder := word(e.mr, off); holder != own {
				return fmt.Errorf("the lock of %d was held by %d", own, holder)
			}
			return nil
		}
		wg.Go(func() {
			for n := range each {
				if err := round(); err != nil {
					t.Errorf("queue pair %d, round %d: %v", i, n, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := word(b.mr, 64); got != pairs*each {
		t.Errorf("the number is %d, want %d", got, pairs*each)
	}
	if holder := word(b.mr, 0); holder != 0 {
		t.Errorf("%d still holds the lock", holder)
	}
}

func inline(t *tb) {
	a, b := t.pair()
	limit := a.qp.Config().MaxInline
	if limit == 0 {
		t.Skip("the device has no inline data")
	}
	data := pattern(limit, 3)
	b.recv(1, 0, limit)
	buf := slices.Clone(data)
	wr := verbs.SendWR{ID: 2, Opcode: ib.OpSend, Data: buf, Flags: ib.Inline | ib.Signaled}
	a.send(wr)
	clear(buf) // at once
	b.got(1, ib.StatusSuccess)
	a.sent(2, ib.StatusSuccess)
	b.check(0, limit, 3, "inline send")

	buf = slices.Clone(data)
	w := verbs.SendWR{ID: 3, Opcode: ib.OpWrite, Data: buf, Remote: b.mr.Remote(4096, limit), Flags: ib.Inline | ib.Signaled}
	a.send(w)
	clear(buf)
	a.sent(3, ib.StatusSuccess)
	b.check(4096, limit, 3, "inline write")

	// Inline from registered memory, in two pieces.
	a.fill(0, limit, 3)
	b.recv(4, 0, limit)
	s := verbs.Send(5, a.sge(0, limit/2), ib.Inline|ib.Signaled)
	s.More = []verbs.SGE{a.sge(limit/2, limit-limit/2)}
	clear(b.mr.Bytes())
	a.send(s)
	clear(a.mr.Bytes())
	b.got(4, ib.StatusSuccess)
	a.sent(5, ib.StatusSuccess)
	b.check(0, limit, 3, "inline in two pieces")

	big := verbs.SendWR{ID: 6, Opcode: ib.OpSend, Data: make([]byte, limit+1), Flags: ib.Inline | ib.Signaled}
	t.isErr(a.qp.PostSend(big), verbs.ErrInlineSize, "post more than fits inline")
	a.empty()
}

func scatterGather(t *tb) {
	a, b := t.pair()
	c := a.qp.Config()
	n := min(c.MaxSendSGE, 16)
	var more []verbs.SGE
	for i := 1; i < n; i++ {
		more = append(more, a.sge(100*i, 10))
	}
	for i := range n {
		copy(a.mr.Bytes()[100*i:], pattern(10*n, 4)[10*i:10*i+10])
	}
	b.recv(1, 0, 4096)
	wr := verbs.Send(2, a.sge(0, 10), ib.Signaled)
	wr.More = more
	a.send(wr)
	if wc := b.got(1, ib.StatusSuccess); wc.ByteLen != uint32(10*n) {
		t.Errorf("%d bytes from %d pieces of 10", wc.ByteLen, n)
	}
	a.sent(2, ib.StatusSuccess)
	b.check(0, 10*n, 4, "gathered message")

	// Pieces of nothing, without a valid key, are not looked at.
	b.recv(3, 0, 64)
	wr = verbs.Send(4, verbs.RawSGE(a.pd, 12345, 0, 0), ib.Signaled)
	wr.More = []verbs.SGE{a.sge(0, 10), verbs.RawSGE(a.pd, 0, 0, 0xFFFF)}
	a.send(wr)
	if wc := b.got(3, ib.StatusSuccess); wc.ByteLen != 10 {
		t.Errorf("%d bytes, want 10", wc.ByteLen)
	}
	a.sent(4, ib.StatusSuccess)
	// No piece at all is an empty message.
	b.recv(5, 0, 64)
	a.send(verbs.SendWR{ID: 6, Opcode: ib.OpSend, Flags: ib.Signaled})
	if wc := b.got(5, ib.StatusSuccess); wc.ByteLen != 0 {
		t.Errorf("%d bytes, want none", wc.ByteLen)
	}
	a.sent(6, ib.StatusSuccess)
	// A receive in several pieces.
	r := verbs.Recv(7, b.sge(1000, 3))
	r.More = []verbs.SGE{b.sge(2000, 5), b.sge(3000, 100)}
	t.ok(b.qp.PostRecv(r), "post a receive of three pieces")
	a.fill(0, 20, 8)
	a.send(verbs.Send(8, a.sge(0, 20), ib.Signaled))
	b.got(7, ib.StatusSuccess)
	a.sent(8, ib.StatusSuccess)
	mem := b.mr.Bytes()
	t.same(slices.Concat(mem[1000:1003], mem[2000:2005], mem[3000:3012]), pattern(20, 8), "scattered message")

	wr = verbs.Send(9, a.sge(0, 1), 0)
	for range c.MaxSendSGE {
		wr.More = append(wr.More, a.sge(0, 1))
	}
	t.isErr(a.qp.PostSend(wr), verbs.ErrTooManySGE, "post a send with too many pieces")
	r = verbs.Recv(9, b.sge(0, 1))
	for range b.qp.Config().MaxRecvSGE {
		r.More = append(r.More, b.sge(0, 1))
	}
	t.isErr(b.qp.PostRecv(r), verbs.ErrTooManySGE, "post a receive with too many pieces")
}

func zeroLength(t *tb) {
	a, b := t.pair()
	nonsense := ib.Remote{Addr: 0xDEADBEEF00, RKey: 0x12345}
	a.send(verbs.Write(1, nonsense, verbs.SGE{}, ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	a.send(verbs.Read(2, nonsense, verbs.SGE{}, ib.Signaled))
	a.sent(2, ib.StatusSuccess)
	b.recv(3, 0, 8)
	a.send(verbs.WriteImm(4, nonsense, 5, verbs.SGE{}, ib.Signaled))
	b.got(3, ib.StatusSuccess)
	a.sent(4, ib.StatusSuccess)
	a.state(ib.StateRTS)
	b.state(ib.StateRTS)
}

func largestMessage(t *tb) {
	p, err := t.a.Port(1)
	t.ok(err, "query port 1")
	if p.MaxMessage > 1<<31 {
		t.Errorf("MaxMessage %d is more than the standard's 2^31", p.MaxMessage)
	}
	a, b := t.pair(func(l *link) { l.mem = 8 << 20 })
	n := min(int(p.MaxMessage), 8<<20)
	a.fill(0, n, 1)
	a.send(verbs.Write(1, b.mr.Remote(0, n), a.sge(0, n), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	b.check(0, n, 1, "large write")

	// More than a message may have is refused, or fails, and nothing is sent.
	const huge = 1 << 30
	mr, err := a.pd.Alloc(huge, ib.LocalWrite)
	t.ok(err, "register a gigabyte")
	defer mr.Close()
	wr := verbs.Write(2, ib.Remote{Addr: 0, RKey: b.mr.RKey(), Len: ^uint32(0)}, mr.SGE(0, huge), ib.Signaled)
	wr.More = []verbs.SGE{mr.SGE(0, huge), mr.SGE(0, 1)}
	err = a.qp.PostSend(wr)
	if err == nil {
		wc, err := a.scq.Next(t.limit)
		t.ok(err, "wait")
		if wc.Status != ib.StatusLocLen {
			t.Errorf("2^31+1 bytes: %v", wc.Status)
		}
	}
}

func unsignaledSlots(t *tb) {
	a, b := t.pair(func(l *link) { l.cfg.MaxSendWR = 4 })
	for i := range uint64(200) {
		for {
			err := a.qp.PostSend(verbs.Write(i, b.mr.Remote(int(i), 1), a.sge(int(i), 1), 0))
			if err == nil {
				break
			}
			t.isErr(err, verbs.ErrQueueFull, "post")
			var wcs [4]verbs.WC
			n, err := a.scq.Poll(wcs[:])
			t.ok(err, "poll")
			if n != 0 {
				t.Fatalf("%d completions of unsignaled requests: %+v", n, wcs[0])
			}
			t.pause()
		}
	}
	t.until("all slots are free", func() bool {
		var wcs [4]verbs.WC
		n, err := a.scq.Poll(wcs[:])
		t.ok(err, "poll")
		if n != 0 {
			t.Fatalf("%d completions of unsignaled requests", n)
		}
		return a.qp.SendRoom() > 0
	})
	// A signaled one behind them accounts for all.
	a.send(verbs.Write(1000, b.mr.Remote(0, 1), a.sge(0, 1), ib.Signaled))
	a.sent(1000, ib.StatusSuccess)
	if s, _ := a.qp.Outstanding(); s != 0 {
		t.Errorf("%d sends outstanding", s)
	}
}

func fullQueues(t *tb) {
	// No receive is posted, so the sends do not progress.
	a, b := t.pair(func(l *link) {
		l.cfg.MaxSendWR, l.cfg.MaxRecvWR = 4, 4
		l.b.MinRNRTimer = 20 * time.Millisecond
	})
	room := a.qp.Config().MaxSendWR
	wrs := make([]verbs.SendWR, room+3)
	for i := range wrs {
		wrs[i] = verbs.Send(uint64(i), a.sge(0, 8), ib.Signaled)
	}
	n, err := a.qp.PostSendList(wrs)
	t.isErr(err, verbs.ErrQueueFull, "post more than fits")
	if n < 4 || n > room {
		t.Fatalf("posted %d, room is for %d", n, room)
	}
	if r := a.qp.SendRoom(); r != 0 {
		t.Errorf("room for %d in a full queue", r)
	}
	t.isErr(a.qp.PostSend(wrs[0]), verbs.ErrQueueFull, "post to a full queue")
	posted := 0
	for posted <= b.qp.Config().MaxRecvWR {
		err := b.qp.PostRecv(verbs.Recv(uint64(posted), b.sge(0, 8)))
		if err != nil {
			t.isErr(err, verbs.ErrQueueFull, "post a receive to a full queue")
			break
		}
		posted++
	}
	if posted < 4 || posted > b.qp.Config().MaxRecvWR {
		t.Errorf("posted %d receives, room is for %d", posted, b.qp.Config().MaxRecvWR)
	}
	for i := range min(n, posted) { // what was accepted runs
		a.sent(uint64(i), ib.StatusSuccess)
		b.got(uint64(i), ib.StatusSuccess)
	}
}

func badListElement(t *tb) {
	a, b := t.pair()
	b.recvs(3, 8)
	bad := verbs.Send(1, a.sge(0, 1), ib.Signaled)
	for range a.qp.Config().MaxSendSGE {
		bad.More = append(bad.More, a.sge(0, 1))
	}
	n, err := a.qp.PostSendList([]verbs.SendWR{
		verbs.Send(0, a.sge(0, 8), ib.Signaled), bad, verbs.Send(2, a.sge(0, 8), ib.Signaled),
	})
	if n != 1 {
		t.Errorf("posted %d, want 1", n)
	}
	t.isErr(err, verbs.ErrTooManySGE, "post a list whose second request is wrong")
	a.sent(0, ib.StatusSuccess)
	b.got(0, ib.StatusSuccess)
	a.quiet()

	r := verbs.Recv(11, b.sge(0, 1))
	for range b.qp.Config().MaxRecvSGE {
		r.More = append(r.More, b.sge(0, 1))
	}
	n, err = b.qp.PostRecvList([]verbs.RecvWR{verbs.Recv(10, b.sge(0, 8)), r, verbs.Recv(12, b.sge(0, 8))})
	if n != 1 {
		t.Errorf("posted %d receives, want 1", n)
	}
	t.isErr(err, verbs.ErrTooManySGE, "post a list whose second receive is wrong")
	// Opcodes are checked before anything else happens.
	for _, op := range []ib.Opcode{ib.OpTSO, 99, 13} {
		wr := verbs.Send(1, a.sge(0, 8), 0)
		wr.Opcode = op
		t.isErr(a.qp.PostSend(wr), nil, "post opcode %d", op)
	}
	a.state(ib.StateRTS)
}

func fence(t *tb) {
	a, b := t.pair(func(l *link) { l.a.MaxRDAtomic = 1 })
	for i := range 200 {
		b.fill(0, 2000, byte(i))
		clear(a.mr.Bytes()[:2000])
		n, err := a.qp.PostSendList([]verbs.SendWR{
			verbs.Read(1, b.mr.Remote(0, 2000), a.sge(0, 2000), 0),
			verbs.Write(2, b.mr.Remote(4096, 2000), a.sge(0, 2000), ib.Fence|ib.Signaled),
		})
		t.ok(err, "post %d", n)
		a.sent(2, ib.StatusSuccess)
		b.check(4096, 2000, byte(i), "write behind a fence")
	}
}
