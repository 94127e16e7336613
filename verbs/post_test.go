package verbs_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestSlots: each constructor fills in what its operation has.
func TestSlots(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, _, _ := r.ready(verbs.QPConfig{MaxSendSGE: 2, MaxInline: 32})
	l, to := r.mr.SGE(16, 8), ib.Remote{Addr: 0x1000, RKey: 0x99, Len: 64}
	for _, c := range []struct {
		wr    verbs.SendWR
		check func(s driver.SendSlot) bool
	}{
		{verbs.Send(1, l, 0), func(s driver.SendSlot) bool { return s.Opcode == ib.OpSend }},
		{verbs.SendImm(2, 0xAABBCCDD, l, ib.Solicited), func(s driver.SendSlot) bool {
			return s.Opcode == ib.OpSendImm && s.Imm == 0xAABBCCDD && s.Flags&ib.Solicited != 0
		}},
		{verbs.SendInv(3, 0x55, l, 0), func(s driver.SendSlot) bool { return s.Opcode == ib.OpSendInv && s.RKey == 0x55 }},
		{verbs.Write(4, to, l, ib.Fence), func(s driver.SendSlot) bool {
			return s.Opcode == ib.OpWrite && s.Addr == 0x1000 && s.RKey == 0x99 && s.Flags&ib.Fence != 0
		}},
		{verbs.WriteImm(5, to, 7, l, 0), func(s driver.SendSlot) bool { return s.Opcode == ib.OpWriteImm && s.Imm == 7 && s.RKey == 0x99 }},
		{verbs.Read(6, to, l, 0), func(s driver.SendSlot) bool { return s.Opcode == ib.OpRead && s.Addr == 0x1000 }},
		{verbs.CompareSwap(7, to, 1, 2, l, 0), func(s driver.SendSlot) bool {
			return s.Opcode == ib.OpCompareSwap && s.Compare == 1 && s.Swap == 2
		}},
		{verbs.FetchAdd(8, to, 3, l, 0), func(s driver.SendSlot) bool { return s.Opcode == ib.OpFetchAdd && s.Swap == 3 }},
		{verbs.LocalInv(9, 0x66, 0), func(s driver.SendSlot) bool {
			return s.Opcode == ib.OpLocalInv && s.RKey == 0x66 && len(s.SGL) == 0
		}},
	} {
		r.ok(qp.PostSend(c.wr))
		s := sqp.Sends()
		got := s[len(s)-1]
		if !c.check(got) {
			t.Errorf("request %d: slot %+v", c.wr.ID, got)
		}
		if c.wr.Opcode != ib.OpLocalInv && (len(got.SGL) != 1 || got.SGL[0].Len != 8 || got.SGL[0].LKey != r.mr.LKey()) {
			t.Errorf("request %d: pieces %+v", c.wr.ID, got.SGL)
		}
		if len(got.Data) != 0 {
			t.Errorf("request %d: inline data %v", c.wr.ID, got.Data)
		}
	}
	// What an earlier request left in a slot is not in the next.
	sqp.CompleteSend(16, success)
	for range 20 {
		r.ok(qp.PostSend(verbs.Send(1, verbs.SGE{}, ib.Signaled)))
		if s := sqp.Sends(); len(s) != 1 || len(s[0].SGL) != 0 || s[0].Flags != ib.Signaled {
			t.Fatalf("empty request: %+v", s)
		}
		sqp.CompleteSend(1, success)
		r.poll(qp.SendCQ())
	}
}

