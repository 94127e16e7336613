package transport

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// C-321: violations of the protocol. The responder answers NAK invalid request, stops,
// and has not written outside of what was allowed.
func TestSequenceViolations(t *testing.T) {
	t.Parallel()
	full, some := make([]byte, 256), make([]byte, 10)
	type step struct {
		op  wire.Opcode
		p   []byte
		len uint32 // of the RETH
	}
	for name, steps := range map[string][]step{
		"send middle alone":          {{wire.RCSendMiddle, full, 0}},
		"send last alone":            {{wire.RCSendLast, some, 0}},
		"write middle alone":         {{wire.RCWriteMiddle, full, 0}},
		"write last alone":           {{wire.RCWriteLast, some, 0}},
		"send first in first":        {{wire.RCSendFirst, full, 0}, {wire.RCSendFirst, full, 0}},
		"send only in first":         {{wire.RCSendFirst, full, 0}, {wire.RCSendOnly, some, 0}},
		"write in send":              {{wire.RCSendFirst, full, 0}, {wire.RCWriteMiddle, full, 0}},
		"write only in send":         {{wire.RCSendFirst, full, 0}, {wire.RCWriteOnly, some, 10}},
		"read in send":               {{wire.RCSendFirst, full, 0}, {wire.RCReadRequest, nil, 10}},
		"atomic in send":             {{wire.RCSendFirst, full, 0}, {wire.RCFetchAdd, nil, 0}},
		"send in write":              {{wire.RCWriteFirst, full, 1000}, {wire.RCSendLast, some, 0}},
		"read in write":              {{wire.RCWriteFirst, full, 1000}, {wire.RCReadRequest, nil, 10}},
		"write first in write":       {{wire.RCWriteFirst, full, 1000}, {wire.RCWriteFirst, full, 1000}},
		"send first too short":       {{wire.RCSendFirst, some, 0}},
		"send first too long":        {{wire.RCSendFirst, make([]byte, 257), 0}},
		"send first empty":           {{wire.RCSendFirst, nil, 0}},
		"send middle too short":      {{wire.RCSendFirst, full, 0}, {wire.RCSendMiddle, some, 0}},
		"send last empty":            {{wire.RCSendFirst, full, 0}, {wire.RCSendLast, nil, 0}},
		"send last too long":         {{wire.RCSendFirst, full, 0}, {wire.RCSendLast, make([]byte, 4096), 0}},
		"send only too long":         {{wire.RCSendOnly, make([]byte, 257), 0}},
		"write first too short":      {{wire.RCWriteFirst, some, 1000}},
		"write announces less":       {{wire.RCWriteFirst, full, 300}, {wire.RCWriteMiddle, full, 0}},
		"write announces what came":  {{wire.RCWriteFirst, full, 256}},
		"write announces more":       {{wire.RCWriteFirst, full, 1000}, {wire.RCWriteLast, some, 0}},
		"write last too long":        {{wire.RCWriteFirst, full, 300}, {wire.RCWriteLast, make([]byte, 45), 0}},
		"write only announces more":  {{wire.RCWriteOnly, some, 11}},
		"write only announces less":  {{wire.RCWriteOnly, some, 9}},
		"write only announces none":  {{wire.RCWriteOnly, some, 0}},
		"write of 2^31 + 1":          {{wire.RCWriteFirst, full, 1<<31 + 1}},
		"write of 2^32 - 1":          {{wire.RCWriteFirst, full, 1<<32 - 1}},
		"read of 2^31 + 1":           {{wire.RCReadRequest, nil, 1<<31 + 1}},
		"read of 2^32 - 1":           {{wire.RCReadRequest, nil, 1<<32 - 1}},
		"read with payload":          {{wire.RCReadRequest, some, 10}},
		"flush":                      {{wire.RCFlush, nil, 10}},
		"atomic write":               {{wire.RCAtomicWrite, make([]byte, 8), 8}},
		"write middle after the end": {{wire.RCWriteOnly, some, 10}, {wire.RCWriteMiddle, full, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScript(t, nil)
			x.b.recv(1, 1000, 5000)
			before := len(x.b.done)
			for i, s := range steps {
				for j := range s.p {
					s.p[j] = 0xee
				}
				p := wire.Packet{Opcode: s.op, PSN: x.a.psn.Add(i), Payload: s.p}
				p.RETH = wire.RETH{Addr: 0x10000 + 10000, RKey: x.b.mr.RKey(), Len: s.len}
				p.Atomic = wire.AtomicETH{Addr: 0x10000, RKey: x.b.mr.RKey(), Swap: 1}
				x.b.forge(p)
			}
			last := x.b.flights[len(x.b.flights)-1].packet()
			if last.Opcode != wire.RCAcknowledge || last.AETH.Syndrome != wire.NAKInvalid || last.PSN != x.a.psn.Add(len(steps)-1) {
				t.Errorf("answer %s", x.b.flights[len(x.b.flights)-1])
			}
			x.b.flights = nil
			x.b.wantBroken()
			if n := len(x.b.done) - before; n != 1 {
				t.Errorf("%d completions, want one", n)
			}
			for _, c := range x.b.done {
				if c.Status == ib.StatusSuccess {
					t.Errorf("%s", doneString(c))
				}
			}
			if len(x.b.events) > 0 {
				x.b.wantEvent(ib.EventQPReqErr)
			}
			x.b.done = nil
			x.b.wantBytes(0, make([]byte, 1000))
			x.b.wantBytes(6000, make([]byte, 4000))
			x.b.wantBytes(10256, make([]byte, 20000))
			x.b.forge(wire.Packet{Opcode: wire.RCWriteOnly, PSN: x.a.psn.Add(len(steps))}) // C-138
			x.b.wantSilence()
		})
	}
}

