package transport

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// wantBroken checks that e failed, that its later requests were flushed, and that it is
// mute (C-084, C-138).
func (e *end) wantBroken(ids ...uint64) {
	e.x.Helper()
	e.wantState(ib.StateError)
	for _, id := range ids {
		e.wantDone(id, ib.StatusWRFlush)
	}
	if _, ok := e.q.Deadline(); ok {
		e.x.failf("%s has a timer in the error state", e.name)
	}
}

// C-119, C-076: a message that does not fit.
func TestMessageTooLong(t *testing.T) {
	t.Parallel()
	for _, n := range []int{65, 256, 257, 4000} {
		x := newScript(t, nil)
		x.b.recv(1, 0, 64)
		x.b.recv(2, 100, 64)
		x.a.post(req{id: 1, op: ib.OpSend, sgl: []driver.SGE{x.a.sge(0, n)}}, req{id: 2, op: ib.OpSend, data: "x"})
		pattern(x.a.buf[:n], 1)
		x.run()
		x.a.wantDone(1, ib.StatusRemInvReq)
		x.a.wantBroken(2)
		x.b.wantRecv(1, ib.StatusLocLen, 0)
		x.b.wantRecv(2, ib.StatusWRFlush, 0)
		x.b.wantBroken()
		x.b.wantBytes(64, make([]byte, 100))
	}
}

// C-120, C-122: local keys are checked before anything is sent, and the request fails in
// its turn.
func TestLocalProtection(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func(x *script) driver.SGE{
		"unknown":  func(x *script) driver.SGE { return driver.SGE{Addr: 0x10000, Len: 8, LKey: x.a.mr.LKey() + 1} },
		"end":      func(x *script) driver.SGE { return x.a.sge(len(x.a.buf)-7, 8) },
		"below":    func(x *script) driver.SGE { return x.a.sge(-1, 8) },
		"wrap":     func(x *script) driver.SGE { return driver.SGE{Addr: 1<<64 - 4, Len: 8, LKey: x.a.mr.LKey()} },
		"domain":   func(x *script) driver.SGE { return x.a.foreign(2, ib.LocalWrite) },
		"readonly": func(x *script) driver.SGE { return x.a.foreign(1, 0) },
	} {
		for _, op := range []ib.Opcode{ib.OpSend, ib.OpWrite, ib.OpRead, ib.OpFetchAdd} {
			for _, long := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s,%v,long=%v", name, op, long), func(t *testing.T) {
					t.Parallel()
					x := newScript(t, nil)
					r := req{id: 3, op: op, sgl: []driver.SGE{bad(x)}}
					if long && op != ib.OpFetchAdd {
						r.sgl = []driver.SGE{x.a.sge(0, 700), r.sgl[0]}
					}
					ok := name == "readonly" && !requests[op].writes
					x.a.post(req{id: 1, op: ib.OpWrite, data: "before"}, r, req{id: 4, op: ib.OpWrite, data: "after"})
					x.a.wantPacket(wire.RCWriteOnly, 0, "ack")
					if ok {
						x.deliver()
						if op == ib.OpSend {
							x.b.recv(1, 0, 1000)
						}
						x.run()
						if op == ib.OpSend {
							x.settle()
							x.b.wantRecv(1, ib.StatusSuccess, int(listLen(r.sgl)))
						}
						x.a.wantDone(1, ib.StatusSuccess)
						x.a.wantDone(3, ib.StatusSuccess)
						x.a.wantDone(4, ib.StatusSuccess)
						return
					}
					x.a.wantSilence()
					if len(x.a.done) != 0 {
						t.Error("the request fails before its turn")
					}
					x.deliver()
					x.b.wantAck(0, wire.AckNoLimit)
					x.deliver()
					x.a.wantDone(1, ib.StatusSuccess)
					x.a.wantDone(3, ib.StatusLocProt)
					x.a.wantBroken(4)
					x.b.wantState(ib.StateRTS)
				})
			}
		}
	}
}

// foreign registers 8 bytes of another domain, or with other rights.
func (e *end) foreign(d mem.Domain, a ib.Access) driver.SGE {
	e.x.Helper()
	r, err := e.table.Register(d, make([]byte, 8), 0, a)
	if err != nil {
		e.x.Fatal(err)
	}
	return driver.SGE{Addr: 0, Len: 8, LKey: r.LKey()}
}