func TestC081_PostInEachState(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	l := r.mr.SGE(0, 8)
	r.move(qp, ib.StateReset)
	send := func() error { return qp.PostSend(verbs.Send(1, l, ib.Signaled)) }
	recv := func() error { return qp.PostRecv(verbs.Recv(2, l)) }
	for _, c := range []struct {
		to         ib.QPState
		send, recv error
	}{
		{ib.StateReset, verbs.ErrState, verbs.ErrState},
		{ib.StateInit, verbs.ErrState, nil},
		{ib.StateRTR, verbs.ErrState, nil},
		{ib.StateRTS, nil, nil},
		{ib.StateSQD, nil, nil},
	} {
		r.move(qp, c.to)
		r.is(send(), c.send, c.to.String()+": send")
		r.is(recv(), c.recv, c.to.String()+": receive")
	}
	if len(sqp.Sends()) != 2 || len(sqp.Recvs()) != 4 {
		t.Errorf("the device has %d sends and %d receives", len(sqp.Sends()), len(sqp.Recvs()))
	}
	// In the error state requests are taken and flushed, behind those before them, and do
	// not reach the device.
	sqp.RefuseInError()
	posted := r.p.Count("post send") + r.p.Count("post recv")
	r.ok(qp.Fail())
	r.ok(send())
	r.ok(recv())
	if n := r.p.Count("post send") + r.p.Count("post recv"); n != posted {
		t.Error("a post reached a device in the error state")
	}
	all := r.poll(cq)
	sends, recvs := queues(all)
	r.want(sends, wcs{{1, flush}, {1, flush}, {1, flush}})
	r.want(recvs, wcs{{2, flush}, {2, flush}, {2, flush}, {2, flush}, {2, flush}})
	for _, q := range [][]verbs.WC{sends, recvs} {
		for i, wc := range q {
			if wc.Synthetic != (i == len(q)-1) || wc.QP != qp || wc.Opcode.IsRecv() != (wc.ID == 2) {
				t.Errorf("completion %d: %+v", i, wc)
			}
		}
	}
	r.is(qp.PostSend(verbs.SendWR{Opcode: 99}), verbs.ErrBadOpcode, "bad opcode in the error state")
	if got := r.poll(cq); len(got) != 0 {
		t.Errorf("a refused request completed: %v", got)
	}
}

// TestC081_FlushOrder: a request that is posted in the error state waits for those that
// the device has not flushed yet.
func TestC081_FlushOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	sqp.HoldFlush()
	r.send(qp, 1, ib.Signaled)
	r.recv(qp, 2)
	r.ok(qp.Fail())
	r.send(qp, 3, 0)
	r.recv(qp, 4)
	if got := r.poll(cq); len(got) != 0 {
		t.Errorf("completed before the device flushed: %v", got)
	}
	sqp.Flush()
	sends, recvs := queues(r.poll(cq))
	r.want(sends, wcs{{1, flush}, {3, flush}})
	r.want(recvs, wcs{{2, flush}, {4, flush}})
	if s, v := qp.Outstanding(); s != 0 || v != 0 {
		t.Errorf("outstanding: %d, %d", s, v)
	}
}

// TestC105_FullQueues also checks that a list is posted as far as it fits.
func TestC105_FullQueues(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 4, MaxRecvWR: 4})
	wrs := make([]verbs.SendWR, 6)
	for i := range wrs {
		wrs[i] = verbs.Send(uint64(i), r.mr.SGE(0, 8), ib.Signaled)
	}
	n, err := qp.PostSendList(wrs)
	r.is(err, verbs.ErrQueueFull, "six sends in four places")
	r.is(err, syscall.ENOMEM, "its errno")
	if n != 4 || qp.SendRoom() != 0 {
		t.Errorf("%d posted, room for %d", n, qp.SendRoom())
	}
	rwrs := make([]verbs.RecvWR, 6)
	n, err = qp.PostRecvList(rwrs)
	r.is(err, verbs.ErrQueueFull, "six receives in four places")
	if n != 4 || qp.RecvRoom() != 0 {
		t.Errorf("%d posted, room for %d", n, qp.RecvRoom())
	}
	sqp.CompleteSend(1, success)
	if qp.SendRoom() != 0 {
		t.Error("a completion that was not polled gave room back")
	}
	r.want(r.poll(cq), wcs{{0, success}})
	if s, v := qp.Outstanding(); qp.SendRoom() != 1 || s != 3 || v != 4 {
		t.Errorf("room %d, outstanding %d and %d", qp.SendRoom(), s, v)
	}
	r.ok(qp.PostSend(wrs[4]))
	r.is(qp.PostSend(wrs[5]), verbs.ErrQueueFull, "one more")
}

