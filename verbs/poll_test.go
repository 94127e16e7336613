package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestC050_PollEmpty(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	if got := r.poll(cq); len(got) != 0 {
		t.Errorf("an empty queue gave %v", got)
	}
	r.send(qp, 1, ib.Signaled)
	sqp.CompleteSend(1, success)
	for _, dst := range [][]verbs.WC{nil, {}} {
		if n, err := cq.Poll(dst); n != 0 || err != nil {
			t.Errorf("polling for nothing: %d, %v", n, err)
		}
		if n, err := cq.Wait(bg, dst); n != 0 || err != nil {
			t.Errorf("waiting for nothing: %d, %v", n, err)
		}
	}
	r.want(r.poll(cq), wcs{{1, success}})
	var none *verbs.CQ
	_, err := none.Poll(nil)
	r.is(err, syscall.EINVAL, "nil")
	_, err = (&verbs.CQ{}).Poll(nil)
	r.is(err, syscall.EINVAL, "zero")
}

// TestC051_Order polls in batches that do not fit those of the device.
func TestC051_Order(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 7, 64} {
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 100, MaxRecvWR: 100})
			dst := make([]verbs.WC, batch)
			var nextSend, nextRecv, sent, got uint64
			for got < 1000 {
				for qp.SendRoom() > 0 {
					r.send(qp, sent, ib.Signaled)
					sent++
				}
				for qp.RecvRoom() > 0 {
					r.recv(qp, got)
					got++
				}
				sqp.CompleteSend(33, success)
				sqp.CompleteRecv(29, scripted.Received(8), false)
				n, err := cq.Poll(dst)
				r.ok(err)
				for _, wc := range dst[:n] {
					next := &nextSend
					if wc.Opcode.IsRecv() {
						next = &nextRecv
					}
					if wc.ID != *next || wc.Status != success || wc.QP != qp {
						t.Fatalf("got %+v, want %d", wc, *next)
					}
					*next++
				}
			}
		})
	}
}

func TestC052_Fields(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	full := driver.WC{Status: success, Opcode: ib.WCRecvWriteImm, ByteLen: 77, Imm: 0xA1B2C3D4, Flags: ib.WithImm | ib.WithGRH,
		SrcQPN: 0x99, SL: 3, PathBits: 2, SLID: 7, PKeyIndex: 1}
	r.recv(qp, 1)
	sqp.CompleteRecv(1, full, false)
	want := verbs.WC{ID: 1, QP: qp, ByteLen: 77, Imm: 0xA1B2C3D4, SrcQPN: 0x99, Status: success, Opcode: ib.WCRecvWriteImm,
		Flags: ib.WithImm | ib.WithGRH, SL: 3, PathBits: 2, SLID: 7, PKeyIndex: 1}
	if got := r.poll(cq); len(got) != 1 || got[0] != want {
		t.Errorf("receive: %+v", got)
	}
	r.recv(qp, 2)
	sqp.CompleteRecv(1, driver.WC{Status: success, Opcode: ib.WCRecv, Imm: 0x55, Flags: ib.WithInv}, false)
	if got := r.poll(cq); len(got) != 1 || got[0] != (verbs.WC{ID: 2, QP: qp, InvRKey: 0x55, Opcode: ib.WCRecv, Flags: ib.WithInv}) {
		t.Errorf("receive with invalidate: %+v", got)
	}
	// What a device says of sends is not relied upon, but for the length.
	r.send(qp, 3, ib.Signaled)
	s := sqp.Sends()[0]
	sqp.Inject(driver.WC{ID: s.ID, Opcode: ib.WCRecv, ByteLen: 8, Imm: 9, Flags: ib.WithImm}, false)
	if got := r.poll(cq); len(got) != 1 || got[0] != (verbs.WC{ID: 3, QP: qp, ByteLen: 8, Opcode: ib.WCSend}) {
		t.Errorf("send: %+v", got)
	}
}

