package softroce

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// newTestCQ makes a completion queue on a device without a network.
func newTestCQ(t testing.TB, entries int) (*cq, *compChannel) {
	t.Helper()
	ctx := open(t, newProvider(t, nil))
	return addCQ(t, ctx, nil, 5, entries)
}

func addCQ(t testing.TB, ctx *deviceContext, ch *compChannel, handle uint64, entries int) (*cq, *compChannel) {
	t.Helper()
	if ch == nil {
		c, err := ctx.CreateCompChannel()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ch = c.(*compChannel)
	}
	c, err := ctx.CreateCQ(driver.CQConfig{Handle: handle, Entries: entries, Channel: ch})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*cq), ch
}

func done(id uint64) *transport.Completion {
	return &transport.Completion{WC: driver.WC{ID: id, QPN: 9}}
}

// fired drains a channel.
func fired(t *testing.T, ch *compChannel) (handles []uint64) {
	t.Helper()
	for {
		h, ok, err := ch.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return handles
		}
		handles = append(handles, h)
	}
}

func TestC236_StrictArming(t *testing.T) {
	t.Parallel()
	c, ch := newTestCQ(t, 8)
	c.push(done(1), nil)
	c.Arm(false)
	if n := fired(t, ch); len(n) != 0 {
		t.Fatalf("a completion that was there fired: %v", n)
	}
	if !c.push(done(2), nil) {
		t.Error("push does not say that it fired")
	}
	if n := fired(t, ch); !slices.Equal(n, []uint64{5}) {
		t.Fatalf("events %v, want one", n)
	}
	c.push(done(3), nil)
	if n := fired(t, ch); len(n) != 0 {
		t.Fatalf("fired without being armed: %v", n)
	}
	if w, err := c.Poll(); err != nil || len(w) != 3 || w[0].ID != 1 || w[2].ID != 3 {
		t.Errorf("polled %v, %v", w, err)
	}
}

func TestC238_SolicitedArming(t *testing.T) {
	t.Parallel()
	solicited := done(1)
	solicited.Solicited = true
	failed := done(2)
	failed.Status = ib.StatusWRFlush
	for _, x := range []struct {
		name string
		arm  []bool
		push []*transport.Completion
		want int
	}{
		{"unsolicited", []bool{true}, []*transport.Completion{done(3)}, 0},
		{"solicited", []bool{true}, []*transport.Completion{done(3), solicited, solicited}, 1},
		{"failed", []bool{true}, []*transport.Completion{failed}, 1},
		{"any stays any", []bool{false, true}, []*transport.Completion{done(3)}, 1},
		{"solicited becomes any", []bool{true, false}, []*transport.Completion{done(3)}, 1},
	} {
		c, ch := newTestCQ(t, 8)
		for _, a := range x.arm {
			c.Arm(a)
		}
		for _, p := range x.push {
			c.push(p, nil)
		}
		if n := fired(t, ch); len(n) != x.want {
			t.Errorf("%s: %d events, want %d", x.name, len(n), x.want)
		}
	}
}

func TestC241_C242_ManyQueuesOneChannel(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	var ch *compChannel
	var qs []*cq
	for i := range 64 {
		var c *cq
		c, ch = addCQ(t, ctx, ch, uint64(100+i), 4)
		qs = append(qs, c)
		c.Arm(false)
	}
	for i := range qs {
		qs[63-i].push(done(uint64(i)), nil)
	}
	got := fired(t, ch)
	if len(got) != 64 || got[0] != 163 || got[63] != 100 {
		t.Fatalf("%d events: %v", len(got), got)
	}
	// Armed and fired twice before anybody looks: two events, as each arm has one.
	for range 2 {
		qs[3].Arm(false)
		qs[3].push(done(1), nil)
		qs[4].Arm(false)
		qs[4].push(done(1), nil)
	}
	got = fired(t, ch)
	slices.Sort(got)
	if !slices.Equal(got, []uint64{103, 103, 104, 104}) {
		t.Fatalf("events %v", got)
	}
	// A queue that is closed takes its events along, the others' stay.
	for _, c := range qs[10:13] {
		c.Arm(false)
		c.push(done(1), nil)
	}
	qs[11].Close()
	if got = fired(t, ch); !slices.Equal(got, []uint64{110, 112}) {
		t.Fatalf("events %v", got)
	}
}

