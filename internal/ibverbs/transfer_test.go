//go:build linux && cgo

package ibverbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

func TestDevice(t *testing.T) {
	r := newRig(t)
	a := must(r.ctx.QueryDevice())(t)
	t.Logf("%+v", a)
	if a.Ports < 1 || a.MaxQP == 0 || a.MaxQPWR == 0 || a.MaxCQE == 0 || a.MaxSGE == 0 || a.NodeGUID == 0 || a.CompVectors == 0 || a.PageSizes == 0 {
		t.Error("limits that cannot be")
	}
	i := r.ctx.Device()
	if i.GUID != a.NodeGUID || i.NodeType == ib.NodeUnknown || i.Transport != ib.TransportIB || i.Path == "" {
		t.Errorf("%+v", i)
	}
	p := must(r.ctx.QueryPort(r.gid.Port))(t)
	t.Logf("%+v", p)
	if p.State != ib.PortActive || p.Phys != ib.PhysLinkUp || p.Link != ib.LinkEthernet || !p.ActiveMTU.Valid() || p.GIDs == 0 || p.PKeys == 0 || p.SpeedMbps == 0 {
		t.Errorf("%+v", p)
	}
	for _, n := range []int{0, a.Ports + 1, 255, 256, -1} {
		if _, err := r.ctx.QueryPort(n); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("port %d: %v", n, err)
		}
	}
	if k := must(r.ctx.PKey(1, 0))(t); k != ib.PKeyDefault {
		t.Error(k)
	}
	gids := must(r.ctx.GIDs())(t)
	t.Log(gids)
	// What libraries without the table give must be the same.
	sizes := make([]int, a.Ports+1)
	for n := 1; n <= a.Ports; n++ {
		sizes[n] = must(r.ctx.QueryPort(n))(t).GIDs
	}
	one := must(r.ctx.gidsOneByOne(sizes))(t)
	if !slices.Equal(gids, one) {
		t.Errorf("table %v, one by one %v", gids, one)
	}
}

