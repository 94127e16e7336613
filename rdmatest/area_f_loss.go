package rdmatest

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area F, third part: the network loses, repeats, reorders and changes packets, and
// nobody notices.
func areaRCLoss() []check {
	return []check{
		{"C-113_DuplicatesAtOnce", anyWire, duplicates(0)},
		{"C-113_DuplicatesLater", anyWire, duplicates(1)},
		{"C-113_DuplicatesThreeLater", anyWire, duplicates(3)},
		{"C-113_DuplicatesMuchLater", anyWire, duplicates(100)},
		{"C-113_AtomicOnce", anyWire, atomicOnce},
		{"C-114_EverySingleLoss", anyWire, everySingleLoss},
		{"C-115_Reordering", Faults | VirtualTime, reordering},
		{"C-115_Corruption", Faults | VirtualTime, corruption},
		{"C-115_RandomLoss", Faults | VirtualTime, randomLoss},
		{"C-116_ReadResponseLoss", anyWire, readResponseLoss},
	}
}

// session does one of everything, in packets of 256 bytes, and checks the outcome.
type session struct {
	a, b  *end
	off   int    // where the remote word of atomics is
	point string // of the profile, if the requester of a device may fail by itself
}

// small makes many packets of few bytes.
func small(l *link) {
	l.a.PathMTU, l.b.PathMTU = ib.MTU256, ib.MTU256
	l.cfg.MaxSendWR, l.cfg.MaxRecvWR = 64, 64
}

const sessionTimeout = 67 * time.Millisecond

func (t *tb) newSession() *session {
	t.Helper()
	a, b := t.pair(small)
	return &session{a: a, b: b, off: 60000}
}

func (s *session) close() {
	s.a.closed(s.a.qp, "queue pair")
	s.b.closed(s.b.qp, "queue pair")
}

// run posts everything at once, waits, and checks. If a requester failed by itself, as its
// profile has it, what it had completed by then is right, and false is the result. A READ that
// was complete just before may be what it failed of: its data is not looked at.
func (s *session) run(what string) bool {
	a, b := s.a, s.b
	a.Helper()
	clear(b.mr.Bytes())
	setWord(b.mr, s.off, 1000)
	a.fill(0, 8000, 0x21)
	copy(b.mr.Bytes()[30000:], pattern(900, 0x44)) // to be read
	for i := range uint64(4) {
		b.recv(i, 1000*int(i), 1000)
	}
	atomic := a.a.Supports(verbs.FeatureAtomics) == nil
	wrs := []verbs.SendWR{
		verbs.Send(0, a.sge(0, 100), ib.Signaled),
		verbs.Send(1, a.sge(100, 900), ib.Signaled),
		verbs.Write(2, b.mr.Remote(10000, 700), a.sge(2000, 700), ib.Signaled),
		verbs.Read(3, b.mr.Remote(30000, 900), a.sge(40000, 900), ib.Signaled),
		verbs.SendImm(4, 0xBEEF, a.sge(300, 10), ib.Signaled),
		verbs.WriteImm(5, b.mr.Remote(11000, 600), 0xCAFE, a.sge(3000, 600), ib.Signaled),
	}
	if atomic {
		wrs = append(wrs,
			verbs.FetchAdd(6, b.mr.Remote(s.off, 8), 7, a.sge(50000, 8), ib.Signaled),
			verbs.CompareSwap(7, b.mr.Remote(s.off, 8), 1007, 5, a.sge(50008, 8), ib.Signaled))
	}
	wrs = append(wrs, verbs.Write(8, b.mr.Remote(12000, 1), a.sge(4000, 1), ib.Signaled))
	n, err := a.qp.PostSendList(wrs)
	a.ok(err, "%s: posted %d", what, n)
	p := pattern(8000, 0x21)
	mem := b.mr.Bytes()
	right := map[uint64]func(){ // what a request that is complete has done
		0: func() { a.same(mem[:100], p[:100], what+": send") },
		1: func() { a.same(mem[1000:1900], p[100:1000], what+": send of several packets") },
		2: func() { a.same(mem[10000:10700], p[2000:2700], what+": write") },
		3: func() { a.same(a.mr.Bytes()[40000:40900], pattern(900, 0x44), what+": read") },
		4: func() { a.same(mem[2000:2010], p[300:310], what+": send with immediate") },
		5: func() { a.same(mem[11000:11600], p[3000:3600], what+": write with immediate") },
		8: func() { a.same(mem[12000:12001], p[4000:4001], what+": write of a byte") },
	}
	read := func() {}
	for i, wr := range wrs {
		if s.point != "" {
			if wc, _ := a.sentAt(wr.ID, s.point, ib.StatusSuccess); wc.Status != ib.StatusSuccess {
				a.state(ib.StateError)
				for _, wr := range wrs[i+1:] {
					a.sent(wr.ID, ib.StatusWRFlush)
				}
				return false
			}
		} else {
			a.sent(wr.ID, ib.StatusSuccess)
		}
		read()
		read = func() {}
		if f := right[wr.ID]; f != nil && wr.Opcode == ib.OpRead {
			read = f // what comes next tells whether the requester has failed
		} else if f != nil {
			f()
		}
	}
	for i, want := range []uint32{100, 900, 10, 600} {
		if wc := b.got(uint64(i), ib.StatusSuccess); wc.ByteLen != want {
			a.Errorf("%s: receive %d has %d bytes, want %d", what, i, wc.ByteLen, want)
		}
	}
	if atomic {
		if x, y, z := word(a.mr, 50000), word(a.mr, 50008), word(b.mr, s.off); x != 1000 || y != 1007 || z != 5 {
			a.Errorf("%s: atomics gave %d and %d, left %d", what, x, y, z)
		}
	}
	a.empty()
	b.empty()
	return true
}