func TestC106_BadElement(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, _, _ := r.ready(verbs.QPConfig{})
	many := make([]verbs.SGE, 20)
	for i := range many {
		many[i] = r.mr.SGE(0, 1)
	}
	l := r.mr.SGE(0, 8)
	n, err := qp.PostSendList([]verbs.SendWR{verbs.Send(1, l, 0), {ID: 2, Opcode: ib.OpSend, More: many}, verbs.Send(3, l, 0)})
	r.is(err, verbs.ErrTooManySGE, "the second")
	r.is(err, syscall.EINVAL, "its errno")
	if n != 1 || len(sqp.Sends()) != 1 {
		t.Errorf("%d posted, the device has %d", n, len(sqp.Sends()))
	}
	n, err = qp.PostRecvList([]verbs.RecvWR{{ID: 1}, {ID: 2, More: many}, {ID: 3}})
	r.is(err, verbs.ErrTooManySGE, "the second receive")
	if n != 1 || len(sqp.Recvs()) != 1 {
		t.Errorf("%d posted, the device has %d", n, len(sqp.Recvs()))
	}
	if s, v := qp.Outstanding(); s != 1 || v != 1 {
		t.Errorf("outstanding %d, %d", s, v)
	}
}

// TestShortPost: the device takes fewer than were given.
func TestShortPost(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 8, MaxRecvWR: 8})
	wrs := make([]verbs.SendWR, 6)
	for i := range wrs {
		wrs[i] = verbs.Send(uint64(i), r.mr.SGE(0, 8), 0)
	}
	for _, c := range []struct {
		take      int
		err, want error
	}{{2, syscall.ENOMEM, verbs.ErrQueueFull}, {0, syscall.EINVAL, syscall.EINVAL}, {1, nil, verbs.ErrQueueFull}} {
		sqp.ShortPost(c.take, c.err)
		n, err := qp.PostSendList(wrs)
		r.is(err, c.want, "short post")
		if n != c.take {
			t.Errorf("%d posted, want %d", n, c.take)
		}
	}
	if s, _ := qp.Outstanding(); s != 3 {
		t.Errorf("outstanding %d, want 3", s)
	}
	// The requests that were not taken are not counted for the signal of half a queue.
	n, err := qp.PostSendList(wrs[:5])
	r.ok(err)
	signals := 0
	for _, s := range sqp.Sends() {
		if s.Flags&ib.Signaled != 0 {
			signals++
		}
	}
	if n != 5 || signals != 2 {
		t.Errorf("%d posted, %d signaled", n, signals)
	}
	sqp.CompleteSend(8, success)
	if got := r.poll(cq); len(got) != 0 || qp.SendRoom() != 8 {
		t.Errorf("%v, room %d", got, qp.SendRoom())
	}
	sqp.ShortPost(1, syscall.ENOMEM)
	if n, err := qp.PostRecvList(make([]verbs.RecvWR, 3)); n != 1 || err != verbs.ErrQueueFull {
		t.Errorf("receives: %d, %v", n, err)
	}
	if _, v := qp.Outstanding(); v != 1 {
		t.Errorf("outstanding receives %d", v)
	}
}

