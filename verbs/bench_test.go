package verbs_test

import (
	"context"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Most of the time of these benchmarks is that of the scripted device, whose lock is
// taken three times a request. BenchmarkDevice gives it.

func benchRig(b *testing.B, depth int) (*rig, *verbs.QP, *scripted.QP, *verbs.CQ) {
	r := newRig(b, &scripted.Config{Unchecked: true})
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: depth, MaxRecvWR: depth})
	sqp.Auto()
	b.ReportAllocs()
	return r, qp, sqp, cq
}

func BenchmarkDevice(b *testing.B) {
	r, _, sqp, _ := benchRig(b, 64)
	q := driver.QP(sqp)
	cq := driver.CQ(r.ctx.CQ(-1))
	b.Run("post and poll 1", func(b *testing.B) {
		for b.Loop() {
			s := q.SendSlots()
			s[0].Flags = ib.Signaled
			q.CommitSend(1)
			cq.Poll()
		}
	})
	b.Run("post and poll 16", func(b *testing.B) {
		for b.Loop() {
			n := 0
			for n < 16 {
				s := q.SendSlots()
				k := min(16-n, len(s))
				for i := range k {
					s[i].Flags = ib.Signaled
				}
				q.CommitSend(k)
				n += k
			}
			cq.Poll()
			cq.Poll()
		}
	})
	b.Run("poll nothing", func(b *testing.B) {
		for b.Loop() {
			cq.Poll()
		}
	})
}

func BenchmarkPost(b *testing.B) {
	r, qp, _, cq := benchRig(b, 64)
	l := r.mr.SGE(0, 64)
	var dst [64]verbs.WC
	b.Run("1 and poll 1", func(b *testing.B) {
		for b.Loop() {
			if err := qp.PostSend(verbs.Send(1, l, ib.Signaled)); err != nil {
				b.Fatal(err)
			}
			if n, err := cq.Poll(dst[:1]); n != 1 || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("16 in place and poll 16", func(b *testing.B) {
		var wrs [16]verbs.SendWR
		for b.Loop() {
			for i := range wrs {
				wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: ib.OpSend, Local: l, Flags: ib.Signaled}
			}
			if n, err := qp.PostSendList(wrs[:]); n != len(wrs) || err != nil {
				b.Fatal(n, err)
			}
			if n, err := cq.Poll(dst[:]); n != len(wrs) || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("inline", func(b *testing.B) {
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 64, MaxInline: 64})
		sqp.Auto()
		for b.Loop() {
			if err := qp.PostSend(verbs.Send(1, l, ib.Signaled|ib.Inline)); err != nil {
				b.Fatal(err)
			}
			if n, err := cq.Poll(dst[:1]); n != 1 || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("fails, PD", func(b *testing.B) {
		pd, err := r.dev.AllocPD()
		r.ok(err)
		defer pd.Close()
		mr, err := pd.Alloc(64, ib.LocalWrite)
		r.ok(err)
		defer mr.Close()
		l := mr.SGE(0, 8)
		for b.Loop() {
			if err := qp.PostSend(verbs.Send(1, l, ib.Signaled)); err != verbs.ErrPDMismatch {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPoll(b *testing.B) {
	r, qp, _, cq := benchRig(b, 64)
	l := r.mr.SGE(0, 64)
	b.Run("nothing", func(b *testing.B) {
		var dst [16]verbs.WC
		for b.Loop() {
			if n, err := cq.Poll(dst[:]); n != 0 || err != nil {
				b.Fatal(n, err)
			}
		}
	})
	post := func(wrs []verbs.SendWR) {
		for i := range wrs {
			wrs[i] = verbs.Send(uint64(i), l, ib.Signaled)
		}
		if n, err := qp.PostSendList(wrs); n != len(wrs) {
			b.Fatal(n, err)
		}
	}
	b.Run("iterator 16", func(b *testing.B) {
		var wrs [16]verbs.SendWR
		for b.Loop() {
			post(wrs[:])
			n := 0
			for wc, err := range cq.Completions(context.Background()) {
				if err != nil || wc.Err() != nil {
					b.Fatal(err)
				}
				if n++; n == len(wrs) {
					break
				}
			}
		}
	})
}

func BenchmarkTable(b *testing.B) {
	var t verbs.Table[int]
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := t.Take(t.Put(1)); !ok {
			b.Fatal()
		}
	}
}

// BenchmarkWait parks and wakes: two goroutines, one CQ each.
func BenchmarkWait(b *testing.B) {
	for _, mode := range []struct {
		name string
		fd   bool
	}{{"go", false}, {"descriptor", true}} {
		b.Run(mode.name, func(b *testing.B) {
			r := newRig(b, &scripted.Config{Unchecked: true, Descriptors: mode.fd})
			qa, sa, ca, _ := r.ready(verbs.QPConfig{})
			qb, sb, cb, _ := r.ready(verbs.QPConfig{})
			ctx, stop := context.WithCancel(bg)
			done := make(chan struct{})
			l := r.mr.SGE(0, 8)
			turn := func(qp *verbs.QP, cq *verbs.CQ, peer *scripted.QP, ctx context.Context) error {
				if _, err := cq.Next(ctx); err != nil {
					return err
				}
				if err := qp.PostRecv(verbs.Recv(1, l)); err != nil {
					return err
				}
				peer.CompleteRecv(1, scripted.Received(8), false)
				return nil
			}
			r.recv(qa, 1)
			r.recv(qb, 1)
			go func() {
				defer close(done)
				for turn(qb, cb, sa, ctx) == nil {
				}
			}()
			b.ReportAllocs()
			sb.CompleteRecv(1, scripted.Received(8), false)
			for b.Loop() {
				if err := turn(qa, ca, sb, bg); err != nil {
					b.Fatal(err)
				}
			}
			stop()
			<-done
		})
	}
}
