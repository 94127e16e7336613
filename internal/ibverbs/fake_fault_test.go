//go:build linux && cgo

package ibverbs

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestNilProvider: a Provider that New did not make gives errors, whatever is asked.
func TestNilProvider(t *testing.T) {
	t.Parallel()
	for _, p := range []*Provider{nil, {}} {
		if p.Name() != "kernel" {
			t.Error(p.Name())
		}
		if ok, why := p.Active(); ok || why == "" {
			t.Error(ok, why)
		}
		_, e1 := p.Devices()
		d, e2 := p.OpenDevice("x")
		s, e3 := p.OpenShared("x")
		m, e4 := p.OpenCM()
		for i, err := range []error{e1, e2, e3, e4} {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("call %d: %v", i, err)
			}
		}
		if d != nil || s != nil || m != nil {
			t.Error(d, s, m)
		}
	}
}

// TestFakeFullErrno: what a function of the library fails with is what its call gives, and
// nothing is left of the object that was not made.
func TestFakeFullErrno(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	q := r.cq(1, 10)
	srq := must(r.pd.CreateSRQ(driver.SRQConfig{MaxWR: 4, MaxSGE: 1}))(t)
	r.closing("srq", srq.Close)
	v := r.qp(1, ib.RC, q, nil)
	r.toInit(v)
	for name, call := range map[string]func() error{
		"query_device_ex":      func() error { _, err := r.ctx.QueryDevice(); return err },
		"query_port":           func() error { _, err := r.ctx.QueryPort(1); return err },
		"ibv_query_pkey":       func() error { _, err := r.ctx.PKey(1, 0); return err },
		"_ibv_query_gid_table": func() error { _, err := r.ctx.GIDs(); return err },
		"query_rt_values":      func() error { _, err := r.ctx.Clock(); return err },
		"ibv_alloc_pd":         func() error { _, err := r.ctx.AllocPD(); return err },
		"ibv_reg_mr":           func() error { _, err := r.pd.RegMR(r.mem, addressOf(r.mem), ib.LocalWrite); return err },
		"ibv_reg_mr_iova2":     func() error { _, err := r.pd.RegMR(r.mem, 0, ib.LocalWrite); return err },
		"ibv_reg_dmabuf_mr":    func() error { _, err := r.pd.(*pd).RegDMABuf(0, 0, 10, 0, 0); return err },
		"alloc_mw":             func() error { _, err := r.pd.(*pd).AllocMW(ib.MWType1); return err },
		"ibv_create_ah":        func() error { _, err := r.pd.CreateAH(r.av()); return err },
		"ibv_create_comp_channel": func() error {
			_, err := r.ctx.CreateCompChannel()
			return err
		},
		"ibv_create_cq":    func() error { _, err := r.ctx.CreateCQ(driver.CQConfig{Entries: 1, Channel: r.ch}); return err },
		"ibv_resize_cq":    func() error { return q.(*cq).Resize(20) },
		"modify_cq":        func() error { return q.(*cq).Moderate(1, time.Microsecond) },
		"req_notify_cq":    func() error { return q.Arm(false) },
		"ibv_create_srq":   func() error { _, err := r.pd.CreateSRQ(driver.SRQConfig{MaxWR: 1}); return err },
		"ibv_modify_srq":   func() error { return srq.Modify(-1, 1) },
		"ibv_query_srq":    func() error { _, _, err := srq.Query(); return err },
		"post_srq_recv":    func() error { srq.RecvSlots()[0].SGL = nil; _, err := srq.CommitRecv(1); return err },
		"ibv_create_qp":    func() error { _, err := r.pd.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: q, RecvCQ: q}); return err },
		"ibv_query_qp":     func() error { _, err := v.Query(ib.AttrState); return err },
		"ibv_modify_qp":    func() error { return v.Modify(&driver.QPAttr{State: ib.StateError}, ib.AttrState) },
		"post_recv":        func() error { v.RecvSlots()[0].SGL = nil; _, err := v.CommitRecv(1); return err },
		"post_send":        func() error { v.SendSlots()[0].Opcode = ib.OpSend; _, err := v.CommitSend(1); return err },
		"ibv_attach_mcast": func() error { return v.Attach(r.gid.GID, 0) },
		"ibv_detach_mcast": func() error { return v.Detach(r.gid.GID, 0) },
	} {
		for _, errno := range []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EACCES, syscall.EPERM, syscall.EIO} {
			f.fail(name, errno, 0)
			if err := call(); !errors.Is(err, errno) {
				t.Errorf("%s: %v, want %v", name, err, errno)
			}
		}
		f.fail(name, 0, 0)
	}
	// An error of a call that destroys is told, and the object is still known.
	f.fail("ibv_destroy_srq", syscall.EBUSY, 0)
	if err := srq.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	f.fail("ibv_destroy_srq", 0, 0)
}