// TestC053_FailedCompletion: opcode and queue pair are valid, the rest is zero.
func TestC053_FailedCompletion(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	r.recv(qp, 1)
	r.ok(qp.PostSend(verbs.Read(2, ib.Remote{Len: 8}, r.mr.SGE(0, 8), 0)))
	r.send(qp, 3, 0)
	sqp.CompleteSend(1, ib.StatusRemAccess)
	sends, recvs := queues(r.poll(cq))
	r.want(sends, wcs{{2, ib.StatusRemAccess}, {3, flush}}) // C-084
	r.want(recvs, wcs{{1, flush}})
	for i, want := range []verbs.WC{
		{ID: 2, QP: qp, VendorErr: 0x51, Status: ib.StatusRemAccess, Opcode: ib.WCRead},
		{ID: 3, QP: qp, VendorErr: 0x51, Status: flush, Opcode: ib.WCSend},
		{ID: 1, QP: qp, VendorErr: 0x51, Status: flush, Opcode: ib.WCRecv},
	} {
		if got := append(sends, recvs...)[i]; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if qp.State() != ib.StateError {
		t.Errorf("state %v", qp.State())
	}
	// C-144: the cause has it all.
	err := qp.Err()
	var ce *verbs.CompletionError
	if !errors.As(err, &ce) || !errors.Is(err, ib.ErrRemAccess) {
		t.Fatalf("cause %v", err)
	}
	if ce.ID != 2 || ce.Opcode != ib.WCRead || ce.VendorErr != 0x51 || ce.QPN != qp.Num() {
		t.Errorf("cause %+v", ce)
	}
	for _, s := range []string{"RDMA_READ", "10.0.0.2", "0x000077", "0x51", "REM_ACCESS"} {
		if !contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}

func TestC054_Unsignaled(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, scq := r.ready(verbs.QPConfig{MaxSendWR: 8})
	if ready, err := cq.Arm(ib.NotifyAny); ready || err != nil {
		t.Fatal(ready, err)
	}
	for i := range 3 {
		r.send(qp, uint64(i), 0)
	}
	sqp.CompleteSend(3, success)
	if got := r.poll(cq); len(got) != 0 || !scq.Armed() {
		t.Errorf("good unsignaled requests left a trace: %v", got)
	}
	// A device that completes them all the same.
	r.send(qp, 5, ib.Signaled)
	r.send(qp, 6, 0)
	s := sqp.Sends()
	sqp.CompleteSend(2, success)
	sqp.Inject(driver.WC{ID: s[1].ID}, false)
	r.want(r.poll(cq), wcs{{5, success}})
	r.send(qp, 7, 0)
	sqp.CompleteSend(1, ib.StatusRemAccess)
	r.want(r.poll(cq), wcs{{7, ib.StatusRemAccess}})
}

func TestC055_OneQueueManyPairs(t *testing.T) {
	t.Parallel()
	const pairs = 64
	r := newRig(t, nil)
	cq, _ := r.cq(pairs*4, nil)
	var qps []*verbs.QP
	for i := range pairs {
		qp, sqp := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 2, MaxRecvWR: 2})
		r.rts(qp)
		qps = append(qps, qp)
		id := uint64(i / 2)
		if i%5 == 0 {
			id = ^uint64(0)
		}
		qp.SetUserData(id)
		r.send(qp, id, ib.Signaled)
		sqp.CompleteSend(1, success)
	}
	for i, wc := range r.poll(cq) {
		if wc.QP != qps[i] || wc.ID != wc.QP.UserData() {
			t.Errorf("completion %d is %d of %v", i, wc.ID, wc.QP.Num())
		}
	}
}