// duplicates gives the test of packets that come again behind so many others.
func duplicates(behind int) func(t *tb) {
	return func(t *tb) {
		t.stalls(func() {
			s := t.newSession()
			s.point = "C-113/requester"
			w := t.Fabric.Rule(Rule{From: t.Addr, To: t.PeerAddr, Duplicate: 1, Behind: behind})
			if !s.run(fmt.Sprintf("every request twice, %d later", behind)) {
				return
			}
			t.grace()
			s.a.empty()
			s.b.empty()
			w.Remove()
			if w.Hits() == 0 {
				t.Error("no packet was repeated")
			}
			w = t.Fabric.Rule(Rule{From: t.PeerAddr, To: t.Addr, Duplicate: 2, Behind: behind})
			if !s.run(fmt.Sprintf("every response three times, %d later", behind)) {
				return
			}
			w.Remove()
			s.close()
		})
	}
}

func atomicOnce(t *tb) {
	t.supports(verbs.FeatureAtomics)
	a, b := t.pair()
	setWord(b.mr, 0, 10)
	w := t.Fabric.Rule(Rule{From: t.PeerAddr, To: t.Addr, Opcodes: []uint8{OpAtomicAck}, Nth: 1, Drop: true})
	a.send(verbs.FetchAdd(1, b.mr.Remote(0, 8), 5, a.sge(0, 8), ib.Signaled))
	a.sent(1, ib.StatusSuccess)
	if w.Hits() != 1 {
		t.Errorf("%d answers were lost, want 1", w.Hits())
	}
	if old, now := word(a.mr, 0), word(b.mr, 0); old != 10 || now != 15 {
		t.Errorf("gave %d, left %d, want 10 and 15", old, now)
	}
}

