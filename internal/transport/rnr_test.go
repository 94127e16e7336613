package transport

import (
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// C-129, C-130: receiver not ready. n retries are n+1 tries; the receiver stays.
func TestRNRRetries(t *testing.T) {
	t.Parallel()
	for _, n := range []int{-1, 1, 3, 6} {
		x := newScript(t, &setup{rnrRetry: n, rnrTimer: 10240 * time.Microsecond})
		x.a.post(req{id: 1, op: ib.OpSend, data: "x"}, req{id: 2, op: ib.OpSend, data: "y"})
		tries := 0
		x.a.wantPacket(wire.RCSendOnly, 0, "ack")
		x.deliver()
		x.a.wantPacket(wire.RCSendOnly, 1, "ack")
		x.deliver()
		for {
			tries++
			if p := x.b.wantAck(0, wire.RNRNAK(10240*time.Microsecond)); p.AETH.Syndrome != 0x20|20 {
				t.Errorf("syndrome %#x", p.AETH.Syndrome)
			}
			x.deliver()
			if x.a.q.State() == ib.StateError {
				break
			}
			if d := x.a.advance(); d != 10240*time.Microsecond {
				t.Errorf("wait of %v", d)
			}
			x.a.wantPacket(wire.RCSendOnly, 0, "ack")
			x.deliver()
		}
		if want := max(n, 0) + 1; tries != want {
			t.Errorf("rnr_retry %d: %d tries, want %d", max(n, 0), tries, want)
		}
		x.a.wantDone(1, ib.StatusRNRRetryExc)
		x.a.wantBroken(2)
		x.b.wantState(ib.StateRTS)
	}
}

// C-131: RNR for ever is not loss: the transport timer does not run. After the wait one
// packet goes out, and the rest when the peer takes it.
func TestRNRForEver(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{timeout: 100 * time.Microsecond, retry: 1})
	x.quiet = true
	for i := range uint64(3) {
		x.a.fill(&req{id: i, op: ib.OpSend, data: "x"})
	}
	x.a.pump()
	x.run()
	for x.now < time.Second {
		x.a.advance()
		if n := len(x.a.flights); n != 1 {
			t.Fatalf("%d packets after the wait", n)
		}
		x.run()
	}
	for i := range uint64(3) {
		x.b.recv(i, 0, 8)
	}
	x.a.advance()
	x.run()
	for i := range uint64(3) {
		x.a.wantDone(i, ib.StatusSuccess)
		x.b.wantRecv(i, ib.StatusSuccess, 1)
	}
	if s := x.a.q.Stats(); s.Timeouts != 0 || s.RNRsReceived < 1000 {
		t.Errorf("%+v", s)
	}
}

// §9.7.5.2.8: RNR inside a stream. What came before it is acknowledged; packets behind
// it are silent; copies of the report do not prolong the wait, nor do NAKs shorten it.
func TestRNRInside(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.b.recv(1, 0, 8)
	x.a.post(
		req{id: 1, op: ib.OpSend, data: "x"},
		req{id: 2, op: ib.OpWriteImm, sgl: []driver.SGE{x.a.sge(0, 600)}}, // fails with its last packet
		req{id: 3, op: ib.OpWrite, data: "y"},
	)
	for range 5 {
		x.a.next()
		x.deliver()
	}
	x.b.wantRecv(1, ib.StatusSuccess, 1)
	x.b.wantAck(0, wire.AckNoLimit)
	x.drop()
	rnr := wire.RNRNAK(640 * time.Microsecond)
	x.b.wantAck(3, rnr)
	x.keep()
	copies := x.kept[0]
	x.b.wantSilence()
	x.release()
	x.a.wantDone(1, ib.StatusSuccess)
	x.a.wantSilence()
	x.after(300 * time.Microsecond)
	x.give(copies)
	x.a.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: x.a.psn.Add(3), AETH: wire.AETH{Syndrome: wire.NAKSequence}})
	x.a.wantSilence()
	if d := x.a.advance(); d != 340*time.Microsecond {
		t.Errorf("the rest of the wait is %v", d)
	}
	x.b.recv(2, 0, 0)
	x.a.wantPacket(wire.RCWriteLastImm, 3, "ack")
	x.deliver()
	x.run()
	x.b.wantRecv(2, ib.StatusSuccess, 600)
	x.a.wantDone(2, ib.StatusSuccess)
	x.a.wantDone(3, ib.StatusSuccess)
}

// C-132: timer code 0 is 655.36 ms.
func TestLongestRNR(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{rnrTimer: 655360 * time.Microsecond})
	x.a.send(1, "x")
	x.a.wantPacket(wire.RCSendOnly, 0, "ack")
	x.deliver()
	x.b.wantAck(0, 0x20)
	x.deliver()
	x.b.recv(1, 0, 8)
	if d := x.a.advance(); d != 655360*time.Microsecond {
		t.Errorf("wait of %v", d)
	}
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)
	x.b.wantRecv(1, ib.StatusSuccess, 1)
}

// RNR retries count anew after each progress, and the burst behind the packet that the
// peer was not ready for goes out as before.
func TestRNRProgress(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{rnrRetry: 1})
	for i := range uint64(3) {
		x.a.send(i, "x")
		x.run()
		x.b.recv(i, 0, 8)
		x.a.advance()
		x.run()
		x.a.wantDone(i, ib.StatusSuccess)
		x.b.wantRecv(i, ib.StatusSuccess, 1)
	}
	for i := range uint64(4) {
		x.a.fill(&req{id: i, op: ib.OpSend, data: "x"})
	}
	x.a.pump()
	x.run()
	for i := range uint64(4) {
		x.b.recv(i, 0, 8)
	}
	x.a.advance()
	x.a.wantPacket(wire.RCSendOnly, 3, "ack")
	x.deliver()
	x.a.wantSilence()
	x.b.wantAck(3, wire.AckNoLimit)
	x.deliver()
	if n := len(x.a.flights); n != 3 {
		t.Errorf("%d packets follow, want 3", n)
	}
	x.run()
	for i := range uint64(4) {
		x.a.wantDone(i, ib.StatusSuccess)
		x.b.wantRecv(i, ib.StatusSuccess, 1)
	}
}

// Packets behind the one that found no receive are out of sequence for the peer. If it
// says so, that is no loss, and uses up no retry.
func TestNAKBehindRNR(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{retry: -1})
	x.a.send(1, "x")
	x.a.send(2, "y")
	x.a.wantPacket(wire.RCSendOnly, 0, "ack")
	x.deliver()
	x.a.wantPacket(wire.RCSendOnly, 1, "ack")
	x.drop()
	x.b.wantAck(0, wire.RNRNAK(640*time.Microsecond))
	x.deliver()
	for range 3 {
		x.a.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: x.a.psn, AETH: wire.AETH{Syndrome: wire.NAKSequence}})
	}
	x.a.wantSilence()
	x.b.recv(1, 0, 8)
	x.b.recv(2, 0, 8)
	if d := x.a.advance(); d != 640*time.Microsecond {
		t.Errorf("wait of %v", d)
	}
	x.run()
	for id := range uint64(2) {
		x.a.wantDone(id+1, ib.StatusSuccess)
		x.b.wantRecv(id+1, ib.StatusSuccess, 1)
	}
}
