//go:build linux && cgo

package ibverbs

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// wantLibrary holds an error of loading against what it must say.
func wantLibrary(t *testing.T, err error, want LibraryError, text ...string) {
	t.Helper()
	var e *LibraryError
	if !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &e) {
		t.Fatalf("%v is no LibraryError, or not errors.ErrUnsupported", err)
	}
	if e.Library != want.Library || e.Symbol != want.Symbol || e.Version != want.Version {
		t.Errorf("%+v, want %+v", *e, want)
	}
	for _, s := range text {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}

// TestFakeNone: neither library can be loaded.
func TestFakeNone(t *testing.T) {
	inFake(t, "none")
	p, err := New()
	wantLibrary(t, err, LibraryError{Library: "libibverbs.so.1"}, "no RDMA libraries: tried libibverbs.so.1 (", "install ")
	if ok, why := p.Active(); p != nil || ok || why == "" {
		t.Error(p, ok, why)
	}
}

// TestFakeNoSymbol: libibverbs lacks one function that must be there, the last one. No
// other is used.
func TestFakeNoSymbol(t *testing.T) {
	inFake(t, "nosymbol")
	p, err := New()
	wantLibrary(t, err, LibraryError{Library: "libibverbs.so.1", Symbol: "ibv_detach_mcast", Version: "IBVERBS_1.1"},
		"libibverbs.so.1: it has no ibv_detach_mcast (IBVERBS_1.1)", "too old")
	if p != nil {
		t.Error(p)
	}
}

// TestFakeNoCM: there are devices, and no connection manager: librdmacm is not there, or
// lacks a function.
func TestFakeNoCM(t *testing.T) {
	f := newFake(t, "nocm", "nocmsymbol")
	m, err := f.p.OpenCM()
	if m != nil {
		t.Error(m)
	}
	want := LibraryError{Library: "librdmacm.so.1"}
	text := "tried librdmacm.so.1 ("
	if f.fns["rdma_get_cm_event"] != nil { // it was loaded
		want.Symbol, want.Version = "rdma_init_qp_attr", "RDMACM_1.2"
		text = "it has no rdma_init_qp_attr (RDMACM_1.2)"
	}
	wantLibrary(t, err, want, "no connection manager", text)
	if ok, why := f.p.Active(); ok || why != err.Error() {
		t.Error("a provider that cannot connect is taken by default:", ok, why)
	}
	a, b := must(f.p.OpenShared("fake0"))(t), must(f.p.OpenShared("fake0"))(t)
	if a != b {
		t.Error("two shared contexts")
	}
	if _, err := f.p.OpenShared("nosuch"); !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "the kernel has fake0") {
		t.Error(err)
	}
	must(a.AllocPD())(t).Close()
}

// TestFakeOldLibrary: all functions that need not be there are missing. What can be done
// without them is, the rest says what is too old.
func TestFakeOldLibrary(t *testing.T) {
	f := newFake(t, "old")
	r := newRig(t)
	if i := r.ctx.Device(); i.Index != -1 {
		t.Errorf("%+v", i)
	}
	gids := must(r.ctx.GIDs())(t)
	if len(gids) != 3 || gids[1].GID.Addr() != fakeAddr || gids[1].Index != 1 {
		t.Errorf("%v", gids)
	}
	f.fail("ibv_query_gid", syscall.EPERM, 0)
	if _, err := r.ctx.GIDs(); !errors.Is(err, syscall.EPERM) {
		t.Error(err)
	}
	f.fail("ibv_query_gid", 0, 0)
	lacks := func(what, text string, err error) {
		t.Helper()
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
	}
	_, err := r.pd.RegMR(r.mem, 4096, ib.LocalWrite)
	lacks("other address", "ibv_reg_mr_iova", err)
	_, err = r.pd.(*pd).RegDMABuf(0, 0, 1, 0, 0)
	lacks("dma-buf", "ibv_reg_dmabuf_mr", err)
	// Optional rights are hints: the fake has a violation if they reach ibv_reg_mr.
	m := must(r.pd.RegMR(r.mem, addressOf(r.mem), ib.LocalWrite|ib.RelaxedOrdering))(t)
	r.closing("mr", m.Close)
	q := r.cq(1, 10)
	v := r.qp(1, ib.RC, q, nil)
	r.toInit(v)
	r.recv(v, 1, r.sge(0, 8))

	ch := r.channel()
	id := must(ch.CreateID(1, ib.PortSpaceUDP, ib.UD))(t)
	r.closing("id", id.Close)
	group := netip.MustParseAddr("239.1.2.3")
	if err := id.ResolveAddr(netip.AddrPortFrom(fakeAddr, 0), netip.AddrPortFrom(group, 0), time.Second); err != nil {
		t.Fatal(err)
	}
	r.event(ch, ib.CMAddrResolved, 1)
	lacks("flags", "rdma_join_multicast_ex", id.Join(group, ib.JoinSendOnly, 9))
	if err := id.Join(group, 0, 9); err != nil {
		t.Fatal(err)
	}
	r.event(ch, ib.CMMulticastJoin, 9)
	if err := id.Leave(group); err != nil {
		t.Error(err)
	}
}

