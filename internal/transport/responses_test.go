package transport

import (
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// C-139: NAK codes to statuses, inside and outside of what was sent. Only the request
// that owns the number fails; all before it succeed.
func TestNAKCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		syn wire.Syndrome
		st  ib.Status
	}{
		{wire.NAKInvalid, ib.StatusRemInvReq}, {wire.NAKAccess, ib.StatusRemAccess}, {wire.NAKOperation, ib.StatusRemOp},
	} {
		x := newScript(t, nil)
		for i := range uint64(4) {
			x.a.fill(&req{id: i, op: ib.OpWrite, data: "x", silent: i == 1})
		}
		x.a.pump()
		x.a.flights = nil
		nak := func(psn int) {
			x.a.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: x.a.psn.Add(psn), AETH: wire.AETH{Syndrome: c.syn}})
		}
		for _, psn := range []int{-1, -1000, 4, 5, 1 << 22, -(1 << 23)} {
			nak(psn)
			x.a.wantState(ib.StateRTS)
		}
		nak(2)
		x.a.wantDone(0, ib.StatusSuccess)
		if d := x.a.wantDone(2, c.st); d.VendorErr != uint32(c.syn) {
			t.Errorf("vendor error %#x, want the syndrome", d.VendorErr)
		}
		x.a.wantBroken(3)
	}
	// Reserved ones, and credits, change nothing.
	x := newScript(t, nil)
	x.a.send(1, "x")
	x.a.flights = nil
	for _, syn := range []wire.Syndrome{wire.NAKInvalidRD, 0x65, 0x7f, 0x40, 0x5f, 0x80, 0xff} {
		x.a.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: x.a.psn, AETH: wire.AETH{Syndrome: syn}})
		x.a.wantState(ib.StateRTS)
		x.a.wantSilence()
	}
	x.a.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: x.a.psn, AETH: wire.AETH{Syndrome: 3}})
	x.a.wantDone(1, ib.StatusSuccess)
}

// C-140: READ responses that do not fit.
func TestBadResponses(t *testing.T) {
	t.Parallel()
	full, short, long := make([]byte, 256), make([]byte, 255), make([]byte, 257)
	for name, c := range map[string]struct {
		at int // responses that come right before
		op wire.Opcode
		p  []byte
	}{
		"first too short":    {0, wire.RCReadRespFirst, short},
		"first too long":     {0, wire.RCReadRespFirst, long},
		"middle at first":    {0, wire.RCReadRespMiddle, full},
		"only at first":      {0, wire.RCReadRespOnly, full},
		"last at first":      {0, wire.RCReadRespLast, full},
		"first at second":    {1, wire.RCReadRespFirst, full},
		"last at second":     {1, wire.RCReadRespLast, full},
		"middle too short":   {1, wire.RCReadRespMiddle, short},
		"middle at last":     {2, wire.RCReadRespMiddle, full[:88]},
		"last too long":      {2, wire.RCReadRespLast, full[:89]},
		"last too short":     {2, wire.RCReadRespLast, full[:87]},
		"last full":          {2, wire.RCReadRespLast, full},
		"last empty":         {2, wire.RCReadRespLast, nil},
		"atomic instead":     {1, wire.RCAtomicAck, nil},
		"only at the end":    {2, wire.RCReadRespOnly, full[:88]},
		"first at the end":   {2, wire.RCReadRespFirst, full[:88]},
		"oversized at start": {0, wire.RCReadRespFirst, make([]byte, 4096)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScript(t, nil)
			x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(100, 600)}}, req{id: 2, op: ib.OpWrite, data: "x"})
			x.a.flights = nil
			for i := range c.at {
				op := wire.RCReadRespMiddle
				if i == 0 {
					op = wire.RCReadRespFirst
				}
				x.a.forge(wire.Packet{Opcode: op, PSN: x.a.psn.Add(i), AETH: wire.AETH{Syndrome: wire.AckNoLimit}, Payload: full})
			}
			x.a.wantState(ib.StateRTS)
			for i := range c.p {
				c.p[i] = 0xee
			}
			x.a.forge(wire.Packet{Opcode: c.op, PSN: x.a.psn.Add(c.at), AETH: wire.AETH{Syndrome: wire.AckNoLimit}, Payload: c.p})
			x.a.wantDone(1, ib.StatusBadResp)
			x.a.wantBroken(2)
			x.a.wantBytes(700, make([]byte, 100))
			x.a.wantBytes(0, make([]byte, 100))
		})
	}
	// For a request that is no READ, and an atomic that gets a READ response.
	for _, op := range []ib.Opcode{ib.OpWrite, ib.OpFetchAdd, ib.OpSend} {
		x := newScript(t, nil)
		x.a.post(req{id: 1, op: op, sgl: []driver.SGE{x.a.sge(0, 8)}})
		x.a.flights = nil
		x.a.forge(wire.Packet{Opcode: wire.RCReadRespOnly, PSN: x.a.psn, AETH: wire.AETH{Syndrome: wire.AckNoLimit}, Payload: make([]byte, 8)})
		x.a.wantDone(1, ib.StatusBadResp)
		x.a.wantBroken()
	}
	x := newScript(t, nil)
	x.a.post(req{id: 1, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 8)}})
	x.a.flights = nil
	x.a.forge(wire.Packet{Opcode: wire.RCAtomicAck, PSN: x.a.psn, AETH: wire.AETH{Syndrome: wire.AckNoLimit}})
	x.a.wantDone(1, ib.StatusBadResp)
}