func TestOpenShared(t *testing.T) {
	p, name := kernelProvider(t)
	a, b := must(p.OpenShared(name))(t), must(p.OpenShared(name))(t)
	if a != b {
		t.Error("two shared contexts")
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	must(a.AllocPD())(t).Close() // Close left it open
	if _, err := p.OpenShared("nosuch"); !errors.Is(err, syscall.ENODEV) {
		t.Error(err)
	}
}

func TestOperations(t *testing.T) {
	r := newRig(t)
	q := r.cq(0x7_0000_0001, 300)
	if q.Entries() < 300 {
		t.Error(q.Entries())
	}
	a, b := r.pair(q, nil)
	copy(r.mem, "hello, verbena: over four pieces of memory")

	// Gather and scatter, immediate data in network order.
	r.recv(b, 100, r.sge(4096, 10), r.sge(8192, 100))
	r.send(a, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.Imm = 1, ib.OpSendImm, 0x01020304
		s.SGL = append(s.SGL, r.sge(0, 5), r.sge(5, 2), r.sge(7, 8))
	})
	for _, w := range r.poll(q, 2) {
		switch w.ID {
		case 1:
			if w.Status != ib.StatusSuccess || w.Opcode != ib.WCSend || w.QPN != a.Num() {
				t.Errorf("%+v", w)
			}
		case 100:
			if w.Status != ib.StatusSuccess || w.Opcode != ib.WCRecv || w.QPN != b.Num() || w.ByteLen != 15 || w.Imm != 0x01020304 || w.Flags&ib.WithImm == 0 {
				t.Errorf("%+v", w)
			}
		}
	}
	if got := string(r.mem[4096:4106]) + string(r.mem[8192:8197]); got != "hello, verbena:" {
		t.Errorf("%q", got)
	}

	// Inline data is taken at posting.
	r.recv(b, 101, r.sge(4096, 64))
	r.send(a, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.Flags = 2, ib.OpSend, ib.Signaled|ib.Inline
		s.Data = append(s.Data, "inline"...)
	})
	for _, w := range r.poll(q, 2) {
		if w.Status != ib.StatusSuccess || w.ID == 101 && w.ByteLen != 6 {
			t.Errorf("%+v", w)
		}
	}
	if got := string(r.mem[4096:4102]); got != "inline" {
		t.Errorf("%q", got)
	}

	// One-sided, and a write that the peer sees.
	r.send(a, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.SGL = 3, ib.OpWrite, append(s.SGL, r.sge(0, 5))
		r.remote(s, 12288)
	})
	r.send(a, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.SGL = 4, ib.OpRead, append(s.SGL, r.sge(16384, 5))
		r.remote(s, 12288)
	})
	for i, w := range r.poll(q, 2) {
		if w.Status != ib.StatusSuccess || w.ID != uint64(3+i) || w.Opcode != []ib.WCOpcode{ib.WCWrite, ib.WCRead}[i] {
			t.Errorf("%+v", w)
		}
	}
	if got := string(r.mem[16384:16389]); got != "hello" {
		t.Errorf("%q", got)
	}
	r.recv(b, 102)
	r.send(a, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.Imm, s.SGL = 5, ib.OpWriteImm, 99, append(s.SGL, r.sge(7, 3))
		r.remote(s, 12288)
	})
	for _, w := range r.poll(q, 2) {
		if w.Status != ib.StatusSuccess || w.ID == 102 && (w.Opcode != ib.WCRecvWriteImm || w.Imm != 99 || w.ByteLen != 3) {
			t.Errorf("%+v", w)
		}
	}
	if got := string(r.mem[12288:12293]); got != "verlo" {
		t.Errorf("%q", got)
	}

	// Atomics.
	word := r.mem[20480:20488]
	binary.NativeEndian.PutUint64(word, 40)
	atomic := func(id uint64, op ib.Opcode, compare, swap, old, now uint64) {
		t.Helper()
		r.send(a, func(s *driver.SendSlot) {
			s.ID, s.Opcode, s.SGL = id, op, append(s.SGL, r.sge(24576, 8))
			s.Compare, s.Swap = compare, swap
			r.remote(s, 20480)
		})
		if w := r.poll(q, 1)[0]; w.Status != ib.StatusSuccess || w.ID != id {
			t.Errorf("%+v", w)
		}
		if got := binary.NativeEndian.Uint64(r.mem[24576:]); got != old {
			t.Errorf("%v gave %d, want %d", op, got, old)
		}
		if got := binary.NativeEndian.Uint64(word); got != now {
			t.Errorf("%v left %d, want %d", op, got, now)
		}
	}
	atomic(6, ib.OpFetchAdd, 0xDEAD, 2, 40, 42)
	atomic(7, ib.OpCompareSwap, 42, 7, 42, 7)
	atomic(8, ib.OpCompareSwap, 42, 8, 7, 7)

	// What the shim cannot say is refused, after what it could.
	s := a.SendSlots()
	for i, op := range []ib.Opcode{ib.OpWrite, ib.OpWrite, ib.OpFlush} {
		s[i].ID, s[i].Opcode, s[i].Flags, s[i].SGL = uint64(20+i), op, ib.Signaled, append(s[i].SGL[:0], r.sge(0, 1))
		r.remote(&s[i], 12288)
	}
	if n, err := a.CommitSend(3); n != 2 || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("posted %d, %v", n, err)
	}
	r.poll(q, 2)

	// A wrong key fails the request, and the rest is flushed.
	r.recv(a, 103, r.sge(0, 1))
	r.send(a, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.SGL = 9, ib.OpWrite, append(s.SGL, r.sge(0, 5))
		s.Addr, s.RKey = addressOf(r.mem), r.rkey+0x100
	})
	for _, w := range r.poll(q, 2) {
		if w.ID == 9 && w.Status != ib.StatusRemAccess || w.ID == 103 && w.Status != ib.StatusWRFlush {
			t.Errorf("%+v", w)
		}
	}
	if st := must(a.Query(ib.AttrState))(t).State; st != ib.StateError {
		t.Error(st)
	}
}

