package transport

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// C-116: whichever READ response is lost, the rest is asked for from the first missing
// byte on.
func TestReadResponseLost(t *testing.T) {
	t.Parallel()
	for lost := range 4 {
		x := newScript(t, nil)
		pattern(x.b.buf[:1000], 1)
		x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 1000)}})
		x.a.wantPacket(wire.RCReadRequest, 0, "ack")
		x.deliver()
		ops := []wire.Opcode{wire.RCReadRespFirst, wire.RCReadRespMiddle, wire.RCReadRespMiddle, wire.RCReadRespLast}
		for i, op := range ops {
			x.b.wantResponse(op, i, wire.AckNoLimit)
			if i == lost {
				x.drop()
				pattern(x.b.buf[:1000], 2) // the peer's memory changes
			} else {
				x.deliver()
			}
		}
		if lost == 3 {
			x.a.wantSilence() // nothing shows it but silence
			if d := x.a.advance(); d > firstProbe {
				t.Errorf("the probe comes after %v", d)
			}
		}
		p := x.a.wantPacket(wire.RCReadRequest, lost, "ack")
		if p.RETH.Addr != 0x10000+uint64(256*lost) || int(p.RETH.Len) != 1000-256*lost {
			t.Errorf("lost %d: asks for %+v", lost, p.RETH)
		}
		x.deliver()
		x.run()
		x.a.wantDone(1, ib.StatusSuccess)
		x.a.wantBytes(256*lost, x.b.buf[256*lost:1000])
		x.a.wantBytes(0, pattern(make([]byte, 1000), 1)[:256*lost])
	}
}

// A READ that is longer than the window is asked for in parts, whose numbers are those
// of the one READ, and one that is repeated stays inside its part.
func TestReadInParts(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{window: 8 * (256 + packetOverhead), depth: 2, destDepth: 2})
	want := pattern(x.b.buf[:256*10+1], 1)
	x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, len(want))}})
	for _, at := range []int{0, 4} {
		if p := x.a.wantPacket(wire.RCReadRequest, at, "ack"); p.RETH.Len != 4*256 || p.RETH.Addr != 0x10000+uint64(256*at) {
			t.Errorf("part at %d: %+v", at, p.RETH)
		}
		x.deliver()
	}
	x.a.wantSilence()
	for i := range 4 {
		x.b.wantResponse([]wire.Opcode{wire.RCReadRespFirst, wire.RCReadRespMiddle, wire.RCReadRespMiddle, wire.RCReadRespLast}[i], i, wire.AckNoLimit)
		x.deliver()
	}
	if p := x.a.wantPacket(wire.RCReadRequest, 8, "ack"); p.RETH.Len != 2*256+1 {
		t.Errorf("last part: %+v", p.RETH)
	}
	x.drop()
	x.b.wantResponse(wire.RCReadRespFirst, 4, wire.AckNoLimit)
	x.deliver()
	x.b.wantResponse(wire.RCReadRespMiddle, 5, wire.AckNoLimit)
	x.drop()
	x.b.wantResponse(wire.RCReadRespMiddle, 6, wire.AckNoLimit)
	x.deliver()
	if p := x.a.wantPacket(wire.RCReadRequest, 5, "ack"); p.RETH.Len != 3*256 {
		t.Errorf("repeated part: %+v", p.RETH)
	}
	x.deliver()
	x.settle()
	x.a.wantDone(1, ib.StatusSuccess)
	x.a.wantBytes(0, want)
}

