package transport

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const ackTimeout = 4096 * time.Nanosecond << 12 // what scripts use: 16.8 ms

// §9.7.5.1.4, C9-114: a gap is reported once; the requester goes back to it at once.
func TestSequenceNAK(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	for i := range uint64(4) {
		x.b.recv(i, 0, 8)
		x.a.send(i, "x")
	}
	x.a.wantPacket(wire.RCSendOnly, 0, "ack")
	x.drop()
	x.a.wantPacket(wire.RCSendOnly, 1, "ack")
	x.deliver()
	x.b.wantAck(0, wire.NAKSequence)
	x.keep()
	x.a.wantPacket(wire.RCSendOnly, 2, "ack")
	x.deliver()
	x.a.wantPacket(wire.RCSendOnly, 3, "ack")
	x.deliver()
	x.b.wantSilence() // reported already
	x.release()
	for i := range 4 {
		x.a.wantPacket(wire.RCSendOnly, i, "ack")
		x.deliver()
	}
	x.run()
	for i := range uint64(4) {
		x.b.wantRecv(i, ib.StatusSuccess, 1)
		x.a.wantDone(i, ib.StatusSuccess)
	}
	if s := x.a.q.Stats(); s.Recoveries != 1 || s.Retransmits != 4 || s.NAKsReceived != 1 || s.Timeouts != 0 {
		t.Errorf("%+v", s)
	}
	if s := x.b.q.Stats(); s.NAKsSent != 1 || s.Drops[DropGap] != 2 {
		t.Errorf("%+v", s)
	}
	// What was reported once may be reported again when the same number is missing later.
	x.b.recv(9, 0, 8)
	x.b.recv(9, 0, 8)
	x.a.send(9, "x")
	x.a.send(9, "x")
	x.a.wantPacket(wire.RCSendOnly, 4, "ack")
	x.drop()
	x.a.wantPacket(wire.RCSendOnly, 5, "ack")
	x.deliver()
	x.b.wantAck(4, wire.NAKSequence)
	x.deliver()
	x.run()
	for range 2 {
		x.b.wantRecv(9, ib.StatusSuccess, 1)
		x.a.wantDone(9, ib.StatusSuccess)
	}
}

// A NAK acknowledges all before it (§9.7.5.2): what is sent again begins there.
func TestNAKAcknowledges(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.a.post(req{id: 1, op: ib.OpWrite, data: "x"}, req{id: 2, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 1000)}})
	x.a.wantPacket(wire.RCWriteOnly, 0, "ack")
	x.deliver()
	x.b.wantAck(0, wire.AckNoLimit)
	x.drop()
	x.a.wantPacket(wire.RCWriteFirst, 1, "")
	x.deliver()
	x.a.wantPacket(wire.RCWriteMiddle, 2, "")
	x.drop()
	x.a.wantPacket(wire.RCWriteMiddle, 3, "")
	x.deliver()
	x.b.wantAck(2, wire.NAKSequence)
	x.deliver()
	x.a.wantPacket(wire.RCWriteLast, 4, "ack") // was on its way
	x.deliver()
	x.a.wantDone(1, ib.StatusSuccess)
	x.a.wantPacket(wire.RCWriteMiddle, 2, "")
	x.deliver()
	x.b.wantAck(2, wire.AckNoLimit) // the gap is closed
	x.deliver()
	x.a.wantPacket(wire.RCWriteMiddle, 3, "")
	x.deliver()
	x.a.wantPacket(wire.RCWriteLast, 4, "ack")
	x.deliver()
	x.b.wantAck(4, wire.AckNoLimit)
	x.deliver()
	x.a.wantDone(2, ib.StatusSuccess)
}

