package verbs_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// bare is a provider without devices.
type bare struct{ driver.Provider }

func (bare) Name() string                          { return "bare" }
func (bare) Devices() ([]driver.DeviceInfo, error) { return nil, nil }
func (bare) OpenCM() (driver.CM, error)            { return nil, errors.ErrUnsupported }

func TestC001_NoDevice(t *testing.T) {
	t.Parallel()
	for _, p := range []verbs.Provider{bare{}, &bare{}} {
		list, err := verbs.Devices(p)
		if err != nil || len(list) != 0 {
			t.Errorf("%v, %v", list, err)
		}
		_, err = verbs.Open(p, "")
		if !errors.Is(err, verbs.ErrNoDevice) || !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "bare") {
			t.Error(err)
		}
		_, err = verbs.Open(p, "mlx5_0")
		if !errors.Is(err, verbs.ErrNoDevice) || !strings.Contains(err.Error(), "mlx5_0") {
			t.Error(err)
		}
	}
	for _, f := range []func() error{
		func() error { _, err := verbs.Devices(nil); return err },
		func() error { _, err := verbs.Open(nil, ""); return err },
		func() error { _, err := verbs.DeviceInfo{}.Open(); return err },
		func() error { _, err := verbs.DeviceInfo{}.OpenPrivate(); return err },
	} {
		if err := f(); !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
	}
	p := scripted.New(nil)
	p.FailOp("list devices", 1, syscall.EACCES)
	if _, err := verbs.Open(p, ""); !errors.Is(err, syscall.EACCES) {
		t.Error(err)
	}
}

func TestC002_DeviceList(t *testing.T) {
	t.Parallel()
	p := scripted.New(&scripted.Config{Devices: []string{"a0", "b1"}})
	list, err := verbs.Devices(p)
	if err != nil || len(list) != 2 || list[0].Name != "a0" || list[1].Name != "b1" {
		t.Fatal(list, err)
	}
	b, err := verbs.Open(p, "b1")
	if err != nil {
		t.Fatal(err)
	}
	again, err := list[1].Open()
	if err != nil || again != b || b.Info() != list[1] {
		t.Error("not the shared one", err)
	}
	a, err := verbs.Open(p, "")
	if err != nil || a.Info().Name != "a0" {
		t.Error(a.Info(), err)
	}
	_, err = verbs.Open(p, "c2")
	if !errors.Is(err, verbs.ErrNoDevice) || !strings.Contains(err.Error(), "a0, b1") {
		t.Error(err)
	}
	// The first with an active port, else the first.
	down := scripted.DefaultPort()
	down.State = ib.PortDown
	p.Device("a0").SetPort(down)
	if d, err := verbs.Open(p, ""); err != nil || d != b {
		t.Error("not the one with an active port", err)
	}
	p.Device("b1").SetPort(down)
	if d, err := verbs.Open(p, ""); err != nil || d != a {
		t.Error("not the first", err)
	}
	// One that cannot be opened is left out.
	q := scripted.New(&scripted.Config{Devices: []string{"a0", "b1"}})
	q.FailOp("open device", 1, syscall.EACCES)
	if d, err := verbs.Open(q, ""); err != nil || d.Info().Name != "b1" {
		t.Error(err)
	}
	q = scripted.New(nil)
	q.FailAlways("open device", syscall.EACCES)
	if _, err := verbs.Open(q, ""); !errors.Is(err, syscall.EACCES) {
		t.Error(err)
	}
	q.Heal()
	q.FailOp("query device", 1, syscall.EIO)
	if _, err := verbs.Open(q, ""); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	// At the same time.
	q = scripted.New(nil)
	var wg sync.WaitGroup
	devs := make([]*verbs.Device, 8)
	for i := range devs {
		wg.Go(func() { devs[i], _ = verbs.Open(q, "") })
	}
	wg.Wait()
	for _, d := range devs {
		if d == nil || d != devs[0] {
			t.Error("two devices for one")
		}
	}
	if n := q.Count("open device"); n != 1 {
		t.Errorf("opened %d times", n)
	}
	// The shared one stays.
	if err := devs[0].Close(); err != nil {
		t.Error(err)
	}
	if _, err := devs[0].Attr(); err != nil {
		t.Error(err)
	}
}

// TestManyProviders: what ended providers leave behind does not add up.
func TestManyProviders(t *testing.T) {
	t.Parallel()
	for range 200 {
		p := scripted.New(nil)
		d, err := verbs.Open(p, "")
		if err != nil {
			t.Fatal(err)
		}
		again, err := verbs.Open(p, "")
		if err != nil || again != d {
			t.Fatal("forgotten too early", err)
		}
		p.Device("").Remove()
	}
}

// odd cannot be compared.
type odd struct {
	driver.Provider
	list []int
}