// §9.7.5.1.3: an atomic is executed once, and its result is repeated while it is
// remembered. A READ is executed again, also in part, if it is the same.
func TestReplay(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{depth: 4, destDepth: 2})
	pattern(x.b.buf[1000:2000], 1)
	x.a.post(req{id: 1, op: ib.OpFetchAdd, swap: 5, sgl: []driver.SGE{x.a.sge(0, 8)}})
	x.a.wantPacket(wire.RCFetchAdd, 0, "ack")
	x.keep()
	add := x.kept[0]
	x.release()
	x.b.wantResponse(wire.RCAtomicAck, 0, wire.AckNoLimit)
	x.deliver()
	x.a.wantDone(1, ib.StatusSuccess)
	x.give(add)
	if p := x.b.wantResponse(wire.RCAtomicAck, 0, wire.AckNoLimit); p.AtomicAck != 0 || p.AETH.MSN != 1 {
		t.Errorf("replay: %d, MSN %d", p.AtomicAck, p.AETH.MSN)
	}
	x.drop()
	x.a.post(req{id: 2, op: ib.OpRead, to: 1000, sgl: []driver.SGE{x.a.sge(1000, 1000)}})
	x.a.wantPacket(wire.RCReadRequest, 1, "ack")
	x.deliver()
	x.run()
	x.a.wantDone(2, ib.StatusSuccess)

	ask := func(psn int, addr uint64, n uint32, key ib.RKey) {
		x.b.forge(wire.Packet{Opcode: wire.RCReadRequest, PSN: x.a.psn.Add(psn), RETH: wire.RETH{Addr: addr, Len: n, RKey: key}})
	}
	key := x.b.mr.RKey()
	drops := func() uint64 { return x.b.q.Stats().Drops[DropReplay] }
	ask(2, 0x10000+1256, 300, key) // a piece
	x.b.wantResponse(wire.RCReadRespFirst, 2, wire.AckNoLimit)
	x.drop()
	if p := x.b.wantResponse(wire.RCReadRespLast, 3, wire.AckNoLimit); string(p.Payload) != string(x.b.buf[1512:1556]) {
		t.Error("a repeated READ gives wrong bytes")
	}
	x.drop()
	was := drops()
	ask(2, 0x10000+1257, 300, key)   // other address
	ask(2, 0x10000+1256, 745, key)   // longer than the original
	ask(2, 0x10000+1256, 300, key+1) // other key
	ask(0, 0x10000, 8, key)          // that was an atomic
	x.b.forge(wire.Packet{Opcode: wire.RCFetchAdd, PSN: x.a.psn.Add(1), Atomic: wire.AtomicETH{Addr: 0x10000, RKey: key, Swap: 1}})
	x.b.forge(wire.Packet{Opcode: wire.RCFetchAdd, PSN: x.a.psn.Add(-1), Atomic: wire.AtomicETH{Addr: 0x10000, RKey: key, Swap: 1}})
	if n := drops() - was; n != 6 {
		t.Errorf("%d of 6 were dropped", n)
	}
	x.a.post(req{id: 3, op: ib.OpRead, to: 0, sgl: []driver.SGE{x.a.sge(0, 8)}})
	x.run()
	x.a.wantDone(3, ib.StatusSuccess)
	x.give(add) // forgotten now: there are two resources
	x.b.wantSilence()
	if v := binary.NativeEndian.Uint64(x.b.buf); v != 5 {
		t.Errorf("the word is %d", v)
	}
	x.b.wantState(ib.StateRTS)
}

// The responses to READs keep the order of the requests, an acknowledgement of what came
// after comes after them, and a repeated request goes to its place.
func TestResponseOrder(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	for _, r := range []req{
		{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 300)}},
		{id: 2, op: ib.OpFetchAdd, swap: 1, sgl: []driver.SGE{x.a.sge(0, 8)}},
		{id: 3, op: ib.OpWrite, data: "x", to: 100},
		{id: 4, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8)}},
		{id: 5, op: ib.OpWrite, data: "x", to: 100},
	} {
		x.a.fill(&r)
	}
	x.a.pump()
	first := x.a.flights[0]
	for _, f := range x.a.flights {
		x.b.q.Receive(x.now, f.packet())
	}
	x.a.flights = nil
	x.b.q.Receive(x.now, first.packet()) // again, while all of it is still to be sent
	x.b.pump()
	x.b.wantResponse(wire.RCReadRespFirst, 0, wire.AckNoLimit)
	x.drop()
	x.b.wantResponse(wire.RCReadRespLast, 1, wire.AckNoLimit)
	x.drop()
	x.b.wantResponse(wire.RCAtomicAck, 2, wire.AckNoLimit)
	x.drop()
	x.b.wantResponse(wire.RCReadRespOnly, 4, wire.AckNoLimit)
	x.drop()
	x.b.wantAck(5, wire.AckNoLimit)
	x.drop()
	x.settle()
	for id := range uint64(5) {
		x.a.wantDone(id+1, ib.StatusSuccess)
	}
}

