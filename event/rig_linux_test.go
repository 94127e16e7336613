package event_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
)

// backends are what every test of behaviour runs on.
var backends = []event.Backend{event.Epoll, event.Poll, event.Select}

// patience is for what must come: it takes its time on a busy machine, and whole sessions are
// waited for.
const patience = 2 * time.Minute

// each runs a test on all backends.
func each(t *testing.T, f func(t *testing.T, b event.Backend)) {
	t.Helper()
	for _, b := range backends {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			f(t, b)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t testing.TB, err, want error, what string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// get gives the first of two results.
func get[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// newLoop makes a loop that is closed at the end.
func newLoop(t testing.TB, cfg event.Config) *event.Loop {
	t.Helper()
	l, err := event.New(&cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close loop: %v", err)
		}
	})
	return l
}

// turn is a turn without waiting, in which so many handlers are called.
func turn(t testing.TB, l *event.Loop, want int) {
	t.Helper()
	if n, err := l.Turn(0); n != want || err != nil {
		t.Errorf("turn: %d calls, %v; want %d", n, err, want)
	}
}

// until makes turns until a condition holds; that it takes too long means that a wake-up was
// lost, as a turn does not look at sources that say nothing.
func until(t testing.TB, l *event.Loop, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); {
		_, err := l.Turn(20 * time.Millisecond)
		must(t, err)
		if time.Now().After(end) {
			t.Fatalf("no wake-up: %s", what)
		}
	}
}

// rig is a device that does what the test says.
type rig struct {
	testing.TB
	p    *scripted.Provider
	dev  *verbs.Device
	ctx  *scripted.Context
	pd   *verbs.PD
	mr   *verbs.MR
	last []interface{ Close() error }
}

func newRig(t testing.TB, cfg *scripted.Config) *rig {
	t.Helper()
	r := &rig{TB: t, p: scripted.New(cfg)}
	infos, err := verbs.Devices(r.p)
	must(t, err)
	r.dev = get[*verbs.Device](t)(infos[0].OpenPrivate())
	r.ctx = r.p.Device("").Context()
	t.Cleanup(func() {
		t.Helper()
		for i := len(r.last) - 1; i >= 0; i-- {
			r.last[i].Close()
		}
		if left := r.dev.Objects(); len(left) > 0 {
			t.Errorf("objects left: %q", left)
		}
		r.dev.Close() // perhaps again
		if n := r.p.Open(); n > 0 {
			t.Errorf("%d objects of the provider left", n)
		}
		for _, v := range r.p.Violations() {
			t.Errorf("contract: %s", v)
		}
	})
	r.pd = get[*verbs.PD](t)(r.dev.AllocPD())
	r.closeLast(r.pd)
	r.mr = get[*verbs.MR](t)(r.pd.Alloc(1<<16, ib.LocalWrite))
	r.closeLast(r.mr)
	return r
}

func (r *rig) closeLast(c interface{ Close() error }) { r.last = append(r.last, c) }

// line is a completion queue with a queue pair that completes what the test says.
type line struct {
	r    *rig
	cq   *verbs.CQ
	scq  *scripted.CQ
	qp   *verbs.QP
	sqp  *scripted.QP
	next uint64
}

const lineDepth = 512

// line makes one; a nil channel means one of its own.
func (r *rig) line(ch *verbs.CompChannel) *line {
	r.Helper()
	n := &line{r: r}
	n.cq = get[*verbs.CQ](r)(r.dev.CreateCQ(2*lineDepth, &verbs.CQConfig{Channel: ch}))
	r.closeLast(n.cq)
	n.scq = r.ctx.CQ(-1)
	n.pair()
	return n
}

// pair makes the queue pair.
func (n *line) pair() {
	r := n.r
	r.Helper()
	n.qp = get[*verbs.QP](r)(r.pd.CreateQP(verbs.QPConfig{SendCQ: n.cq, MaxSendWR: 16, MaxRecvWR: lineDepth}))
	r.closeLast(n.qp)
	n.sqp = r.ctx.QP(-1)
	a := verbs.QPAttr{
		Port: 1, PathMTU: ib.MTU1024, DestQPN: 0x77, RQPSN: 5, SQPSN: 6,
		AH:          verbs.AHAttr{DGID: ib.GID{10: 0xFF, 11: 0xFF, 12: 10, 15: 2}, SGIDIndex: 1, Global: true, Port: 1},
		MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: time.Millisecond, Timeout: 67 * time.Millisecond, RetryCount: 7, RNRRetry: 7,
	}
	for _, s := range []struct {
		to ib.QPState
		m  ib.QPAttrMask
	}{
		{ib.StateInit, ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccess},
		{ib.StateRTR, ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer},
		{ib.StateRTS, ib.AttrState | ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrSQPSN | ib.AttrMaxRDAtomic},
	} {
		a.State = s.to
		must(r, n.qp.Modify(&a, s.m))
	}
}

// give completes k receives, with the next ids.
func (n *line) give(k int) {
	n.r.Helper()
	for range k {
		if err := n.qp.PostRecv(verbs.Recv(n.next, n.r.mr.SGE(0, 64))); err != nil {
			n.r.Errorf("receive: %v", err)
			return
		}
		n.next++
	}
	n.sqp.CompleteRecv(k, scripted.Received(8), false)
}

// watch watches the queue, and gives the ids that were delivered.
func (n *line) watch(l *event.Loop) (*event.Watch, *[]uint64) {
	n.r.Helper()
	var got []uint64
	w := get[*event.Watch](n.r)(l.CQ(n.cq, func(wc verbs.WC) { got = append(got, wc.ID) }))
	return w, &got
}

// ids checks that the completions from 0 to n-1 came, once and in order.
func ids(t testing.TB, got []uint64, n int) {
	t.Helper()
	if len(got) != n {
		t.Errorf("%d completions, want %d", len(got), n)
	}
	for i, id := range got {
		if id != uint64(i) {
			t.Errorf("completion %d has the id %d", i, id)
			return
		}
	}
}

// eventfd is a descriptor that the test makes readable.
func eventfd(t testing.TB) int {
	t.Helper()
	fd := get[int](t)(unix.Eventfd())
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func signal(t testing.TB, fd int) {
	t.Helper()
	must(t, unix.EventfdSignal(fd))
}

func drain(t testing.TB, fd int) {
	t.Helper()
	_, err := unix.EventfdDrain(fd)
	must(t, err)
}

// readable asks poll(2).
func readable(t testing.TB, fd int) bool {
	t.Helper()
	fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}
	n, err := unix.Poll(fds, 0)
	must(t, err)
	return n > 0
}

// running has a goroutine in Run, which is stopped at the end, or by stop.
func running(t testing.TB, l *event.Loop) (stop func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- l.Run(context.Background()) }()
	var over atomic.Bool
	stop = func() {
		if over.Swap(true) {
			return
		}
		l.Stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// arrive waits for a signal of another goroutine.
func arrive[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
	}
	return v
}

// call runs f and gives what it panicked with.
func call(f func()) (p any) {
	defer func() { p = recover() }()
	f()
	return nil
}

// recorder notes what happens, in order.
type recorder struct{ log []string }

func (r *recorder) add(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

// waitFor waits for what other goroutines do.
func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("did not come: %s", what)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func addr(t testing.TB, s string) netip.Addr {
	t.Helper()
	return get[netip.Addr](t)(netip.ParseAddr(s))
}
