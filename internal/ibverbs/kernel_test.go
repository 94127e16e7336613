//go:build linux && cgo

package ibverbs

import (
	"os"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// kernelProvider gives the provider and the name of a device with an active port. The lab
// (lab/vm) has one; elsewhere the test is skipped if there is none. In a process of TestFake
// it is the fake's.
func kernelProvider(t testing.TB) (p *Provider, name string) {
	t.Helper()
	if v := os.Getenv(envVariant); v != "" {
		return newFake(t, v).p, "fake0"
	}
	p, err := New()
	if err != nil {
		noKernel(t, err.Error())
	}
	if ok, why := p.Active(); !ok {
		noKernel(t, why)
	}
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if ok, _ := p.active(i.Name); ok {
			return p, i.Name
		}
	}
	t.Fatal("the active device is gone")
	return nil, ""
}

func noKernel(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("LAB_GUEST") != "" {
		t.Fatal(why)
	}
	t.Skip("needs a kernel device, as lab/vm has: " + why)
}

// rig is an open device with what the tests need of it.
type rig struct {
	testing.TB
	p    *Provider
	ctx  *deviceContext
	pd   driver.PD
	ch   driver.CompChannel
	gid  driver.GIDEntry
	mtu  ib.MTU
	mem  []byte
	mr   driver.MR
	lkey ib.LKey
	rkey ib.RKey
}

const rigAccess = ib.LocalWrite | ib.RemoteAny

func newRig(t testing.TB) *rig {
	t.Helper()
	p, name := kernelProvider(t)
	c, err := p.open(name)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, p: p, ctx: c}
	r.closing("context", c.Close)
	r.pd = must(c.AllocPD())(t)
	r.closing("pd", r.pd.Close)
	r.ch = must(c.CreateCompChannel())(t)
	r.closing("channel", r.ch.Close)
	for _, g := range must(c.GIDs())(t) {
		if g.GID.Is4() {
			r.gid = g
		}
	}
	if r.gid.Port == 0 {
		t.Fatal("no GID with an IPv4 address")
	}
	r.mtu = must(c.QueryPort(r.gid.Port))(t).ActiveMTU
	r.mem = must(unix.Mmap(1<<16, unix.ProtReadWrite))(t)
	r.mr = must(r.pd.RegMR(r.mem, addressOf(r.mem), rigAccess))(t)
	r.closing("mr", r.mr.Close)
	r.lkey, r.rkey = r.mr.Keys()
	return r
}

// closing closes at the end of the test, within a bound: what hangs there waits for an
// acknowledgement.
func (r *rig) closing(what string, f func() error) {
	r.Cleanup(func() { r.within("close "+what, f) })
}

func (r *rig) within(what string, f func() error) {
	r.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			r.Errorf("%s: %v", what, err)
		}
	case <-time.After(20 * time.Second):
		r.Fatalf("%s hangs", what)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (r *rig) cq(handle uint64, entries int) driver.CQ {
	r.Helper()
	q := must(r.ctx.CreateCQ(driver.CQConfig{Handle: handle, Entries: entries, Channel: r.ch}))(r)
	r.closing("cq", q.Close)
	return q
}

func (r *rig) qp(handle uint64, typ ib.QPType, q driver.CQ, s driver.SRQ) driver.QP {
	r.Helper()
	cfg := driver.QPConfig{
		Handle: handle, Type: typ, SendCQ: q, RecvCQ: q, SRQ: s,
		Cap: driver.Caps{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64},
	}
	if s != nil {
		cfg.Cap.MaxRecvWR, cfg.Cap.MaxRecvSGE = 0, 0
	}
	v := must(r.pd.CreateQP(cfg))(r)
	r.closing("qp", v.Close)
	return v
}

func (r *rig) modify(q driver.QP, a driver.QPAttr, m ib.QPAttrMask) {
	r.Helper()
	if err := q.Modify(&a, m|ib.AttrState); err != nil {
		r.Fatalf("to %v: %v", a.State, err)
	}
}

