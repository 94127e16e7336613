package transport

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// §9.7.2, §9.7.5: one packet, one acknowledgement.
func TestSendOnly(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.b.recv(1, 0, 64)
	x.a.send(7, "hello")
	x.a.wantPacket(wire.RCSendOnly, 0, "ack")
	x.deliver()
	x.b.wantRecv(1, ib.StatusSuccess, 5)
	x.b.wantBytes(0, []byte("hello"))
	if p := x.b.wantAck(0, wire.AckNoLimit); p.AETH.MSN != 1 {
		t.Errorf("MSN %d, want 1", p.AETH.MSN)
	}
	x.deliver()
	x.a.wantDone(7, ib.StatusSuccess)
}

// §9.7.2: FIRST, MIDDLE, LAST, full but the last. The acknowledgement is asked for by
// the last packet only, and one in between if the message is long.
func TestSegmentation(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	want := pattern(x.a.buf[:600], 1)
	x.b.recv(1, 0, 1000)
	x.a.post(req{id: 1, op: ib.OpSendImm, imm: 0xFFFFFFFF, flags: ib.Solicited, sgl: []driver.SGE{x.a.sge(0, 600)}})
	for i, c := range []struct {
		op   wire.Opcode
		n    int
		what string
	}{{wire.RCSendFirst, 256, ""}, {wire.RCSendMiddle, 256, ""}, {wire.RCSendLastImm, 88, "ack se"}} {
		if p := x.a.wantPacket(c.op, i, c.what); len(p.Payload) != c.n {
			t.Errorf("packet %d has %d bytes, want %d", i, len(p.Payload), c.n)
		}
		x.b.wantSilence()
		x.deliver()
	}
	c := x.b.wantRecv(1, ib.StatusSuccess, 600)
	if c.Imm != 0xFFFFFFFF || c.Flags != ib.WithImm || !c.Solicited {
		t.Errorf("receive %s, solicited %v", doneString(c), c.Solicited)
	}
	x.b.wantBytes(0, want)
	x.b.wantAck(2, wire.AckNoLimit)
	x.deliver()
	x.a.wantDone(1, ib.StatusSuccess)
}

// §9.7.2: a WRITE says once where it goes; the immediate data comes last and takes a
// receive whose buffer stays as it is (C-094).
func TestWriteImmediate(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	want := pattern(x.a.buf[:3000], 2)
	x.b.recv(1, 60000, 4)
	x.b.recvList(2)
	x.a.post(req{id: 1, op: ib.OpWriteImm, imm: 77, to: 100, sgl: []driver.SGE{x.a.sge(0, 3000)}})
	x.a.post(req{id: 2, op: ib.OpWriteImm, imm: 78, to: 1 << 40, rkey: 12345}) // C-100: nothing is checked
	for i := range 12 {
		op := wire.RCWriteMiddle
		switch i {
		case 0:
			op = wire.RCWriteFirst
		case 11:
			op = wire.RCWriteLastImm
		}
		what := ""
		if i == 11 {
			what = "ack"
		}
		p := x.a.wantPacket(op, i, what)
		if i == 0 && (p.RETH.Len != 3000 || p.RETH.Addr != 0x10000+100 || p.RETH.RKey != x.b.mr.RKey()) {
			t.Errorf("RETH %+v", p.RETH)
		}
		x.deliver()
	}
	x.run()
	for id, n := range []int{1: 3000, 2: 0} {
		if id == 0 {
			continue
		}
		if c := x.b.wantRecv(uint64(id), ib.StatusSuccess, n); c.Opcode != ib.WCRecvWriteImm || c.Imm != uint32(76+id) {
			t.Errorf("receive %s", doneString(c))
		}
		if c := x.a.wantDone(uint64(id), ib.StatusSuccess); c.Opcode != ib.WCWrite || c.Flags != 0 {
			t.Errorf("send %s", doneString(c))
		}
	}
	x.b.wantBytes(100, want)
	x.b.wantBytes(60000, make([]byte, 4))
}