// TestC056_Stale: what a device says of requests that are not there is dropped.
func TestC056_Stale(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(64, nil)
	other, _ := r.cq(64, nil)
	cfg := verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4}
	qp, sqp := r.qp(cfg)
	r.rts(qp)
	r.send(qp, 1, ib.Signaled)
	old := sqp.Sends()[0]
	sqp.CompleteSend(1, success)
	r.want(r.poll(cq), wcs{{1, success}})
	for _, w := range []driver.WC{
		{ID: old.ID}, // double
		{ID: old.ID + 1, Status: flush},
		{ID: old.ID - 1},
		{ID: old.ID | 1<<62},
		{ID: ^uint64(0)},
		{ID: 0},
		{ID: old.ID + 7<<40},
	} {
		sqp.Inject(w, false)
	}
	if got := r.poll(cq); len(got) != 0 || qp.State() != ib.StateRTS {
		t.Errorf("stale completions were given: %v, state %v", got, qp.State())
	}
	// In the wrong queue.
	r.send(qp, 2, ib.Signaled)
	now := sqp.Sends()[0]
	r.ctx.CQ(1).Push(driver.WC{ID: now.ID}, false)
	if got := r.poll(other); len(got) != 0 {
		t.Errorf("completion of another queue: %v", got)
	}
	// Left in the queue when the queue pair is closed, and when it comes later, while the
	// next queue pair has the same place.
	sqp.CompleteSend(1, success)
	r.ok(qp.Close())
	for range 40 {
		next, snext := r.qp(cfg)
		r.rts(next)
		r.send(next, 3, ib.Signaled)
		sqp.Inject(driver.WC{ID: now.ID}, false)
		sqp.Inject(driver.WC{ID: now.ID + 1}, false)
		if got := r.poll(cq); len(got) != 0 {
			t.Fatalf("completion of a closed queue pair: %v", got)
		}
		snext.CompleteSend(1, success)
		r.want(r.poll(cq), wcs{{3, success}})
		r.ok(next.Close())
	}
}

// TestC056_OutOfOrder: a device that completes the requests of a queue in another order
// is tolerated, each request completes once.
func TestC056_OutOfOrder(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 16, MaxRecvWR: 16})
	for round := range 200 {
		n := 1 + rnd.IntN(16)
		var ids []uint64
		for i := range n {
			r.send(qp, uint64(i), ib.Signaled)
		}
		for _, s := range sqp.Sends() {
			ids = append(ids, s.ID)
		}
		rnd.Shuffle(n, func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		seen := map[uint64]bool{}
		for _, id := range ids {
			sqp.Inject(driver.WC{ID: id}, false)
			sqp.Inject(driver.WC{ID: id}, false)
			for _, wc := range r.poll(cq) {
				if seen[wc.ID] {
					t.Fatalf("round %d: %d twice", round, wc.ID)
				}
				seen[wc.ID] = true
			}
		}
		if len(seen) != n || qp.SendRoom() != 16 {
			t.Fatalf("round %d: %d of %d, room %d", round, len(seen), n, qp.SendRoom())
		}
		sqp.CompleteSend(n, success) // the device's own queue; the completions are stale
		r.poll(cq)
	}
}

func TestC062_ConcurrentPolling(t *testing.T) {
	t.Parallel()
	const total, pollers = 20000, 8
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 64, MaxRecvWR: 4})
	ctx, stop := context.WithCancel(bg)
	defer stop()
	var mu sync.Mutex
	seen := make([]bool, total)
	left := total
	var wg sync.WaitGroup
	for i := range pollers {
		wg.Go(func() {
			take := func(dst []verbs.WC) {
				mu.Lock()
				defer mu.Unlock()
				for _, wc := range dst {
					if wc.Status != success || seen[wc.ID] {
						t.Errorf("completion %d with %v", wc.ID, wc.Status)
						return
					}
					seen[wc.ID] = true
					if left--; left == 0 {
						stop()
					}
				}
			}
			dst := make([]verbs.WC, 1+i)
			for {
				if i%4 == 3 {
					for wc, err := range cq.Completions(ctx) {
						if err != nil {
							return
						}
						take([]verbs.WC{wc})
					}
				}
				n, err := cq.Wait(ctx, dst)
				if err != nil {
					return
				}
				take(dst[:n])
			}
		})
	}
	l := r.mr.SGE(0, 8)
	for i := uint64(0); i < total; {
		if err := qp.PostSend(verbs.Send(i, l, ib.Signaled)); err == nil {
			i++
		} else if err != verbs.ErrQueueFull {
			t.Fatal(err)
		} else {
			runtime.Gosched()
		}
		sqp.CompleteSend(1, success)
	}
	sqp.CompleteSend(64, success)
	wg.Wait()
	if left != 0 {
		t.Errorf("%d completions are missing", left)
	}
	if n := cq.Stats().Rescued; n != 0 {
		t.Errorf("%d wake-ups were lost", n)
	}
}