// C-113: the peer sees each SEND and WRITE once; a copy is acknowledged with the number
// before the expected one.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.b.recv(1, 0, 8)
	x.b.recv(2, 8, 8)
	x.a.send(1, "first")
	x.a.wantPacket(wire.RCSendOnly, 0, "ack")
	x.keep()
	dup := x.kept[0]
	x.release()
	x.b.wantRecv(1, ib.StatusSuccess, 5)
	x.a.post(req{id: 2, op: ib.OpWriteImm, to: 100, data: "second"})
	x.a.wantPacket(wire.RCWriteOnlyImm, 1, "ack")
	x.deliver()
	x.b.wantRecv(2, ib.StatusSuccess, 6)
	x.b.wantAck(0, wire.AckNoLimit)
	x.deliver()
	x.b.wantAck(1, wire.AckNoLimit)
	x.deliver()
	copy(x.b.buf, "-----")
	for range 4 {
		x.give(dup)
		if p := x.b.wantAck(1, wire.AckNoLimit); p.AETH.MSN != 2 {
			t.Errorf("MSN %d, want 2", p.AETH.MSN)
		}
		x.deliver()
	}
	x.b.wantBytes(0, []byte("-----"))
	x.a.wantDone(1, ib.StatusSuccess)
	x.a.wantDone(2, ib.StatusSuccess)
	if s := x.a.q.Stats(); s.Drops[DropOld] != 4 {
		t.Errorf("%+v", s)
	}
}

// §9.7.5.1.2: an acknowledgement that passes over an unanswered READ or atomic is an
// implied NAK for it.
func TestImpliedNAK(t *testing.T) {
	t.Parallel()
	for _, op := range []ib.Opcode{ib.OpRead, ib.OpFetchAdd} {
		x := newScript(t, nil)
		x.b.recv(1, 100, 8)
		x.a.post(
			req{id: 1, op: ib.OpWrite, data: "x", to: 200},
			req{id: 2, op: op, swap: 1, sgl: []driver.SGE{x.a.sge(0, 8)}},
			req{id: 3, op: ib.OpSend, data: "y"},
		)
		for range 3 {
			x.a.next()
			x.deliver()
		}
		x.b.wantRecv(1, ib.StatusSuccess, 1)
		x.b.wantAck(0, wire.AckNoLimit)
		x.drop()
		x.b.next()
		x.drop() // the response
		x.b.wantAck(2, wire.AckNoLimit)
		x.deliver()
		x.a.wantDone(1, ib.StatusSuccess) // what came before the READ is acknowledged
		if s := x.a.q.Stats(); s.Recoveries != 1 {
			t.Errorf("%+v", s)
		}
		x.run()
		x.a.wantDone(2, ib.StatusSuccess)
		x.a.wantDone(3, ib.StatusSuccess)
		if op == ib.OpFetchAdd {
			if v := binary.NativeEndian.Uint64(x.b.buf); v != 1 {
				t.Errorf("the word is %d after one FETCH_ADD", v)
			}
		}
	}
}

// C-134: nobody answers. retry_cnt time-outs pass before the error, which takes about
// (retry_cnt + 1) times the time-out.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	for _, retry := range []int{-1, 1, 3, 7} { // 7 is seven (C-135)
		x := newScript(t, &setup{retry: retry})
		x.a.post(req{id: 1, op: ib.OpWrite, data: "x", silent: true}, req{id: 2, op: ib.OpWrite, data: "y", silent: true})
		for x.a.q.State() == ib.StateRTS {
			x.a.flights = nil
			x.a.advance()
		}
		x.a.flights = nil
		x.a.wantDone(1, ib.StatusRetryExc)
		x.a.wantBroken(2)
		n := max(retry, 0)
		if want := time.Duration(n+1) * ackTimeout; x.now < want || x.now > want*5/4 {
			t.Errorf("retry %d: it took %v, want about %v", n, x.now, want)
		}
		if s := x.a.q.Stats(); s.Timeouts != uint64(n+1) || s.Probes == 0 && n > 0 {
			t.Errorf("retry %d: %+v", n, s)
		}
	}
}

// C-136: without a time-out it never ends, and probes become rare.
func TestNeverTimesOut(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{neverTimer: true})
	x.quiet = true
	x.a.post(req{id: 1, op: ib.OpWrite, data: "x"})
	x.a.flights = nil
	probes := 0
	for x.now < time.Hour {
		x.a.advance()
		probes += len(x.a.flights)
		if len(x.a.flights) > 1 {
			t.Fatalf("%d packets for one probe", len(x.a.flights))
		}
		x.a.flights = nil
	}
	x.a.wantState(ib.StateRTS)
	if probes < 1000 || probes > 2000 {
		t.Errorf("%d probes in an hour", probes)
	}
	x.a.advance()
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)
}

