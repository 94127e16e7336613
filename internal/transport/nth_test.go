package transport

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// A course is a fixed piece of traffic. It is run once undisturbed, and then again for
// each of its packets and each thing that can happen to a packet (C-113 to C-117). Every
// time all requests must succeed, with the same bytes, before the first time-out unless
// the course allows one.
type course struct {
	name   string
	s      setup
	post   func(x *script)
	late   func(x *script) // after everything came to rest for the first time
	check  func(x *script)
	limits time.Duration
}

// disturbance is what happens to one packet.
type disturbance uint8

const (
	lose         disturbance = iota
	corrupt                  // flip a bit; the ICRC shows it
	copyNow                  // arrives twice
	copyLater                // again after five others
	copyLast                 // again when all is quiet
	swap                     // after the next one
	overtaken                // after the next four
	delayed                  // when all is quiet, before any timer
	disturbances = iota
)

func (d disturbance) String() string {
	return [...]string{"lose", "corrupt", "copy now", "copy later", "copy last", "swap", "overtaken", "delayed"}[d]
}

// course runs c with a disturbance of the n-th packet of a (or b), or of none if n is -1.
// It gives the numbers of packets that were sent.
func (c *course) run(t testing.TB, first ib.PSN, fromB bool, n int, d disturbance, also int) (na, nb int) {
	t.Helper()
	s := c.s
	s.psn = first
	x := newScript(t, &s)
	x.quiet = true
	var flow wire.Flow = wire.NewFlow(netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.2:4791"))
	type held struct {
		f     *flight
		after int // deliveries
	}
	var waiting []held
	c.post(x)
	late := c.late
	for round := 0; ; round++ {
		if round > 100000 {
			t.Fatalf("never ends")
		}
		moved := false
		for _, e := range []*end{x.a, x.b} {
			if len(e.flights) == 0 {
				continue
			}
			moved = true
			x.after(time.Microsecond)
			f := e.flights[0]
			e.flights = e.flights[1:]
			count, hit := &na, n >= 0 && !fromB
			if e == x.b {
				count, hit = &nb, n >= 0 && fromB
			}
			i := *count
			*count++
			if hit && also >= 0 && i == also {
				continue // a second loss
			}
			if !hit || i != n {
				x.give(f)
			} else {
				switch d {
				case lose:
				case corrupt:
					b := append(append([]byte{}, f.b...), 0, 0, 0, 0)
					flow.Put(b, 0)
					b[(i*7)%len(b)] ^= 1 << (i % 7)
					if _, ok := flow.Check(b, 0); ok && (i*7)%len(b) != 4 {
						t.Fatalf("a flipped bit is not noticed")
					}
				case copyNow:
					x.give(f)
					x.give(f)
				case copyLater:
					x.give(f)
					waiting = append(waiting, held{f, 5})
				case copyLast:
					x.give(f)
					waiting = append(waiting, held{f, 1 << 30})
				case swap:
					waiting = append(waiting, held{f, 1})
					continue
				case overtaken:
					waiting = append(waiting, held{f, 4})
					continue
				case delayed:
					waiting = append(waiting, held{f, 1 << 30})
					continue
				}
			}
			for j := 0; j < len(waiting); j++ {
				if waiting[j].after--; waiting[j].after < 0 {
					x.give(waiting[j].f)
					waiting = append(waiting[:j], waiting[j+1:]...)
					j--
				}
			}
		}
		if moved {
			continue
		}
		if len(waiting) != 0 {
			f := waiting[0].f
			waiting = waiting[1:]
			x.give(f)
			continue
		}
		if late != nil {
			late(x)
			late = nil
			continue
		}
		e := x.a
		da, oka := x.a.q.Deadline()
		db, okb := x.b.q.Deadline()
		if !oka && !okb {
			break
		}
		if !oka || okb && db < da {
			e = x.b
		}
		e.advance()
	}
	c.check(x)
	if x.now > c.limits {
		t.Errorf("it took %v", x.now)
	}
	if n := x.a.q.Stats().Timeouts + x.b.q.Stats().Timeouts; n != 0 {
		t.Errorf("%d time-outs: the probe should have come first", n)
	}
	return na, nb
}

func courses() []*course {
	word := func(x *script, off int) uint64 { return binary.NativeEndian.Uint64(x.b.buf[off:]) }
	src := func(e *end, off, n int) []driver.SGE { return []driver.SGE{e.sge(off, n)} }
	const from, to, back = 0, 20000, 40000
	everything := func(x *script) {
		pattern(x.a.buf[from:10000], 1)
		pattern(x.b.buf[30000:40000], 2)
		x.b.recv(1, to, 100)
		x.b.recv(2, to+100, 2000)
		x.b.recv(3, to+2100, 0)
		x.b.recv(4, to+2100, 100)
		for _, r := range []req{
			{id: 1, op: ib.OpSend, data: "inline"},
			{id: 2, op: ib.OpSendImm, imm: 5, sgl: src(x.a, from, 1100)},
			{id: 3, op: ib.OpWrite, to: to + 3000, sgl: src(x.a, from, 777)},
			{id: 4, op: ib.OpRead, to: 30000, sgl: src(x.a, back, 1500)},
			{id: 5, op: ib.OpFetchAdd, to: 19000, swap: 7, sgl: src(x.a, back+2000, 8)},
			{id: 6, op: ib.OpWriteImm, to: to + 4000, imm: 6, sgl: src(x.a, from, 600)},
			{id: 7, op: ib.OpCompareSwap, to: 19000, compare: 7, swap: 100, sgl: src(x.a, back+2008, 8)},
			{id: 8, op: ib.OpRead, to: 31500, sgl: src(x.a, back+1500, 100), silent: true},
			{id: 9, op: ib.OpSend, sgl: src(x.a, from, 100), flags: ib.Fence | ib.Solicited},
			{id: 10, op: ib.OpFetchAdd, to: 19000, swap: 1, sgl: src(x.a, back+2016, 8)},
			{id: 11, op: ib.OpWrite, data: ""},
		} {
			x.a.fill(&r)
		}
		x.a.pump()
	}
	checkEverything := func(x *script) {
		for id := range uint64(11) {
			if id+1 != 8 {
				x.a.wantDone(id+1, ib.StatusSuccess)
			}
		}
		x.b.wantRecv(1, ib.StatusSuccess, 6)
		if c := x.b.wantRecv(2, ib.StatusSuccess, 1100); c.Imm != 5 {
			x.failf("immediate data %d", c.Imm)
		}
		if c := x.b.wantRecv(3, ib.StatusSuccess, 600); c.Imm != 6 {
			x.failf("immediate data %d", c.Imm)
		}
		if c := x.b.wantRecv(4, ib.StatusSuccess, 100); !c.Solicited {
			x.failf("not solicited")
		}
		x.b.wantBytes(to, []byte("inline"))
		x.b.wantBytes(to+100, x.a.buf[from:from+1100])
		x.b.wantBytes(to+2100, x.a.buf[from:from+100])
		x.b.wantBytes(to+3000, x.a.buf[from:from+777])
		x.b.wantBytes(to+4000, x.a.buf[from:from+600])
		x.a.wantBytes(back, x.b.buf[30000:31600])
		if v := word(x, 19000); v != 101 {
			x.failf("the word is %d, want 101", v)
		}
		for i, want := range []uint64{0, 7, 100} {
			if v := binary.NativeEndian.Uint64(x.a.buf[back+2000+8*i:]); v != want {
				x.failf("atomic %d gave %d, want %d", i, v, want)
			}
		}
	}
	return []*course{
		{
			name: "everything", s: setup{timeout: time.Second, retry: 7}, post: everything, check: checkEverything,
			limits: 200 * time.Millisecond,
		},
		{
			name: "everything, one read at a time, small window", post: everything, check: checkEverything,
			s:      setup{timeout: time.Second, retry: 7, depth: 1, destDepth: 1, window: 1100},
			limits: 200 * time.Millisecond,
		},
		{
			name: "everything, receiver not ready", check: checkEverything, limits: 200 * time.Millisecond,
			s: setup{timeout: time.Second, retry: 7, rnrTimer: 10 * time.Microsecond},
			post: func(x *script) {
				everything(x)
				x.b.q.rq.tail -= 3 // not yet posted
			},
			late: func(x *script) { x.b.q.rq.tail += 3 },
		},
		{
			name: "reads", limits: 200 * time.Millisecond,
			s: setup{timeout: time.Second, retry: 7, window: 4000, depth: 3, destDepth: 3},
			post: func(x *script) {
				pattern(x.b.buf[:20000], 3)
				for i := range uint64(4) {
					x.a.fill(&req{id: i, op: ib.OpRead, to: 5000 * i, sgl: src(x.a, int(30000+5000*i), int(3000-700*i))})
				}
				x.a.pump()
			},
			check: func(x *script) {
				for i := range 4 {
					x.a.wantDone(uint64(i), ib.StatusSuccess)
					x.a.wantBytes(30000+5000*i, x.b.buf[5000*i:][:3000-700*i])
				}
			},
		},
		{
			name: "both ways", limits: 200 * time.Millisecond,
			s: setup{timeout: time.Second, retry: 7, mtu: ib.MTU512},
			post: func(x *script) {
				for i, e := range []*end{x.a, x.b} {
					pattern(e.buf[:5000], uint64(10+i))
					e.recv(1, 10000, 5000)
					e.fill(&req{id: 1, op: ib.OpSend, sgl: src(e, 0, 3000)})
					e.fill(&req{id: 2, op: ib.OpRead, to: 0, sgl: src(e, 20000, 3000)})
					e.fill(&req{id: 3, op: ib.OpFetchAdd, to: 8000, swap: 1, sgl: src(e, 24000, 8)})
				}
				x.a.pump()
				x.b.pump()
			},
			check: func(x *script) {
				for _, e := range []*end{x.a, x.b} {
					for id := range uint64(3) {
						e.wantDone(id+1, ib.StatusSuccess)
					}
					e.wantRecv(1, ib.StatusSuccess, 3000)
					e.wantBytes(10000, e.peer.buf[:3000])
					e.wantBytes(20000, e.peer.buf[:3000])
					if v := binary.NativeEndian.Uint64(e.buf[8000:]); v != 1 {
						x.failf("%s: the word is %d", e.name, v)
					}
				}
			},
		},
	}
}

// stride leaves packets out where each step is slow: the race detector looks at memory,
// not at the protocol.
var stride = map[bool]int{false: 1, true: 5}[raceEnabled]

// C-113 to C-117, with ordinary numbers and across the wrap.
func TestNthPacket(t *testing.T) {
	t.Parallel()
	for _, c := range courses() {
		for _, first := range []ib.PSN{0x100, 0xFFFFF0} {
			t.Run(fmt.Sprintf("%s,%v", c.name, first), func(t *testing.T) {
				t.Parallel()
				na, nb := c.run(t, first, false, -1, 0, -1)
				if na < 5 || nb < 5 {
					t.Fatalf("%d and %d packets", na, nb)
				}
				for d := range disturbance(disturbances) {
					for n := 0; n < na; n += stride {
						if c.run(t, first, false, n, d, -1); t.Failed() {
							t.Fatalf("%v packet %d of a", d, n)
						}
					}
					for n := 0; n < nb; n += stride {
						if c.run(t, first, true, n, d, -1); t.Failed() {
							t.Fatalf("%v packet %d of b", d, n)
						}
					}
				}
			})
		}
	}
}

// Every pair of losses in one direction.
func TestTwoLosses(t *testing.T) {
	t.Parallel()
	for _, c := range courses() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			na, nb := c.run(t, 0xFFFFF8, false, -1, 0, -1)
			for i, count := range []int{na, nb} {
				for n := 0; n < count; n += stride {
					for m := n + 1; m < count+4; m += stride {
						if c.run(t, 0xFFFFF8, i == 1, n, lose, m); t.Failed() {
							t.Fatalf("lose packets %d and %d (of b: %v)", n, m, i == 1)
						}
					}
				}
			}
		})
	}
}
