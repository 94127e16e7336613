package verbs_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestC166_SRQ(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	srq, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 10, MaxSGE: 2, UserData: "shared"})
	r.ok(err)
	r.closeLast(srq)
	cq, _ := r.cq(100, nil)
	var qps []*verbs.QP
	var sqps []*scripted.QP
	for range 3 {
		qp, sqp := r.qp(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 4})
		r.rts(qp)
		qps, sqps = append(qps, qp), append(sqps, sqp)
	}
	r.is(qps[0].PostRecv(verbs.RecvWR{}), verbs.ErrSRQ, "post to the queue pair")
	if srq.UserData() != "shared" || qps[0].RecvRoom() != 0 || qps[0].Config().MaxRecvWR != 0 {
		t.Errorf("%+v", qps[0].Config())
	}
	wrs := make([]verbs.RecvWR, 12)
	for i := range wrs {
		wrs[i] = verbs.Recv(uint64(100+i), r.mr.SGE(0, 8))
	}
	n, err := srq.PostRecvList(wrs)
	r.is(err, verbs.ErrQueueFull, "full")
	if n != 10 || srq.Room() != 0 {
		t.Errorf("%d posted, room %d", n, srq.Room())
	}
	// Receives go to whoever gets a message; each completion says to whom.
	for i := range 9 {
		sqps[i%3].CompleteRecv(1, scripted.Received(i), false)
	}
	for i, wc := range r.poll(cq) {
		if wc.ID != uint64(100+i) || wc.QP != qps[i%3] || wc.ByteLen != uint32(i) || !wc.Opcode.IsRecv() {
			t.Errorf("completion %d: %+v", i, wc)
		}
	}
	if srq.Room() != 9 {
		t.Errorf("room %d", srq.Room())
	}
	// C-171: the queue pair that fails leaves the receives alone. C-172.
	w := scripted.Received(0)
	w.Status = ib.StatusLocLen
	sqps[0].CompleteRecv(1, w, false)
	r.want(r.poll(cq), wcs{{109, ib.StatusLocLen}})
	if qps[0].State() != ib.StateError || qps[1].State() != ib.StateRTS {
		t.Errorf("%v, %v", qps[0].State(), qps[1].State())
	}
	r.ok(srq.PostRecv(wrs[10]))
	r.ok(qps[0].Drain(bg))
	sqps[1].CompleteRecv(1, scripted.Received(1), false)
	r.want(r.poll(cq), wcs{{110, success}})
	// Stale, foreign, and of a queue pair that is closed.
	r.ok(srq.PostRecv(wrs[0]))
	r.ok(srq.PostRecv(wrs[1]))
	sqps[1].Inject(driver.WC{ID: 2<<62 | 5, QPN: qps[1].Num()}, true)
	sqps[1].Inject(driver.WC{ID: 2<<62 | 9<<40, QPN: qps[1].Num()}, true)
	sqps[1].CompleteRecv(1, scripted.Received(1), false)
	r.ok(qps[1].Close())
	if got := r.poll(cq); len(got) != 0 {
		t.Errorf("%v", got)
	}
	sqps[2].CompleteRecv(1, scripted.Received(1), false)
	r.want(r.poll(cq), wcs{{101, success}})

	// C-167, C-169.
	maxWR, limit, err := srq.Query()
	if err != nil || maxWR != 10 || limit != 0 {
		t.Error(maxWR, limit, err)
	}
	for _, n := range []int{-1, 11} {
		r.is(srq.SetLimit(n), syscall.EINVAL, "limit")
	}
	r.ok(srq.PostRecv(wrs[0]))
	r.ok(srq.SetLimit(1))
	sqps[2].CompleteRecv(1, scripted.Received(1), false)
	if ev := r.event(); ev.Type != ib.EventSRQLimitReached || ev.SRQ != srq {
		t.Errorf("%+v", ev)
	}
	r.ok(srq.Close())
	r.is(srq.PostRecv(wrs[0]), net.ErrClosed, "closed")
	r.is(srq.SetLimit(1), net.ErrClosed, "closed")
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 1})
	r.is(err, net.ErrClosed, "queue pair on a closed SRQ")
	if r.p.Count("close srq") != 0 {
		t.Error("gone although queue pairs use it")
	}
}