// C-121: keys of a receive.
func TestReceiveProtection(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func(x *script) driver.SGE{
		"unknown":  func(x *script) driver.SGE { return driver.SGE{Len: 8, LKey: 99} },
		"readonly": func(x *script) driver.SGE { return x.b.foreign(1, 0) },
		"domain":   func(x *script) driver.SGE { return x.b.foreign(7, ib.LocalWrite) },
		"bounds":   func(x *script) driver.SGE { return x.b.sge(len(x.b.buf)-4, 8) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScript(t, nil)
			x.b.recvList(1, bad(x))
			x.b.recv(2, 0, 8)
			x.a.post(req{id: 1, op: ib.OpSend}) // nothing is written, so nothing is checked
			x.run()
			x.b.wantRecv(1, ib.StatusSuccess, 0)
			x.a.wantDone(1, ib.StatusSuccess)

			x = newScript(t, nil)
			x.b.recvList(1, bad(x))
			x.b.recv(2, 0, 8)
			x.a.send(1, "12345678")
			x.run()
			x.b.wantRecv(1, ib.StatusLocProt, 0)
			x.b.wantRecv(2, ib.StatusWRFlush, 0)
			x.b.wantBroken()
			x.a.wantDone(1, ib.StatusRemOp)
			x.a.wantBroken()
		})
	}
}

// C-123, C-124, C-043: what the peer may not do. Not a byte is written and no receive is
// taken; the responder says why in an event (C-185).
func TestRemoteAccess(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	type attempt struct {
		name string
		s    setup
		r    req
		st   ib.Status
	}
	var all []attempt
	add := func(name string, s setup, r req, st ib.Status) { all = append(all, attempt{name, s, r, st}) }
	for _, op := range []ib.Opcode{ib.OpWrite, ib.OpWriteImm, ib.OpRead, ib.OpFetchAdd, ib.OpCompareSwap} {
		need := ib.RemoteWrite
		switch op {
		case ib.OpRead:
			need = ib.RemoteRead
		case ib.OpFetchAdd, ib.OpCompareSwap:
			need = ib.RemoteAtomic
		}
		add("unknown key", setup{}, req{op: op, rkey: 0xdeadbeef}, ib.StatusRemAccess)
		add("last byte + 1", setup{}, req{op: op, to: size - 8 + 8*uint64(min(1, op/ib.OpCompareSwap)) + 1 - uint64(min(1, op/ib.OpCompareSwap))}, ib.StatusRemAccess)
		add("below", setup{}, req{op: op, to: 1<<64 - 8}, ib.StatusRemAccess)
		add("wrap", setup{}, req{op: op, to: 1<<64 - 0x10000 - 8}, ib.StatusRemAccess)
		add("region without right", setup{regAccess: ib.LocalWrite | ib.RemoteAny&^need}, req{op: op}, ib.StatusRemAccess)
		add("queue pair without right", setup{access: ib.RemoteAny &^ need}, req{op: op}, ib.StatusRemInvReq)
		add("queue pair without any right", setup{access: 1 << 31}, req{op: op}, ib.StatusRemInvReq)
		if need != ib.RemoteWrite {
			add("no resources", setup{destDepth: -1}, req{op: op}, ib.StatusRemInvReq)
		}
	}
	for _, c := range all {
		for _, n := range []int{8, 700} {
			if n != 8 && (c.r.op == ib.OpFetchAdd || c.r.op == ib.OpCompareSwap) {
				continue
			}
			t.Run(fmt.Sprintf("%s,%v,%d", c.name, c.r.op, n), func(t *testing.T) {
				t.Parallel()
				x := newScript(t, &c.s)
				r := c.r
				r.id = 1
				if c.name == "last byte + 1" && n != 8 {
					r.to = size - uint64(n) + 1
				}
				pattern(x.a.buf[:n], 1)
				r.sgl = []driver.SGE{x.a.sge(0, n)}
				x.b.recv(1, 0, 8)
				before := string(x.b.buf)
				x.a.post(r, req{id: 2, op: ib.OpWrite, data: "x"})
				x.run()
				x.a.wantDone(1, c.st)
				x.a.wantBroken(2)
				x.b.wantRecv(1, ib.StatusWRFlush, 0)
				x.b.wantBroken()
				want := ib.EventQPAccessErr
				if c.st == ib.StatusRemInvReq {
					want = ib.EventQPReqErr
				}
				x.b.wantEvent(want)
				if string(x.b.buf) != before {
					t.Error("memory was changed")
				}
			})
		}
	}
}

