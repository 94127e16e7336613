package verbs_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
)

// bareFD is an eventfd that a goroutine waits for in Go's poller, and nothing else.
type bareFD struct {
	fd    int
	raw   syscall.RawConn
	check func(uintptr) bool
}

func newBareFD(tb testing.TB) *bareFD {
	tb.Helper()
	fd, err := unix.Eventfd()
	if err != nil {
		tb.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "bare")
	tb.Cleanup(func() { f.Close() })
	b := &bareFD{fd: fd}
	if b.raw, err = f.SyscallConn(); err != nil {
		tb.Fatal(err)
	}
	b.check = func(fd uintptr) bool {
		n, err := unix.EventfdDrain(int(fd))
		return n > 0 || err != nil
	}
	return b
}

func (b *bareFD) wait() error { return b.raw.Read(b.check) }
func (b *bareFD) wake()       { unix.EventfdSignal(b.fd) }

// turnTaker passes the turn by completions.
type turnTaker struct {
	r   *rig
	qp  *verbs.QP
	cq  *verbs.CQ
	dev *scripted.QP
	dst [1]verbs.WC
}

func newTurnTaker(r *rig) *turnTaker {
	t := &turnTaker{r: r}
	t.qp, t.dev, t.cq, _ = r.ready(verbs.QPConfig{})
	r.recv(t.qp, 1)
	return t
}

func (t *turnTaker) wake() { t.dev.CompleteRecv(1, scripted.Received(8), false) }

func (t *turnTaker) wait() error {
	if _, err := t.cq.Wait(bg, t.dst[:]); err != nil {
		return err
	}
	return t.qp.PostRecv(verbs.Recv(1, t.r.mr.SGE(0, 64)))
}

// BenchmarkWakeUp passes the turn to and fro between two goroutines that sleep, once
// with a bare eventfd and once with a completion queue of a device with descriptors, in
// turn. more-ns is what a wake-up by a completion takes longer. Of that, awake-ns is what the
// scripted device, the post of a receive and the poll take if nobody sleeps.
func BenchmarkWakeUp(b *testing.B) {
	type taker interface {
		wake()
		wait() error
	}
	r := newRig(b, &scripted.Config{Descriptors: true, Unchecked: true})
	one, two := newTurnTaker(r), newTurnTaker(r)
	pairs := [2][2]taker{{newBareFD(b), newBareFD(b)}, {one, two}}
	const rounds = 100
	start := make(chan int)
	done := make(chan struct{})
	go func() {
		for i := range start {
			for range rounds {
				if err := pairs[i][1].wait(); err != nil {
					b.Error(err)
				}
				pairs[i][0].wake()
			}
			done <- struct{}{}
		}
	}()
	defer close(start)
	var times [2]time.Duration
	var awake time.Duration
	b.ReportAllocs()
	for b.Loop() {
		for i := range pairs {
			t := time.Now()
			start <- i
			for range rounds {
				pairs[i][1].wake()
				if err := pairs[i][0].wait(); err != nil {
					b.Fatal(err)
				}
			}
			<-done
			times[i] += time.Since(t)
		}
		t := time.Now()
		for range rounds {
			one.wake()
			if err := one.wait(); err != nil {
				b.Fatal(err)
			}
		}
		awake += time.Since(t)
	}
	n := float64(b.N) * rounds
	b.ReportMetric(float64(times[0])/n/2, "bare-ns")
	b.ReportMetric(float64(times[1])/n/2, "queue-ns")
	b.ReportMetric(float64(times[1]-times[0])/n/2, "more-ns")
	b.ReportMetric(float64(awake)/n, "awake-ns")
	if s := one.cq.Stats(); s.Rescued > 0 || s.Sleeps < uint64(b.N) {
		b.Errorf("%+v", s)
	}
}