func (r *rig) toInit(q driver.QP) {
	r.Helper()
	r.modify(q, driver.QPAttr{State: ib.StateInit, Port: r.gid.Port, Access: rigAccess}, ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccess)
}

func (r *rig) av() driver.AHAttr {
	return driver.AHAttr{DGID: r.gid.GID, SGIDIndex: r.gid.Index, HopLimit: 64, Global: true, Port: r.gid.Port}
}

// join connects a queue pair in INIT.
func (r *rig) join(q driver.QP, to ib.QPN) {
	r.Helper()
	r.modify(q, driver.QPAttr{
		State: ib.StateRTR, AH: r.av(), PathMTU: r.mtu, DestQPN: to, RQPSN: 7, MaxDestRDAtomic: 4, MinRNRTimer: 640 * time.Microsecond,
	}, ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN|ib.AttrMaxDestRDAtomic|ib.AttrMinRNRTimer)
	r.modify(q, driver.QPAttr{
		State: ib.StateRTS, Timeout: 67 * time.Millisecond, RetryCount: 7, RNRRetry: 7, SQPSN: 7, MaxRDAtomic: 4,
	}, ib.AttrTimeout|ib.AttrRetryCount|ib.AttrRNRRetry|ib.AttrSQPSN|ib.AttrMaxRDAtomic)
}

// pair is two connected queue pairs.
func (r *rig) pair(q driver.CQ, s driver.SRQ) (a, b driver.QP) {
	r.Helper()
	a, b = r.qp(0x1_0000_0001, ib.RC, q, nil), r.qp(0x1_0000_0002, ib.RC, q, s)
	r.toInit(a)
	r.toInit(b)
	r.join(a, b.Num())
	r.join(b, a.Num())
	return a, b
}

func (r *rig) sge(off, n int) driver.SGE {
	return driver.SGE{Addr: addressOf(r.mem) + uint64(off), Len: uint32(n), LKey: r.lkey}
}

func (r *rig) remote(s *driver.SendSlot, off int) {
	s.Addr, s.RKey = addressOf(r.mem)+uint64(off), r.rkey
}

func (r *rig) send(q driver.QP, fill func(s *driver.SendSlot)) {
	r.Helper()
	s := &q.SendSlots()[0]
	s.Flags = ib.Signaled
	fill(s)
	if n, err := q.CommitSend(1); n != 1 || err != nil {
		r.Fatalf("post: %d, %v", n, err)
	}
}

func (r *rig) recv(q interface {
	RecvSlots() []driver.RecvSlot
	CommitRecv(int) (int, error)
}, id uint64, l ...driver.SGE) {
	r.Helper()
	s := &q.RecvSlots()[0]
	s.ID, s.SGL = id, append(s.SGL[:0], l...)
	if n, err := q.CommitRecv(1); n != 1 || err != nil {
		r.Fatalf("post receive: %d, %v", n, err)
	}
}

// poll gives n completions.
func (r *rig) poll(q driver.CQ, n int) []driver.WC {
	r.Helper()
	var got []driver.WC
	for end := time.Now().Add(20 * time.Second); len(got) < n; {
		w, err := q.Poll()
		if err != nil {
			r.Fatal(err)
		}
		got = append(got, w...)
		if time.Now().After(end) {
			r.Fatalf("%d completions of %d: %+v", len(got), n, got)
		}
	}
	if len(got) > n {
		r.Fatalf("%d completions, want %d: %+v", len(got), n, got)
	}
	return got
}

// readable waits for a descriptor.
func (r *rig) readable(n driver.Notifier, limit time.Duration) bool {
	r.Helper()
	fd := must(n.FD())(r)
	fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}
	for end := time.Now().Add(limit); ; {
		got, err := unix.Poll(fds, max(0, time.Until(end)))
		if err != nil {
			r.Fatal(err)
		}
		if got > 0 || !time.Now().Before(end) {
			return got > 0 && fds[0].Revents&unix.PollIn != 0
		}
	}
}