// TestBatch posts and polls as many as one call takes, and more.
func TestBatch(t *testing.T) {
	r := newRig(t)
	q := r.cq(1, 512)
	a, b := r.pair(q, nil)
	if n := len(a.SendSlots()); n != 64 {
		t.Fatalf("%d places", n)
	}
	for round := range 4 {
		rs := b.RecvSlots()
		for i := range rs {
			rs[i].ID, rs[i].SGL = uint64(1000+i), append(rs[i].SGL[:0], r.sge(64*i, 64))
		}
		if n, err := b.CommitRecv(len(rs)); n != len(rs) || err != nil {
			t.Fatal(n, err)
		}
		s := a.SendSlots()
		for i := range s {
			if len(s[i].SGL) != 0 || cap(s[i].SGL) < 4 || len(s[i].Data) != 0 || cap(s[i].Data) < 64 {
				t.Fatalf("place %d: SGL %d/%d, Data %d/%d", i, len(s[i].SGL), cap(s[i].SGL), len(s[i].Data), cap(s[i].Data))
			}
			s[i].ID, s[i].Opcode, s[i].Flags = uint64(i), ib.OpSend, ib.Signaled|ib.Inline
			s[i].Data = fmt.Appendf(s[i].Data, "%d of round %d", i, round)
		}
		if n, err := a.CommitSend(len(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
		sent, got := 0, 0
		for _, w := range r.poll(q, 2*len(s)) {
			next := &sent
			want := uint64(sent)
			if w.ID >= 1000 {
				next, want = &got, uint64(1000+got)
			}
			if w.ID != want || w.Status != ib.StatusSuccess {
				t.Fatalf("%+v, want id %d", w, want)
			}
			*next++
		}
		for i := range s {
			want := fmt.Sprintf("%d of round %d", i, round)
			if got := string(r.mem[64*i:][:len(want)]); got != want {
				t.Fatalf("%q, want %q", got, want)
			}
		}
	}
	// A full queue: ENOMEM for the first that does not fit.
	full := r.qp(9, ib.RC, q, nil)
	r.toInit(full)
	total := 0
	for range 100 {
		rs := full.RecvSlots()
		for i := range rs {
			rs[i].ID, rs[i].SGL = 5000, append(rs[i].SGL[:0], r.sge(0, 8))
		}
		n, err := full.CommitRecv(len(rs))
		total += n
		if err != nil {
			if !errors.Is(err, syscall.ENOMEM) || n >= len(rs) {
				t.Errorf("posted %d: %v", n, err)
			}
			break
		}
	}
	if total < 128 || total > 4096 {
		t.Errorf("%d receives fit, capacity %d", total, full.Caps().MaxRecvWR)
	}
}

// TestEvents: one event for an arm, the descriptor follows, and destroying waits for
// nothing, with events taken and not.
func TestEvents(t *testing.T) {
	r := newRig(t)
	q1, q2 := r.cq(0xA_0000_0001, 300), r.cq(0xB_0000_0002, 300)
	a, b := r.pair(q1, nil)
	c := r.qp(3, ib.RC, q2, nil)
	d := r.qp(4, ib.RC, q2, nil)
	r.toInit(c)
	r.toInit(d)
	r.join(c, d.Num())
	r.join(d, c.Num())
	write := func(q driver.QP) {
		r.send(q, func(s *driver.SendSlot) {
			s.ID, s.Opcode, s.SGL = 1, ib.OpWrite, append(s.SGL, r.sge(0, 1))
			r.remote(s, 100)
		})
	}
	next := func(want uint64) {
		t.Helper()
		if !r.readable(r.ch, 10*time.Second) {
			t.Fatal("not readable")
		}
		if h, ok, err := r.ch.Next(); h != want || !ok || err != nil {
			t.Fatalf("%#x, %v, %v; want %#x", h, ok, err, want)
		}
	}
	empty := func() {
		t.Helper()
		if h, ok, err := r.ch.Next(); ok || err != nil {
			t.Fatalf("%#x, %v, %v", h, ok, err)
		}
		if r.readable(r.ch, 0) {
			t.Fatal("readable without an event")
		}
	}
	empty()
	for range 150 { // more than one batch of acknowledgements
		if err := q1.Arm(false); err != nil {
			t.Fatal(err)
		}
		write(a)
		next(0xA_0000_0001)
		r.poll(q1, 1)
	}
	empty()
	// Two queues on a channel, one event each.
	for _, q := range []driver.CQ{q1, q2} {
		if err := q.Arm(false); err != nil {
			t.Fatal(err)
		}
	}
	write(b)
	next(0xA_0000_0001)
	write(c)
	next(0xB_0000_0002)
	r.poll(q1, 1)
	r.poll(q2, 1)
	// Solicited only: a send is not, a receive of a solicited message is.
	if err := q1.Arm(true); err != nil {
		t.Fatal(err)
	}
	write(a)
	r.poll(q1, 1)
	empty()
	r.recv(b, 2, r.sge(0, 8))
	r.send(a, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.Flags, s.SGL = 3, ib.OpSend, ib.Signaled|ib.Solicited, append(s.SGL, r.sge(0, 8))
	})
	next(0xA_0000_0001)
	r.poll(q1, 2)
	// One event stays with the kernel when the queue is destroyed.
	if err := q2.Arm(false); err != nil {
		t.Fatal(err)
	}
	write(d)
	r.poll(q2, 1)
	if !r.readable(r.ch, 10*time.Second) {
		t.Error("the event that nobody takes did not come")
	}
}

// TestDataPathAllocs: nothing of the data path allocates, misses and errors included.
func TestDataPathAllocs(t *testing.T) {
	r := newRig(t)
	q := r.cq(1, 300)
	a, b := r.pair(q, nil)
	async := r.ctx.Async()
	fd := must(r.ch.FD())(t)
	_ = fd
	if n := testing.AllocsPerRun(50, func() {
		rs := b.RecvSlots()
		rs[0].ID, rs[0].SGL = 2, append(rs[0].SGL[:0], r.sge(0, 8))
		if _, err := b.CommitRecv(1); err != nil {
			t.Fatal(err)
		}
		if err := q.Arm(false); err != nil {
			t.Fatal(err)
		}
		s := a.SendSlots()
		s[0].ID, s[0].Opcode, s[0].Flags, s[0].SGL = 1, ib.OpSend, ib.Signaled, append(s[0].SGL[:0], r.sge(0, 8))
		if _, err := a.CommitSend(1); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < 2; {
			w, err := q.Poll()
			if err != nil {
				t.Fatal(err)
			}
			got += len(w)
		}
		q.Poll()
		r.ch.Next()
		r.ch.Next()
		async.Next()
		s = a.SendSlots()
		s[0].Opcode = ib.OpFlush
		if n, err := a.CommitSend(1); n != 0 || err == nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAbilities uses what not every device has; what it has not is errors.ErrUnsupported.
func TestAbilities(t *testing.T) {
	r := newRig(t)
	a := must(r.ctx.QueryDevice())(t)
	has := func(what string, err error) bool {
		t.Helper()
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
		t.Logf("%s: %v", what, err)
		return err == nil
	}
	for _, typ := range []ib.MWType{ib.MWType1, ib.MWType2} {
		w, err := r.pd.(driver.MWAllocator).AllocMW(typ)
		if !has("memory window "+typ.String(), err) {
			continue
		}
		if a.MaxMW == 0 || w.RKey() == 0 {
			t.Errorf("key %v, the device says that it has %d windows", w.RKey(), a.MaxMW)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	q := r.cq(1, 10).(*cq)
	if err := q.Moderate(8, 10*time.Microsecond); has("moderation", err) && a.MaxModerationCount == 0 && os.Getenv(envVariant) == "" {
		t.Error("moderation, which the device says that it has not")
	}
	if has("resize", q.Resize(500)) && q.Entries() < 500 {
		t.Error(q.Entries())
	}
	first, err := r.ctx.Clock()
	if has("clock", err) {
		if second := must(r.ctx.Clock())(t); second < first {
			t.Errorf("%v after %v", second, first)
		}
	}
	// A completion ends the spin; what is longer than its bound is asked for again.
	p, _ := r.pair(q, nil)
	r.send(p, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.SGL = 3, ib.OpWrite, append(s.SGL, r.sge(0, 1))
		r.remote(s, 100)
	})
	for end := time.Now().Add(20 * time.Second); ; {
		w, err := q.PollFor(time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if len(w) == 1 && w[0].ID == 3 && w[0].Status == ib.StatusSuccess {
			break
		}
		if len(w) > 0 || time.Now().After(end) {
			t.Fatalf("%+v", w)
		}
	}
}

func TestSharedReceives(t *testing.T) {
	r := newRig(t)
	q := r.cq(1, 300)
	s := must(r.pd.CreateSRQ(driver.SRQConfig{Handle: 0x5_0000_0001, MaxWR: 100, MaxSGE: 2}))(t)
	r.closing("srq", s.Close)
	a, _ := r.pair(q, s)
	for i := range 4 {
		r.recv(s, uint64(100+i), r.sge(1000+100*i, 100))
	}
	if err := s.Modify(-1, 3); err != nil {
		t.Fatal(err)
	}
	if w, l, err := s.Query(); w < 100 || l != 3 || err != nil {
		t.Error(w, l, err)
	}
	for i := range 2 {
		r.send(a, func(sl *driver.SendSlot) {
			sl.ID, sl.Opcode, sl.SGL = uint64(i), ib.OpSend, append(sl.SGL, r.sge(0, 10))
		})
		for _, w := range r.poll(q, 2) {
			if w.Status != ib.StatusSuccess || w.ID >= 100 && w.ID != uint64(100+i) {
				t.Errorf("%+v", w)
			}
		}
	}
	r.wantAsync(ib.EventSRQLimitReached, 0x5_0000_0001)
}

// wantAsync takes events until one of a type comes.
func (r *rig) wantAsync(typ ib.EventType, handle uint64) {
	r.Helper()
	async := r.ctx.Async()
	for range 20 {
		ev, ok, err := async.Next()
		if err != nil {
			r.Fatal(err)
		}
		if ok && ev.Type == typ {
			if ev.Handle != handle {
				r.Errorf("%v of %#x, want %#x", typ, ev.Handle, handle)
			}
			return
		}
		if !ok && !r.readable(async, 10*time.Second) {
			break
		}
	}
	r.Errorf("no %v", typ)
}

func TestOverrun(t *testing.T) {
	r := newRig(t)
	q := r.cq(0xC_0000_0003, 4)
	a, _ := r.pair(q, nil)
	s := a.SendSlots()
	n := min(len(s), q.Entries()+8)
	for i := range n {
		s[i].ID, s[i].Opcode, s[i].Flags, s[i].SGL = uint64(i), ib.OpWrite, ib.Signaled, append(s[i].SGL[:0], r.sge(0, 1))
		r.remote(&s[i], 100)
	}
	if posted, err := a.CommitSend(n); posted != n || err != nil {
		t.Fatal(posted, err)
	}
	r.wantAsync(ib.EventCQErr, 0xC_0000_0003)
}

func TestDatagrams(t *testing.T) {
	r := newRig(t)
	q := r.cq(1, 300)
	const key = ib.QKey(0x1234)
	ready := func(handle uint64) driver.QP {
		v := r.qp(handle, ib.UD, q, nil)
		r.modify(v, driver.QPAttr{State: ib.StateInit, Port: r.gid.Port, QKey: key}, ib.AttrPKeyIndex|ib.AttrPort|ib.AttrQKey)
		r.modify(v, driver.QPAttr{State: ib.StateRTR}, 0)
		r.modify(v, driver.QPAttr{State: ib.StateRTS, SQPSN: 1}, ib.AttrSQPSN)
		return v
	}
	a, b := ready(1), ready(2)
	h := must(r.pd.CreateAH(r.av()))(t)
	r.closing("ah", h.Close)
	copy(r.mem, "datagram")
	r.recv(b, 100, r.sge(4096, 200))
	r.send(a, func(s *driver.SendSlot) {
		s.ID, s.Opcode, s.SGL = 1, ib.OpSend, append(s.SGL, r.sge(0, 8))
		s.AH, s.QPN, s.QKey = h.Handle(), b.Num(), key
	})
	for _, w := range r.poll(q, 2) {
		if w.Status != ib.StatusSuccess || w.ID == 100 && (w.ByteLen != 48 || w.SrcQPN != a.Num() || w.Flags&ib.WithGRH == 0) {
			t.Errorf("%+v", w)
		}
	}
	if got := string(r.mem[4136:4144]); got != "datagram" {
		t.Errorf("%q", got)
	}
}

// TestAttributes: what was set comes back, times through their codes.
func TestAttributes(t *testing.T) {
	r := newRig(t)
	q := r.cq(1, 300)
	a, b := r.pair(q, nil)
	got := must(a.Query(ib.QPAttrMask(1<<21 - 1)))(t)
	if got.State != ib.StateRTS || got.DestQPN != b.Num() || got.PathMTU != r.mtu || got.MinRNRTimer != 640*time.Microsecond ||
		got.Timeout != ib.AckTimeoutDuration(14) || got.RetryCount != 7 || got.RNRRetry != 7 || got.AH.DGID != r.gid.GID ||
		got.MaxRDAtomic != 4 || got.MaxDestRDAtomic != 4 || got.Port != r.gid.Port || got.Cap.MaxSendWR < 128 {
		t.Errorf("%+v", got)
	}
	if err := a.Modify(&driver.QPAttr{State: ib.StateRTR}, ib.AttrState); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RTS to RTR: %v", err)
	}
	_, err := r.pd.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: q, RecvCQ: q, Cap: driver.Caps{MaxSendWR: 1 << 30}})
	if err == nil {
		t.Error("a queue of 1<<30 requests")
	}
	other := newRig(t)
	if _, err := other.pd.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: q, RecvCQ: q}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a queue of another opening: %v", err)
	}
	if _, err := other.ctx.CreateCQ(driver.CQConfig{Entries: 1, Channel: r.ch}); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a channel of another opening: %v", err)
	}
	if _, err := r.pd.CreateQP(driver.QPConfig{Type: ib.XRCSend, SendCQ: q, RecvCQ: q}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("XRC: %v", err)
	}
}
