package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

const roceV2 = ib.GIDTypeRoCEv2

// tb is what a test of the suite works with.
type tb struct {
	testing.TB
	Bed
	limit context.Context
	a, b  *verbs.Device // of Provider and Peer, opened by newTB
	rng   *rand.Rand    // of the test's own goroutine; repeatable

	profile *profile // of the provider; nil: none
	excuse  *excuse  // what the profile has for this test; nil: nothing
}

// newTB opens the devices, and has the test fail if it leaves objects on them.
func newTB(t testing.TB, b Bed, p *profile, e *excuse) *tb {
	t.Helper()
	d := realLimit
	switch {
	case b.Virtual:
		d = virtualLimit
	case b.Limit > 0:
		d = b.Limit
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	seed := uint64(1)
	if b.Fabric != nil {
		seed = b.Fabric.Seed()
	}
	x := &tb{TB: t, Bed: b, limit: ctx, rng: rand.New(rand.NewPCG(seed, 1)), profile: p, excuse: e}
	x.a, x.b = x.open(b.Provider), x.open(b.Peer)
	before := map[*verbs.Device]int{x.a: len(x.a.Objects()), x.b: len(x.b.Objects())}
	t.Cleanup(func() {
		for dev, n := range before {
			if left := dev.Objects(); len(left) > n {
				t.Errorf("objects left on %s: %s", dev.Info().Name, strings.Join(left[n:], ", "))
			}
		}
	})
	return x
}

func (t *tb) open(p verbs.Provider) *verbs.Device {
	t.Helper()
	d, err := verbs.Open(p, "")
	if err != nil {
		t.Fatalf("open the device of %s: %v", p.Name(), err)
	}
	return d
}

// ok ends the test if an error came.
func (t *tb) ok(err error, what string, args ...any) {
	t.Helper()
	switch {
	case err == nil:
	case isLate(err):
		t.inVain("%s: %v", fmt.Sprintf(what, args...), err)
	default:
		t.Fatalf("%s: %v", fmt.Sprintf(what, args...), err)
	}
}

// isErr reports an error that is missing or not the wanted one. A wanted nil means
// any error.
func (t *tb) isErr(err, want error, what string, args ...any) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: no error", fmt.Sprintf(what, args...))
	case want != nil && !errors.Is(err, want):
		t.Errorf("%s: error %q, want one that wraps %q", fmt.Sprintf(what, args...), err, want)
	case strings.TrimSpace(err.Error()) == "":
		t.Errorf("%s: error without text", fmt.Sprintf(what, args...))
	}
}

// anyErr is isErr with several that will do.
func (t *tb) anyErr(err error, wants []error, what string, args ...any) {
	t.Helper()
	for _, w := range wants {
		if errors.Is(err, w) {
			return
		}
	}
	t.Errorf("%s: error %v, want one of %v", fmt.Sprintf(what, args...), err, wants)
}

// supports skips the test if a device cannot do it.
func (t *tb) supports(f verbs.Feature) {
	t.Helper()
	for _, d := range []*verbs.Device{t.a, t.b} {
		if err := d.Supports(f); err != nil {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("Supports: %v does not wrap errors.ErrUnsupported", err)
			}
			t.Skipf("%s: %v", d.Info().Name, err)
		}
	}
}

// grace lets time pass in which nothing must happen.
func (t *tb) grace() { t.pass(realGrace, virtualGrace) }

// pass lets time pass, as much as the clock allows.
func (t *tb) pass(real, virtual time.Duration) {
	d := real
	if t.Virtual {
		d = virtual
	}
	time.Sleep(d)
}