// C-035, C-123: other domain, freed region, key of a region that is local only.
func TestRemoteKeys(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]func(e *end) ib.RKey{
		"domain": func(e *end) ib.RKey {
			r, _ := e.table.Register(2, e.buf, 0x10000, ib.LocalWrite|ib.RemoteAny)
			return r.RKey()
		},
		"freed": func(e *end) ib.RKey {
			r, _ := e.table.Register(1, e.buf, 0x10000, ib.LocalWrite|ib.RemoteAny)
			e.table.Remove(r)
			return r.RKey()
		},
		"local": func(e *end) ib.RKey {
			r, _ := e.table.Register(1, e.buf, 0x10000, ib.LocalWrite)
			return ib.RKey(r.LKey())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, op := range []ib.Opcode{ib.OpWrite, ib.OpRead, ib.OpFetchAdd} {
				x := newScript(t, nil)
				x.a.post(req{id: 1, op: op, rkey: key(x.b), sgl: []driver.SGE{x.a.sge(0, 8)}})
				x.run()
				x.a.wantDone(1, ib.StatusRemAccess)
				x.a.wantBroken()
				x.b.wantEvent(ib.EventQPAccessErr)
				x.b.wantBroken()
			}
		})
	}
}

// C-043: the first byte, the last byte and the whole region are reachable.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	x := newScript(t, nil)
	for i, c := range []struct{ off, n int }{{0, 1}, {size - 1, 1}, {0, size}, {size, 0}} {
		for _, op := range []ib.Opcode{ib.OpWrite, ib.OpRead} {
			x.a.post(req{id: uint64(i), op: op, to: uint64(c.off), sgl: []driver.SGE{x.a.sge(c.off, c.n)}})
			x.run()
			x.a.wantDone(uint64(i), ib.StatusSuccess)
		}
	}
}

// C-126, C-127, C-128: what package verbs refuses at posting fails here, and never hangs.
func TestImpossibleRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		s  setup
		r  req
		n  int
		st ib.Status
	}{
		"no read depth":   {setup{depth: -1}, req{op: ib.OpRead}, 8, ib.StatusLocQPOp},
		"no atomic depth": {setup{depth: -1}, req{op: ib.OpFetchAdd}, 8, ib.StatusLocQPOp},
		"opcode 99":       {setup{}, req{op: 99}, 8, ib.StatusLocQPOp},
		"TSO":             {setup{}, req{op: ib.OpTSO}, 8, ib.StatusLocQPOp},
		"bind":            {setup{}, req{op: ib.OpBindMW}, 8, ib.StatusLocQPOp},
		"short atomic":    {setup{}, req{op: ib.OpFetchAdd}, 4, ib.StatusLocLen},
		"odd atomic":      {setup{}, req{op: ib.OpCompareSwap, to: 4}, 8, ib.StatusLocQPOp},
		"unknown key":     {setup{}, req{op: ib.OpLocalInv, rkey: 77}, 0, ib.StatusLocQPOp},
		"ordinary region": {setup{}, req{op: ib.OpLocalInv}, 0, ib.StatusLocQPOp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScript(t, &c.s)
			r := c.r
			r.id = 2
			r.sgl = []driver.SGE{x.a.sge(0, c.n)}
			if name == "ordinary region" {
				r.rkey = x.a.mr.RKey()
			}
			x.a.post(req{id: 1, op: ib.OpWrite, data: "x"}, r, req{id: 3, op: ib.OpWrite, data: "x"})
			x.run()
			x.a.wantDone(1, ib.StatusSuccess)
			x.a.wantDone(2, c.st)
			x.a.wantBroken(3)
			x.b.wantState(ib.StateRTS)
			if f := x.a.table.Check(uint32(x.a.mr.LKey()), 1, 0x10000, 8, ib.RemoteAny); f != mem.OK {
				t.Errorf("the region suffered: %v", f)
			}
		})
	}
}

// C-177: an invalidation that is not possible: the sender succeeds, the receive fails.
func TestInvalidateFails(t *testing.T) {
	t.Parallel()
	for name, ordinary := range map[string]bool{"unknown": false, "ordinary": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScript(t, nil)
			x.b.recv(1, 0, 64)
			x.b.recv(2, 0, 64)
			key := ib.RKey(4711)
			if ordinary {
				key = x.b.mr.RKey()
			}
			x.a.post(req{id: 1, op: ib.OpSendInv, rkey: key, data: "hello"})
			x.run()
			x.a.wantDone(1, ib.StatusSuccess)
			x.b.wantRecv(1, ib.StatusRemInvReq, 0)
			x.b.wantRecv(2, ib.StatusWRFlush, 0)
			x.b.wantBroken()
			if f := x.b.table.Check(uint32(x.b.mr.LKey()), 1, 0x10000, 8, ib.RemoteAny); f != mem.OK {
				t.Errorf("the region suffered: %v", f)
			}
		})
	}
}