// C-091, C-095: every size around the MTU, both directions of data.
func TestSizes(t *testing.T) {
	t.Parallel()
	for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
		for _, n := range []int{0, 1, 2, 3, 4, mtu.Bytes() - 1, mtu.Bytes(), mtu.Bytes() + 1, 2 * mtu.Bytes(), 5*mtu.Bytes() + 3, 30000} {
			t.Run(fmt.Sprintf("mtu=%d,n=%d", mtu.Bytes(), n), func(t *testing.T) {
				t.Parallel()
				x := newScript(t, &setup{mtu: mtu})
				want := pattern(x.a.buf[:n], uint64(n))
				x.b.recv(1, 0, 30000)
				x.a.post(req{id: 1, op: ib.OpSend, sgl: []driver.SGE{x.a.sge(0, n)}})
				x.run()
				x.b.wantRecv(1, ib.StatusSuccess, n)
				x.a.wantDone(1, ib.StatusSuccess)
				x.b.wantBytes(0, want)

				x.a.post(req{id: 2, op: ib.OpWrite, to: 30001, sgl: []driver.SGE{x.a.sge(0, n)}})
				x.run()
				x.a.wantDone(2, ib.StatusSuccess)
				x.b.wantBytes(30001, want)

				x.a.post(req{id: 3, op: ib.OpRead, to: 30001, sgl: []driver.SGE{x.a.sge(30003, n)}})
				x.run()
				if c := x.a.wantDone(3, ib.StatusSuccess); int(c.ByteLen) != n || c.Opcode != ib.WCRead {
					t.Errorf("READ of %d bytes: %s", n, doneString(c))
				}
				x.a.wantBytes(30003, want)
			})
		}
	}
}

// C-095, C-099: pieces of odd sizes; empty ones are not looked at; bytes beside the
// pieces stay.
func TestScatterGather(t *testing.T) {
	t.Parallel()
	nothing := driver.SGE{Addr: 0xdead, LKey: 0xbeef}
	x := newScript(t, nil)
	pattern(x.a.buf[:2000], 3)
	want := append(append(append([]byte{}, x.a.buf[5:705]...), x.a.buf[1001:1002]...), x.a.buf[1100:1400]...)
	x.b.recvList(1, x.b.sge(7, 255), nothing, x.b.sge(300, 3), x.b.sge(400, 2000))
	x.a.post(req{id: 1, op: ib.OpSend, sgl: []driver.SGE{x.a.sge(5, 700), nothing, x.a.sge(1001, 1), x.a.sge(1100, 300)}})
	x.run()
	x.b.wantRecv(1, ib.StatusSuccess, 1001)
	x.a.wantDone(1, ib.StatusSuccess)
	x.b.wantBytes(0, make([]byte, 7))
	x.b.wantBytes(7, want[:255])
	x.b.wantBytes(262, make([]byte, 38))
	x.b.wantBytes(300, want[255:258])
	x.b.wantBytes(303, make([]byte, 97))
	x.b.wantBytes(400, want[258:])
	x.b.wantBytes(400+743, make([]byte, 100))

	from := pattern(x.b.buf[20000:23001], 4)
	x.a.post(req{id: 2, op: ib.OpRead, to: 20000, sgl: []driver.SGE{x.a.sge(30001, 1), x.a.sge(31001, 257), nothing, x.a.sge(33000, 2743)}})
	x.run()
	x.a.wantDone(2, ib.StatusSuccess)
	x.a.wantBytes(30001, from[:1])
	x.a.wantBytes(31001, from[1:258])
	x.a.wantBytes(33000, from[258:])
	x.a.wantBytes(35743, make([]byte, 100))

	x.b.recvList(3) // an empty list takes an empty message
	x.a.post(req{id: 3, op: ib.OpSend, sgl: []driver.SGE{nothing, nothing}})
	x.run()
	x.b.wantRecv(3, ib.StatusSuccess, 0)
	x.a.wantDone(3, ib.StatusSuccess)
}

// C-098: the bytes are taken at posting; on a READ the flag means nothing.
func TestInline(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.b.recv(1, 0, 300)
	data := string(pattern(make([]byte, 256), 5))
	x.a.send(1, data)
	x.a.post(req{id: 2, op: ib.OpWrite, to: 400, data: data})
	x.a.post(req{id: 3, op: ib.OpRead, flags: ib.Inline, to: 400, sgl: []driver.SGE{x.a.sge(0, 10)}})
	x.run()
	x.b.wantRecv(1, ib.StatusSuccess, 256)
	for id := range uint64(3) {
		x.a.wantDone(id+1, ib.StatusSuccess)
	}
	x.b.wantBytes(0, []byte(data))
	x.b.wantBytes(400, []byte(data))
	x.a.wantBytes(0, []byte(data[:10]))
}