// TestFakeFullMemlock: ENOMEM names the limit of locked memory, here and through verbs, which
// every user goes through (P51).
func TestFakeFullMemlock(t *testing.T) {
	f := newFake(t, "full")
	limit := must(unix.MemlockLimit())(t)
	if limit < 1<<62 {
		f.fail("ibv_open_device", syscall.ENOMEM, 0)
		_, err := f.p.OpenDevice("fake0")
		if !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), fmt.Sprint(limit)) || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") {
			t.Errorf("%v does not name the limit of %d", err, limit)
		}
		f.fail("ibv_open_device", 0, 0)
	}
	d := must(verbs.Open(f.p, "fake0"))(t)
	defer d.Close()
	pd := must(d.AllocPD())(t)
	defer pd.Close()
	q := must(d.CreateCQ(200, nil))(t)
	defer q.Close()
	b := must(verbs.AllocBuffer(4096, nil))(t)
	defer b.Close()
	for name, call := range map[string]func() error{
		"ibv_reg_mr":    func() error { _, err := pd.Register(b, ib.LocalWrite); return err },
		"ibv_create_cq": func() error { _, err := d.CreateCQ(10, nil); return err },
		"ibv_create_qp": func() error { _, err := pd.CreateQP(verbs.QPConfig{Type: ib.RC, SendCQ: q, RecvCQ: q}); return err },
	} {
		f.fail(name, syscall.ENOMEM, 0)
		if err := call(); !errors.Is(err, syscall.ENOMEM) || strings.Count(err.Error(), "RLIMIT_MEMLOCK is ") != 1 {
			t.Errorf("%s: %v", name, err)
		}
		f.fail(name, 0, 0)
	}
}