// C-110: more READs than the responder has resources for are an invalid request, when
// they come faster than they are answered.
func TestTooManyReads(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{depth: 16, destDepth: 1})
	for i := range uint64(2) {
		x.a.fill(&req{id: i, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8)}})
	}
	x.a.pump()
	for i := range 2 {
		x.a.wantPacket(wire.RCReadRequest, i, "ack")
		x.b.q.Receive(x.now, x.held.packet())
		x.held = nil
	}
	x.b.pump()
	x.b.wantEvent(ib.EventQPReqErr)
	x.b.wantResponse(wire.RCReadRespOnly, 0, wire.AckNoLimit) // what came before is still answered
	x.deliver()
	x.b.wantAck(1, wire.NAKInvalid)
	x.deliver()
	x.a.wantDone(0, ib.StatusSuccess)
	x.a.wantDone(1, ib.StatusRemInvReq)
	x.a.wantBroken()
}

// The requester keeps to its depth: the rest waits, in order.
func TestReadDepth(t *testing.T) {
	t.Parallel()
	x := newScript(t, &setup{depth: 1})
	for i := range uint64(4) {
		x.a.fill(&req{id: i, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 300)}})
	}
	x.a.pump()
	for i := range 4 {
		x.a.wantPacket(wire.RCReadRequest, 2*i, "ack")
		x.deliver()
		x.a.wantSilence()
		x.b.wantResponse(wire.RCReadRespFirst, 2*i, wire.AckNoLimit)
		x.deliver()
		x.a.wantSilence()
		x.b.wantResponse(wire.RCReadRespLast, 2*i+1, wire.AckNoLimit)
		x.deliver()
		x.a.wantDone(uint64(i), ib.StatusSuccess)
	}
}