// C-096: the old value comes back; a comparison that fails changes nothing.
func TestAtomics(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	word := x.b.buf[64:72]
	set := func(v uint64) { binary.NativeEndian.PutUint64(word, v) }
	get := func(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
	for i, c := range []struct {
		name           string
		op             ib.Opcode
		was            uint64
		compare, swap  uint64
		becomes        uint64
		code           wire.Opcode
		completionCode ib.WCOpcode
	}{
		{"hit", ib.OpCompareSwap, 5, 5, 9, 9, wire.RCCompareSwap, ib.WCCompareSwap},
		{"miss", ib.OpCompareSwap, 5, 4, 9, 5, wire.RCCompareSwap, ib.WCCompareSwap},
		{"add", ib.OpFetchAdd, 5, 99, 7, 12, wire.RCFetchAdd, ib.WCFetchAdd},
		{"wrap", ib.OpFetchAdd, 1<<64 - 1, 0, 3, 2, wire.RCFetchAdd, ib.WCFetchAdd},
	} {
		set(c.was)
		x.a.post(req{id: uint64(i), op: c.op, to: 64, compare: c.compare, swap: c.swap, sgl: []driver.SGE{x.a.sge(8, 8)}})
		x.a.wantPacket(c.code, i, "ack")
		x.deliver()
		x.b.wantResponse(wire.RCAtomicAck, i, wire.AckNoLimit)
		x.deliver()
		if d := x.a.wantDone(uint64(i), ib.StatusSuccess); d.ByteLen != 8 || d.Opcode != c.completionCode {
			t.Errorf("%s: %s", c.name, doneString(d))
		}
		if old, now := get(x.a.buf[8:]), get(word); old != c.was || now != c.becomes {
			t.Errorf("%s: gave %d, left %d; want %d, %d", c.name, old, now, c.was, c.becomes)
		}
	}
}

// §10.8.3.3, C-107: a fenced request waits for READs and atomics before it; others pass.
func TestFence(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	want := pattern(x.b.buf[:100], 6)
	x.a.post(
		req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 100)}},
		req{id: 2, op: ib.OpWrite, to: 2000, data: "free"},
		req{id: 3, op: ib.OpWrite, flags: ib.Fence, to: 1000, sgl: []driver.SGE{x.a.sge(0, 100)}},
	)
	x.a.wantPacket(wire.RCReadRequest, 0, "ack")
	x.deliver()
	x.a.wantPacket(wire.RCWriteOnly, 1, "ack")
	x.deliver()
	x.a.wantSilence()
	x.b.wantResponse(wire.RCReadRespOnly, 0, wire.AckNoLimit)
	x.deliver()
	x.a.wantPacket(wire.RCWriteOnly, 2, "ack")
	x.deliver()
	x.run()
	x.b.wantBytes(1000, want)
	for id := range uint64(3) {
		x.a.wantDone(id+1, ib.StatusSuccess)
	}
}

// C-054, C-104: unsignaled requests give no completion, and their places are free again
// as soon as they are acknowledged. SignalAll signals all.
func TestUnsignaled(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{caps: driver.Caps{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1, MaxInline: 16}})
	for range 100 {
		x.a.post(req{op: ib.OpWrite, data: "x", silent: true})
		x.run()
	}
	for i := range 4 {
		x.a.fill(&req{id: uint64(i), op: ib.OpWrite, data: "y", silent: i != 2})
	}
	if n := len(x.a.q.SendSlots()); n != 0 {
		t.Errorf("%d places are free in a full queue", n)
	}
	x.a.pump()
	x.run()
	x.a.wantDone(2, ib.StatusSuccess)

	y := newScript(t, &setup{signalAll: true})
	y.a.post(req{id: 5, op: ib.OpWrite, data: "x", silent: true})
	y.run()
	y.a.wantDone(5, ib.StatusSuccess)
}

// Places are given in pieces that follow one another, and are clean.
func TestSlots(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{caps: driver.Caps{MaxSendWR: 5, MaxRecvWR: 5, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 20}})
	free := func() int { return len(x.a.q.SendSlots()) }
	if free() != 5 || len(x.a.q.RecvSlots()) != 5 {
		t.Fatalf("%d and %d places, want 5", free(), len(x.a.q.RecvSlots()))
	}
	for i := range 50 {
		for j := range x.a.q.SendSlots() {
			s := x.a.q.SendSlots()[j]
			if len(s.SGL) != 0 || cap(s.SGL) != 3 || len(s.Data) != 0 || cap(s.Data) != 20 || s.Flags != 0 {
				t.Fatalf("round %d: place %d is not clean: %+v", i, j, s)
			}
		}
		for j := range x.b.q.RecvSlots() {
			if s := x.b.q.RecvSlots()[j]; len(s.SGL) != 0 || cap(s.SGL) != 2 {
				t.Fatalf("round %d: receive place %d is not clean: %+v", i, j, s)
			}
		}
		x.b.recv(uint64(i), 0, 100)
		x.a.send(uint64(i), "0123456789")
		x.run()
		x.b.wantRecv(uint64(i), ib.StatusSuccess, 10)
		x.a.wantDone(uint64(i), ib.StatusSuccess)
		if n := free(); n == 0 || n > 5 {
			t.Fatalf("%d places", n)
		}
	}
}

