package rdmatest

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area D: completion queues and polling.
func areaCQ() []check {
	return []check{
		{"C-048_QueueSizes", 0, queueSizes},
		{"C-049_CompletionVectors", 0, completionVectors},
		{"C-050_PollEmpty", 0, pollEmpty},
		{"C-051_Order", 0, completionOrder},
		{"C-052_Fields", 0, completionFields},
		{"C-054_Unsignaled", 0, unsignaled},
		{"C-055_OneQueueManyPairs", 0, oneQueueManyPairs},
		{"C-056_QueuePairGoneBeforePoll", 0, goneBeforePoll},
		{"C-057_Overrun", 0, overrun},
		{"C-058_Admission", 0, admission},
		{"C-059_QueueInUse", 0, queueInUse},
		{"C-060_Resize", 0, resize},
		{"C-062_ConcurrentPolling", 0, concurrentPolling},
		{"C-063_ArmWithoutChannel", 0, armWithoutChannel},
	}
}

func queueSizes(t *tb) {
	a, err := t.a.Attr()
	t.ok(err, "query the device")
	for _, n := range []int{-1, 0, a.MaxCQE + 1} {
		cq, err := t.a.CreateCQ(n, nil)
		t.isErr(err, einval, "create a queue of %d", n)
		if err == nil {
			cq.Close()
		}
	}
	for _, n := range []int{1, 2, 3, 100, a.MaxCQE} {
		cq, err := t.a.CreateCQ(n, nil)
		t.ok(err, "create a queue of %d", n)
		if cq.Cap() < n {
			t.Errorf("queue of %d has room for %d", n, cq.Cap())
		}
		t.closed(cq, "queue")
	}
}

func completionVectors(t *tb) {
	a, err := t.a.Attr()
	t.ok(err, "query the device")
	for _, v := range []int{0, a.CompVectors - 1} {
		cq, err := t.a.CreateCQ(4, &verbs.CQConfig{Vector: v})
		t.ok(err, "create a queue with vector %d", v)
		t.closed(cq, "queue")
	}
	for _, v := range []int{-1, a.CompVectors} {
		cq, err := t.a.CreateCQ(4, &verbs.CQConfig{Vector: v})
		t.isErr(err, einval, "create a queue with vector %d", v)
		if err == nil {
			cq.Close()
		}
	}
}

func pollEmpty(t *tb) {
	a, b := t.pair()
	var wcs [4]verbs.WC
	n, err := a.scq.Poll(wcs[:])
	t.ok(err, "poll an empty queue")
	if n != 0 {
		t.Errorf("an empty queue gave %d", n)
	}
	b.recv(1, 0, 64)
	a.send(verbs.Send(2, a.sge(0, 64), ib.Signaled))
	b.got(1, ib.StatusSuccess)
	b.recv(3, 0, 64)
	a.send(verbs.Send(4, a.sge(0, 64), ib.Signaled))
	b.got(3, ib.StatusSuccess) // both sends are complete on the responder's side
	for _, dst := range [][]verbs.WC{nil, {}} {
		n, err := a.scq.Poll(dst)
		t.ok(err, "poll for nothing")
		if n != 0 {
			t.Errorf("polling for nothing gave %d", n)
		}
	}
	a.sent(2, ib.StatusSuccess)
	a.sent(4, ib.StatusSuccess)
	a.empty()
}