func TestC104_UnsignaledSlots(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 4, MaxRecvWR: 4})
	for i := range 200 {
		r.send(qp, uint64(i), 0)
		if i%2 == 1 { // at the latest each half of the queue one is signaled
			sqp.CompleteSend(4, success)
			if got := r.poll(cq); len(got) != 0 {
				t.Fatalf("completions of unsignaled requests: %v", got)
			}
			if qp.SendRoom() != 4 {
				t.Fatalf("room %d after request %d", qp.SendRoom(), i)
			}
		}
	}
	// One that the library signaled, and that fails, is the caller's.
	r.send(qp, 1000, 0)
	r.send(qp, 1001, 0)
	sqp.CompleteSend(1, success)
	sqp.CompleteSend(1, ib.StatusRemAccess)
	r.want(r.poll(cq), wcs{{1001, ib.StatusRemAccess}})

	// Who counts himself is left alone, and can get stuck.
	qp, sqp, _, _ = r.ready(verbs.QPConfig{MaxSendWR: 4, ManualSignal: true})
	for i := range 4 {
		r.send(qp, uint64(i), 0)
	}
	sqp.CompleteSend(4, success)
	r.is(qp.PostSend(verbs.Send(1, r.mr.SGE(0, 8), 0)), verbs.ErrQueueFull, "manual signals")

	// A queue of one signals each.
	qp, sqp, cq, _ = r.ready(verbs.QPConfig{MaxSendWR: 1, MaxRecvWR: 1})
	for range 10 {
		r.send(qp, 1, 0)
		sqp.CompleteSend(1, success)
		if got := r.poll(cq); len(got) != 0 || qp.SendRoom() != 1 {
			t.Fatalf("%v, room %d", got, qp.SendRoom())
		}
	}

	// SignalAll gives all to the caller.
	qp, sqp, cq, _ = r.ready(verbs.QPConfig{MaxSendWR: 4, SignalAll: true})
	for i := range 4 {
		r.send(qp, uint64(i), 0)
	}
	sqp.CompleteSend(4, success)
	r.want(r.poll(cq), wcs{{0, success}, {1, success}, {2, success}, {3, success}})
}

