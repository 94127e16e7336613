package stream

import (
	"testing"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
)

// benchPair is two engines over the shortest of channels: no bytes are moved.
type benchPair struct {
	e  [2]*Engine
	op Op
	r  Recv
	// messages on their way, and completions that were asked for
	wire [2][]wireWord
	acks [2]uint64
	msgs int
}

type wireWord struct {
	opcode ib.Opcode
	imm    uint32
	n      uint32
	data   [MaxData]byte
	datan  int
}

func newBenchPair(tb testing.TB, m Mode, size, count int) (*benchPair, [2]*side) {
	c := defaultPair(m)
	c.recvSize, c.recvCount = [2]int{size, size}, [2]int{count, count}
	a, b, _ := newPair(tb, c, 1)
	settle(a, b)
	p := &benchPair{e: [2]*Engine{a.e, b.e}}
	for i := range p.wire {
		p.wire[i] = make([]wireWord, 0, 64)
	}
	return p, [2]*side{a, b}
}

// pump posts everything that the engines want, and delivers it.
func (p *benchPair) pump(ss [2]*side) {
	for {
		did := false
		for i, e := range p.e {
			for e.NextRecv(&p.r) {
				did = true
			}
			for e.Next(0, &p.op) {
				w := wireWord{opcode: p.op.Opcode, imm: p.op.Imm, n: uint32(p.op.Len()), data: p.op.Data, datan: p.op.DataN}
				if e.c != nil && p.op.DataN > 0 {
					copy(ss[1-i].table[p.op.Remote-ss[1-i].hello.SGLAddr:], p.op.Data[:p.op.DataN])
				}
				p.wire[i] = append(p.wire[i], w)
				if p.op.Signaled {
					p.acks[i] = p.op.ID
				}
				did = true
			}
		}
		for i := range p.wire {
			to := p.e[1-i]
			for j := range p.wire[i] {
				w := &p.wire[i][j]
				p.msgs++
				op := ib.WCRecvWriteImm
				if w.opcode == ib.OpSendImm {
					op = ib.WCRecv
				}
				to.Received(0, Arrival{Opcode: op, HasImm: true, Imm: w.imm, Len: w.n})
			}
			p.wire[i] = p.wire[i][:0]
			if p.acks[i] != 0 {
				p.e[i].Sent(0, p.acks[i])
				p.acks[i] = 0
			}
		}
		for _, e := range p.e {
			e.Events()
		}
		if !did {
			return
		}
	}
}

// move writes n bytes at one side and reads them at the other.
func (p *benchPair) move(ss [2]*side, from, n int) {
	for n > 0 {
		l, _ := p.e[from].Room()
		k := min(n, int(l.Len))
		p.e[from].Commit(k)
		n -= k
		p.pump(ss)
		for {
			l, _ := p.e[1-from].Peek()
			if l.Len == 0 {
				break
			}
			p.e[1-from].Consume(int(l.Len))
			p.pump(ss)
		}
	}
}

func benchmark(b *testing.B, m Mode, size, count, n int, back bool) {
	p, ss := newBenchPair(b, m, size, count)
	b.ReportAllocs()
	p.msgs = 0
	for b.Loop() {
		p.move(ss, 0, n)
		if back {
			p.move(ss, 1, n)
		}
	}
	b.ReportMetric(float64(p.msgs)/float64(b.N), "msgs/op")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(p.msgs), "ns/msg")
}

// What the machines of both sides cost, without device and copies.
func BenchmarkPingPong64Verbena(b *testing.B)    { benchmark(b, Verbena, 512, 12, 64, true) }
func BenchmarkPingPong64Compatible(b *testing.B) { benchmark(b, Compatible, 4096, 4, 64, true) }
func BenchmarkOneWay64Verbena(b *testing.B)      { benchmark(b, Verbena, 512, 12, 64, false) }
func BenchmarkOneWay64Compatible(b *testing.B)   { benchmark(b, Compatible, 4096, 4, 64, false) }
func BenchmarkWrite64KVerbena(b *testing.B)      { benchmark(b, Verbena, 64<<10, 16, 64<<10, false) }
func BenchmarkWrite64KCompatible(b *testing.B)   { benchmark(b, Compatible, 64<<10, 4, 64<<10, false) }

// TestC279_Allocations: reading, writing, completions and time allocate nothing.
func TestC279_Allocations(t *testing.T) {
	for _, m := range []Mode{Compatible, Verbena} {
		for _, n := range []int{1, 1000, 100_000} {
			p, ss := newBenchPair(t, m, 512, 12)
			if got := testing.AllocsPerRun(200, func() {
				p.move(ss, 0, n)
				p.move(ss, 1, n)
				p.e[0].Advance(0)
				p.e[0].Deadline()
			}); got != 0 {
				t.Errorf("%v, %d bytes: %v allocations", m, n, got)
			}
		}
	}
}

// TestIdleSize: what an idle engine of the default sizes takes of the Go heap.
func TestIdleSize(t *testing.T) {
	for _, m := range []Mode{Compatible, Verbena} {
		a, _, _ := newPair(t, defaultPair(m), 1)
		e := a.e
		n := int(unsafe.Sizeof(*e)) + len(e.out.slots)*int(unsafe.Sizeof(slot{})) + len(e.in.spans)*int(unsafe.Sizeof(span{})) +
			cap(e.in.regions)*int(unsafe.Sizeof(recvRegion{})) + 2*cap(e.in.regions[0].free)
		if e.v != nil {
			n += int(unsafe.Sizeof(*e.v)) + len(e.v.fifo)*int(unsafe.Sizeof(buffer{}))
		} else {
			n += int(unsafe.Sizeof(*e.c)) + len(e.c.told)*int(unsafe.Sizeof(buffer{})) + len(e.c.entries)*int(unsafe.Sizeof(sglEntry{}))
		}
		t.Logf("%v: %d bytes", m, n)
		if n > 3<<10 {
			t.Errorf("%v: %d bytes", m, n)
		}
	}
}