func everySingleLoss(t *tb) {
	for _, way := range []struct {
		what     string
		from, to netip.Addr
	}{{"request", t.Addr, t.PeerAddr}, {"response", t.PeerAddr, t.Addr}} {
		lost := 0
		for k := 1; ; k++ {
			s := t.newSession()
			w := t.Fabric.DropNth(way.from, way.to, k)
			start := time.Now()
			s.run(fmt.Sprintf("%s %d lost", way.what, k))
			took := time.Since(start)
			// The code of the time-out is not below 67 ms; the timer may run once.
			if t.Virtual && took > 3*sessionTimeout {
				t.Errorf("%s %d lost: took %v", way.what, k, took)
			}
			w.Remove()
			s.close()
			if w.Hits() == 0 {
				break
			}
			lost++
			if k > 200 {
				t.Fatal("no end of packets")
			}
		}
		if lost < 6 {
			t.Errorf("only %d different %ss were lost", lost, way.what)
		}
	}
}

func reordering(t *tb) {
	for _, behind := range []int{1, 2, 7, 64} {
		for _, nth := range []int{1, 2, 3, 5, 8, 12} {
			s := t.newSession()
			w := t.Fabric.Rule(Rule{Nth: nth, Behind: behind})
			s.run(fmt.Sprintf("packet %d behind %d others", nth, behind))
			w.Remove()
			s.close()
		}
	}
	s := t.newSession()
	ws := t.Fabric.Reorder(netip.Addr{}, netip.Addr{}, 0.2)
	ws = append(ws, t.Fabric.Delay(netip.Addr{}, netip.Addr{}, time.Millisecond, 50*time.Millisecond))
	for i := range 10 {
		s.run(fmt.Sprintf("random order, round %d", i))
	}
	for _, w := range ws {
		w.Remove()
	}
	s.close()
}

func corruption(t *tb) {
	s := t.newSession()
	w := t.Fabric.Corrupt(netip.Addr{}, netip.Addr{}, 0.05)
	for i := range 20 {
		s.run(fmt.Sprintf("bits turn over, round %d", i))
	}
	w.Remove()
	if w.Hits() == 0 {
		t.Error("no packet was corrupted")
	}
	s.close()
}

func randomLoss(t *tb) {
	for _, p := range []float64{0.001, 0.01, 0.05} {
		s := t.newSession()
		ws := []*Filter{
			t.Fabric.Loss(netip.Addr{}, netip.Addr{}, p),
			t.Fabric.Duplicate(netip.Addr{}, netip.Addr{}, p),
			t.Fabric.Delay(netip.Addr{}, netip.Addr{}, 100*time.Microsecond, 0),
		}
		for i := range 15 {
			s.run(fmt.Sprintf("loss of %v, round %d", p, i))
		}
		for _, w := range ws {
			w.Remove()
		}
		s.close()
	}
}

// Lost responses are asked for again from the first missing byte. The source may
// change meanwhile: the result mixes old and new, and nothing else.
func readResponseLoss(t *tb) {
	const n = 256 * 9
	responses := []uint8{OpReadRespFirst, OpReadRespMiddle, OpReadRespLast, OpReadRespOnly}
	for _, c := range []struct{ nth, count int }{{1, 1}, {5, 1}, {9, 1}, {1, 9}, {2, 3}, {1, 20}} {
		a, b := t.pair(small)
		old, neu := pattern(n, 1), pattern(n, 0xF1)
		copy(b.mr.Bytes(), old)
		w := t.Fabric.Rule(Rule{From: t.PeerAddr, To: t.Addr, Opcodes: responses, Nth: c.nth, Count: c.count, Drop: true})
		a.send(verbs.Read(1, b.mr.Remote(0, n), a.sge(0, n), ib.Signaled))
		t.until("responses are lost", func() bool { return w.Hits() > 0 })
		copy(b.mr.Bytes(), neu)
		a.sent(1, ib.StatusSuccess)
		for i, v := range a.mr.Bytes()[:n] {
			if v != old[i] && v != neu[i] {
				t.Fatalf("responses %d+%d lost: byte %d is invented", c.nth, c.count, i)
			}
		}
		w.Remove()
		t.closed(a.qp, "queue pair")
		t.closed(b.qp, "queue pair")
	}
}