func TestC164_SRQRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, cfg := range []verbs.SRQConfig{{MaxWR: -1}, {MaxWR: 1<<12 + 1}, {MaxSGE: 17}, {MaxSGE: -1}, {MaxWR: 4, Limit: 5}, {Limit: -1}} {
		_, err := r.pd.CreateSRQ(cfg)
		r.is(err, syscall.EINVAL, "create")
	}
	srq, err := r.pd.CreateSRQ(verbs.SRQConfig{})
	r.ok(err)
	defer srq.Close()
	if srq.Room() != 256 {
		t.Errorf("default room %d", srq.Room())
	}
	other := must(t)(r.dev.AllocPD())
	defer other.Close()
	cq, _ := r.cq(300, nil)
	_, err = other.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 4})
	r.is(err, verbs.ErrPDMismatch, "C-170")
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: &verbs.SRQ{}})
	r.is(err, syscall.EINVAL, "zero SRQ")
	// Room for the SRQ is taken once for all its queue pairs.
	for range 11 {
		r.qp(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 4})
	}
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 4})
	r.is(err, verbs.ErrCQRoom, "one more")
	small, _ := r.cq(255, nil)
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: small, SRQ: srq, MaxSendWR: 0})
	r.is(err, verbs.ErrCQRoom, "no room for the SRQ")
	r.p.FailOp("create srq", 1, syscall.ENOMEM)
	_, err = r.pd.CreateSRQ(verbs.SRQConfig{})
	r.is(err, syscall.ENOMEM, "the device's error")
	var none *verbs.SRQ
	for name, f := range map[string]func() error{
		"Close":    none.Close,
		"PostRecv": func() error { return none.PostRecv(verbs.RecvWR{}) },
		"SetLimit": func() error { return none.SetLimit(1) },
		"Query":    func() error { _, _, err := none.Query(); return err },
		"zero":     (&verbs.SRQ{}).Close,
	} {
		r.is(f(), syscall.EINVAL, "nil, "+name)
	}
	if none.Room() != 0 || none.UserData() != nil {
		t.Error("nil SRQ")
	}
}

// TestSRQGenerations: numbers of an SRQ that is closed fit none of the next.
func TestSRQGenerations(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(100, nil)
	var old []uint64
	for range 40 {
		srq, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 4})
		r.ok(err)
		q, s := r.qp(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 1})
		r.rts(q)
		for _, id := range old {
			s.Inject(driver.WC{ID: id, QPN: q.Num()}, true)
		}
		r.ok(srq.PostRecv(verbs.Recv(7, r.mr.SGE(0, 8))))
		if got := r.poll(cq); len(got) != 0 {
			t.Fatalf("stale: %v", got)
		}
		old = append(old, r.ctx.SRQ(-1).Numbers()...)
		s.CompleteRecv(1, scripted.Received(1), false)
		r.want(r.poll(cq), wcs{{7, success}})
		r.ok(q.Close())
		r.ok(srq.Close())
	}
}

func TestC019_C020_AddressHandles(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	good := attrs().AH
	for name, c := range map[string]struct {
		change func(*verbs.AHAttr)
		want   error
	}{
		"C-019 no GRH":     {func(a *verbs.AHAttr) { a.Global = false }, syscall.EINVAL},
		"port 0":           {func(a *verbs.AHAttr) { a.Port = 0 }, syscall.EINVAL},
		"port 2":           {func(a *verbs.AHAttr) { a.Port = 2 }, syscall.EINVAL},
		"empty index":      {func(a *verbs.AHAttr) { a.SGIDIndex = 2 }, syscall.ENODATA},
		"index":            {func(a *verbs.AHAttr) { a.SGIDIndex = 99 }, syscall.EINVAL},
		"zero GID":         {func(a *verbs.AHAttr) { a.DGID = ib.GID{} }, syscall.EINVAL},
		"other family":     {func(a *verbs.AHAttr) { a.SGIDIndex = 3 }, syscall.EINVAL},
		"C-020 flow label": {func(a *verbs.AHAttr) { a.FlowLabel = 1 << 20 }, syscall.EINVAL},
	} {
		a := good
		c.change(&a)
		_, err := r.pd.CreateAH(a)
		r.is(err, c.want, name)
	}
	ah, err := r.pd.CreateAH(good)
	r.ok(err)
	r.ok(ah.Close())
	r.ok(ah.Close())
	var none *verbs.AH
	r.is(none.Close(), syscall.EINVAL, "nil")
	r.is((&verbs.AH{}).Close(), syscall.EINVAL, "zero")
	r.p.FailOp("create ah", 1, syscall.ETIMEDOUT)
	_, err = r.pd.CreateAH(good)
	r.is(err, syscall.ETIMEDOUT, "the device's error")
}

// grh makes what is in front of a datagram.
func grh(from, to string) []byte {
	b := make([]byte, 40)
	f, t := netip.MustParseAddr(from), netip.MustParseAddr(to)
	if !f.Is4() {
		b[0], b[1], b[2], b[3] = 0x6A, 0xB0, 0x12, 0x34 // class 0xAB, flow 0x01234
		copy(b[8:], f.AsSlice())
		copy(b[24:], t.AsSlice())
		return b
	}
	for i := range 20 {
		b[i] = byte(0x60 + i) // undefined; looks like IPv6
	}
	h := b[20:]
	h[0], h[1] = 0x45, 0x20
	copy(h[12:], f.AsSlice())
	copy(h[16:], t.AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum&0xFFFF + sum>>16
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum+sum>>16))
	return b
}

