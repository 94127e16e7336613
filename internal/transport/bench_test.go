package transport

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// loop is two queue pairs without a network and without notes, for measurements.
type loop struct {
	x       *script
	p       wire.Packet
	out     Output
	packets int
	done    int
}

func newLoop(tb testing.TB, s *setup) *loop {
	l := &loop{x: newScript(tb, s)}
	l.out = Output{Buf: make([]byte, 0, 64<<10), Ends: make([]int, 0, 1024), Max: 64 << 10}
	return l
}

// pass gives everything that e has to send to its peer.
func (l *loop) pass(e *end) (n int) {
	for more := true; more; {
		l.out.Buf, l.out.Ends = l.out.Buf[:0], l.out.Ends[:0]
		more = e.q.Transmit(l.x.now, &l.out)
		start := 0
		for _, end := range l.out.Ends {
			if err := l.p.Decode(l.out.Buf[start : end-wire.ICRCLen]); err != nil {
				l.x.Fatal(err)
			}
			start = end
			e.peer.q.Receive(l.x.now, &l.p)
			n++
		}
	}
	for _, c := range e.q.Completions() {
		if c.Status != ib.StatusSuccess {
			l.x.Fatalf("%s", doneString(c))
		}
		l.done++
	}
	l.packets += n
	return n
}

func (l *loop) drain() {
	for l.pass(l.x.a)+l.pass(l.x.b) != 0 {
	}
}

func (l *loop) post(op ib.Opcode, n int, f ib.SendFlags) {
	e := l.x.a
	s := &e.q.SendSlots()[0]
	s.ID, s.Opcode, s.Flags = 1, op, f
	s.Addr, s.RKey = 0x10000, e.peer.mr.RKey()
	if f&ib.Inline != 0 {
		s.Data = append(s.Data, e.buf[:n]...)
	} else {
		s.SGL = append(s.SGL, e.sge(0, n))
	}
	e.q.CommitSend(1)
}

func (l *loop) postRecv(n int) {
	e := l.x.b
	s := &e.q.RecvSlots()[0]
	s.ID = 1
	s.SGL = append(s.SGL, e.sge(0, n))
	e.q.CommitRecv(1)
}

func (l *loop) send(n int, f ib.SendFlags) {
	l.postRecv(n)
	l.post(ib.OpSend, n, f)
	l.drain()
}

