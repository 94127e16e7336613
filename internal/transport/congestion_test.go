package transport

import (
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// What is in flight never exceeds the window that the owner gives, and one packet always
// may be.
func TestWindow(t *testing.T) {
	t.Parallel()
	for _, window := range []int{-1, 1, 1000, 5000, 64 << 10, 1 << 20} {
		for _, op := range []ib.Opcode{ib.OpWrite, ib.OpRead} {
			x := newScript(t, &setup{bufSize: 1 << 20, mtu: ib.MTU1024, depth: 16, destDepth: 16})
			x.quiet = true
			x.a.q.SetWindow(window)
			for i := range uint64(4) {
				x.a.fill(&req{id: i, op: op, sgl: []driver.SGE{x.a.sge(0, 200000)}})
			}
			x.a.pump()
			most := 0
			for len(x.a.flights)+len(x.b.flights) != 0 {
				cost := 0
				for _, f := range x.a.flights {
					p := f.packet()
					n := len(p.Payload)
					if op == ib.OpRead {
						n = int(p.RETH.Len)
					}
					cost += n + packetOverhead*max(1, (n+1023)/1024)
				}
				most = max(most, cost)
				if limit := max(window, 1024+packetOverhead); cost > limit {
					t.Fatalf("window %d, %v: %d bytes in flight", window, op, cost)
				}
				if n := len(x.a.flights); op == ib.OpWrite && n > max(64, window>>10) {
					t.Fatalf("window %d: %d packets in flight", window, n)
				}
				x.deliverAll()
			}
			for i := range uint64(4) {
				x.a.wantDone(i, ib.StatusSuccess)
			}
			if most < min(window, defaultWindow)/2 {
				t.Errorf("window %d, %v: only %d bytes were in flight", window, op, most)
			}
			if c := x.a.q.req.inflight; c != 0 {
				t.Errorf("%d bytes in flight at the end", c)
			}
		}
	}
}

// deliverAll gives what is on its way now to both sides, and time passes.
func (x *script) deliverAll() {
	fa, fb := x.a.flights, x.b.flights
	x.a.flights, x.b.flights = nil, nil
	x.after(10 * time.Microsecond)
	for _, f := range append(fa, fb...) {
		f.from.peer.q.Receive(x.now, f.packet())
	}
	x.a.pump()
	x.b.pump()
}

// Annex A17.9.3: a marked packet is answered with a CNP, not more than one for each
// interval; the sender cuts its window, at most once a round trip, down to two packets,
// and grows again afterwards. C-334: a flood does no more than that.
func TestC334_CongestionNotification(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{bufSize: 1 << 20})
	x.quiet = true
	for range 100 {
		x.b.q.Congested(x.now)
		x.b.pump()
		x.after(time.Microsecond)
	}
	if n := len(x.b.flights); n != 2 {
		t.Errorf("%d CNPs in 100 µs, want 2", n)
	}
	f := x.b.flights[0]
	x.b.flights = nil
	if p := f.packet(); p.Opcode != wire.CNP || !p.BECN || p.PSN != 0 || p.DestQP != x.a.q.cfg.QPN || p.AckReq || len(f.b) != 28 {
		t.Errorf("%+v", p)
	}
	was := x.a.q.cc.window
	x.give(f)
	if w := x.a.q.cc.window; w != was/2 {
		t.Errorf("the first CNP leaves %d of %d", w, was)
	}
	for range 1000 {
		x.a.q.Receive(x.now, f.packet())
	}
	if w := x.a.q.cc.window; w != was/2 {
		t.Errorf("a thousand CNPs at once leave %d of %d", w, was)
	}
	for range 10000 {
		x.after(60 * time.Microsecond)
		x.a.q.Receive(x.now, f.packet())
	}
	floor := 2 * uint64(256+packetOverhead)
	if w := x.a.q.cc.window; w != floor {
		t.Errorf("the floor is %d, want %d", w, floor)
	}
	for i := range 400 {
		x.a.post(req{id: uint64(i), op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 100000)}})
		for len(x.a.flights)+len(x.b.flights) != 0 {
			x.deliverAll()
		}
		x.a.wantDone(uint64(i), ib.StatusSuccess)
		if x.a.q.cc.window == x.a.q.cc.peer {
			break
		}
	}
	if w := x.a.q.cc.window; w != x.a.q.cc.peer {
		t.Errorf("after the flood the window grows to %d of %d", w, x.a.q.cc.peer)
	}
	// After a long quiet time one CNP is taken lightly.
	x.after(10 * time.Millisecond)
	was = x.a.q.cc.window
	x.a.q.Receive(x.now, f.packet())
	if w := x.a.q.cc.window; w < was*9/10 || w >= was {
		t.Errorf("a single CNP leaves %d of %d", w, was)
	}
	if s := x.a.q.Stats(); s.CNPsReceived != 11002 {
		t.Errorf("%+v", s)
	}
}

// A loss halves the window once, whatever was lost of what is in flight, and the window
// grows again.
func TestLossHalves(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{bufSize: 1 << 20})
	x.quiet = true
	x.a.post(req{id: 1, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 256*60)}})
	was := x.a.q.cc.window
	for i, f := range x.a.flights {
		if i != 5 && i != 20 {
			x.b.q.Receive(x.now, f.packet())
		}
	}
	x.a.flights = nil
	x.b.pump()
	x.run()
	x.settle()
	x.a.wantDone(1, ib.StatusSuccess)
	if w := x.a.q.cc.slow; w != was/2 {
		t.Errorf("two losses lead to %d of %d", w, was)
	}
	if s := x.a.q.Stats(); s.WindowCuts != 1 {
		t.Errorf("%+v", s)
	}
}

// Karn's rule: a round trip is measured with packets that were sent once.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	write := func(id uint64) { x.a.post(req{id: id, op: ib.OpWrite, data: "x"}) }
	write(1)
	write(2)
	x.a.wantPacket(wire.RCWriteOnly, 0, "ack")
	x.drop()
	x.a.wantPacket(wire.RCWriteOnly, 1, "ack")
	x.after(time.Millisecond)
	x.deliver()
	x.b.wantAck(0, wire.NAKSequence)
	x.after(time.Millisecond)
	x.deliver()
	x.after(time.Millisecond)
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)
	x.a.wantDone(2, ib.StatusSuccess)
	if d := x.a.q.retry.srtt; d != 0 {
		t.Errorf("a packet that was sent twice gives a round trip of %v", d)
	}
	write(3)
	x.a.next()
	x.drop()
	x.a.advance() // a probe
	x.run()
	x.a.wantDone(3, ib.StatusSuccess)
	if d := x.a.q.retry.srtt; d != 0 {
		t.Errorf("a probe gives a round trip of %v", d)
	}
	for id := range uint64(50) {
		write(id)
		x.a.next()
		x.deliver()
		x.after(30 * time.Microsecond)
		x.run()
		x.a.wantDone(id, ib.StatusSuccess)
	}
	if d := x.a.q.retry.srtt; d != 30*time.Microsecond {
		t.Errorf("round trips of 30µs give %v", d)
	}
	if d, ok := x.a.q.Deadline(); ok {
		t.Errorf("a timer runs at %v", d)
	}
}