func TestC024_ReplyAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, _, _, _ := r.ready(verbs.QPConfig{Type: ib.UD})
	wc := &verbs.WC{QP: qp, Flags: ib.WithGRH, SL: 5, SLID: 9}
	four, six := grh("10.0.0.9", "10.0.0.1"), grh("fd00::9", "fd00::1")
	a, err := verbs.AHAttrFromWC(1, wc, four)
	r.ok(err)
	if a.DGID.Addr().String() != "10.0.0.9" || a.SGIDIndex != 1 || a.TrafficClass != 0x20 || !a.Global || a.Port != 1 || a.SL != 0 || a.DLID != 0 {
		t.Errorf("%+v", a)
	}
	a, err = verbs.AHAttrFromWC(1, wc, six)
	r.ok(err)
	if a.DGID.Addr().String() != "fd00::9" || a.SGIDIndex != 3 || a.TrafficClass != 0xAB || a.FlowLabel != 0x1234 {
		t.Errorf("%+v", a)
	}
	// Without a checksum, as some devices make it; the rest is zero.
	clear(four[:20])
	clear(four[30:32])
	if a, err = verbs.AHAttrFromWC(1, wc, four); err != nil || a.SGIDIndex != 1 {
		t.Error(a, err)
	}
	ah, err := r.pd.CreateAHFromWC(1, wc, four)
	r.ok(err)
	r.ok(ah.Close())
	for name, f := range map[string]func() (verbs.AHAttr, error){
		"short":   func() (verbs.AHAttr, error) { return verbs.AHAttrFromWC(1, wc, four[:39]) },
		"garbage": func() (verbs.AHAttr, error) { return verbs.AHAttrFromWC(1, wc, make([]byte, 40)) },
		"nil":     func() (verbs.AHAttr, error) { return verbs.AHAttrFromWC(1, nil, four) },
		"no QP":   func() (verbs.AHAttr, error) { return verbs.AHAttrFromWC(1, &verbs.WC{}, four) },
	} {
		if _, err := f(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = verbs.AHAttrFromWC(1, wc, grh("10.0.0.9", "10.0.0.77"))
	r.is(err, syscall.ENODATA, "address that is gone")
	if err == nil || !strings.Contains(err.Error(), "10.0.0.77") {
		t.Error(err)
	}
	_, err = r.pd.CreateAHFromWC(1, wc, nil)
	r.is(err, syscall.EINVAL, "no header")
	// InfiniBand without GRH.
	a, err = verbs.AHAttrFromWC(1, &verbs.WC{QP: qp, SL: 5, SLID: 9, PathBits: 1}, nil)
	if err != nil || a != (verbs.AHAttr{DLID: 9, SL: 5, PathBits: 1, Port: 1}) {
		t.Error(a, err)
	}
}

func FuzzAHAttrFromWC(f *testing.F) {
	dev, err := verbs.Open(scripted.New(nil), "")
	if err != nil {
		f.Fatal(err)
	}
	pd, _ := dev.AllocPD()
	cq, _ := dev.CreateCQ(8, nil)
	qp, err := pd.CreateQP(verbs.QPConfig{Type: ib.UD, SendCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(grh("10.0.0.9", "10.0.0.1"))
	f.Add(grh("fd00::9", "fd00::1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := verbs.AHAttrFromWC(1, &verbs.WC{QP: qp, Flags: ib.WithGRH}, b)
		if err == nil && (len(b) < 40 || !a.Global || a.FlowLabel >= 1<<20) {
			t.Errorf("%x gave %+v", b, a)
		}
	})
}

func TestC160_Multicast(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ud, _, _, _ := r.ready(verbs.QPConfig{Type: ib.UD})
	rc, _, _, _ := r.ready(verbs.QPConfig{})
	group := ib.GID{0: 0xFF, 1: 0x0E, 15: 5}
	four := ib.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))
	for _, g := range []ib.GID{group, four} {
		r.ok(ud.AttachMulticast(g, 0))
		r.ok(ud.AttachMulticast(g, 0))
		r.ok(ud.DetachMulticast(g, 0))
		r.is(ud.DetachMulticast(g, 0), syscall.EINVAL, "detach again")
	}
	r.is(ud.AttachMulticast(attrs().AH.DGID, 0), syscall.EINVAL, "unicast")
	r.is(rc.AttachMulticast(group, 0), syscall.EINVAL, "RC")
	// A queue pair that is closed is in no group any more, and has been detached once from each.
	before := r.p.Count("detach")
	r.ok(ud.AttachMulticast(group, 1))
	r.ok(ud.AttachMulticast(group, 1))
	r.ok(ud.AttachMulticast(four, 0))
	r.ok(ud.Close())
	if n := r.p.Count("detach") - before; n != 2 {
		t.Errorf("%d detaches", n)
	}
}