// A long READ response is cut by pauses, after which it goes on.
func TestReadPauses(t *testing.T) {
	t.Parallel()
	const n = 1 << 20
	x := newScript(t, &setup{bufSize: n, mtu: ib.MTU4096})
	x.quiet = true
	x.b.forge(wire.Packet{Opcode: wire.RCReadRequest, PSN: x.a.psn, AckReq: true, RETH: wire.RETH{Addr: 0x10000, Len: n, RKey: x.b.mr.RKey()}})
	got := 0
	for pauses := 0; ; pauses++ {
		sum := 0
		for _, f := range x.b.flights {
			sum += len(f.packet().Payload)
		}
		x.b.flights = nil
		if sum > maxBurst+4096 {
			t.Errorf("%d bytes without a pause", sum)
		}
		if got += sum; got == n {
			if pauses < 2 {
				t.Errorf("%d pauses", pauses)
			}
			break
		}
		if d := x.b.advance(); d != burstPause {
			t.Errorf("a pause of %v", d)
		}
	}
	if _, ok := x.b.q.Deadline(); ok {
		t.Error("a timer runs at the end")
	}
}

// Two repeated requests for parts of one READ that overlap, before either is answered:
// all that was asked for is sent once, in order.
func TestReplayOverlap(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 1200)}})
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)
	for _, c := range []struct{ first, second [2]int }{
		{[2]int{0, 2}, [2]int{1, 4}}, {[2]int{1, 4}, [2]int{0, 2}}, {[2]int{0, 1}, [2]int{3, 4}}, {[2]int{0, 4}, [2]int{1, 3}},
	} {
		for _, r := range [][2]int{c.first, c.second} {
			x.b.q.Receive(x.now, &wire.Packet{Opcode: wire.RCReadRequest, PSN: x.a.psn.Add(r[0]),
				RETH: wire.RETH{Addr: 0x10000 + 256*uint64(r[0]), Len: 256 * uint32(r[1]-r[0]), RKey: x.b.mr.RKey()}})
		}
		x.b.pump()
		for i := range 4 {
			op := wire.RCReadRespMiddle
			switch i {
			case 0:
				op = wire.RCReadRespFirst
			case 3:
				op = wire.RCReadRespLast
			}
			x.b.wantResponse(op, i, wire.AckNoLimit)
			x.drop()
		}
		x.b.wantSilence()
	}
}

// A READ that is asked for again while the response to a later one waits goes first.
func TestReplayBefore(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8)}})
	x.a.wantPacket(wire.RCReadRequest, 0, "ack")
	first := x.held
	x.deliver()
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)
	x.a.post(req{id: 2, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8)}})
	x.a.wantPacket(wire.RCReadRequest, 1, "ack")
	x.b.q.Receive(x.now, x.held.packet())
	x.held = nil
	x.give(first)
	x.b.wantResponse(wire.RCReadRespOnly, 0, wire.AckNoLimit)
	x.deliver()
	x.b.wantResponse(wire.RCReadRespOnly, 1, wire.AckNoLimit)
	x.deliver()
	x.a.wantDone(2, ib.StatusSuccess)
}

// However the window changes while a long READ is under way, what is asked for again
// stays inside of the part that was asked for first, and begins and ends in it.
func TestReadParts(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		q := newScript(t, &setup{depth: 4}).a.q
		w := &wqe{first: 1 << 33, n: 1 + uint32(r.IntN(200))}
		n := q.cc.readPackets(q.mtu, 4)
		w.parts = [2]parts{{0, n}, {0, n}}
		q.req.una, q.req.max = w.first, w.first
		var ends []seq // of the parts asked for, by their packets
		for q.req.una != w.end() {
			q.cc.window = uint64(1 + r.IntN(40)*512)
			s := q.req.max
			if len(ends) > 0 && (s == w.end() || r.IntN(2) == 0) {
				s = q.req.una + seq(r.IntN(int(q.req.max-q.req.una)+1))
			}
			if s == w.end() {
				q.req.una++
				continue
			}
			end := s + seq(q.readPart(w, s))
			switch {
			case end <= s || end > w.end():
				t.Fatalf("seed %d: part from %d to %d of %d", seed, s-w.first, end-w.first, w.n)
			case s == q.req.max:
				for q.req.max < end {
					ends = append(ends, end)
					q.req.max++
				}
			case end != ends[s-w.first]:
				t.Fatalf("seed %d: part from %d to %d, was asked for up to %d", seed, s-w.first, end-w.first, ends[s-w.first]-w.first)
			}
			q.req.una = min(q.req.max, q.req.una+seq(r.IntN(4)))
		}
	}
}