// TestFakeFullOpen: which file it is, what is missing, how to mend it.
func TestFakeFullOpen(t *testing.T) {
	f := newFake(t, "full")
	m := must(f.p.OpenCM())(t)
	for _, c := range []struct {
		errno         syscall.Errno
		device, chan_ string
	}{
		{syscall.EACCES, "/dev/infiniband/uverbs0: permission denied: it must be readable and writable", "/dev/infiniband/rdma_cm: permission denied: it must be"},
		{syscall.EPERM, "container's device rules", "container's device rules"},
		{syscall.ENOENT, "/dev/infiniband/uverbs0: no such file or directory: load the module ib_uverbs", "load the module rdma_ucm"},
		{syscall.ENXIO, "/dev/infiniband/uverbs0: no such device or address: the device was removed", "module is not loaded"},
		{syscall.EIO, "the device was removed", "/dev/infiniband/rdma_cm"},
		{syscall.ENODEV, "the device was removed", "the kernel has no RDMA device"},
		{syscall.EMFILE, "/dev/infiniband/uverbs0: too many open files", "/dev/infiniband/rdma_cm: too many open files"},
	} {
		f.fail("ibv_open_device", c.errno, 0)
		f.fail("rdma_create_event_channel", c.errno, 0)
		if _, err := f.p.OpenDevice("fake0"); !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.device) {
			t.Errorf("device, %v: %v", c.errno, err)
		}
		if _, err := m.OpenChannel(); !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.chan_) {
			t.Errorf("channel, %v: %v", c.errno, err)
		}
		// cm adds no remedy of its own where there is one.
		_, err := cm.NewEventChannel(f.p)
		if !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.chan_) {
			t.Errorf("cm, %v: %v", c.errno, err)
		}
		for _, again := range []string{"is the module rdma_ucm loaded?", "(there is no RDMA device)", "credentials changed"} {
			if strings.Contains(err.Error(), again) {
				t.Errorf("said twice: %v", err)
			}
		}
		if ok, why := f.p.Active(); ok || !strings.Contains(why, "fake0: ") {
			t.Error(ok, why)
		}
	}
	f.fail("ibv_open_device", 0, 0)
	f.fail("rdma_create_event_channel", 0, 0)
	f.set("devices", 2)
	if _, err := f.p.OpenDevice("nosuch"); !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), `the kernel has fake0, fake1, no "nosuch"`) {
		t.Error(err)
	}
	f.set("devices", 0)
	if _, err := f.p.OpenDevice("fake0"); !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "the kernel has no RDMA device") {
		t.Error(err)
	}
	if ok, why := f.p.Active(); ok || why != "the kernel has no RDMA device" {
		t.Error(ok, why)
	}
	// A kernel without RDMA at all is one without devices; other errors are errors.
	for errno, none := range map[syscall.Errno]bool{syscall.ENOSYS: true, syscall.ENOENT: true, syscall.EPERM: false} {
		f.fail("ibv_get_device_list", errno, 0)
		if l, err := f.p.Devices(); len(l) != 0 || (err == nil) != none || err != nil && !errors.Is(err, errno) {
			t.Errorf("%v: %v, %v", errno, l, err)
		}
		_, err := f.p.OpenDevice("fake0")
		if err == nil || none && !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	f.fail("ibv_get_device_list", 0, 0)
	f.set("devices", 1)
	f.set("port_state", 1)
	if ok, why := f.p.Active(); ok || !strings.Contains(why, "port 1 is DOWN") {
		t.Error(ok, why)
	}
	// No descriptor is left for the asynchronous events.
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	c, err := f.p.OpenDevice("fake0")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := c.QueryDevice(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, _, err := c.Async().Next(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestFakeFullNoOps: what a device's library does not offer is said when the object is
// made, not by a jump to address 0 when it is used.
func TestFakeFullNoOps(t *testing.T) {
	f := newFake(t, "full")
	open := func(ops, extended int64) (*deviceContext, *pd) {
		f.set("no_ops", ops)
		f.set("no_extended", extended)
		c := must(f.p.open("fake0"))(t)
		t.Cleanup(func() { c.Close() })
		p := must(c.AllocPD())(t)
		t.Cleanup(func() { p.Close() })
		return c, p.(*pd)
	}
	want := func(what, text string, err error) {
		t.Helper()
		if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, syscall.EOPNOTSUPP) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
	}
	for _, bit := range []int64{1, 2} {
		c, _ := open(bit, 0)
		_, err := c.CreateCQ(driver.CQConfig{Entries: 1})
		want("completion queue", "ibv_poll_cq", err)
	}
	for _, bit := range []int64{4, 8} {
		c, p := open(bit, 0)
		q := must(c.CreateCQ(driver.CQConfig{Entries: 1}))(t)
		_, err := p.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: q, RecvCQ: q})
		want("queue pair", "ibv_post_send", err)
		q.Close()
	}
	_, p := open(16, 0)
	_, err := p.CreateSRQ(driver.SRQConfig{MaxWR: 1})
	want("shared receive queue", "ibv_post_srq_recv", err)
	for _, bit := range []int64{32, 64} {
		_, p := open(bit, 0)
		_, err := p.AllocMW(ib.MWType2)
		want("memory window", "ibv_alloc_mw", err)
	}
	// The table of newer operations: not there, too short, empty.
	for _, mode := range []int64{1, 2, 3} {
		c, _ := open(0, mode)
		if a, err := c.QueryDevice(); err != nil || a.Ports != 1 || a.MaxQP != 1000 {
			t.Error(mode, a, err)
		}
		if a, err := c.QueryPort(1); err != nil || a.State != ib.PortActive || !a.GRHRequired {
			t.Error(mode, a, err)
		}
		f.set("link", 1) // InfiniBand, where the flag tells
		for _, flag := range []int64{0, 1} {
			f.set("port_flags", flag)
			if a, err := c.QueryPort(1); err != nil || a.Link != ib.LinkInfiniBand || a.GRHRequired != (flag == 1) {
				t.Error(mode, flag, a, err)
			}
		}
		f.set("link", 0)
		_, err := c.Clock()
		want("clock", "ibv_query_rt_values_ex", err)
		q := must(c.CreateCQ(driver.CQConfig{Entries: 1}))(t)
		want("moderation", "ibv_modify_cq", q.(*cq).Moderate(1, 0))
		q.Close()
	}
	// A library that has the operation, and a device that does not do it.
	c, p := open(0, 0)
	for _, errno := range []syscall.Errno{syscall.EOPNOTSUPP, syscall.ENOSYS} {
		f.fail("query_device_ex", errno, 0)
		if a, err := c.QueryDevice(); err != nil || a.Ports != 1 {
			t.Error(a, err)
		}
		f.fail("query_device_ex", 0, 0)
		for name, call := range map[string]func() error{
			"query_rt_values":   func() error { _, err := c.Clock(); return err },
			"alloc_mw":          func() error { _, err := p.AllocMW(ib.MWType1); return err },
			"ibv_reg_dmabuf_mr": func() error { _, err := p.RegDMABuf(0, 0, 1, 0, 0); return err },
			"ibv_create_srq":    func() error { _, err := p.CreateSRQ(driver.SRQConfig{MaxWR: 1}); return err },
		} {
			f.fail(name, errno, 0)
			if err := call(); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v", name, err)
			}
			f.fail(name, 0, 0)
		}
	}
}