// A time-out sends one packet; the window opens again as acknowledgements come.
func TestTimeoutCaution(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.a.post(req{id: 1, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 256*30)}})
	x.a.flights = nil
	for x.a.q.Stats().Timeouts == 0 {
		x.a.flights = nil
		x.a.advance()
	}
	for want := 1; want <= 8; want *= 2 {
		if n := len(x.a.flights); n != want {
			t.Fatalf("%d packets, want %d", n, want)
		}
		fs := x.a.flights
		x.a.flights = nil
		for _, f := range fs {
			x.b.q.Receive(x.now, f.packet())
		}
		x.b.pump()
		x.b.next()
		x.deliver()
	}
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)
}

// C-114: the last packet of a burst is lost. A probe shows it after a few round trips,
// long before the transport timer.
func TestTailLoss(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{timeout: 500 * time.Millisecond})
	for i := range uint64(5) { // measure the round trip
		x.b.recv(i, 0, 8)
		x.a.send(i, "x")
		x.a.wantPacket(wire.RCSendOnly, int(i), "ack")
		x.deliver()
		x.b.wantAck(int(i), wire.AckNoLimit)
		x.after(40 * time.Microsecond)
		x.deliver()
		x.a.wantDone(i, ib.StatusSuccess)
		x.b.wantRecv(i, ib.StatusSuccess, 1)
	}
	x.b.recv(5, 0, 8)
	x.b.recv(6, 0, 8)
	x.a.send(5, "x")
	x.a.send(6, "y")
	x.a.wantPacket(wire.RCSendOnly, 5, "ack")
	x.drop()
	x.a.wantPacket(wire.RCSendOnly, 6, "ack")
	x.drop()
	if d := x.a.advance(); d > time.Millisecond {
		t.Errorf("the probe comes after %v", d)
	}
	x.a.wantPacket(wire.RCSendOnly, 6, "ack") // the last shows the gap
	x.deliver()
	x.b.wantAck(5, wire.NAKSequence)
	x.drop() // and the report is lost too
	d1 := x.a.advance()
	x.a.wantPacket(wire.RCSendOnly, 5, "ack") // the oldest, as the peer will not report twice
	x.deliver()
	x.b.wantRecv(5, ib.StatusSuccess, 1)
	x.b.wantAck(5, wire.AckNoLimit)
	x.deliver()
	x.a.wantDone(5, ib.StatusSuccess)
	x.a.advance()
	x.a.wantPacket(wire.RCSendOnly, 6, "ack")
	x.deliver()
	x.run()
	x.b.wantRecv(6, ib.StatusSuccess, 1)
	x.a.wantDone(6, ib.StatusSuccess)
	if s := x.a.q.Stats(); s.Probes != 3 || s.Timeouts != 0 {
		t.Errorf("%+v", s)
	}
	if d1 < 500*time.Microsecond || x.now > 10*time.Millisecond {
		t.Errorf("second probe after %v, all after %v", d1, x.now)
	}
	if _, ok := x.a.q.Deadline(); ok {
		t.Error("a timer runs with nothing outstanding")
	}
}

// C-137: numbers that do not match: no delivery, and the sender gives up.
func TestWrongPSN(t *testing.T) {
	t.Parallel()
	for _, off := range []int{5, -5} {
		x := newScript(t, nil)
		x.b.recv(1, 0, 8)
		x.b.q.resp.expected += seq(off)
		x.a.send(1, "x")
		x.settle()
		x.a.wantDone(1, ib.StatusRetryExc)
		x.a.wantBroken()
		x.b.wantState(ib.StateRTS)
	}
}

// A report that was not sent yet is withdrawn when what was missing comes after all.
func TestReportWithdrawn(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"gap", "no receive"} {
		x := newScript(t, nil)
		for i := range uint64(2) {
			x.a.fill(&req{id: i, op: ib.OpSend, data: "x"})
		}
		x.a.pump()
		fs := x.a.flights
		x.a.flights = nil
		if reason == "gap" {
			x.b.recv(0, 0, 8)
			x.b.recv(1, 0, 8)
			x.b.q.Receive(x.now, fs[1].packet())
		} else {
			x.b.q.Receive(x.now, fs[0].packet())
			for i := range uint64(2) {
				ss := x.b.q.RecvSlots()
				ss[0].ID = i
				ss[0].SGL = append(ss[0].SGL, x.b.sge(0, 8))
				x.b.q.CommitRecv(1)
			}
		}
		for _, f := range fs {
			x.b.q.Receive(x.now, f.packet())
		}
		x.b.pump()
		x.b.wantAck(1, wire.AckNoLimit)
		x.deliver()
		for i := range uint64(2) {
			x.a.wantDone(i, ib.StatusSuccess)
			x.b.wantRecv(i, ib.StatusSuccess, 1)
		}
		if s := x.b.q.Stats(); s.NAKsSent+s.RNRsSent != 0 {
			t.Errorf("%s: %+v", reason, s)
		}
	}
}