// TestC128_C151_Refused covers what a post refuses, and that nothing is left of it.
func TestC128_C151_Refused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, _, _ := r.ready(verbs.QPConfig{MaxSendSGE: 2, MaxInline: 32})
	l, to := r.mr.SGE(0, 8), ib.Remote{Addr: 0x1000, RKey: 9, Len: 8}
	other := must(t)(r.dev.AllocPD())
	defer other.Close()
	foreign, err := other.Alloc(64, ib.LocalWrite)
	r.ok(err)
	defer foreign.Close()
	readOnly, err := r.pd.Alloc(64, 0)
	r.ok(err)
	defer readOnly.Close()
	gone, err := r.pd.Alloc(64, ib.LocalWrite)
	r.ok(err)
	late := gone.SGE(0, 8)
	r.ok(gone.Close())
	big := verbs.RawSGE(r.pd, 0, 1<<31-1, 1)
	for _, c := range []struct {
		what string
		wr   verbs.SendWR
		want error
	}{
		{"opcode out of range", verbs.SendWR{Opcode: 99}, verbs.ErrBadOpcode},
		{"opcode without meaning", verbs.SendWR{Opcode: ib.OpTSO}, verbs.ErrBadOpcode},
		{"bind of no window", verbs.SendWR{Opcode: ib.OpBindMW, Local: l}, verbs.ErrWindow},
		{"flush", verbs.SendWR{Opcode: ib.OpFlush}, verbs.ErrBadOpcode},
		{"other PD", verbs.Send(1, foreign.SGE(0, 8), 0), verbs.ErrPDMismatch},
		{"other PD, second piece", verbs.SendWR{Opcode: ib.OpSend, Local: l, More: []verbs.SGE{foreign.SGE(0, 1)}}, verbs.ErrPDMismatch},
		{"raw, other PD", verbs.Send(1, verbs.RawSGE(other, 0, 8, 5), 0), verbs.ErrPDMismatch},
		{"raw, no PD", verbs.Send(1, verbs.RawSGE(nil, 0, 8, 5), 0), verbs.ErrAccess},
		{"read into read-only", verbs.Read(1, to, readOnly.SGE(0, 8), 0), verbs.ErrAccess},
		{"atomic into read-only", verbs.FetchAdd(1, to, 1, readOnly.SGE(0, 8), 0), verbs.ErrAccess},
		{"closed region", verbs.Send(1, late, 0), net.ErrClosed},
		{"longer than remote", verbs.Write(1, to, r.mr.SGE(0, 9), 0), verbs.ErrRemoteLen},
		{"read longer than remote", verbs.Read(1, to, r.mr.SGE(0, 9), 0), verbs.ErrRemoteLen},
		{"too many pieces", verbs.SendWR{Opcode: ib.OpSend, Local: l, More: []verbs.SGE{l, l, l}}, verbs.ErrTooManySGE},
		{"too long", verbs.SendWR{Opcode: ib.OpSend, Local: big, More: []verbs.SGE{big}}, verbs.ErrTooLong},
		{"C-127 odd atomic", verbs.FetchAdd(1, ib.Remote{Addr: 0x1004, Len: 8}, 1, l, 0), verbs.ErrAtomic},
		{"C-127 short atomic", verbs.CompareSwap(1, to, 1, 1, r.mr.SGE(0, 4), 0), verbs.ErrAtomic},
		{"inline read", verbs.Read(1, to, l, ib.Inline), verbs.ErrBadOpcode},
		{"C-098 inline too long", verbs.Send(1, r.mr.SGE(0, 33), ib.Inline), verbs.ErrInlineSize},
		{"inline data too long", verbs.SendWR{Opcode: ib.OpSend, Data: make([]byte, 33)}, verbs.ErrInlineSize},
		{"inline of numbers", verbs.Send(1, verbs.RawSGE(r.pd, 0, 8, 5), ib.Inline), verbs.ErrAccess},
		{"address handle on RC", verbs.SendWR{Opcode: ib.OpSend, AH: &verbs.AH{}}, verbs.ErrNoAH},
	} {
		err := qp.PostSend(c.wr)
		r.is(err, c.want, c.what)
		if len(sqp.Sends()) != 0 {
			t.Fatalf("%s: the device has a request", c.what)
		}
	}
	for _, c := range []struct {
		what string
		wr   verbs.RecvWR
		want error
	}{
		{"other PD", verbs.Recv(1, foreign.SGE(0, 8)), verbs.ErrPDMismatch},
		{"read-only", verbs.Recv(1, readOnly.SGE(0, 8)), verbs.ErrAccess},
		{"closed region", verbs.Recv(1, late), net.ErrClosed},
		{"too many pieces", verbs.RecvWR{Local: l, More: []verbs.SGE{l, l, l}}, verbs.ErrTooManySGE},
		{"second piece read-only", verbs.RecvWR{Local: l, More: []verbs.SGE{readOnly.SGE(0, 1)}}, verbs.ErrAccess},
	} {
		r.is(qp.PostRecv(c.wr), c.want, "receive, "+c.what)
	}
	if s, v := qp.Outstanding(); s != 0 || v != 0 {
		t.Errorf("outstanding: %d, %d", s, v)
	}

	// C-126: no depth for reads.
	r.move(qp, ib.StateReset)
	r.move(qp, ib.StateInit)
	r.move(qp, ib.StateRTR)
	a := attrs()
	a.State, a.MaxRDAtomic = ib.StateRTS, 0
	r.ok(qp.Modify(&a, maskRTS))
	r.is(qp.PostSend(verbs.Read(1, to, l, 0)), verbs.ErrReadDepth, "C-126")
	r.ok(qp.PostSend(verbs.Write(1, to, l, 0)))

	// C-151: what UC lacks.
	uc, _, _, _ := r.ready(verbs.QPConfig{Type: ib.UC})
	r.is(uc.PostSend(verbs.Read(1, to, l, 0)), verbs.ErrBadOpcode, "C-151 read on UC")
	r.is(uc.PostSend(verbs.FetchAdd(1, to, 1, l, 0)), verbs.ErrBadOpcode, "C-151 atomic on UC")
	r.ok(uc.PostSend(verbs.Write(1, to, l, 0)))

	var none *verbs.QP
	r.is(none.PostSend(verbs.Send(1, l, 0)), syscall.EINVAL, "nil")
	r.is((&verbs.QP{}).PostRecv(verbs.Recv(1, l)), syscall.EINVAL, "zero")
}