// C-176, C-177: a key that may be taken back is, by the peer's SEND or by LOCAL_INV, and
// then gives no right any more; local use goes on.
func TestInvalidate(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{regAccess: ib.LocalWrite | ib.RemoteAny | ib.MWBind})
	x.a.post(req{id: 1, op: ib.OpWrite, data: "before"})
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)

	x.b.recv(2, 0, 300)
	x.a.post(req{id: 2, op: ib.OpSendInv, rkey: x.b.mr.RKey(), sgl: []driver.SGE{x.a.sge(0, 300)}})
	x.a.wantPacket(wire.RCSendFirst, 1, "")
	x.deliver()
	x.a.wantPacket(wire.RCSendLastInv, 2, "ack")
	x.deliver()
	x.run()
	x.a.wantDone(2, ib.StatusSuccess)
	c := x.b.wantRecv(2, ib.StatusSuccess, 300)
	if c.Flags != ib.WithInv || c.Imm != uint32(x.b.mr.RKey()) {
		t.Errorf("receive %s", doneString(c))
	}

	// LOCAL_INV waits for all before it, sends nothing, and works once.
	x.a.post(req{id: 3, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 0)}}, req{id: 4, op: ib.OpLocalInv, rkey: x.a.mr.RKey()})
	x.a.wantPacket(wire.RCReadRequest, 3, "ack")
	if f := x.a.table.Check(uint32(x.a.mr.RKey()), 1, 0x10000, 8, ib.RemoteRead); f != 0 {
		t.Errorf("the key is gone before its turn: %v", f)
	}
	x.deliver()
	x.run()
	x.a.wantDone(3, ib.StatusSuccess)
	if c := x.a.wantDone(4, ib.StatusSuccess); c.Opcode != ib.WCLocalInv {
		t.Errorf("send %s", doneString(c))
	}
	x.b.post(req{id: 5, op: ib.OpWrite, data: "after"})
	x.run()
	x.b.wantDone(5, ib.StatusRemAccess)
	x.a.wantEvent(ib.EventQPAccessErr)
}

// C-103: every kind of request across the wrap of the sequence numbers.
func TestWrap(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{psn: 0xFFFFF0, bufSize: 300000})
	want := pattern(x.a.buf[:200000], 7)
	x.a.post(req{id: 1, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 200000)}})
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)
	x.b.wantBytes(0, want)
	clear(x.a.buf)
	x.a.post(req{id: 2, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 200000)}})
	x.run()
	x.a.wantDone(2, ib.StatusSuccess)
	x.a.wantBytes(0, want)

	for _, first := range []ib.PSN{0xFFFFFF, 0xFFFFFE, 0xFFFFFD, 0} {
		y := newScript(t, &setup{psn: first})
		want := pattern(y.b.buf[:1000], uint64(first))
		y.a.post(
			req{id: 1, op: ib.OpRead, sgl: []driver.SGE{y.a.sge(0, 1000)}},
			req{id: 2, op: ib.OpFetchAdd, to: 2000, swap: 1, sgl: []driver.SGE{y.a.sge(2000, 8)}},
			req{id: 3, op: ib.OpWrite, to: 3000, sgl: []driver.SGE{y.a.sge(0, 700)}},
		)
		y.run()
		for id := range uint64(3) {
			y.a.wantDone(id+1, ib.StatusSuccess)
		}
		y.a.wantBytes(0, want)
	}
}

// C-111: a queue pair that is connected to itself.
func TestSelf(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{psn: 0x500})
	x.a.peer = x.a
	x.a.q.tx.DestQP = x.a.q.cfg.QPN
	want := pattern(x.a.buf[:1000], 8)
	x.a.recv(1, 2000, 1000)
	x.a.post(
		req{id: 1, op: ib.OpSend, sgl: []driver.SGE{x.a.sge(0, 1000)}},
		req{id: 2, op: ib.OpWrite, to: 4000, rkey: x.a.mr.RKey(), sgl: []driver.SGE{x.a.sge(0, 1000)}},
		req{id: 3, op: ib.OpRead, to: 0, rkey: x.a.mr.RKey(), sgl: []driver.SGE{x.a.sge(6000, 1000)}},
	)
	x.run()
	x.a.wantRecv(1, ib.StatusSuccess, 1000)
	for id := range uint64(3) {
		x.a.wantDone(id+1, ib.StatusSuccess)
	}
	for _, off := range []int{2000, 4000, 6000} {
		x.a.wantBytes(off, want)
	}
}

