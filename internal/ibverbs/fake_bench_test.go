//go:build linux && cgo

package ibverbs

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// BenchmarkPostPoll is the cost of an operation: a request is written, posted and polled,
// in batches, through the provider and by the same loop in C inside the fake. What is
// between the two is the price of Go, cgo and the shim:
//
//	go test ./internal/ibverbs -run '^$' -bench PostPoll -count 5
//
// Both are measured in turns of well under a millisecond, and the best of each counts, so
// that other processes do not.
func BenchmarkPostPoll(b *testing.B) {
	if os.Getenv(envVariant) == "" {
		outside(b, "^BenchmarkPostPoll$")
		return
	}
	f := newFake(b, "full")
	r := newRig(b)
	q := r.cq(1, 200).(*cq)
	a, _ := r.pair(q, nil)
	sge := r.sge(0, 0)
	inGo := func(batch, rounds int) {
		for range rounds {
			s := a.SendSlots()
			for i := range s[:batch] {
				s[i].ID, s[i].Opcode, s[i].Flags, s[i].Addr, s[i].RKey = uint64(i), ib.OpWrite, ib.Signaled, 0, r.rkey
				s[i].SGL = append(s[i].SGL[:0], sge)
			}
			if n, err := a.CommitSend(batch); n != batch || err != nil {
				b.Fatal(n, err)
			}
			for got := 0; got < batch; {
				w, err := q.Poll()
				if err != nil {
					b.Fatal(err)
				}
				got += len(w)
			}
		}
	}
	f.set("bench_qp", int64(uintptr(unsafe.Pointer(a.(*qp).c.qp))))
	f.set("bench_cq", int64(pointerOf(q)))
	for _, batch := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			f.set("bench_batch", int64(batch))
			rounds := max(1, 2048/batch)
			ops := float64(rounds * batch)
			goBest, cBest := math.MaxFloat64, math.MaxFloat64
			for b.Loop() {
				t := time.Now()
				inGo(batch, rounds)
				goBest = min(goBest, float64(time.Since(t))/ops)
				t = time.Now()
				if _, err := r.ctx.PKey(250, rounds); err != nil {
					b.Fatal(err)
				}
				cBest = min(cBest, float64(time.Since(t))/ops)
			}
			b.ReportMetric(goBest, "ns/op")
			b.ReportMetric(cBest, "C-ns/op")
			b.ReportMetric(goBest-cBest, "more-ns/op")
		})
	}
}

// outside runs benchmarks in a process that has the fake, and gives their results as its
// own.
func outside(b *testing.B, run string) {
	out, err := newFakeBuild(b).command(b, variants[0], "-test.run=^$", "-test.bench="+run).CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	lines := regexp.MustCompile(`(?m)^Benchmark\w+/(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`).FindAllStringSubmatch(string(out), -1)
	if len(lines) == 0 {
		b.Fatalf("no result\n%s", out)
	}
	for _, m := range lines {
		b.Run(m[1], func(b *testing.B) {
			for f := strings.Fields(m[2]); len(f) >= 2; f = f[2:] {
				v, err := strconv.ParseFloat(f[0], 64)
				if err != nil {
					b.Fatalf("%v in %q", err, m[0])
				}
				b.ReportMetric(v, f[1])
			}
		})
	}
}

// TestFakeFullAllocs: whole batches, and what fails, cost no allocation.
func TestFakeFullAllocs(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	q := r.cq(1, 500)
	a, c := r.pair(q, nil)
	srq := must(r.pd.CreateSRQ(driver.SRQConfig{MaxWR: 100, MaxSGE: 1}))(t)
	r.closing("srq", srq.Close)
	poll := func(want int) {
		for want > 0 {
			w, err := q.Poll()
			if err != nil || len(w) == 0 {
				t.Fatal(len(w), err)
			}
			want -= len(w)
		}
	}
	check := func(name string, fn func()) {
		t.Helper()
		if n := testing.AllocsPerRun(50, fn); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	check("64 sends and receives", func() {
		rs, s := c.RecvSlots(), a.SendSlots()
		for i := range 64 {
			rs[i].ID, rs[i].SGL = uint64(i), append(rs[i].SGL[:0], r.sge(64*i, 64))
			s[i].ID, s[i].Opcode, s[i].Flags, s[i].Data = uint64(i), ib.OpSend, ib.Signaled|ib.Inline, append(s[i].Data[:0], "hello"...)
		}
		if n, err := c.CommitRecv(64); n != 64 || err != nil {
			t.Fatal(n, err)
		}
		if err := q.Arm(false); err != nil {
			t.Fatal(err)
		}
		if n, err := a.CommitSend(64); n != 64 || err != nil {
			t.Fatal(n, err)
		}
		if _, ok, err := r.ch.Next(); !ok || err != nil {
			t.Fatal(ok, err)
		}
		poll(128)
	})
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EINVAL, syscall.EIO, syscall.EAGAIN} {
		f.fail("post_send", errno, 0)
		f.fail("post_recv", errno, 0)
		f.fail("post_srq_recv", errno, 0)
		f.fail("req_notify_cq", errno, 0)
		check(errno.Error(), func() {
			a.SendSlots()[0].Opcode = ib.OpSend
			a.RecvSlots()[0].SGL = nil
			srq.RecvSlots()[0].SGL = nil
			_, e1 := a.CommitSend(1)
			_, e2 := a.CommitRecv(1)
			_, e3 := srq.CommitRecv(1)
			if e1 != errno || e2 != errno || e3 != errno || q.Arm(true) != errno {
				t.Fatal(e1, e2, e3)
			}
		})
	}
	for _, n := range []string{"post_send", "post_recv", "post_srq_recv", "req_notify_cq"} {
		f.fail(n, 0, 0)
	}
	check("nothing there", func() {
		q.Poll()
		r.ch.Next()
		r.ctx.Async().Next()
	})
}