func TestC243_EventWithEmptyQueue(t *testing.T) {
	t.Parallel()
	c, ch := newTestCQ(t, 4)
	c.Arm(false)
	c.push(done(1), nil)
	if w, _ := c.Poll(); len(w) != 1 {
		t.Fatal("no completion")
	}
	if n := fired(t, ch); len(n) != 1 {
		t.Fatalf("events %v", n)
	}
	if w, err := c.Poll(); err != nil || len(w) != 0 {
		t.Errorf("polled %v, %v", w, err)
	}
}

func TestC048_QueueSizes(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	for _, n := range []int{-1, 0, maxCQE + 1, 1 << 40} {
		if _, err := ctx.CreateCQ(driver.CQConfig{Entries: n}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d entries: %v", n, err)
		}
	}
	for _, n := range []int{1, 2, 3, 100, maxCQE} {
		c, err := ctx.CreateCQ(driver.CQConfig{Entries: n})
		if err != nil {
			t.Fatal(err)
		}
		if c.Entries() < n {
			t.Errorf("%d entries asked, %d given", n, c.Entries())
		}
		// It really holds them, also when some were polled and not given back.
		q := c.(*cq)
		m := min(n, 1000)
		for i := range m {
			q.push(done(uint64(i)), nil)
		}
		w, _ := q.Poll()
		first, taken := w[0].ID, len(w)
		for i := range taken {
			q.push(done(uint64(m+i)), nil)
		}
		if w[0].ID != first {
			t.Fatalf("%d entries: what Poll gave was overwritten", n)
		}
		for next := uint64(taken); next < uint64(m+taken); {
			w, err := q.Poll()
			if err != nil || len(w) == 0 {
				t.Fatalf("%d entries: poll at %d: %v, %v", n, next, w, err)
			}
			for _, e := range w {
				if e.ID != next {
					t.Fatalf("%d entries: got %d, want %d", n, e.ID, next)
				}
				next++
			}
		}
		c.Close()
	}
}

func TestC049_Vectors(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	for _, v := range []int{-1, 1, 1 << 20} {
		if _, err := ctx.CreateCQ(driver.CQConfig{Entries: 1, Vector: v}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("vector %d: %v", v, err)
		}
	}
}

func TestC004_ChannelOfAnotherContext(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	one, two := open(t, p), open(t, p)
	ch, _ := one.CreateCompChannel()
	defer ch.Close()
	if _, err := two.CreateCQ(driver.CQConfig{Entries: 1, Channel: ch}); !errors.Is(err, syscall.EBADF) {
		t.Errorf("channel of another context: %v", err)
	}
	pd, _ := two.AllocPD()
	defer pd.Close()
	c, _ := one.CreateCQ(driver.CQConfig{Entries: 1})
	defer c.Close()
	if _, err := pd.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: c, RecvCQ: c}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("queue of another context: %v", err)
	}
}

func TestC060_Resize(t *testing.T) {
	t.Parallel()
	c, _ := newTestCQ(t, 4)
	for i := range 4 {
		c.push(done(uint64(i)), nil)
	}
	for _, n := range []int{0, -1, maxCQE + 1, 3} {
		if err := c.Resize(n); !errors.Is(err, syscall.EINVAL) || c.Entries() != 4 {
			t.Errorf("resize to %d: %v, size %d", n, err, c.Entries())
		}
	}
	if err := c.Resize(200); err != nil {
		t.Fatal(err)
	}
	for i := range 196 {
		c.push(done(uint64(4+i)), nil)
	}
	for next := uint64(0); next < 200; {
		w, err := c.Poll()
		if err != nil || len(w) == 0 {
			t.Fatal(next, err)
		}
		for _, e := range w {
			if e.ID != next {
				t.Fatalf("got %d, want %d", e.ID, next)
			}
			next++
		}
	}
	if err := c.Resize(1); err != nil {
		t.Error(err)
	}
}