// TestFakeFullBadPlace: what a library says of the request that it refused is not trusted.
func TestFakeFullBadPlace(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	q := r.cq(1, 100)
	a, _ := r.pair(q, nil)
	post := func(want int) {
		t.Helper()
		s := a.SendSlots()
		for i := range 3 {
			s[i].Opcode, s[i].Flags, s[i].SGL = ib.OpWrite, 0, append(s[i].SGL[:0], r.sge(0, 0))
		}
		f.fail("post_send", syscall.EINVAL, 0)
		if n, err := a.CommitSend(3); n != want || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d posted, %v; want %d", n, err, want)
		}
		f.fail("post_send", 0, 0)
	}
	post(1)
	f.set("bad_elsewhere", 1)
	post(0)
	rs := a.RecvSlots()
	for i := range 3 {
		rs[i].SGL = rs[i].SGL[:0]
	}
	f.fail("post_recv", syscall.EINVAL, 0)
	if n, err := a.CommitRecv(3); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Error(n, err)
	}
	f.fail("post_recv", 0, 0)
}

// TestFakeFullStatus: statuses and operations that nobody has heard of stay failures, and
// what they are.
func TestFakeFullStatus(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	q := r.cq(1, 100)
	a, _ := r.pair(q, nil)
	one := func(status, opcode int64) driver.WC {
		t.Helper()
		f.set("wc_status", status)
		f.set("wc_opcode", opcode)
		r.send(a, func(s *driver.SendSlot) { s.ID, s.Opcode, s.SGL = 7, ib.OpWrite, append(s.SGL, r.sge(0, 0)) })
		return r.poll(q, 1)[0]
	}
	for status, want := range map[int64]ib.Status{
		4: ib.StatusLocProt, 23: 23, 24: 24, 200: 200, 255: 255, 256: 255, 512: 255, 1 << 16: 255, -1: 255, -256: 255,
	} {
		w := one(status, 0)
		if w.Status != want || w.ID != 7 || w.Status.Err() == nil || w.Status.String() == "" {
			t.Errorf("status %d is %v: %+v", status, w.Status, w)
		}
	}
	for opcode, recv := range map[int64]bool{9: false, 77: false, 128: true, 134: true, 256: false, 384: false, -1: false} {
		if w := one(0, opcode); w.Status != 0 || w.Opcode.IsRecv() != recv || w.Opcode.String() == "" {
			t.Errorf("opcode %d is %v: %+v", opcode, w.Opcode, w)
		}
	}
}