func TestOddProvider(t *testing.T) {
	t.Parallel()
	if _, err := verbs.Open(odd{scripted.New(nil), []int{1}}, ""); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func TestC006_Queries(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, n := range []int{0, 2, 255, -1} {
		_, err := r.dev.Port(n)
		r.is(err, syscall.EINVAL, "Port")
		_, err = r.dev.GID(n, 0)
		r.is(err, syscall.EINVAL, "GID")
		_, err = r.dev.PKey(n, 0)
		r.is(err, syscall.EINVAL, "PKey")
		_, err = r.dev.PKeyIndex(n, 0xFFFF)
		r.is(err, syscall.EINVAL, "PKeyIndex")
	}
	p, err := r.dev.Port(1)
	r.ok(err)
	if p.ActiveMTU != ib.MTU1024 || p.State != ib.PortActive {
		t.Errorf("%+v", p)
	}
	// C-007.
	g, err := r.dev.GID(1, 1)
	r.ok(err)
	if g.Index != 1 || g.GID.Addr().String() != "10.0.0.1" {
		t.Errorf("%+v", g)
	}
	_, err = r.dev.GID(1, 2)
	r.is(err, syscall.ENODATA, "empty index")
	for _, i := range []int{-1, 16, 1 << 40} {
		_, err = r.dev.GID(1, i)
		r.is(err, syscall.EINVAL, "index out of the table")
	}
	// C-008.
	gids, err := r.dev.GIDs()
	if err != nil || len(gids) != 3 {
		t.Error(gids, err)
	}
	// C-010.
	for i, k := range []ib.PKey{0xFFFF, 0x8001} {
		got, err := r.dev.PKey(1, i)
		if err != nil || got != k {
			t.Error(got, err)
		}
		index, err := r.dev.PKeyIndex(1, k)
		if err != nil || index != i {
			t.Error(index, err)
		}
	}
	for _, i := range []int{-1, 2, 63} {
		_, err := r.dev.PKey(1, i)
		r.is(err, syscall.EINVAL, "P_Key index")
	}
	for _, k := range []ib.PKey{0x7FFF, 0x1234} {
		_, err := r.dev.PKeyIndex(1, k)
		r.is(err, syscall.ENOENT, "P_Key")
	}
	if d, err := r.dev.Clock(); err != nil || d != time.Hour {
		t.Error(d, err)
	}
	var none *verbs.Device
	for name, f := range map[string]func() error{
		"Attr":     func() error { _, err := none.Attr(); return err },
		"Port":     func() error { _, err := none.Port(1); return err },
		"GIDs":     func() error { _, err := none.GIDs(); return err },
		"Clock":    func() error { _, err := none.Clock(); return err },
		"AllocPD":  func() error { _, err := none.AllocPD(); return err },
		"CreateCQ": func() error { _, err := none.CreateCQ(1, nil); return err },
		"Channel":  func() error { _, err := none.CreateCompChannel(); return err },
		"Supports": func() error { return none.Supports(verbs.FeatureAtomics) },
		"Close":    none.Close,
		"zero":     (&verbs.Device{}).Close,
	} {
		r.is(f(), syscall.EINVAL, "nil, "+name)
	}
	none.SetFlushLimit(1)
	none.SetRecheck(1)
	if none.Objects() != nil || none.Info() != (verbs.DeviceInfo{}) {
		t.Error("nil device")
	}
}

// TestC014_QueriesUnderChurn: the table changes all the time; an entry is whole.
func TestC014_QueriesUnderChurn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	dev := r.p.Device("")
	entry := func(i int) driver.GIDEntry {
		return driver.GIDEntry{Index: i, Port: 1, Type: ib.GIDTypeRoCEv2, IfIndex: i + 1, GID: ib.GID{0: 0xFD, 15: byte(i)}}
	}
	dev.SetGIDs(nil)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for i := range 100 {
				g, err := r.dev.GID(1, i%16)
				if err != nil && !errors.Is(err, syscall.ENODATA) {
					t.Error(err)
				}
				if err == nil && g != entry(g.Index) {
					t.Errorf("%+v", g)
				}
				if _, err := r.dev.Port(1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 1000 {
		dev.SetGIDs([]driver.GIDEntry{entry(i % 16), entry((i + 5) % 16)})
	}
	wg.Wait()
}

func TestC048_QueueSizes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, n := range []int{-1, 0, 1<<16 + 1} {
		_, err := r.dev.CreateCQ(n, nil)
		r.is(err, syscall.EINVAL, fmt.Sprint("size ", n))
	}
	for _, n := range []int{1, 2, 3, 100, 1 << 16} {
		cq, _ := r.cq(n, &verbs.CQConfig{UserData: n})
		if cq.Cap() < n || cq.UserData() != n || cq.Device() != r.dev {
			t.Errorf("%d: %d, %v", n, cq.Cap(), cq.UserData())
		}
	}
	// C-049.
	for _, v := range []int{0, 1} {
		r.cq(4, &verbs.CQConfig{Vector: v})
	}
	for _, v := range []int{-1, 2} {
		_, err := r.dev.CreateCQ(4, &verbs.CQConfig{Vector: v})
		r.is(err, syscall.EINVAL, fmt.Sprint("vector ", v))
	}
	_, err := r.dev.CreateCQ(4, &verbs.CQConfig{Channel: &verbs.CompChannel{}})
	r.is(err, syscall.EINVAL, "zero channel")
	var none *verbs.CQ
	for name, f := range map[string]func() error{
		"Close":    none.Close,
		"Resize":   func() error { return none.Resize(1) },
		"Moderate": func() error { return none.Moderate(1, 1) },
		"Channel":  func() error { _, err := none.Channel(); return err },
		"Arm":      func() error { _, err := none.Arm(false); return err },
		"Wait":     func() error { _, err := none.Wait(bg, nil); return err },
		"zero":     (&verbs.CQ{}).Close,
		"event":    func() error { _, err := (*verbs.CompChannel)(nil).Event(bg); return err },
		"try":      func() error { _, _, err := (*verbs.CompChannel)(nil).TryEvent(); return err },
		"fd":       func() error { _, err := (*verbs.CompChannel)(nil).FD(); return err },
		"channel":  (*verbs.CompChannel)(nil).Close,
	} {
		r.is(f(), syscall.EINVAL, "nil, "+name)
	}
	none.SetSpin(verbs.Adaptive)
	if none.Cap() != 0 || none.Device() != nil || none.UserData() != nil || none.Stats() != (verbs.CQStats{}) {
		t.Error("nil queue")
	}
}

func TestModeration(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, scq := r.cq(16, nil)
	ch, err := cq.Channel()
	r.ok(err)
	r.ok(cq.Moderate(3, time.Millisecond))
	_, err = cq.Arm(ib.NotifyAny)
	r.ok(err)
	for range 2 {
		scq.Push(driver.WC{}, false)
		r.quiet(ch, "below the count")
	}
	scq.Push(driver.WC{}, false)
	r.fires(ch, cq, "count")
}

// plain hides the optional abilities of a device's objects.
type plain struct{ driver.Provider }
type plainContext struct{ driver.Context }
type plainPD struct{ driver.PD }
type plainCQ struct{ driver.CQ }

func (p *plain) OpenDevice(name string) (driver.Context, error) {
	c, err := p.Provider.OpenDevice(name)
	return plainContext{c}, err
}
func (c plainContext) AllocPD() (driver.PD, error) {
	pd, err := c.Context.AllocPD()
	return plainPD{pd}, err
}
func (c plainContext) CreateCQ(cfg driver.CQConfig) (driver.CQ, error) {
	cq, err := c.Context.CreateCQ(cfg)
	return plainCQ{cq}, err
}

func TestC047_Unsupported(t *testing.T) {
	t.Parallel()
	attr := scripted.DefaultAttr()
	attr.Atomic, attr.MaxSRQ, attr.MaxMW, attr.MaxModerationCount, attr.Caps = 0, 0, 0, 0, 0
	dev, err := verbs.Open(&plain{scripted.New(&scripted.Config{Attr: attr})}, "")
	if err != nil {
		t.Fatal(err)
	}
	no := map[verbs.Feature]bool{}
	for f := verbs.FeatureAtomics; f <= verbs.FeatureFlush+1; f++ {
		err := dev.Supports(f)
		if f == verbs.FeatureWriteImm {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), f.String()) {
			t.Errorf("%v: %v", f, err)
		}
		no[f] = true
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dev.CreateCQ(4, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"Clock":    func() error { _, err := dev.Clock(); return err },
		"MW":       func() error { _, err := pd.AllocMW(ib.MWType2); return err },
		"DMABuf":   func() error { _, err := pd.RegisterDMABuf(1, 0, 10, 0, 0); return err },
		"Resize":   func() error { return cq.Resize(10) },
		"Moderate": func() error { return cq.Moderate(10, time.Millisecond) },
	} {
		if err := f(); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(cq.Close(), pd.Close()); err != nil {
		t.Error(err)
	}

	full, err := verbs.Open(scripted.New(nil), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []verbs.Feature{verbs.FeatureAtomics, verbs.FeatureWriteImm, verbs.FeatureSRQ, verbs.FeatureInvalidate,
		verbs.FeatureMemoryWindows, verbs.FeatureDMABuf, verbs.FeatureModeration, verbs.FeatureResizeCQ} {
		if err := full.Supports(f); err != nil {
			t.Error(err)
		}
	}
	if left := full.Objects(); len(left) != 0 {
		t.Errorf("probing left %q", left)
	}
}

// TestSupportsWindows: a device whose windows are of type 1 alone has none that requests bind.
func TestSupportsWindows(t *testing.T) {
	t.Parallel()
	for caps, want := range map[ib.DeviceCaps]error{
		ib.CapMemoryWindow: errors.ErrUnsupported, ib.CapMemoryWindow | ib.CapMW2A: nil, ib.CapMW2B: nil,
	} {
		attr := scripted.DefaultAttr()
		attr.Caps = caps
		dev, err := verbs.Open(scripted.New(&scripted.Config{Attr: attr}), "")
		if err != nil {
			t.Fatal(err)
		}
		if err := dev.Supports(verbs.FeatureMemoryWindows); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", caps, err, want)
		}
	}
}

// TestSupportsDMABuf: that a provider has a call does not mean that the device does. The
// error of a descriptor that is none says that it does.
func TestSupportsDMABuf(t *testing.T) {
	t.Parallel()
	p := scripted.New(nil)
	dev, err := verbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	p.FailAlways("reg dmabuf", syscall.EBADF)
	if err := dev.Supports(verbs.FeatureDMABuf); err != nil {
		t.Error(err)
	}
	p.Heal()
	p.FailAlways("reg dmabuf", syscall.EOPNOTSUPP)
	if err := dev.Supports(verbs.FeatureDMABuf); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if left := p.Open(); left != 0 {
		t.Errorf("probing left %d objects", left)
	}
}

func TestOpError(t *testing.T) {
	t.Parallel()
	e := &verbs.OpError{Op: "create qp", Device: "mlx5_0", Object: "PD 3", Err: syscall.ENOMEM, Hint: "RLIMIT_MEMLOCK is 64 KiB"}
	if got, want := e.Error(), "verbs: create qp: mlx5_0: PD 3: cannot allocate memory (RLIMIT_MEMLOCK is 64 KiB)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (&verbs.OpError{Op: "poll", Err: verbs.ErrQueueFull}).Error(); got != "verbs: poll: queue is full" {
		t.Errorf("%q", got)
	}
	if !errors.Is(e, syscall.ENOMEM) || errors.Is(e, io.EOF) {
		t.Error("Is")
	}
	for _, err := range []error{verbs.ErrTooManySGE, verbs.ErrInlineSize, verbs.ErrPDMismatch, verbs.ErrAccess, verbs.ErrRemoteLen,
		verbs.ErrBadOpcode, verbs.ErrState, verbs.ErrTooLong, verbs.ErrAtomic, verbs.ErrReadDepth, verbs.ErrNoAH, verbs.ErrSRQ} {
		if !errors.Is(err, syscall.EINVAL) || !strings.HasPrefix(err.Error(), "verbs: ") {
			t.Error(err)
		}
	}
	if verbs.ErrClosed != net.ErrClosed || verbs.ErrDeviceGone != driver.ErrDeviceGone {
		t.Error("values that must be the same are not")
	}
	if got := verbs.EventError(ib.EventQPFatal).Error(); !strings.Contains(got, "QP_FATAL") {
		t.Error(got)
	}
	ce := &verbs.CompletionError{ID: 7, Opcode: ib.WCSend, QPN: 0x12, Status: ib.StatusRetryExc, VendorErr: 3}
	if got := ce.Error(); !strings.Contains(got, "request 7") || !strings.Contains(got, "RETRY_EXC_ERR") || !strings.Contains(got, "vendor error 0x3") {
		t.Error(got)
	}
	if got := (&verbs.CompletionError{}).Error(); !strings.Contains(got, "SUCCESS") { // nothing failed, and nothing panics
		t.Error(got)
	}
	te := &verbs.TransitionError{Type: ib.RC, From: ib.StateReset, To: ib.StateRTS}
	if got := te.Error(); !strings.Contains(got, "RESET → RTS is not a transition") {
		t.Error(got)
	}
}

func TestObjects(t *testing.T) {
	r := newRig(t, nil)
	verbs.TraceObjects(true)
	pd := must(t)(r.dev.AllocPD())
	verbs.TraceObjects(false)
	defer pd.Close()
	b, err := verbs.AllocBuffer(77, nil)
	r.ok(err)
	list := r.dev.Objects()
	if len(list) != 3 || !strings.Contains(list[2], "PD") || !strings.Contains(list[2], "device_test.go:") || strings.Contains(list[0], ".go:") {
		t.Errorf("%q", list)
	}
	all := strings.Join(verbs.Objects(), "\n")
	if !strings.Contains(all, "fake0: PD") || !strings.Contains(all, "buffer of 77 bytes") {
		t.Errorf("%s", all)
	}
	r.ok(b.Close())
	if all := strings.Join(verbs.Objects(), "\n"); strings.Contains(all, "buffer of 77 bytes") {
		t.Errorf("%s", all)
	}
}