// §9.7.5.1.2: one acknowledgement stands for all before it. AckPending is true while
// nothing else waits.
func TestCoalescing(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	for i := range uint64(10) {
		x.b.recv(i, 0, 10)
		x.a.send(i, "x")
	}
	if x.b.q.AckPending() {
		t.Error("an acknowledgement is pending before anything came")
	}
	for i := range 10 {
		x.a.wantPacket(wire.RCSendOnly, i, "ack")
		x.b.q.Receive(x.now, x.held.packet())
		x.held = nil
	}
	if !x.b.q.AckPending() {
		t.Error("no acknowledgement is pending")
	}
	x.b.fill(&req{id: 99, op: ib.OpWrite, data: "reply"})
	if x.b.q.AckPending() {
		t.Error("AckPending with a request that waits")
	}
	x.b.pump()
	x.b.wantPacket(wire.RCWriteOnly, 0, "ack") // data first, the shorter packet last
	x.deliver()
	if p := x.b.wantAck(9, wire.AckNoLimit); p.AETH.MSN != 10 {
		t.Errorf("MSN %d, want 10", p.AETH.MSN)
	}
	x.deliver()
	for i := range uint64(10) {
		x.b.wantRecv(i, ib.StatusSuccess, 1)
		x.a.wantDone(i, ib.StatusSuccess)
	}
	x.run()
	x.b.wantDone(99, ib.StatusSuccess)
	if x.b.q.AckPending() {
		t.Error("an acknowledgement is pending after it was sent")
	}
}

// §2.3 of our notes: a long message asks for an acknowledgement every 16 packets, and
// whenever the window closes.
func TestAckRequests(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{bufSize: 1 << 20, window: 1 << 20})
	x.a.post(req{id: 1, op: ib.OpWrite, sgl: []driver.SGE{x.a.sge(0, 100*256)}})
	for i := range 100 {
		what := ""
		if i%16 == 15 || i == 99 {
			what = "ack"
		}
		op := wire.RCWriteMiddle
		switch i {
		case 0:
			op = wire.RCWriteFirst
		case 99:
			op = wire.RCWriteLast
		}
		x.a.wantPacket(op, i, what)
		x.deliver()
	}
	x.run()
	x.a.wantDone(1, ib.StatusSuccess)

	y := newScript(t, &setup{window: 3 * (256 + packetOverhead)})
	y.a.post(req{id: 1, op: ib.OpWrite, sgl: []driver.SGE{y.a.sge(0, 5*256)}})
	y.a.wantPacket(wire.RCWriteFirst, 0, "")
	y.deliver()
	y.a.wantPacket(wire.RCWriteMiddle, 1, "")
	y.deliver()
	y.a.wantPacket(wire.RCWriteMiddle, 2, "ack")
	y.a.wantWindowFull(t)
	y.deliver()
	y.run()
	y.a.wantDone(1, ib.StatusSuccess)
}

func (e *end) wantWindowFull(t *testing.T) {
	t.Helper()
	e.wantSilence()
	if e.q.sendable() {
		t.Error("the window is not full")
	}
}

// A message of 2^31 bytes is the largest (C-102): one byte more is refused before
// anything is sent; the packets of the largest are counted right.
func TestLargestMessage(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	e := driver.SGE{Addr: 0x10000, Len: 1 << 30, LKey: x.a.mr.LKey()}
	x.a.post(req{id: 1, op: ib.OpSend, sgl: []driver.SGE{e, e, x.a.sge(0, 1)}})
	x.a.wantDone(1, ib.StatusLocLen)
	for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
		q := newScript(t, &setup{mtu: mtu}).a.q
		if n, want := q.packets(1<<31), uint32(1<<31)/uint32(mtu.Bytes()); n != want {
			t.Errorf("MTU %d: %d packets, want %d", mtu.Bytes(), n, want)
		}
		w := &wqe{first: 1000, n: q.packets(1 << 31), len: 1 << 31}
		p := &driver.SendSlot{Opcode: ib.OpSend}
		if n := q.payload(p, w, w.end()-1); n != q.mtu {
			t.Errorf("MTU %d: the last packet has %d bytes", mtu.Bytes(), n)
		}
	}
}