func TestC063_QueueWithoutChannel(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	c, err := ctx.CreateCQ(driver.CQConfig{Entries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Arm(false); err != nil {
		t.Error(err)
	}
	c.(*cq).push(done(1), nil)
	if w, err := c.Poll(); len(w) != 1 || err != nil {
		t.Error(w, err)
	}
}

func TestModeration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		c, ch := addCQ(t, open(t, p), nil, 1, 64)
		for _, x := range []struct {
			count  int
			period time.Duration
		}{{-1, 0}, {maxModeration + 1, 1}, {2, -1}, {2, maxPeriod + 1}, {2, 0}} {
			if err := c.Moderate(x.count, x.period); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("Moderate(%d, %v): %v", x.count, x.period, err)
			}
		}
		if err := c.Moderate(3, time.Millisecond); err != nil {
			t.Fatal(err)
		}
		step := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			if n := fired(t, ch); len(n) != want {
				t.Errorf("%s: %d events, want %d", what, len(n), want)
			}
		}
		c.Arm(false)
		c.push(done(1), nil)
		c.push(done(2), nil)
		step("two of three", 0)
		c.push(done(3), nil)
		step("the third", 1)
		time.Sleep(10 * time.Millisecond)
		step("the period after the event", 0)
		c.Arm(false)
		c.push(done(4), nil)
		time.Sleep(999 * time.Microsecond)
		step("before the period", 0)
		time.Sleep(time.Microsecond)
		step("after the period", 1)
		c.push(done(5), nil)
		time.Sleep(time.Second)
		step("not armed", 0)
		c.Arm(false)
		c.push(done(6), nil)
		c.Moderate(0, 0)
		step("moderation ends with one waiting", 1)
		c.Arm(false)
		c.push(done(7), nil)
		step("without moderation", 1)
		if !p.dev.timers.Idle() {
			t.Error("a timer runs without need")
		}
	})
}

func TestC057_OverrunOfTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		ctx := open(t, p)
		c, ch := addCQ(t, ctx, nil, 77, 2)
		c.push(done(1), nil)
		c.push(done(2), nil)
		c.Arm(false)
		c.push(done(3), nil)
		c.push(done(4), nil)
		synctest.Wait()
		if n := fired(t, ch); len(n) != 1 {
			t.Errorf("%d events, want 1: who waits must learn of it", len(n))
		}
		e, ok, err := ctx.async.Next()
		if !ok || err != nil || e.Type != ib.EventCQErr || e.Handle != 77 {
			t.Errorf("async event %v, %v, %v", e, ok, err)
		}
		if _, ok, _ := ctx.async.Next(); ok {
			t.Error("a second event")
		}
		if w, err := c.Poll(); len(w) != 2 || err != nil {
			t.Errorf("what was there before: %v, %v", w, err)
		}
		if w, err := c.Poll(); len(w) != 0 || !errors.Is(err, errOverrun) {
			t.Errorf("after it: %v, %v", w, err)
		}
		if err := c.Arm(false); !errors.Is(err, errOverrun) {
			t.Errorf("arm: %v", err)
		}
		if p.Stats().CQOverruns != 1 {
			t.Error("not counted once")
		}
	})
}

func TestDetachTakesCompletionsAlong(t *testing.T) {
	t.Parallel()
	c, _ := newTestCQ(t, 100)
	gone := &qp{num: 8}
	c.attach(gone)
	for i := range 50 {
		d := done(uint64(i))
		if i%3 == 0 {
			d.QPN = 8
		}
		c.push(d, nil)
	}
	c.detach(gone)
	var got []uint64
	for {
		w, err := c.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if len(w) == 0 {
			break
		}
		for _, e := range w {
			if e.QPN == 8 {
				t.Errorf("completion %d of a closed queue pair", e.ID)
			}
			got = append(got, e.ID)
		}
	}
	if len(got) != 33 || !slices.IsSorted(got) {
		t.Errorf("%d left: %v", len(got), got)
	}
}

func TestCompletionsDoNotAllocate(t *testing.T) {
	c, ch := newTestCQ(t, 16)
	d := done(1)
	if n := testing.AllocsPerRun(1000, func() {
		c.Arm(true)
		c.Arm(false)
		c.push(d, nil)
		c.push(d, nil)
		c.Poll()
		c.Poll()
		ch.Next()
		ch.Next()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if _, err := ch.FD(); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() {
		c.Arm(false)
		c.push(d, nil)
		c.Poll()
		ch.Next()
	}); n != 0 {
		t.Errorf("with a descriptor: %v allocations", n)
	}
}