// TestC145_InjectedErrors: a tenth of the completions is turned into random failures.
func TestC145_InjectedErrors(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	r := newRig(t, nil)
	for range 300 {
		cq, _ := r.cq(16, nil)
		qp, sqp := r.qp(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
		r.rts(qp)
		want := map[uint64]bool{}
		next := uint64(0)
		for range 30 {
			if qp.PostSend(verbs.Send(next, r.mr.SGE(0, 8), ib.Signaled)) == nil {
				want[next] = true
				next++
			}
			if qp.PostRecv(verbs.Recv(next, r.mr.SGE(0, 8))) == nil {
				want[next] = true
				next++
			}
			st := success
			if rnd.IntN(10) == 0 {
				st = ib.Status(1 + rnd.IntN(30))
			}
			if rnd.IntN(2) == 0 {
				sqp.CompleteSend(1, st)
			} else {
				w := scripted.Received(8)
				w.Status = st
				sqp.CompleteRecv(1, w, false)
			}
			for _, wc := range r.poll(cq) {
				if !want[wc.ID] {
					t.Fatalf("completion %+v", wc)
				}
				delete(want, wc.ID)
			}
		}
		r.ok(qp.Drain(bg))
		for _, wc := range r.poll(cq) {
			delete(want, wc.ID)
		}
		if len(want) != 0 {
			t.Fatalf("requests without completion: %v", want)
		}
		r.ok(qp.Close())
		r.ok(cq.Close())
	}
}

func TestPollAllocs(t *testing.T) {
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 64, MaxRecvWR: 64})
	broken, sbroken := r.cq(4, nil)
	sbroken.Overrun()
	closed, _ := r.cq(4, nil)
	r.ok(closed.Close())
	ended, cancel := context.WithCancel(bg)
	cancel()
	dst := make([]verbs.WC, 16)
	broken.Poll(dst)
	consume := func(cq *verbs.CQ, n int) {
		for _, err := range cq.Completions(bg) {
			if err != nil {
				t.Fatal(err)
			}
			if n--; n == 0 {
				return
			}
		}
	}
	failed := verbs.WC{Status: ib.StatusRetryExc}
	for name, f := range map[string]func(){
		"error": func() {
			if failed.Err() != ib.ErrRetryExc {
				t.Fatal(failed.Err())
			}
		},
		"empty":  func() { cq.Poll(dst) },
		"broken": func() { broken.Poll(dst) },
		"closed": func() { closed.Poll(dst) },
		"nil":    func() { (*verbs.CQ)(nil).Poll(dst) },
		"ended":  func() { cq.Wait(ended, dst) },
		"arm":    func() { cq.Arm(ib.NotifyAny) },
		"iterator": func() {
			for i := range 8 {
				qp.PostSend(verbs.Send(uint64(i), r.mr.SGE(0, 8), ib.Signaled))
			}
			sqp.CompleteSend(8, success)
			consume(cq, 8)
		},
		"next": func() {
			qp.PostRecv(verbs.Recv(1, r.mr.SGE(0, 8)))
			sqp.CompleteRecv(1, scripted.Received(8), false)
			if _, err := cq.Next(bg); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	// Failures: each queue pair fails once.
	const runs = 20
	var qps []*verbs.QP
	var sqps []*scripted.QP
	big, _ := r.cq(runs*20, nil)
	for range runs + 1 {
		q, s := r.qp(verbs.QPConfig{SendCQ: big, MaxSendWR: 4, MaxRecvWR: 4})
		r.rts(q)
		r.send(q, 1, ib.Signaled)
		r.send(q, 2, 0)
		r.recv(q, 3)
		qps, sqps = append(qps, q), append(sqps, s)
	}
	i := 0
	if n := testing.AllocsPerRun(runs, func() {
		sqps[i].CompleteSend(1, ib.StatusRetryExc)
		if n, err := big.Poll(dst); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		if qps[i].PostSend(verbs.Send(9, r.mr.SGE(0, 8), 0)) != nil {
			t.Fatal("post in the error state")
		}
		big.Poll(dst)
		i++
	}); n > 0 {
		t.Errorf("failure: %v allocations", n)
	}
}