func TestC098_Inline(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, _, _ := r.ready(verbs.QPConfig{MaxSendSGE: 2, MaxInline: 32})
	b := r.mr.Bytes()
	copy(b, "0123456789abcdef")
	local := []byte("hello")
	r.ok(qp.PostSend(verbs.SendWR{Opcode: ib.OpSend, Data: local}))
	r.ok(qp.PostSend(verbs.SendWR{Opcode: ib.OpSend, Data: local, Local: r.mr.SGE(0, 3), More: []verbs.SGE{r.mr.SGE(10, 2)}, Flags: ib.Inline}))
	r.ok(qp.PostSend(verbs.Write(1, ib.Remote{Len: 32}, r.mr.SGE(0, 16), ib.Inline)))
	copy(b, "overwritten now!")
	copy(local, "XXXXX")
	for i, want := range []string{"hello", "hello012ab", "0123456789abcdef"} {
		s := sqp.Sends()[i]
		if string(s.Data) != want || s.Flags&ib.Inline == 0 || len(s.SGL) != 0 {
			t.Errorf("request %d: %q, %v, %v", i, s.Data, s.Flags, s.SGL)
		}
	}
}

func TestC099_ScatterGather(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, _, _ := r.ready(verbs.QPConfig{MaxSendSGE: 3, MaxRecvSGE: 3})
	closed, err := r.pd.Alloc(8, ib.LocalWrite)
	r.ok(err)
	empty := closed.SGE(3, 0)
	r.ok(closed.Close())
	more := []verbs.SGE{r.mr.SGE(8, 2), empty, {}, r.mr.SGE(100, 1)}
	r.ok(qp.PostSend(verbs.SendWR{Opcode: ib.OpSend, Local: empty, More: more}))
	r.ok(qp.PostRecv(verbs.RecvWR{Local: r.mr.SGE(0, 1), More: more}))
	s, v := sqp.Sends()[0].SGL, sqp.Recvs()[0].SGL
	if len(s) != 2 || s[0].Len != 2 || s[1].Len != 1 || s[1].Addr-s[0].Addr != 92 {
		t.Errorf("send: %+v", s)
	}
	if len(v) != 3 {
		t.Errorf("receive: %+v", v)
	}
	r.ok(qp.PostSend(verbs.Write(1, ib.Remote{Addr: 1, RKey: 2}, verbs.SGE{}, 0))) // C-100
}