// C-139, C-320: an acknowledgement of what was never sent, a NAK from outside of the
// window, and responses from nowhere complete nothing and break nothing.
func TestForgedResponses(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{window: 4 * (256 + packetOverhead)})
	x.a.post(req{id: 1, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 256*20)}}, req{id: 2, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8)}})
	x.a.flights = nil
	r := rand.New(rand.NewPCG(1, 2))
	tried := 0
	for range 1 << 16 {
		psn := ib.PSN(r.Uint32()) & ib.PSNMask
		if psn.In(x.a.psn, 4) {
			continue // these were sent: whoever knows them is the peer
		}
		tried++
		op := []wire.Opcode{wire.RCAcknowledge, wire.RCReadRespOnly, wire.RCReadRespMiddle, wire.RCAtomicAck}[r.IntN(4)]
		x.a.q.Receive(x.now, &wire.Packet{Opcode: op, PSN: psn, AETH: wire.AETH{Syndrome: wire.Syndrome(r.Uint32())}, Payload: x.b.buf[:8]})
	}
	x.a.pump()
	x.a.wantSilence()
	x.a.wantState(ib.StateRTS)
	s := x.a.q.Stats()
	if n := s.Drops[DropUnsent] + s.Drops[DropOld] + s.Drops[DropSyndrome]; n != uint64(tried) {
		t.Errorf("%d of %d were counted: %+v", n, tried, s)
	}
	if s.Drops[DropUnsent] == 0 || s.Drops[DropOld] == 0 {
		t.Errorf("%+v", s)
	}
	x.settle()
	x.a.wantDone(1, ib.StatusSuccess)
	x.a.wantDone(2, ib.StatusSuccess)
}

// C-320: requests with random numbers. Those after a gap are reported once; copies of
// old ones cost one acknowledgement for each time the owner sends. None is executed.
func TestForgedRequests(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.b.recv(1, 0, 5000)
	r := rand.New(rand.NewPCG(3, 4))
	for range 1 << 16 {
		psn := ib.PSN(r.Uint32()) & ib.PSNMask
		if psn == x.a.psn {
			continue
		}
		p := wire.Packet{Opcode: wire.Opcode(r.IntN(0x20)), PSN: psn, AckReq: r.IntN(2) == 0, Payload: x.a.buf[:r.IntN(300)]}
		p.RETH = wire.RETH{Addr: 0x10000, RKey: x.b.mr.RKey(), Len: 10}
		p.Atomic = wire.AtomicETH{Addr: 0x10000, RKey: x.b.mr.RKey(), Swap: 1}
		x.b.q.Receive(x.now, &p)
	}
	x.b.pump()
	if n := len(x.b.flights); n != 1 {
		t.Errorf("%d answers", n)
	}
	x.b.flights = nil
	x.b.wantBytes(0, make([]byte, 5000))
	if s := x.b.q.Stats(); s.NAKsSent > 1 {
		t.Errorf("%+v", s)
	}
	x.a.send(1, "still works")
	x.settle()
	x.a.wantDone(1, ib.StatusSuccess)
	x.b.wantRecv(1, ib.StatusSuccess, 11)
}