// Nothing is allocated once a queue pair works, whatever it does (fixed rule of the
// project: 0, errors and misses included).
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		name string
		step func(l *loop)
	}{
		{"send 64", func(l *loop) { l.send(64, ib.Signaled) }},
		{"send inline", func(l *loop) { l.send(64, ib.Signaled|ib.Inline) }},
		{"send unsignaled", func(l *loop) { l.send(64, 0) }},
		{"send long", func(l *loop) { l.send(20000, ib.Signaled) }},
		{"write", func(l *loop) { l.post(ib.OpWrite, 60000, ib.Signaled); l.drain() }},
		{"write immediate", func(l *loop) { l.postRecv(0); l.post(ib.OpWriteImm, 3000, ib.Signaled); l.drain() }},
		{"read", func(l *loop) { l.post(ib.OpRead, 60000, ib.Signaled); l.drain() }},
		{"atomics", func(l *loop) {
			l.post(ib.OpFetchAdd, 8, ib.Signaled)
			l.post(ib.OpCompareSwap, 8, ib.Signaled)
			l.drain()
		}},
		{"receiver not ready", func(l *loop) {
			l.post(ib.OpSend, 64, ib.Signaled)
			l.drain()
			d, ok := l.x.a.q.Deadline()
			if !ok {
				l.x.Fatal("no RNR wait")
			}
			l.x.now = d
			l.x.a.q.Advance(d)
			l.postRecv(64)
			l.drain()
		}},
		{"loss", func(l *loop) {
			// The first packets are lost; the last shows the gap.
			l.postRecv(20000)
			l.post(ib.OpSend, 20000, ib.Signaled)
			l.out.Buf, l.out.Ends = l.out.Buf[:0], l.out.Ends[:0]
			l.x.a.q.Transmit(l.x.now, &l.out)
			last := l.out.Ends[len(l.out.Ends)-2]
			if l.p.Decode(l.out.Buf[last:len(l.out.Buf)-wire.ICRCLen]) != nil {
				l.x.Fatal("malformed")
			}
			l.x.b.q.Receive(l.x.now, &l.p)
			l.drain()
		}},
		{"timers", func(l *loop) {
			l.postRecv(64)
			l.post(ib.OpSend, 64, ib.Signaled)
			l.out.Buf, l.out.Ends = l.out.Buf[:0], l.out.Ends[:0]
			l.x.a.q.Transmit(l.x.now, &l.out) // lost
			d, _ := l.x.a.q.Deadline()
			l.x.now = d
			l.x.a.q.Advance(d)
			l.drain()
		}},
		{"error and back", func(l *loop) {
			l.postRecv(64)
			l.x.a.q.CommitSend(0)
			for _, e := range []*end{l.x.a, l.x.b} {
				e.q.enterError()
				e.q.Completions()
				e.q.Events()
			}
			l.postRecv(64) // flushed
			l.x.b.q.Completions()
			l.x.a.q.Receive(l.x.now, &l.p) // dropped
			for _, e := range []*end{l.x.a, l.x.b} {
				keep := e.q.attr
				e.q.enterReset()
				e.q.attr = keep
				e.q.enterRTR()
				e.q.enterRTS()
			}
		}},
		{"strangers", func(l *loop) {
			for _, psn := range []ib.PSN{0, 0x900000, l.x.a.psn + 1000} {
				for op := range 256 {
					l.p = wire.Packet{Opcode: wire.Opcode(op), PSN: psn}
					l.x.b.q.Receive(l.x.now, &l.p)
				}
			}
			l.drain()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLoop(t, &setup{mtu: ib.MTU1024})
			for range 50 {
				c.step(l)
			}
			if n := testing.AllocsPerRun(200, func() { c.step(l) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// A queue pair with 128-deep queues and one SGE takes at most 48 KiB.
func TestFootprint(t *testing.T) {
	caps := driver.Caps{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1}
	table := mem.NewTable(func() uint32 { return 1 })
	const n = 64
	qs := make([]*QP, n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range qs {
		q, err := New(Config{QPN: 1, Type: ib.RC, Caps: caps, Domain: 1, Memory: table})
		if err != nil {
			t.Fatal(err)
		}
		q.req.reserve(16)
		q.resp.replay.resize(16)
		qs[i] = q
	}
	runtime.ReadMemStats(&after)
	got := (after.TotalAlloc - before.TotalAlloc) / n
	t.Logf("%d bytes in %d allocations, QP itself %d", got, (after.Mallocs-before.Mallocs)/n, unsafe.Sizeof(QP{}))
	if got > 48<<10 {
		t.Errorf("a queue pair takes %d bytes, more than 48 KiB", got)
	}
	runtime.KeepAlive(qs)
}

// Two engines in one goroutine, with encoding and decoding but without ICRC: what the
// protocol costs.
func BenchmarkEngine(b *testing.B) {
	for _, c := range []struct {
		name string
		mtu  ib.MTU
		op   ib.Opcode
		n    int
		at   int // posted before anything is sent
	}{
		{"send64", ib.MTU4096, ib.OpSend, 64, 1},
		{"send64x16", ib.MTU4096, ib.OpSend, 64, 16},
		{"write1M", ib.MTU4096, ib.OpWrite, 1 << 20, 1},
		{"write1M-mtu1024", ib.MTU1024, ib.OpWrite, 1 << 20, 1},
		{"read1M", ib.MTU4096, ib.OpRead, 1 << 20, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLoop(b, &setup{mtu: c.mtu, bufSize: 1 << 20, window: 1 << 20})
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += c.at {
				for range c.at {
					if c.op == ib.OpSend {
						l.postRecv(c.n)
					}
					l.post(c.op, c.n, ib.Signaled)
				}
				l.drain()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(l.packets), "ns/packet")
		})
	}
}