// TestFakeFullPollFails: a queue that cannot be polled gives an error that does not depend
// on what the device's library calls it, and no completion.
func TestFakeFullPollFails(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	q := r.cq(1, 100)
	for _, ret := range []int64{-1, -2, -22, -4095} {
		f.set("poll_ret", ret)
		if n := testing.AllocsPerRun(10, func() {
			if w, err := q.Poll(); len(w) != 0 || err != syscall.EIO {
				t.Errorf("%d: %v, %v", ret, w, err)
			}
			if w, err := q.(*cq).PollFor(time.Hour); len(w) != 0 || err != syscall.EIO {
				t.Errorf("%d: %v, %v", ret, w, err)
			}
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
	f.set("poll_ret", 0)
}

// TestFakeFullRemoved: after the kernel has taken a device away every call says so, no
// object hangs or stays, and nothing of the data path allocates (P46).
func TestFakeFullRemoved(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	q := r.cq(1, 100)
	a, _ := r.pair(q, nil)
	srq := must(r.pd.CreateSRQ(driver.SRQConfig{MaxWR: 4, MaxSGE: 1}))(t)
	r.closing("srq", srq.Close)
	w := must(r.pd.(*pd).AllocMW(ib.MWType1))(t)
	r.closing("mw", w.Close)
	for _, n := range []string{
		"ibv_modify_qp", "ibv_query_qp", "post_send", "post_recv", "post_srq_recv", "req_notify_cq", "ibv_alloc_pd", "query_port",
	} {
		f.fail(n, syscall.EIO, 0)
	}
	// The error alone may mean something else.
	if err := q.Arm(false); err != syscall.EIO {
		t.Error(err)
	}
	f.kill(int(r.ctx.fd), "async_wfd", false)
	calls := map[string]func() error{
		"post": func() error {
			a.SendSlots()[0].Opcode = ib.OpSend
			n, err := a.CommitSend(1)
			return errors.Join(err, map[bool]error{true: syscall.EINVAL}[n != 0])
		},
		"modify": func() error { return a.Modify(&driver.QPAttr{State: ib.StateError}, ib.AttrState) },
		"query":  func() error { _, err := a.Query(ib.AttrState); return err },
		"pd":     func() error { _, err := r.ctx.AllocPD(); return err },
		"port":   func() error { _, err := r.ctx.QueryPort(1); return err },
		"async":  func() error { _, _, err := r.ctx.Async().Next(); return err },
	}
	for name, call := range calls {
		r.ctx.gone.Store(false) // each finds out by itself
		if err := call(); !errors.Is(err, driver.ErrDeviceGone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		a.SendSlots()[0].Opcode = ib.OpSend
		_, e1 := a.CommitSend(1)
		a.RecvSlots()[0].SGL = nil
		_, e2 := a.CommitRecv(1)
		srq.RecvSlots()[0].SGL = nil
		_, e3 := srq.CommitRecv(1)
		_, e4 := q.Poll()
		_, e5 := q.(*cq).PollFor(time.Microsecond)
		_, _, e6 := r.ctx.Async().Next()
		for i, err := range []error{e1, e2, e3, e4, e5, e6, q.Arm(true)} {
			if err != driver.ErrDeviceGone {
				t.Errorf("call %d: %v", i, err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestFakeFullRemovedClose: the library fails to destroy what belongs to a device that was
// removed. For the program it is destroyed.
func TestFakeFullRemovedClose(t *testing.T) {
	f := newFake(t, "full")
	c := must(f.p.open("fake0"))(t)
	p := must(c.AllocPD())(t)
	ch := must(c.CreateCompChannel())(t)
	q := must(c.CreateCQ(driver.CQConfig{Entries: 4, Channel: ch}))(t)
	s := must(p.CreateSRQ(driver.SRQConfig{MaxWR: 4, MaxSGE: 1}))(t)
	v := must(p.CreateQP(driver.QPConfig{Type: ib.RC, SendCQ: q, RecvCQ: q}))(t)
	w := must(p.(*pd).AllocMW(ib.MWType1))(t)
	h := must(p.CreateAH(driver.AHAttr{Global: true}))(t)
	mem := must(unix.Mmap(4096, unix.ProtReadWrite))(t)
	m := must(p.RegMR(mem, addressOf(mem), ib.LocalWrite))(t)
	names := []string{
		"ibv_destroy_qp", "ibv_destroy_srq", "ibv_destroy_cq", "ibv_destroy_comp_channel", "dealloc_mw", "ibv_destroy_ah", "ibv_dereg_mr",
		"ibv_dealloc_pd", "ibv_close_device",
	}
	for _, n := range names {
		f.fail(n, syscall.EIO, 0)
	}
	if err := w.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("the device is there, and Close gives %v", err)
	}
	f.kill(int(c.fd), "async_wfd", false)
	for i, end := range []func() error{v.Close, s.Close, q.Close, ch.Close, w.Close, h.Close, m.Close, p.Close, c.Close} {
		if err := f.within("close", end); err != nil {
			t.Errorf("%s: %v", names[i], err)
		}
		if f.calls(names[i]) == 0 {
			t.Errorf("%s was not called", names[i])
		}
	}
	for _, n := range []string{"qp", "srq", "cq", "chan", "mw", "ah", "mr", "pd"} {
		f.set("live_"+n, f.get("live_"+n)-1) // the fake still has them
	}
}