// TestFakeFullKinds makes one of every kind of object, and uses the abilities that not all
// devices have.
func TestFakeFullKinds(t *testing.T) {
	f := newFake(t, "full", "old")
	r := newRig(t)
	for _, typ := range []ib.MWType{ib.MWType1, ib.MWType2} {
		w := must(r.pd.(*pd).AllocMW(typ))(t)
		if w.RKey() == 0 {
			t.Error("no key")
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, typ := range []ib.MWType{0, 3} {
		if _, err := r.pd.(*pd).AllocMW(typ); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("type %d: %v", typ, err)
		}
	}
	q := r.cq(1, 10).(*cq)
	if err := q.Moderate(16, 20*time.Microsecond); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		n int
		d time.Duration
	}{{-1, 0}, {1 << 16, 0}, {0, -time.Second}, {0, time.Second}} {
		if err := q.Moderate(c.n, c.d); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := q.Resize(1000); err != nil || q.Entries() != 1000 {
		t.Error(err, q.Entries())
	}
	f.fail("ibv_resize_cq", syscall.ENOSYS, 0)
	if err := q.Resize(2000); !errors.Is(err, errors.ErrUnsupported) || q.Entries() != 1000 {
		t.Error(err, q.Entries())
	}
	f.fail("ibv_resize_cq", 0, 0)
	h := must(r.pd.CreateAH(r.av()))(t)
	if h.Handle() == 0 {
		t.Error("no handle")
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	// A datagram without an address handle reaches no library: it would follow it.
	v := r.qp(2, ib.UD, q, nil)
	r.modify(v, driver.QPAttr{State: ib.StateRTS}, 0)
	s := &v.SendSlots()[0]
	s.Opcode, s.Flags, s.AH, s.SGL = ib.OpSend, ib.Signaled, 0, s.SGL[:0]
	if n, err := v.CommitSend(1); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Error(n, err)
	}
	if _, err := r.pd.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: q}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("one completion queue: %v", err)
	}
}

// TestFakeFullClock: ticks become time, whatever their frequency.
func TestFakeFullClock(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	for _, c := range []struct {
		sec, ticks, khz int64
		want            time.Duration
	}{
		{0, 156_250_000, 156_250, time.Second},
		{3, 500_000_000, 1_000_000, 3500 * time.Millisecond},
		{0, 1 << 62, 1_000_000, 1 << 62},
		{0, 7, 2_000_000, 3},
	} {
		r.ctx.khz.Store(0)
		f.set("clock_sec", c.sec)
		f.set("clock_ticks", c.ticks)
		f.set("khz", c.khz)
		for range 2 {
			if got, err := r.ctx.Clock(); got != c.want || err != nil {
				t.Errorf("%+v: %v, %v", c, got, err)
			}
		}
	}
	r.ctx.khz.Store(0)
	f.set("khz", 0)
	if _, err := r.ctx.Clock(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a clock of unknown frequency: %v", err)
	}
}

// TestFakeFullPollFor: the spin ends at the first completion, at its limit, and at its bound
// whatever the limit is; it looks once for no time.
func TestFakeFullPollFor(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	q := r.cq(1, 100).(*cq)
	a, _ := r.pair(q, nil)
	polls := func(d time.Duration, want int) int64 {
		t.Helper()
		n := f.get("polls")
		w, err := q.PollFor(d)
		if len(w) != want || err != nil {
			t.Errorf("%v: %v, %v", d, w, err)
		}
		return f.get("polls") - n
	}
	for _, d := range []time.Duration{0, -1, -time.Hour} {
		if n := polls(d, 0); n != 1 {
			t.Errorf("%v: %d looks", d, n)
		}
	}
	if n := polls(1, 0); n < 2 || n > 100 {
		t.Errorf("%d looks in a nanosecond", n)
	}
	for _, d := range []time.Duration{time.Hour, 1<<63 - 1} { // the end of the test is far away
		if n := polls(d, 0); n < 9 {
			t.Errorf("%v: %d looks", d, n)
		}
	}
	for i := range 70 {
		r.send(a, func(s *driver.SendSlot) { s.ID, s.Opcode, s.SGL = uint64(i), ib.OpWrite, append(s.SGL, r.sge(0, 0)) })
	}
	if n := polls(time.Hour, 64); n != 1 {
		t.Errorf("%d looks for what is there", n)
	}
	polls(time.Hour, 6)
	if n := testing.AllocsPerRun(20, func() { q.PollFor(time.Microsecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