// C-138: after the fatal NAK the responder executes nothing more and is silent.
func TestMute(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.b.recv(1, 0, 8)
	x.a.post(req{id: 1, op: ib.OpWrite, rkey: 5, sgl: []driver.SGE{x.a.sge(0, 8)}})
	x.a.wantPacket(wire.RCWriteOnly, 0, "ack")
	x.keep()
	x.release()
	x.b.wantAck(0, wire.NAKAccess)
	x.drop()
	x.b.wantEvent(ib.EventQPAccessErr)
	x.b.wantRecv(1, ib.StatusWRFlush, 0)
	for range 3 {
		x.a.advance()
		for len(x.a.flights) != 0 {
			x.a.next()
			x.deliver()
		}
		x.b.wantSilence()
	}
	x.settle()
	x.a.wantDone(1, ib.StatusRetryExc)
	if x.b.q.Stats().Drops[DropState] == 0 {
		t.Error("the packets are not counted")
	}
	if x.now > time.Second {
		t.Errorf("it took %v", x.now)
	}
}

// After a go-back responses to both requests may come, so that a packet's place in its
// response is not known. Its length is, and so is the end of the READ.
func TestBadResponsesAfterRetry(t *testing.T) {
	t.Parallel()
	full := make([]byte, 256)
	for name, c := range map[string]struct {
		psn int
		op  wire.Opcode
		p   []byte
		bad bool
	}{
		"middle at the end":     {2, wire.RCReadRespMiddle, full[:88], true},
		"first at the end":      {2, wire.RCReadRespFirst, full[:88], true},
		"only at the end":       {2, wire.RCReadRespOnly, full[:88], false},
		"last at the end":       {2, wire.RCReadRespLast, full[:88], false},
		"last of wrong length":  {2, wire.RCReadRespLast, full, true},
		"middle in the middle":  {1, wire.RCReadRespMiddle, full, false},
		"first in the middle":   {1, wire.RCReadRespFirst, full, false},
		"middle, wrong length":  {1, wire.RCReadRespMiddle, full[:255], true},
		"only, of wrong length": {1, wire.RCReadRespOnly, full[:88], true},
	} {
		x := newScript(t, nil)
		x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(100, 600)}})
		x.a.flights = nil
		x.a.forge(wire.Packet{Opcode: wire.RCReadRespMiddle, PSN: x.a.psn.Add(1), Payload: full}) // shows a loss
		if x.a.q.Stats().Recoveries != 1 {
			t.Fatal("no go-back")
		}
		x.a.flights = nil
		for i := range c.psn {
			x.a.forge(wire.Packet{Opcode: wire.RCReadRespMiddle, PSN: x.a.psn.Add(i), Payload: full})
		}
		x.a.forge(wire.Packet{Opcode: c.op, PSN: x.a.psn.Add(c.psn), AETH: wire.AETH{Syndrome: wire.AckNoLimit}, Payload: c.p})
		if failed := x.a.q.State() == ib.StateError; failed != c.bad {
			t.Errorf("%s: failed %v, want %v", name, failed, c.bad)
		}
		if c.bad {
			x.a.wantDone(1, ib.StatusBadResp)
		} else if c.psn == 2 {
			x.a.wantDone(1, ib.StatusSuccess)
		}
		x.a.flights = nil
	}
}