// TestC022_C023_C153_Datagrams: sizes, address handles, and their life.
func TestC022_C023_C153_Datagrams(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{Type: ib.UD})
	a := attrs().AH
	ah, err := r.pd.CreateAH(a)
	r.ok(err)
	l := r.mr.SGE(0, 8)
	r.ok(qp.PostSend(verbs.SendTo(1, ah, 0x22, 0x33, r.mr.SGE(0, 1024), 0)))
	if s := sqp.Sends()[0]; s.QPN != 0x22 || s.QKey != 0x33 || s.AH == 0 {
		t.Errorf("slot %+v", s)
	}
	r.is(qp.PostSend(verbs.SendTo(1, ah, 1, 1, r.mr.SGE(0, 1025), 0)), verbs.ErrTooLong, "C-153")
	r.is(qp.PostSend(verbs.Send(1, l, 0)), verbs.ErrNoAH, "no handle")
	r.is(qp.PostSend(verbs.Write(1, ib.Remote{Len: 8}, l, 0)), verbs.ErrBadOpcode, "C-128 write on UD")
	other := must(t)(r.dev.AllocPD())
	foreign, err := other.CreateAH(a)
	r.ok(err)
	r.is(qp.PostSend(verbs.SendTo(1, foreign, 1, 1, l, 0)), verbs.ErrPDMismatch, "C-023")
	r.ok(foreign.Close())
	r.ok(other.Close())

	// C-022: the handle is closed with sends in flight, and stays until they are through.
	r.ok(qp.PostSend(verbs.SendTo(2, ah, 1, 1, l, 0)))
	r.ok(qp.PostSend(verbs.SendTo(3, ah, 1, 1, l, ib.Signaled)))
	r.ok(ah.Close())
	r.is(qp.PostSend(verbs.SendTo(4, ah, 1, 1, l, 0)), net.ErrClosed, "closed handle")
	if n := r.p.Count("close ah"); n != 1 {
		t.Errorf("%d handles destroyed while sends use one", n)
	}
	sqp.CompleteSend(3, success)
	r.want(r.poll(cq), wcs{{3, success}})
	if n := r.p.Count("close ah"); n != 2 {
		t.Errorf("%d handles destroyed after the last send, want 2", n)
	}
	// A handle whose send is not taken, and one whose queue pair is closed.
	ah, err = r.pd.CreateAH(a)
	r.ok(err)
	sqp.ShortPost(1, syscall.ENOMEM)
	n, err := qp.PostSendList([]verbs.SendWR{verbs.SendTo(5, ah, 1, 1, l, 0), verbs.SendTo(6, ah, 1, 1, l, 0)})
	r.is(err, verbs.ErrQueueFull, "short post")
	if n != 1 {
		t.Errorf("%d posted", n)
	}
	r.ok(ah.Close())
	r.ok(qp.Close())
	if n := r.p.Count("close ah"); n != 3 {
		t.Errorf("%d handles destroyed in the end, want 3", n)
	}
}

func TestPostAllocs(t *testing.T) {
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxInline: 64})
	sqp.Auto()
	full, _, _, _ := r.ready(verbs.QPConfig{MaxSendWR: 1, MaxRecvWR: 1})
	r.send(full, 1, 0)
	closed, _, _, _ := r.ready(verbs.QPConfig{})
	r.ok(closed.Close())
	other := must(t)(r.dev.AllocPD())
	defer other.Close()
	foreign, err := other.Alloc(64, ib.LocalWrite)
	r.ok(err)
	defer foreign.Close()
	l := r.mr.SGE(0, 8)
	var wrs [16]verbs.SendWR
	var dst [64]verbs.WC
	data := make([]byte, 16)
	no := errors.New("no error")
	check := func(err, want error) {
		if err != want {
			if err == nil {
				err = no
			}
			t.Fatal(err)
		}
	}
	for name, f := range map[string]func(){
		"one":  func() { check(qp.PostSend(verbs.Send(1, l, ib.Signaled)), nil) },
		"more": func() { check(qp.PostSend(verbs.SendWR{Opcode: ib.OpSend, Local: l, More: []verbs.SGE{l, l}}), nil) },
		"inline": func() {
			check(qp.PostSend(verbs.SendWR{Opcode: ib.OpSend, Data: data, Local: l, Flags: ib.Inline}), nil)
		},
		"list": func() {
			for i := range wrs {
				wrs[i] = verbs.Send(uint64(i), l, 0)
			}
			_, err := qp.PostSendList(wrs[:])
			check(err, nil)
		},
		"receive": func() {
			check(qp.PostRecv(verbs.Recv(1, l)), nil)
			sqp.CompleteRecv(1, scripted.Received(8), false)
		},
		"full":   func() { check(full.PostSend(verbs.Send(1, l, 0)), verbs.ErrQueueFull) },
		"PD":     func() { check(qp.PostSend(verbs.Send(1, foreign.SGE(0, 8), 0)), verbs.ErrPDMismatch) },
		"closed": func() { check(closed.PostSend(verbs.Send(1, l, 0)), verbs.ErrClosed) },
		"nil":    func() { (*verbs.QP)(nil).PostSend(verbs.SendWR{}) },
	} {
		if n := testing.AllocsPerRun(200, func() {
			f()
			if _, err := cq.Poll(dst[:]); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