// C-036: memory goes away while it is being read, written, sent from or received into.
func TestMemoryVanishes(t *testing.T) {
	t.Parallel()
	long := func(e *end) []driver.SGE { return []driver.SGE{e.sge(0, 30000)} }

	t.Run("read served", func(t *testing.T) {
		t.Parallel()
		x := newScript(t, &setup{window: 8000})
		x.a.post(req{id: 1, op: ib.OpRead, sgl: long(x.a)}, req{id: 2, op: ib.OpWrite, data: "x"})
		x.a.wantPacket(wire.RCReadRequest, 0, "ack")
		x.b.q.Receive(x.now, x.held.packet())
		x.held = nil
		x.b.table.Remove(x.b.mr)
		x.b.pump()
		x.b.wantAck(0, wire.NAKAccess)
		x.deliver()
		x.run()
		x.a.wantDone(1, ib.StatusRemAccess)
		x.a.wantBroken(2)
		x.b.wantEvent(ib.EventQPAccessErr)
		x.b.wantBroken()
	})
	t.Run("read in the middle", func(t *testing.T) {
		t.Parallel()
		x := newScript(t, nil)
		x.b.out.Max = MaxPacket // a few packets at a time
		x.a.post(req{id: 1, op: ib.OpRead, sgl: long(x.a)})
		x.a.wantPacket(wire.RCReadRequest, 0, "ack")
		x.b.q.Receive(x.now, x.held.packet())
		x.held = nil
		x.b.out.Buf, x.b.out.Ends = x.b.out.Buf[:0], x.b.out.Ends[:0]
		if !x.b.q.Transmit(x.now, &x.b.out) {
			t.Fatal("all of the response fits")
		}
		n := len(x.b.out.Ends)
		x.b.table.Remove(x.b.mr)
		x.b.pump()
		// The first packets are lost. They will not come any more, as the peer is mute after
		// its NAK, and the READ has failed without them.
		x.b.wantAck(n, wire.NAKAccess)
		x.deliver()
		x.a.flights = nil // what it asked for beyond
		x.b.wantEvent(ib.EventQPAccessErr)
		x.a.wantDone(1, ib.StatusRemAccess)
		x.a.wantBroken()
	})
	t.Run("read repeated", func(t *testing.T) {
		t.Parallel()
		// The peer repeats a part that comes meanwhile, and the memory goes away under that.
		x := newScript(t, nil)
		x.b.out.Max = MaxPacket
		x.a.post(req{id: 1, op: ib.OpRead, sgl: long(x.a)}, req{id: 2, op: ib.OpWrite, data: "x"})
		x.a.wantPacket(wire.RCReadRequest, 0, "ack")
		x.b.q.Receive(x.now, x.held.packet())
		x.held = nil
		x.b.pump()
		x.b.wantResponse(wire.RCReadRespFirst, 0, wire.AckNoLimit)
		x.deliver()
		x.b.flights, x.a.flights = nil, nil
		refuse := func(psn ib.PSN) {
			x.a.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: psn, AETH: wire.AETH{Syndrome: wire.NAKAccess}})
		}
		refuse(x.a.psn.Add(-1)) // of nothing that is outstanding
		x.a.wantState(ib.StateRTS)
		refuse(x.a.psn)
		x.a.wantDone(1, ib.StatusRemAccess)
		x.a.wantBroken(2)
	})
	t.Run("read of before", func(t *testing.T) {
		t.Parallel()
		x := newScript(t, nil)
		x.a.post(req{id: 1, op: ib.OpRead, sgl: []driver.SGE{x.a.sge(0, 8)}}, req{id: 2, op: ib.OpWrite, data: "x"})
		x.a.flights = nil
		// What is refused comes after a READ whose response was lost: that may come again.
		x.a.forge(wire.Packet{Opcode: wire.RCAcknowledge, PSN: x.a.psn.Add(1), AETH: wire.AETH{Syndrome: wire.NAKAccess}})
		x.a.wantState(ib.StateRTS)
		x.a.wantPacket(wire.RCReadRequest, 0, "ack")
		x.held, x.a.flights = nil, nil
	})
	t.Run("written to", func(t *testing.T) {
		t.Parallel()
		x := newScript(t, nil)
		x.a.post(req{id: 1, op: ib.OpWrite, sgl: long(x.a)})
		x.a.wantPacket(wire.RCWriteFirst, 0, "")
		x.deliver()
		x.b.table.Remove(x.b.mr)
		if !x.b.mr.Idle() {
			t.Error("the region is in use between packets")
		}
		before := string(x.b.buf)
		x.run()
		x.a.wantDone(1, ib.StatusRemAccess)
		x.a.wantBroken()
		x.b.wantEvent(ib.EventQPAccessErr)
		x.b.wantBroken()
		if string(x.b.buf) != before {
			t.Error("memory was changed after its removal")
		}
	})
	t.Run("received into", func(t *testing.T) {
		t.Parallel()
		x := newScript(t, nil)
		x.b.recv(1, 0, 30000)
		x.a.post(req{id: 1, op: ib.OpSend, sgl: long(x.a)})
		x.a.wantPacket(wire.RCSendFirst, 0, "")
		x.deliver()
		x.b.table.Remove(x.b.mr)
		x.run()
		x.a.wantDone(1, ib.StatusRemOp)
		x.b.wantRecv(1, ib.StatusLocProt, 0)
		x.a.wantBroken()
		x.b.wantBroken()
	})
	t.Run("sent from", func(t *testing.T) {
		t.Parallel()
		x := newScript(t, &setup{window: 2000})
		x.a.post(req{id: 1, op: ib.OpWrite, data: "x"}, req{id: 2, op: ib.OpWrite, sgl: long(x.a)}, req{id: 3, op: ib.OpWrite, data: "x"})
		x.a.table.Remove(x.a.mr)
		x.run()
		x.a.wantDone(1, ib.StatusSuccess)
		x.a.wantDone(2, ib.StatusLocProt)
		x.a.wantBroken(3)
		x.b.wantState(ib.StateRTS)
	})
	t.Run("read into", func(t *testing.T) {
		t.Parallel()
		x := newScript(t, nil)
		x.a.post(req{id: 1, op: ib.OpRead, sgl: long(x.a)})
		x.a.wantPacket(wire.RCReadRequest, 0, "ack")
		x.deliver()
		x.b.wantResponse(wire.RCReadRespFirst, 0, wire.AckNoLimit)
		x.deliver()
		x.a.table.Remove(x.a.mr)
		x.run()
		x.a.wantDone(1, ib.StatusLocProt)
		x.a.wantBroken()
		x.b.wantState(ib.StateRTS)
	})
}
