package transport

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// FuzzExchange runs an exchange in which the input says what happens to each packet:
// passed on, lost, repeated, kept for later, or changed. Whatever comes: no panic, no
// byte outside of the regions, each request completes at most once and, when a side
// fails, exactly once, and timers end.
func FuzzExchange(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 1, 1, 2, 2, 3, 3, 3})
	for b := byte(4); b < 40; b++ {
		f.Add([]byte{0, b, 0xff, 9, 0, 0, b, 3, 200, b, 17, 1})
		f.Add([]byte{b, 12, 200, b, 7, 1, 2, 3, b, 0, 255})
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 4096 {
			return
		}
		next := func() byte {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return b
		}
		const size = 16 << 10
		x := newScript(t, &setup{bufSize: size, psn: 0xFFFFF0, timeout: 2 * time.Millisecond, rnrRetry: 3, window: 3000,
			regAccess: ib.LocalWrite | ib.RemoteAny | ib.MWBind})
		x.quiet = true
		posted := [2]map[uint64]int{{}, {}}
		recvs := [2]map[uint64]int{{}, {}}
		for i, e := range []*end{x.a, x.b} {
			for id := range uint64(4) {
				e.recv(id, 8000+1000*int(id), 900)
				recvs[i][id] = 0
			}
			for j, r := range []req{
				{op: ib.OpSend, data: "0123456789"},
				{op: ib.OpSendImm, sgl: []driver.SGE{e.sge(0, 900)}},
				{op: ib.OpWrite, to: 12000, sgl: []driver.SGE{e.sge(0, 700)}},
				{op: ib.OpRead, to: 2000, sgl: []driver.SGE{e.sge(13000, 1500)}},
				{op: ib.OpFetchAdd, to: 4000, swap: 1, sgl: []driver.SGE{e.sge(14600, 8)}},
				{op: ib.OpWriteImm, to: 12800, sgl: []driver.SGE{e.sge(0, 300)}},
				{op: ib.OpCompareSwap, to: 4000, sgl: []driver.SGE{e.sge(14608, 8)}},
				{op: ib.OpSendInv, data: "bye"},
				{op: ib.OpRead, to: 3000, sgl: []driver.SGE{e.sge(13000, 100)}},
			} {
				r.id = uint64(100 + j)
				posted[i][r.id] = 0
				e.fill(&r)
			}
		}
		var kept []*flight
		x.a.pump()
		x.b.pump()
		give := func(f *flight, b []byte) {
			var p wire.Packet
			if p.Decode(b) != nil {
				return
			}
			e := f.from.peer
			e.q.Receive(x.now, &p)
			e.pump()
		}
		for round := range 3000 {
			for _, e := range []*end{x.a, x.b} {
				if len(e.flights) == 0 {
					continue
				}
				f := e.flights[0]
				e.flights = e.flights[1:]
				x.now += time.Microsecond
				switch op := next(); {
				case op == 0:
					give(f, f.b)
				case op == 1: // lost
				case op == 2:
					give(f, f.b)
					give(f, f.b)
				case op == 3:
					kept = append(kept, f)
				case op < 40: // another opcode
					f.b[0] = op - 4
					give(f, f.b)
				case op < 80: // another number
					psn := binary.BigEndian.Uint32(f.b[8:])
					binary.BigEndian.PutUint32(f.b[8:], psn&0xff000000|(psn+uint32(next())-uint32(op))&0xffffff)
					give(f, f.b)
				case op < 100 && len(f.b) > 4: // another length
					f.b = f.b[:len(f.b)-min(len(f.b)-12, 4*int(op-79))]
					give(f, f.b)
				case op < 110 && len(kept) > 0:
					give(kept[0], kept[0].b)
					kept = kept[1:]
					give(f, f.b)
				default: // another byte
					f.b[int(next())%len(f.b)] ^= op
					give(f, f.b)
				}
			}
			if len(x.a.flights)+len(x.b.flights) != 0 {
				continue
			}
			if len(kept) > 0 {
				give(kept[0], kept[0].b)
				kept = kept[1:]
				continue
			}
			da, oka := x.a.q.Deadline()
			db, okb := x.b.q.Deadline()
			if !oka && !okb || round == 2999 {
				break
			}
			e := x.a
			if !oka || okb && db < da {
				e = x.b
			}
			e.advance()
		}
		for i, e := range []*end{x.a, x.b} {
			for _, c := range e.done {
				m := posted[i]
				if c.Recv {
					m = recvs[i]
				}
				n, ok := m[c.ID]
				if !ok || n != 0 {
					t.Fatalf("%s: %s completes for the %d. time", e.name, doneString(c), n+1)
				}
				m[c.ID]++
			}
			if e.q.State() == ib.StateError {
				for id, n := range posted[i] {
					if n != 1 {
						t.Fatalf("%s failed, and request %d has %d completions", e.name, id, n)
					}
				}
				for id, n := range recvs[i] {
					if n != 1 {
						t.Fatalf("%s failed, and receive %d has %d completions", e.name, id, n)
					}
				}
				if _, ok := e.q.Deadline(); ok {
					t.Fatalf("%s failed, and a timer runs", e.name)
				}
			} else if e.q.sq.head == e.q.sq.tail && e.q.req.inflight != 0 {
				t.Fatalf("%s: %d bytes in flight of no request", e.name, e.q.req.inflight)
			}
			for j, b := range e.spare {
				if b != 0 {
					t.Fatalf("%s: byte %d behind the region was changed", e.name, j)
				}
			}
			e.done, e.events, e.flights = nil, nil, nil
		}
	})
}