// C-320: floods of NAKs with the right number. Each oldest packet is sent again once, so
// that the cost is bounded, and nothing fails.
func TestNAKFlood(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.quiet = true
	x.a.post(req{id: 1, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 256*10)}})
	for _, f := range x.a.flights[:2] {
		x.b.q.Receive(x.now, f.packet())
	}
	x.a.flights = nil
	for range 10000 {
		x.a.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: x.a.psn.Add(2), AETH: wire.AETH{Syndrome: wire.NAKSequence}})
	}
	if n := len(x.a.flights); n != 8 {
		t.Errorf("%d packets, want 8", n)
	}
	x.a.wantState(ib.StateRTS)
	x.a.flights = nil
	x.after(time.Microsecond)
	for range 10000 {
		x.a.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: x.a.psn.Add(2), AETH: wire.AETH{Syndrome: 0x20 | 1}})
	}
	x.a.wantSilence()
	x.settle()
	x.a.wantDone(1, ib.StatusSuccess)
}

// C-322: READs that are asked for again and again give at most one response at a time,
// and the place for it does not grow.
func TestReadFlood(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{bufSize: 1 << 20, mtu: ib.MTU4096})
	x.quiet = true
	p := wire.Packet{Opcode: wire.RCReadRequest, PSN: x.a.psn, RETH: wire.RETH{Addr: 0x10000, RKey: x.b.mr.RKey(), Len: 200 << 10}}
	for range 10000 {
		x.b.q.Receive(x.now, &p)
	}
	x.b.pump()
	if n := len(x.b.flights); n != 50 {
		t.Errorf("%d packets, want 50", n)
	}
	x.b.flights = nil
	if s := x.b.q.Stats(); s.ReadsRepeated != 0 || s.Duplicates != 9999 {
		t.Errorf("%+v", s)
	}
}

// C-323: guessing keys. Every wrong guess ends a queue pair.
func TestKeyGuessing(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		x := newScript(t, nil)
		x.b.forge(wire.Packet{Opcode: wire.RCWriteOnly, PSN: x.a.psn, RETH: wire.RETH{Addr: 0x10000, RKey: ib.RKey(rng.Uint32()), Len: 1}, Payload: []byte{1}})
		x.b.wantState(ib.StateError)
		x.b.wantEvent(ib.EventQPAccessErr)
		x.b.flights = nil
		x.b.wantBytes(0, make([]byte, 100))
	}
}

// Other services' opcodes, and those that nobody knows, are dropped and counted.
func TestStrangeOpcodes(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	for op := range 256 {
		if o := wire.Opcode(op); o.Service() == wire.ServiceRC && o.Known() || o == wire.CNP {
			continue
		}
		x.b.forge(wire.Packet{Opcode: wire.Opcode(op), PSN: x.a.psn, AckReq: true})
		x.b.wantSilence()
		x.b.wantState(ib.StateRTS)
	}
	if n := x.b.q.Stats().Drops[DropOpcode]; n < 200 {
		t.Errorf("%d are counted", n)
	}
	for d := range Drop(DropCauses) {
		if s := d.String(); s == "" || s == "unknown" {
			t.Errorf("cause %d has no name", d)
		}
	}
	if s := Drop(DropCauses).String(); s != "unknown" {
		t.Errorf("cause %d is %q", DropCauses, s)
	}
}

// A region of another domain is as good as none, even for a peer that has its key.
func TestDomains(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	r, err := x.b.table.Register(mem.Domain(9), make([]byte, 100), 0, ib.LocalWrite|ib.RemoteAny)
	if err != nil {
		t.Fatal(err)
	}
	x.a.post(req{id: 1, op: ib.OpRead, rkey: r.RKey(), sgl: []driver.SGE{x.a.sge(0, 8)}})
	x.run()
	x.a.wantDone(1, ib.StatusRemAccess)
	x.b.wantEvent(ib.EventQPAccessErr)
}
