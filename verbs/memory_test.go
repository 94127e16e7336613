package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestBuffer(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 100, 4096, 4097, 1 << 20} {
		b, err := verbs.AllocBuffer(n, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := b.Bytes()
		if len(p) != n || cap(p) != n {
			t.Errorf("len %d, cap %d, want %d", len(p), cap(p), n)
		}
		for i, v := range p {
			if v != 0 {
				t.Fatalf("byte %d is %d", i, v)
			}
		}
		if addr := fmt.Sprintf("%p", p); !strings.HasSuffix(addr, "000") {
			t.Errorf("%s does not begin a page", addr)
		}
		p[0], p[n-1] = 1, 2
		for range 2 {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
		if b.Bytes() != nil {
			t.Error("memory after Close")
		}
	}
	for _, n := range []int{0, -1, -1 << 62} {
		if _, err := verbs.AllocBuffer(n, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, n := range []int{1 << 62, 1<<63 - 1} {
		if _, err := verbs.AllocBuffer(n, nil); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := verbs.AllocBuffer(1, &verbs.BufferOptions{HugePages: true, Guard: true}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	var none *verbs.Buffer
	if none.Bytes() != nil || !errors.Is(none.Close(), syscall.EINVAL) || !errors.Is((&verbs.Buffer{}).Close(), syscall.EINVAL) {
		t.Error("nil or zero buffer")
	}
}

func TestMR(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	all := ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead
	mr, err := r.pd.Alloc(100, all)
	r.ok(err)
	if mr.Len() != 100 || len(mr.Bytes()) != 100 || mr.PD() != r.pd || mr.Access() != all || mr.LKey() == 0 || mr.RKey() == 0 {
		t.Errorf("%+v", mr)
	}
	rem := mr.Remote(10, 20)
	if rem.Len != 20 || rem.RKey != mr.RKey() || mr.Remote(0, 100).Addr != rem.Addr-10 || mr.SGE(3, 4).Len() != 4 {
		t.Errorf("%+v", rem)
	}
	mr.SGE(0, 100)
	mr.SGE(100, 0)
	for _, c := range [][2]int{{-1, 1}, {0, -1}, {0, 101}, {100, 1}, {101, 0}, {1 << 62, 1 << 62}, {1, 1<<63 - 1}, {-1 << 63, 1}} {
		panics(t, fmt.Sprint("SGE", c), func() { mr.SGE(c[0], c[1]) })
		panics(t, fmt.Sprint("Remote", c), func() { mr.Remote(c[0], c[1]) })
	}
	local, err := r.pd.Alloc(100, ib.LocalWrite)
	r.ok(err)
	panics(t, "Remote without rights", func() { local.Remote(0, 1) })
	r.ok(local.Close())
	r.ok(mr.Close())
	r.ok(mr.Close())
	if mr.Bytes() != nil {
		t.Error("memory after Close")
	}
	var none *verbs.MR
	r.is(none.Close(), syscall.EINVAL, "nil")
	r.is((&verbs.MR{}).Close(), syscall.EINVAL, "zero")
	if none.Len() != 0 || none.PD() != nil || none.LKey() != 0 || none.RKey() != 0 || none.Access() != 0 || none.Bytes() != nil {
		t.Error("nil")
	}
}

func panics(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	f()
}

func TestC031_AccessBits(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, a := range []ib.Access{0, ib.LocalWrite, ib.RemoteRead, ib.LocalWrite | ib.RemoteAtomic | ib.MWBind, ib.HugeTLB,
		ib.RelaxedOrdering, 1 << 25} {
		mr, err := r.pd.Alloc(10, a)
		if err != nil {
			t.Errorf("%v: %v", a, err)
			continue
		}
		if mr.Access() != a {
			t.Errorf("%v became %v", a, mr.Access())
		}
		r.ok(mr.Close())
	}
	before := r.p.Count("reg mr")
	for _, a := range []ib.Access{ib.RemoteWrite, ib.RemoteAtomic, 1 << 15, 1 << 31, ib.OnDemand} {
		_, err := r.pd.Alloc(10, a)
		r.is(err, syscall.EINVAL, a.String())
	}
	_, err := r.pd.Alloc(10, ib.OnDemand)
	r.is(err, errors.ErrUnsupported, "on demand")
	if r.p.Count("reg mr") != before {
		t.Error("the device was asked")
	}
}

func TestC032_ZeroBased(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	mr, err := r.pd.Alloc(100, ib.LocalWrite|ib.RemoteWrite|ib.ZeroBased)
	r.ok(err)
	defer mr.Close()
	if a := mr.Remote(32, 1).Addr; a != 32 {
		t.Errorf("byte 32 has address %#x", a)
	}
	qp, sqp, _, _ := r.ready(verbs.QPConfig{MaxInline: 16})
	copy(mr.Bytes()[32:], "zero")
	r.ok(qp.PostSend(verbs.Send(1, mr.SGE(32, 4), 0)))
	r.ok(qp.PostSend(verbs.Send(1, mr.SGE(32, 4), ib.Inline)))
	if s := sqp.Sends(); s[0].SGL[0].Addr != 32 || string(s[1].Data) != "zero" {
		t.Errorf("%+v", s)
	}
}

// TestC026_Empty and what else is refused.
func TestC026_Refused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	_, err := r.pd.Alloc(0, 0)
	r.is(err, syscall.EINVAL, "nothing")
	_, err = r.pd.RegisterBytes(nil, 0)
	r.is(err, syscall.EINVAL, "nil slice")
	_, err = r.pd.RegisterBytes(make([]byte, 10)[5:5], 0)
	r.is(err, syscall.EINVAL, "empty slice")
	_, err = r.pd.Register(nil, 0)
	r.is(err, syscall.EINVAL, "nil buffer")
	_, err = r.pd.Register(&verbs.Buffer{}, 0)
	r.is(err, syscall.EINVAL, "zero buffer")
	_, err = r.pd.Alloc(-5, 0)
	r.is(err, syscall.EINVAL, "negative")
	var none *verbs.PD
	for _, f := range []func() error{
		func() error { _, err := none.Alloc(1, 0); return err },
		func() error { _, err := none.RegisterBytes([]byte{1}, 0); return err },
		func() error { _, err := none.Register(nil, 0); return err },
		func() error { _, err := none.RegisterDMABuf(1, 0, 1, 0, 0); return err },
		func() error { _, err := none.AllocMW(ib.MWType2); return err },
		func() error { _, err := none.CreateAH(verbs.AHAttr{}); return err },
		func() error { _, err := none.CreateSRQ(verbs.SRQConfig{}); return err },
		none.Close,
		(&verbs.PD{}).Close,
	} {
		r.is(f(), syscall.EINVAL, "nil PD")
	}
	if none.Device() != nil {
		t.Error("nil PD has a device")
	}
}

// TestC038_BufferClosedFirst: the memory stays until its last region is closed.
func TestC038_BufferClosedFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	b, err := verbs.AllocBuffer(8192, nil)
	r.ok(err)
	m1, err := r.pd.Register(b, ib.LocalWrite)
	r.ok(err)
	m2, err := r.pd.Register(b, ib.LocalWrite)
	r.ok(err)
	r.ok(b.Close())
	_, err = r.pd.Register(b, 0)
	r.is(err, net.ErrClosed, "register a closed buffer")
	m1.Bytes()[5] = 7 // is there
	r.ok(m1.Close())
	if m2.Bytes()[5] != 7 {
		t.Error("another memory")
	}
	p := m2.Bytes()
	r.ok(m2.Close())
	faults(t, p)
}

func TestC039_LockedMemory(t *testing.T) {
	t.Parallel()
	for _, kernel := range []bool{false, true} {
		r := newRig(t, &scripted.Config{Kernel: kernel})
		r.p.FailOp("reg mr", 1, syscall.ENOMEM)
		_, err := r.pd.Alloc(1<<20, ib.LocalWrite)
		r.is(err, syscall.ENOMEM, "register")
		if got := strings.Contains(err.Error(), "RLIMIT_MEMLOCK is"); got != (kernel && runtime.GOOS == "linux") {
			t.Errorf("kernel %v: %v", kernel, err)
		}
		mr, err := r.pd.Alloc(4096, ib.LocalWrite)
		r.ok(err)
		r.ok(mr.Close())
	}
}

// TestC042_GoMemory: pinned as long as the region lives.
func TestC042_GoMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var mrs []*verbs.MR
	want := bytes.Repeat([]byte{0xA5, 0x5A}, 5000)
	for range 8 {
		p := bytes.Clone(want)
		mr, err := r.pd.RegisterBytes(p, ib.LocalWrite)
		r.ok(err)
		mrs = append(mrs, mr)
		deepen(100)
		runtime.GC()
	}
	for _, mr := range mrs {
		if !bytes.Equal(mr.Bytes(), want) {
			t.Error("the memory changed")
		}
		r.ok(mr.Close())
	}
	// A failed registration leaves no pin; a pin that is left makes the runtime panic
	// when its pinner is collected.
	r.p.FailOp("reg mr", 1, syscall.EIO)
	_, err := r.pd.RegisterBytes(bytes.Clone(want), 0)
	r.is(err, syscall.EIO, "register")
	for range 3 {
		runtime.GC()
	}
}

// deepen lets the stack grow.
func deepen(n int) int {
	var b [512]byte
	if n == 0 {
		return int(b[7])
	}
	return deepen(n-1) + int(b[n%512])
}

func TestC046_ManyRegions(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	n := len(r.dev.Objects())
	var mrs []*verbs.MR
	for range 500 {
		mr, err := r.pd.Alloc(10, ib.LocalWrite)
		r.ok(err)
		mrs = append(mrs, mr)
	}
	rand.Shuffle(len(mrs), func(i, j int) { mrs[i], mrs[j] = mrs[j], mrs[i] })
	for _, mr := range mrs {
		r.ok(mr.Close())
	}
	if left := len(r.dev.Objects()); left != n {
		t.Errorf("%d objects, then %d", n, left)
	}
}

func TestDMABufAndMW(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	mr, err := r.pd.RegisterDMABuf(3, 0, 4096, 0x10000, ib.LocalWrite|ib.RemoteRead)
	r.ok(err)
	if mr.Bytes() != nil || mr.Len() != 4096 || mr.Remote(16, 1).Addr != 0x10010 {
		t.Errorf("%+v", mr.Remote(16, 1))
	}
	qp, sqp, _, _ := r.ready(verbs.QPConfig{MaxInline: 8})
	r.ok(qp.PostSend(verbs.Send(1, mr.SGE(8, 8), 0)))
	if s := sqp.Sends()[0]; s.SGL[0].Addr != 0x10008 {
		t.Errorf("%+v", s)
	}
	r.is(qp.PostSend(verbs.Send(1, mr.SGE(8, 8), ib.Inline)), verbs.ErrAccess, "inline of a dma-buf")
	_, err = r.pd.RegisterDMABuf(3, 0, 0, 0, 0)
	r.is(err, syscall.EINVAL, "nothing")
	r.ok(mr.Close())
	w, err := r.pd.AllocMW(ib.MWType2)
	r.ok(err)
	if w.RKey() == 0 {
		t.Error("no key")
	}
	r.ok(w.Close())
	r.ok(w.Close())
	var none *verbs.MW
	r.is(none.Close(), syscall.EINVAL, "nil window")
	if none.RKey() != 0 {
		t.Error("nil window has a key")
	}
}