// When the second try is lost too, what a probe brings to light is acted on at once.
func TestProbeRevives(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{timeout: time.Second})
	x.b.recv(1, 100, 8)
	x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8)}}, req{id: 2, op: ib.OpSend, data: "x"})
	for try := range 2 {
		x.a.wantPacket(wire.RCReadRequest, 0, "ack")
		if try == 0 {
			x.deliver()
			x.b.wantResponse(wire.RCReadRespOnly, 0, wire.AckNoLimit)
		}
		x.drop()
		x.a.wantPacket(wire.RCSendOnly, 1, "ack")
		x.deliver()
		x.b.wantAck(1, wire.AckNoLimit)
		x.deliver() // an implied NAK, the second of which is not believed
	}
	x.a.wantSilence()
	x.a.advance()
	x.a.wantPacket(wire.RCSendOnly, 1, "ack")
	x.deliver()
	x.b.wantAck(1, wire.AckNoLimit)
	x.deliver()
	x.a.wantPacket(wire.RCReadRequest, 0, "ack")
	x.deliver()
	x.run()
	x.b.wantRecv(1, ib.StatusSuccess, 1)
	x.a.wantDone(1, ib.StatusSuccess)
	x.a.wantDone(2, ib.StatusSuccess)
}

// What is asked for again of a READ never begins behind something that is missing: Linux'
// Soft-RoCE does not answer a request for that any more.
func TestProbeOfReadDoesNotMoveAhead(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{timeout: time.Second})
	n := 3*int(x.a.q.mtu) + 7
	x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, n)}})
	x.a.wantPacket(wire.RCReadRequest, 0, "ack")
	x.deliver()
	x.b.wantResponse(wire.RCReadRespFirst, 0, wire.AckNoLimit)
	x.deliver()
	for _, op := range []wire.Opcode{wire.RCReadRespMiddle, wire.RCReadRespMiddle, wire.RCReadRespLast} {
		if p := x.b.next().packet(); p.Opcode != op {
			t.Fatal(p)
		}
		x.drop()
	}
	for range 4 { // the last and the oldest in turn
		x.a.advance()
		p := x.a.wantPacket(wire.RCReadRequest, 1, "ack")
		if int(p.RETH.Len) != n-int(x.a.q.mtu) {
			t.Errorf("%d bytes", p.RETH.Len)
		}
		x.drop()
	}
	x.a.advance()
	x.a.wantPacket(wire.RCReadRequest, 1, "ack")
	x.deliver()
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)
}

// No plain acknowledgement names a READ or an atomic: Linux' Soft-RoCE would take it for the
// response.
func TestAckDoesNotNameRead(t *testing.T) {
	t.Parallel()
	for _, op := range []ib.Opcode{ib.OpRead, ib.OpFetchAdd} {
		x := newScript(t, &setup{timeout: time.Second})
		x.b.recv(1, 100, 8)
		x.a.post(req{id: 1, op: ib.OpSend, data: "x"}, req{id: 2, op: op, sgl: []driver.SGE{x.a.sge(0, 8)}})
		x.a.wantPacket(wire.RCSendOnly, 0, "ack")
		x.deliver()
		x.b.wantAck(0, wire.AckNoLimit)
		x.drop()
		x.a.next()
		x.deliver()
		x.b.next()
		x.drop() // the response
		x.a.advance()
		x.a.next()
		x.drop()
		x.a.advance() // and the SEND comes a second time
		x.a.wantPacket(wire.RCSendOnly, 0, "ack")
		x.deliver()
		x.b.wantAck(0, wire.AckNoLimit)
		x.deliver()
		x.a.wantDone(1, ib.StatusSuccess)
		x.b.wantRecv(1, ib.StatusSuccess, 1)
		x.run()
		x.a.advance()
		x.run()
		x.a.wantDone(2, ib.StatusSuccess)
	}
}