// until waits for a condition that the device brings about in the background.
func (t *tb) until(what string, cond func() bool) {
	t.Helper()
	for !cond() {
		if t.limit.Err() != nil {
			t.inVain("never came: %s", what)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// latency makes packets take time. On a virtual clock nothing else does: without it a
// loop that always has something to do stops the clock.
func (t *tb) latency() {
	if t.Fabric != nil {
		t.Fabric.Delay(netip.Addr{}, netip.Addr{}, 10*time.Microsecond, 0)
	}
}

// pd, cq, region and buffer make objects that live as long as the test.
func (t *tb) pd(d *verbs.Device) *verbs.PD {
	t.Helper()
	pd, err := d.AllocPD()
	t.ok(err, "allocate a protection domain")
	t.Cleanup(func() { t.closed(pd, "protection domain") })
	return pd
}

func (t *tb) cq(d *verbs.Device, n int, cfg *verbs.CQConfig) *verbs.CQ {
	t.Helper()
	cq, err := d.CreateCQ(n, cfg)
	t.ok(err, "create a completion queue of %d", n)
	t.Cleanup(func() { t.closed(cq, "completion queue") })
	return cq
}

// Rights of regions.
const (
	remoteAll = ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic
	allRights = ib.LocalWrite | remoteAll
)

func (t *tb) region(pd *verbs.PD, n int, a ib.Access) *verbs.MR {
	t.Helper()
	mr, err := pd.Alloc(n, a)
	t.ok(err, "register %d bytes", n)
	t.Cleanup(func() { t.closed(mr, "memory region") })
	return mr
}

// closed closes something, which must not fail, be it for the second time.
func (t *tb) closed(c interface{ Close() error }, what string) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("close the %s: %v", what, err)
	}
}

// gid finds the entry of an address in a device's table.
func (t *tb) gid(d *verbs.Device, side int) verbs.GIDEntry {
	t.Helper()
	a := t.Addr
	if side == 1 {
		a = t.PeerAddr
	}
	gids, err := d.GIDs()
	t.ok(err, "read the GID table")
	for _, g := range gids {
		if g.GID.Addr() == a.WithZone("") && g.Type == roceV2 {
			return g
		}
	}
	t.Fatalf("%s has no GID for %v: %v", d.Info().Name, a, gids)
	return verbs.GIDEntry{}
}

// end is one side of a connected pair.
type end struct {
	*tb
	name string
	dev  *verbs.Device
	gid  verbs.GIDEntry
	pd   *verbs.PD
	scq  *verbs.CQ // of sends
	rcq  *verbs.CQ // of receives
	qp   *verbs.QP
	mr   *verbs.MR
	srq  *verbs.SRQ
	attr verbs.QPAttr
}

// link says how a pair is made. Tests change what they need.
type link struct {
	cfg  verbs.QPConfig  // of both sides; queues are filled in
	mem  int             // bytes of each side's region
	cqs  int             // entries of each queue
	a, b verbs.QPAttr    // what Modify gives each side
	upTo ib.QPState      // state of b; a goes to RTS if b is in RTR or RTS
	oneQ bool            // one queue for sends and receives
	cqA  *verbs.CQConfig // of the queues of a, and of b
	cqB  *verbs.CQConfig
	srq  *verbs.SRQConfig // of b; nil: a receive queue of its own
}

func (t *tb) newLink() *link {
	l := &link{
		cfg:  verbs.QPConfig{MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64},
		mem:  64 << 10,
		cqs:  256,
		upTo: ib.StateRTS,
	}
	base := verbs.QPAttr{
		PathMTU:         t.mtu(),
		Access:          remoteAll,
		MaxRDAtomic:     4,
		MaxDestRDAtomic: 4,
		RetryCount:      7,
		RNRRetry:        7,
		Timeout:         67 * time.Millisecond,
		MinRNRTimer:     10 * time.Microsecond,
		Port:            1,
	}
	l.a, l.b = base, base
	l.a.SQPSN, l.b.SQPSN = t.psn(), t.psn()
	l.a.RQPSN, l.b.RQPSN = l.b.SQPSN, l.a.SQPSN
	return l
}

// psn gives a first packet number.
func (t *tb) psn() ib.PSN { return ib.PSN(t.rng.Uint32() & 0xFFFFFF) }

// mtu is the largest path MTU that both ports have.
func (t *tb) mtu() ib.MTU {
	t.Helper()
	m := ib.MTU4096
	for _, d := range []*verbs.Device{t.a, t.b} {
		p, err := d.Port(1)
		t.ok(err, "query port 1 of %s", d.Info().Name)
		m = min(m, p.ActiveMTU)
	}
	return m
}

// pair gives two connected queue pairs, with change applied to the defaults first.
func (t *tb) pair(change ...func(*link)) (a, b *end) {
	t.Helper()
	l := t.newLink()
	for _, f := range change {
		f(l)
	}
	a = t.newEnd("a", t.a, 0, l, l.a, l.cqA)
	b = t.newEnd("b", t.b, 1, l, l.b, l.cqB)
	t.introduce(a, b)
	if l.upTo >= ib.StateInit {
		b.init()
	}
	if l.upTo >= ib.StateRTR {
		b.rtr()
	}
	if l.upTo >= ib.StateRTS {
		b.rts()
	}
	a.init()
	a.rtr()
	a.rts()
	return a, b
}

// introduce tells two ends of one another.
func (t *tb) introduce(a, b *end) {
	a.attr.DestQPN, b.attr.DestQPN = b.qp.Num(), a.qp.Num()
	a.attr.AH, b.attr.AH = a.way(b.gid), b.way(a.gid)
}

// connectEnds connects two ends.
func (t *tb) connectEnds(a, b *end) {
	t.Helper()
	t.introduce(a, b)
	for _, e := range []*end{a, b} {
		e.init()
		e.rtr()
		e.rts()
	}
}

func (t *tb) newEnd(name string, dev *verbs.Device, side int, l *link, attr verbs.QPAttr, cc *verbs.CQConfig) *end {
	t.Helper()
	e := &end{tb: t, name: name, dev: dev, gid: t.gid(dev, side), attr: attr}
	e.attr.Port = e.gid.Port
	e.pd = t.pd(dev)
	e.scq = t.cq(dev, l.cqs, cc)
	e.rcq = e.scq
	if !l.oneQ {
		e.rcq = t.cq(dev, l.cqs, cc)
	}
	cfg := l.cfg
	cfg.SendCQ, cfg.RecvCQ = e.scq, e.rcq
	if l.srq != nil && side == 1 {
		srq, err := e.pd.CreateSRQ(*l.srq)
		t.ok(err, "%s: create a shared receive queue", name)
		t.Cleanup(func() { t.closed(srq, "shared receive queue") })
		e.srq, cfg.SRQ = srq, srq
	}
	e.qp = e.newQP(cfg)
	e.mr = t.region(e.pd, l.mem, allRights)
	return e
}

func (e *end) newQP(cfg verbs.QPConfig) *verbs.QP {
	e.Helper()
	qp, err := e.pd.CreateQP(cfg)
	e.ok(err, "%s: create a queue pair", e.name)
	e.Cleanup(func() { e.closed(qp, "queue pair") })
	return qp
}

// way is the address vector to a peer.
func (e *end) way(peer verbs.GIDEntry) verbs.AHAttr {
	return verbs.AHAttr{DGID: peer.GID, SGIDIndex: e.gid.Index, HopLimit: 64, Global: true, Port: e.gid.Port}
}

// Masks that move a reliable connection.
const (
	maskInit = ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccess
	maskRTR  = ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN |
		ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer
	maskRTS = ib.AttrState | ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrSQPSN | ib.AttrMaxRDAtomic
)

func (e *end) move(s ib.QPState, m ib.QPAttrMask) {
	e.Helper()
	a := e.attr
	a.State = s
	e.ok(e.qp.Modify(&a, m), "%s: modify to %v", e.name, s)
}

func (e *end) init() { e.Helper(); e.move(ib.StateInit, maskInit) }
func (e *end) rtr()  { e.Helper(); e.move(ib.StateRTR, maskRTR) }
func (e *end) rts()  { e.Helper(); e.move(ib.StateRTS, maskRTS) }

// reset and fail move the queue pair there.
func (e *end) reset() { e.Helper(); e.move(ib.StateReset, ib.AttrState) }
func (e *end) fail()  { e.Helper(); e.move(ib.StateError, ib.AttrState) }

// send and recv post, and end the test if that fails.
func (e *end) send(wr verbs.SendWR) {
	e.Helper()
	e.ok(e.qp.PostSend(wr), "%s: post %v %d", e.name, wr.Opcode, wr.ID)
}

func (e *end) recv(id uint64, off, n int) {
	e.Helper()
	e.ok(e.qp.PostRecv(verbs.Recv(id, e.mr.SGE(off, n))), "%s: post receive %d", e.name, id)
}

// recvs posts receives 0..n-1 of size bytes each, one behind the other.
func (e *end) recvs(n, size int) {
	e.Helper()
	for i := range n {
		e.recv(uint64(i), i*size, size)
	}
}

// sent waits for the next completion of a send, got for that of a receive.
func (e *end) sent(id uint64, s ib.Status) verbs.WC {
	e.Helper()
	return e.next(e.scq, "send", id, s)
}

func (e *end) got(id uint64, s ib.Status) verbs.WC {
	e.Helper()
	return e.next(e.rcq, "receive", id, s)
}

func (e *end) next(cq *verbs.CQ, what string, id uint64, s ib.Status) verbs.WC {
	e.Helper()
	wc, err := cq.Next(e.limit)
	e.ok(err, "%s: wait for %s %d (%v); queue pair %v: %v", e.name, what, id, s, e.qp.State(), e.qp.Err())
	if wc.ID != id || wc.Status != s {
		e.Fatalf("%s: %s %d completed with %v (vendor %#x), want %d with %v", e.name, what, wc.ID, wc.Status, wc.VendorErr, id, s)
	}
	if wc.QP == nil {
		e.Errorf("%s: %s %d: completion without queue pair", e.name, what, id)
	}
	return wc
}

// quiet checks that nothing completes.
func (e *end) quiet() {
	e.Helper()
	e.grace()
	e.empty()
}

// empty checks that nothing is complete now.
func (e *end) empty() {
	e.Helper()
	var wcs [4]verbs.WC
	for _, cq := range []*verbs.CQ{e.scq, e.rcq} {
		n, err := cq.Poll(wcs[:])
		e.ok(err, "%s: poll", e.name)
		for _, wc := range wcs[:n] {
			e.Errorf("%s: completion that must not be: %v %d with %v", e.name, wc.Opcode, wc.ID, wc.Status)
		}
	}
}

// state checks the state that the device reports.
func (e *end) state(want ib.QPState) {
	e.Helper()
	a, err := e.qp.Query(ib.AttrState)
	e.ok(err, "%s: query", e.name)
	if a.State != want {
		e.Errorf("%s: state %v, want %v", e.name, a.State, want)
	}
}

// sge names memory of the end.
func (e *end) sge(off, n int) verbs.SGE { return e.mr.SGE(off, n) }

// fill writes a pattern, and check compares with it.
func (e *end) fill(off, n int, seed byte) []byte {
	p := e.mr.Bytes()[off : off+n]
	copy(p, pattern(n, seed))
	return p
}

func (e *end) check(off, n int, seed byte, what string) {
	e.Helper()
	e.same(e.mr.Bytes()[off:off+n], pattern(n, seed), what)
}

func (t *tb) same(got, want []byte, what string) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Errorf("%s: byte %d of %d differs", what, i, len(want))
			return
		}
	}
	t.Errorf("%s: %d bytes, want %d", what, len(got), len(want))
}

// untouched checks that memory still has one value.
func (t *tb) untouched(p []byte, v byte, what string) {
	t.Helper()
	for i := range p {
		if p[i] != v {
			t.Errorf("%s: byte %d was written", what, i)
			return
		}
	}
}

// pattern gives n bytes that depend on their place and on a seed.
func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return p
}

// yield lets other goroutines run without letting time pass.
func yield() { runtime.Gosched() }

// Errors that tests name.
const (
	einval    = syscall.EINVAL
	enodata   = syscall.ENODATA
	eopnot    = syscall.EOPNOTSUPP
	einuse    = syscall.EADDRINUSE
	enotavail = syscall.EADDRNOTAVAIL
	erefused  = syscall.ECONNREFUSED
)