// Completions of each queue come in the order of the posts, however they are polled, with
// sends and receives of a queue pair in one completion queue.
func completionOrder(t *tb) {
	const rounds, depth = 1000, 24
	for _, batch := range []int{1, 7, 64} {
		a, b := t.pair(func(l *link) { l.oneQ = true })
		ends := []*traffic{{end: a}, {end: b}}
		for _, e := range ends {
			for range depth {
				e.postRecv()
			}
		}
		dst := make([]verbs.WC, batch)
		for ends[0].left(rounds) || ends[1].left(rounds) {
			progress := false
			for i, e := range ends {
				// No more than the peer has receives for.
				for e.sends < rounds && e.sends < ends[1-i].recvs && e.sends-e.sent < depth {
					e.send(verbs.Send(uint64(e.sends), e.sge(0, 8), ib.Signaled))
					e.sends++
				}
				n, err := e.scq.Poll(dst)
				t.ok(err, "poll")
				for _, wc := range dst[:n] {
					e.count(batch, wc)
				}
				progress = progress || n > 0
			}
			if !progress {
				t.pause()
			}
		}
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}

// traffic counts the requests of an end, and their completions.
type traffic struct {
	*end
	sends, recvs int // posted
	sent, got    int // complete
}

const ofRecv = 1 << 32 // in the id of a receive

func (e *traffic) left(rounds int) bool { return e.sent < rounds || e.got < rounds }

func (e *traffic) postRecv() {
	e.Helper()
	e.recv(ofRecv|uint64(e.recvs), 0, 8)
	e.recvs++
}

// count checks that a completion is the next one of its queue.
func (e *traffic) count(batch int, wc verbs.WC) {
	e.Helper()
	n, want := &e.sent, uint64(e.sent)
	if wc.ID&ofRecv != 0 {
		n, want = &e.got, ofRecv|uint64(e.got)
	}
	if wc.ID != want || wc.Status != ib.StatusSuccess || wc.Opcode.IsRecv() != (wc.ID&ofRecv != 0) {
		e.Fatalf("%s, batches of %d: %v %#x with %v, want %#x", e.name, batch, wc.Opcode, wc.ID, wc.Status, want)
	}
	if *n++; n == &e.got {
		e.postRecv()
	}
}

// pause gives the device a moment; the test fails when its time is over.
func (t *tb) pause() {
	t.Helper()
	if t.limit.Err() != nil {
		t.inVain("no progress")
	}
	t.pass(50*time.Microsecond, 50*time.Microsecond)
}

func completionFields(t *tb) {
	a, b := t.pair()
	b.recvs(3, 256)
	wr := verbs.SendImm(1, 0x01020304, a.sge(0, 100), ib.Signaled)
	a.send(wr)
	wc := b.got(0, ib.StatusSuccess)
	if wc.Opcode != ib.WCRecv || wc.ByteLen != 100 || wc.Imm != 0x01020304 || wc.Flags&ib.WithImm == 0 || wc.QP != b.qp {
		t.Errorf("receive with immediate: %+v", wc)
	}
	if wc := a.sent(1, ib.StatusSuccess); wc.Opcode != ib.WCSend || wc.QP != a.qp || wc.Synthetic {
		t.Errorf("send: %+v", wc)
	}
	a.send(verbs.Send(2, a.sge(0, 33), ib.Signaled))
	if wc := b.got(1, ib.StatusSuccess); wc.Flags&(ib.WithImm|ib.WithInv) != 0 || wc.ByteLen != 33 {
		t.Errorf("receive without immediate: %+v", wc)
	}
	a.sent(2, ib.StatusSuccess)
	a.send(verbs.WriteImm(3, b.mr.Remote(0, 50), 7, a.sge(0, 50), ib.Signaled))
	if wc := b.got(2, ib.StatusSuccess); wc.Opcode != ib.WCRecvWriteImm || wc.ByteLen != 50 || wc.Imm != 7 || wc.Flags&ib.WithImm == 0 {
		t.Errorf("receive of a write with immediate: %+v", wc)
	}
	if wc := a.sent(3, ib.StatusSuccess); wc.Opcode != ib.WCWrite {
		t.Errorf("write: %+v", wc)
	}
	a.send(verbs.Read(4, b.mr.Remote(0, 77), a.sge(0, 77), ib.Signaled))
	if wc := a.sent(4, ib.StatusSuccess); wc.Opcode != ib.WCRead || wc.ByteLen != 77 {
		t.Errorf("read: %+v", wc)
	}
	if t.a.Supports(verbs.FeatureAtomics) == nil {
		a.send(verbs.FetchAdd(5, b.mr.Remote(0, 8), 1, a.sge(0, 8), ib.Signaled))
		if wc := a.sent(5, ib.StatusSuccess); wc.Opcode != ib.WCFetchAdd || wc.ByteLen != 8 {
			t.Errorf("fetch and add: %+v", wc)
		}
		a.send(verbs.CompareSwap(6, b.mr.Remote(0, 8), 1, 2, a.sge(0, 8), ib.Signaled))
		if wc := a.sent(6, ib.StatusSuccess); wc.Opcode != ib.WCCompareSwap || wc.ByteLen != 8 {
			t.Errorf("compare and swap: %+v", wc)
		}
	}
	if t.a.Supports(verbs.FeatureInvalidate) == nil {
		inv, err := b.pd.Alloc(64, allRights)
		t.ok(err, "register")
		b.recv(10, 0, 64)
		a.send(verbs.SendInv(7, inv.RKey(), a.sge(0, 8), ib.Signaled))
		// Whether an ordinary region may be invalidated differs; if it may, the
		// receive names the key.
		wc, err := b.rcq.Next(t.limit)
		t.ok(err, "wait for a send with invalidate")
		if wc.Status == ib.StatusSuccess && (wc.Flags&ib.WithInv == 0 || wc.InvRKey != inv.RKey()) {
			t.Errorf("receive with invalidate: %+v", wc)
		}
		t.closed(inv, "region")
	}
}

func unsignaled(t *tb) {
	a, b := t.pair(func(l *link) { l.cfg.MaxSendWR = 128 })
	for i := range 100 {
		a.send(verbs.Write(uint64(i), b.mr.Remote(0, 8), a.sge(0, 8), 0))
	}
	a.quiet()
	ready, err := a.scq.Arm(ib.NotifyAny)
	t.ok(err, "arm")
	if ready {
		t.Error("unsignaled work made the queue ready")
	}
	bad := b.mr.Remote(0, 8)
	bad.RKey ^= 0xFF
	a.send(verbs.Write(777, bad, a.sge(0, 8), 0))
	ch, err := a.scq.Channel()
	t.ok(err, "the queue's channel")
	cq, err := ch.Event(t.limit)
	t.ok(err, "wait for the event of a failure")
	if cq != a.scq {
		t.Error("event of another queue")
	}
	a.sent(777, ib.StatusRemAccess)
	a.empty()
}

func oneQueueManyPairs(t *tb) {
	const pairs = 64
	a, b := t.pair(func(l *link) { l.oneQ, l.cqs = true, 2048; l.cfg.MaxSendWR, l.cfg.MaxRecvWR = 4, 4 })
	type two struct{ a, b *end }
	all := []two{{a, b}}
	for len(all) < pairs {
		all = append(all, two{t.sibling(a), t.sibling(b)})
	}
	for _, p := range all[1:] {
		t.join(p.a, p.b)
	}
	ids := map[*verbs.QP]uint64{}
	for i, p := range all {
		id := uint64(i / 2) // duplicates and all ones pass through
		if i == 5 {
			id = ^uint64(0)
		}
		ids[p.b.qp], ids[p.a.qp] = id, id
		p.b.recv(id, 0, 8)
		p.a.send(verbs.Send(id, a.sge(0, 8), ib.Signaled))
	}
	for _, cq := range []*verbs.CQ{a.scq, b.scq} {
		seen := map[*verbs.QP]bool{}
		for range pairs {
			wc, err := cq.Next(t.limit)
			t.ok(err, "wait")
			if wc.Status != ib.StatusSuccess || wc.QP == nil || seen[wc.QP] || wc.ID != ids[wc.QP] {
				t.Fatalf("completion %+v", wc)
			}
			seen[wc.QP] = true
		}
	}
	a.empty()
	b.empty()
}

// sibling makes another queue pair on the queues of an end.
func (t *tb) sibling(e *end) *end {
	t.Helper()
	s := *e
	cfg := e.qp.Config()
	cfg.SendCQ, cfg.RecvCQ = e.scq, e.rcq
	s.qp = e.newQP(cfg)
	return &s
}

// join connects two ends that are in RESET, with new numbers.
func (t *tb) join(a, b *end) {
	t.Helper()
	a.attr.SQPSN, b.attr.SQPSN = t.psn(), t.psn()
	a.attr.RQPSN, b.attr.RQPSN = b.attr.SQPSN, a.attr.SQPSN
	a.attr.DestQPN, b.attr.DestQPN = b.qp.Num(), a.qp.Num()
	for _, e := range []*end{b, a} {
		e.init()
		e.rtr()
		e.rts()
	}
}

// After Close nothing of a queue pair is given; after RESET its requests are
// completed once by the library or dropped, and never come as those of another.
func goneBeforePoll(t *tb) {
	for _, reset := range []bool{false, true} {
		a, b := t.pair()
		b.recvs(4, 8)
		for i := range uint64(4) {
			a.send(verbs.Send(100+i, a.sge(0, 8), ib.Signaled))
		}
		for i := range uint64(4) {
			b.got(i, ib.StatusSuccess) // so the sends are complete, too, but not polled
		}
		t.grace()
		if reset {
			a.reset()
		} else {
			t.closed(a.qp, "queue pair with completions")
		}
		seen := map[uint64]int{}
		var wcs [16]verbs.WC
		n, err := a.scq.Poll(wcs[:])
		t.ok(err, "poll")
		for _, wc := range wcs[:n] {
			seen[wc.ID]++
			if wc.ID < 100 || wc.ID > 103 || seen[wc.ID] > 1 {
				t.Errorf("completion %+v", wc)
			}
		}
		if !reset && n > 0 {
			t.Errorf("%d completions of a closed queue pair", n)
		}
		// A new pair on the same queue.
		s := t.sibling(a)
		c := t.sibling(b)
		t.join(s, c)
		c.recv(1, 0, 8)
		s.send(verbs.Send(1, s.sge(0, 8), ib.Signaled))
		if wc := s.sent(1, ib.StatusSuccess); wc.QP != s.qp {
			t.Error("completion of the old queue pair")
		}
		s.empty()
	}
}

func overrun(t *tb) {
	t.drainAsync(t.a)
	a, b := t.pair(overrunning)
	for i := range uint64(3) { // the receives will be flushed
		a.recv(100+i, 0, 8)
	}
	room := a.scq.Cap()
	a.overflow(b)
	t.wantCQErr(t.a, a.scq)
	t.until("the queue pair fails", func() bool { return a.qp.State() == ib.StateError || a.qp.Err() != nil })
	a.state(ib.StateError)
	// No silent loss: what came before is given, in order, or the queue says that it is broken;
	// and then there is nothing but flushes.
	var wcs [64]verbs.WC
	n, err := a.scq.Poll(wcs[:])
	flushed := false
	for i, wc := range wcs[:n] {
		flushed = flushed || wc.Status != ib.StatusSuccess
		if want := ib.StatusWRFlush; flushed && wc.Status != want || !flushed && wc.ID != uint64(i) {
			t.Errorf("completion %d of a queue that overran: request %d with %v", i, wc.ID, wc.Status)
		}
	}
	if err == nil && n < room {
		n2, err2 := a.scq.Poll(wcs[n:])
		if err2 == nil && n2 == 0 {
			t.Errorf("a queue that lost completions gave %d of %d and no error", n, room)
		}
	}
	for i := range uint64(3) {
		a.got(100+i, ib.StatusWRFlush)
	}
	err = a.qp.PostSend(verbs.Write(200, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	if err == nil {
		wc, err := a.scq.Next(t.limit)
		if err == nil && wc.Status != ib.StatusWRFlush {
			t.Errorf("a post behind an overrun completed with %v", wc.Status)
		}
	}
	t.grace()
	t.drainAsync(t.a)
}

func admission(t *tb) {
	pd := t.pd(t.a)
	cq := t.cq(t.a, 16, nil)
	room := cq.Cap()
	cfg := verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4}
	var open []*verbs.QP
	total := 0
	for {
		qp, err := pd.CreateQP(cfg)
		if err != nil {
			t.isErr(err, verbs.ErrCQRoom, "one queue pair too many")
			break
		}
		open = append(open, qp)
		c := qp.Config()
		if total += c.MaxSendWR + c.MaxRecvWR; total > room {
			t.Fatalf("requests for %d completions admitted, room is for %d", total, room)
		}
	}
	if len(open) == 0 {
		t.Fatal("no queue pair was admitted")
	}
	t.closed(open[0], "queue pair")
	qp, err := pd.CreateQP(cfg)
	t.ok(err, "create in the room that a closed one gave back")
	open[0] = qp
	cfg.AllowOverrun = true
	qp, err = pd.CreateQP(cfg)
	t.ok(err, "create with AllowOverrun")
	for _, qp := range append(open, qp) {
		t.closed(qp, "queue pair")
	}
}

// A queue that is closed first takes no posts, and goes with its last queue pair.
func queueInUse(t *tb) {
	n := len(t.a.Objects())
	cq, err := t.a.CreateCQ(64, nil)
	t.ok(err, "create a queue")
	pd := t.pd(t.a)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
	t.ok(err, "create a queue pair")
	t.ok(qp.Modify(&verbs.QPAttr{State: ib.StateInit, Port: 1}, maskInit), "modify to INIT")
	mr := t.region(pd, 64, ib.LocalWrite)
	t.closed(cq, "queue in use")
	_, err = cq.Poll(make([]verbs.WC, 1))
	t.isErr(err, net.ErrClosed, "poll a closed queue")
	_, err = cq.Wait(t.limit, make([]verbs.WC, 1))
	t.isErr(err, net.ErrClosed, "wait on a closed queue")
	err = qp.PostRecv(verbs.Recv(1, mr.SGE(0, 8)))
	t.isErr(err, nil, "post to a queue pair whose queue is closed")
	_, err = pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	t.isErr(err, net.ErrClosed, "create a queue pair on a closed queue")
	t.closed(qp, "queue pair")
	t.closed(cq, "queue, again")
	if left := t.a.Objects(); len(left) != n+2 { // the domain and the region
		t.Errorf("objects left: %v", left)
	}
}

func resize(t *tb) {
	t.supports(verbs.FeatureResizeCQ)
	a, b := t.pair(func(l *link) { l.cqs = 64 })
	dev, err := t.a.Attr()
	t.ok(err, "query the device")
	before := a.scq.Cap()
	for _, n := range []int{0, -1, dev.MaxCQE + 1} {
		t.isErr(a.scq.Resize(n), einval, "resize to %d", n)
		if a.scq.Cap() != before {
			t.Errorf("room %d after a failed resize, was %d", a.scq.Cap(), before)
		}
	}
	t.isErr(a.scq.Resize(1), nil, "resize below what the queue pairs may produce")
	b.recvs(8, 8)
	for i := range uint64(8) {
		a.send(verbs.Send(i, a.sge(0, 8), ib.Signaled))
		b.got(i, ib.StatusSuccess)
	}
	t.grace()
	t.ok(a.scq.Resize(512), "grow")
	if a.scq.Cap() < 512 {
		t.Errorf("room %d after growing to 512", a.scq.Cap())
	}
	for i := range uint64(8) {
		a.sent(i, ib.StatusSuccess)
	}
	a.empty()
}

func concurrentPolling(t *tb) {
	const total, pollers, depth = 4000, 8, 24
	a, b := t.pair()
	ctx, stop := context.WithCancel(t.limit)
	defer stop()
	var mu sync.Mutex
	seen := make([]bool, total)
	left := total
	tokens := make(chan struct{}, depth)
	var wg sync.WaitGroup
	for range pollers {
		wg.Go(func() {
			var wcs [5]verbs.WC
			for {
				n, err := a.scq.Wait(ctx, wcs[:])
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("wait: %v", err)
					}
					return
				}
				mu.Lock()
				for _, wc := range wcs[:n] {
					if wc.Status != ib.StatusSuccess || wc.ID >= total || seen[wc.ID] {
						t.Errorf("completion %d with %v", wc.ID, wc.Status)
						continue
					}
					seen[wc.ID] = true
					left--
					<-tokens
				}
				if left == 0 {
					stop()
				}
				mu.Unlock()
			}
		})
	}
	for i := range uint64(total) {
		select {
		case tokens <- struct{}{}:
		case <-ctx.Done():
			t.Fatalf("stuck with %d of %d", i, total)
		}
		a.send(verbs.Write(i, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	}
	wg.Wait()
	if left != 0 {
		t.Errorf("%d completions are missing", left)
	}
}

func armWithoutChannel(t *tb) {
	a, b := t.pair()
	ready, err := a.scq.Arm(ib.NotifyAny)
	t.ok(err, "arm a queue that has no channel")
	if ready {
		t.Error("an empty queue is ready")
	}
	a.send(verbs.Write(1, b.mr.Remote(0, 8), a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
}
