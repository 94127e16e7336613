package softroce

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// inject delivers a datagram as if it came from an address.
func (n *network) inject(from, to netip.AddrPort, b []byte) {
	n.mu.Lock()
	c := n.conns[to]
	n.mu.Unlock()
	if c != nil {
		c.q <- datagram{b: b, from: from}
	}
}

// goodPacket is the next packet that b expects from a: an empty SEND.
func goodPacket(a, b *side) *wire.Packet {
	return &wire.Packet{
		Opcode: wire.ServiceRC.With(wire.SendOnly), MigReq: true, PKey: defaultPKey,
		DestQP: b.qp.Num(), PSN: psnOf(a.qp.Num()), AckReq: true,
	}
}

func TestQ_DropsByCause(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{}, path{})
		unconnected := b.newQP(sideConfig{depth: 1})
		b.recv(0, 100)
		from, to := at(addrA), at(addrB)
		good := goodPacket(a, b)
		edit := func(f func(p *wire.Packet)) []byte {
			p := *good
			f(&p)
			return forge(from, to, &p)
		}
		raw := func(f func(b []byte) []byte) []byte { return f(forge(from, to, good)) }
		fixed := func(f func(b []byte)) []byte { // with an ICRC that is right
			p := forge(from, to, good)
			f(p)
			flow := wire.NewFlow(from, to)
			flow.Put(p, 0)
			return p
		}
		for _, x := range []struct {
			name string
			b    []byte
			from netip.AddrPort
			want func(Stats) uint64
		}{
			{"one byte", []byte{4}, from, func(s Stats) uint64 { return s.DropLength }},
			{"short by one", raw(func(b []byte) []byte { return b[:minPacket-1] }), from, func(s Stats) uint64 { return s.DropLength }},
			{"longer than any", make([]byte, maxPacket+1), from, func(s Stats) uint64 { return s.DropLength }},
			{"opcode", raw(func(b []byte) []byte { b[0] = 0x15; return b }), from, func(s Stats) uint64 { return s.DropOpcode }},
			{"opcode of a vendor", raw(func(b []byte) []byte { b[0] = 0xC3; return b }), from, func(s Stats) uint64 { return s.DropOpcode }},
			{"version", raw(func(b []byte) []byte { b[1] |= 1; return b }), from, func(s Stats) uint64 { return s.DropVersion }},
			{"no queue pair", edit(func(p *wire.Packet) { p.DestQP ^= 0x40 }), from, func(s Stats) uint64 { return s.DropNoQP }},
			{"same place, another number", edit(func(p *wire.Packet) { p.DestQP ^= 0x800000 }), from, func(s Stats) uint64 { return s.DropNoQP }},
			{"QP0", edit(func(p *wire.Packet) { p.DestQP = 0 }), from, func(s Stats) uint64 { return s.DropNoQP }},
			{"multicast QP", edit(func(p *wire.Packet) { p.DestQP = 0xFFFFFF }), from, func(s Stats) uint64 { return s.DropNoQP }},
			{"UC to RC", edit(func(p *wire.Packet) { p.Opcode = wire.ServiceUC.With(wire.SendOnly) }), from, func(s Stats) uint64 { return s.DropService }},
			{"UD to RC", edit(func(p *wire.Packet) { p.Opcode = wire.UDSendOnly }), from, func(s Stats) uint64 { return s.DropService }},
			{"not connected", edit(func(p *wire.Packet) { p.DestQP = unconnected.num }), from, func(s Stats) uint64 { return s.DropState }},
			{"C-319 another source", forge(at(addrC), to, good), at(addrC), func(s Stats) uint64 { return s.DropAddress }},
			{"P_Key", edit(func(p *wire.Packet) { p.PKey = 0x1234 }), from, func(s Stats) uint64 { return s.DropPKey }},
			{"ICRC", raw(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), from, func(s Stats) uint64 { return s.DropICRC }},
			{"ICRC of another source", forge(at(addrC), to, good), from, func(s Stats) uint64 { return s.DropICRC }},
			{"headers cut off", func() []byte {
				p := edit(func(p *wire.Packet) { p.Opcode = wire.ServiceRC.With(wire.WriteOnly) })[:20]
				flow := wire.NewFlow(from, to)
				flow.Put(p, 0)
				return p
			}(), from, func(s Stats) uint64 { return s.DropMalformed }},
			{"pad without payload", fixed(func(b []byte) { b[1] |= 0x30 }), from, func(s Stats) uint64 { return s.DropMalformed }},
			{"QP1 without manager", edit(func(p *wire.Packet) { p.DestQP, p.Opcode = 1, wire.UDSendOnly }), from, func(s Stats) uint64 { return s.DropNoManager }},
		} {
			before := b.ctx.d.stats.snapshot()
			n.inject(x.from, to, x.b)
			synctest.Wait()
			after := b.ctx.d.stats.snapshot()
			if x.want(after) != x.want(before)+1 {
				t.Errorf("%s: not counted: %+v", x.name, after)
			}
			if dropped(after) != dropped(before)+1 || after.PacketsIn != before.PacketsIn+1 {
				t.Errorf("%s: counted %d times, %d packets", x.name, dropped(after)-dropped(before), after.PacketsIn-before.PacketsIn)
			}
			if after.PacketsOut != before.PacketsOut {
				t.Errorf("%s: answered", x.name)
			}
			if w, ok := b.poll(b.rcq); ok {
				t.Fatalf("%s: completed %+v", x.name, w)
			}
		}
		// From an address that is ours as well, to a socket that is not the queue pair's.
		n.inject(from, to, forge(from, to, good))
		synctest.Wait()
		if w, ok := b.poll(b.rcq); !ok || w.Status != ib.StatusSuccess {
			t.Errorf("the good packet: %+v, %v", w, ok)
		}
	})
}

func dropped(s Stats) uint64 {
	return s.DropLength + s.DropOpcode + s.DropVersion + s.DropNoQP + s.DropService + s.DropAddress + s.DropPKey +
		s.DropICRC + s.DropMalformed + s.DropState + s.DropManagement + s.DropNoManager + s.DropLink
}

// A packet to another address of the same device is not the queue pair's.
func TestC319_AnotherLocalAddress(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a := newSide(t, n.provider(t, 1, addrA), addrA, sideConfig{})
		b := newSide(t, n.provider(t, 2, addrB, addrC), addrB, sideConfig{})
		connect(t, a, b, path{})
		if _, err := b.ctx.d.endpoint(addrC); err != nil {
			t.Fatal(err)
		}
		b.recv(0, 10)
		n.inject(at(addrA), at(addrC), forge(at(addrA), at(addrC), goodPacket(a, b)))
		synctest.Wait()
		if s := b.ctx.d.stats.snapshot(); s.DropAddress != 1 {
			t.Errorf("%+v", s)
		}
		if _, ok := b.poll(b.rcq); ok {
			t.Error("completed")
		}
	})
}

// C-318: each flipped bit makes the packet another one or none; the fields that routers
// change do not count.
func TestC318_FlippedBits(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{}, path{})
		from, to := at(addrA), at(addrB)
		p := *goodPacket(a, b)
		p.Payload = []byte("payload of twenty-one")
		good := forge(from, to, &p)
		for bit := range 8 * len(good) {
			if bit/8 == 4 {
				continue // FECN, BECN and reserved bits are not covered
			}
			x := bytes.Clone(good)
			x[bit/8] ^= 0x80 >> (bit % 8)
			n.inject(from, to, x)
		}
		synctest.Wait()
		s := b.ctx.d.stats.snapshot()
		if dropped(s) != s.PacketsIn || s.PacketsOut != 0 {
			t.Errorf("a damaged packet was taken: %+v", s)
		}
		rid := b.recv(0, 100)
		x := bytes.Clone(good)
		x[4] ^= 0x80 // FECN
		n.inject(from, to, x)
		ok(t, b.next(b.rcq), rid)
	})
}

// C-324: garbage neither grows the device nor stops its queue pairs.
func TestC324_Flood(t *testing.T) {
	n := newNetwork()
	a, b := pairOf(t, n, sideConfig{}, path{})
	from, to := at(addrA), at(addrB)
	const seed = 5
	r := rand.New(rand.NewPCG(seed, seed))
	junk := make([][]byte, 512)
	for i := range junk {
		p := *goodPacket(a, b)
		p.DestQP = ib.QPN(r.Uint32() & 0xFFFFFF)
		junk[i] = forge(from, to, &p)
		if i%2 == 0 {
			junk[i] = make([]byte, r.IntN(200))
			for k := range junk[i] {
				junk[i][k] = byte(r.Uint32())
			}
		}
	}
	e, err := b.ctx.d.endpoint(addrB)
	if err != nil {
		t.Fatal(err)
	}
	ms := make([]netio.Message, 16)
	flood := func(rounds int) {
		for range rounds {
			for i := range ms {
				var src [4]byte
				binary.BigEndian.PutUint32(src[:], r.Uint32())
				ms[i] = netio.Message{Buf: junk[r.IntN(len(junk))], Addr: netip.AddrPortFrom(netip.AddrFrom4(src), uint16(r.Uint32()))}
				if i%3 == 0 {
					ms[i].Addr = from
				}
			}
			e.rx.Lock()
			e.receive(ms)
			e.rx.Unlock()
		}
	}
	flood(100)
	var m0, m1 runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	flood(10_000)
	runtime.GC()
	runtime.ReadMemStats(&m1)
	if grown := int64(m1.HeapAlloc) - int64(m0.HeapAlloc); grown > 1<<20 {
		t.Errorf("seed %d: grown by %d bytes", seed, grown)
	}
	if p := len(b.ctx.d.window.peers); p != 1 {
		t.Errorf("seed %d: %d peers are remembered", seed, p)
	}
	rid := b.recv(0, 100)
	sid := a.send(0, 10, 0)
	ok(t, b.next(b.rcq), rid)
	ok(t, a.next(a.scq), sid)
}

func TestDropsDoNotAllocate(t *testing.T) {
	n := newNetwork()
	a, b := pairOf(t, n, sideConfig{}, path{})
	e, err := b.ctx.d.endpoint(addrB)
	if err != nil {
		t.Fatal(err)
	}
	from, to := at(addrA), at(addrB)
	wrong := forge(from, to, goodPacket(a, b))
	wrong[13] ^= 1
	stranger := *goodPacket(a, b)
	stranger.DestQP ^= 0x1000
	old := *goodPacket(a, b)
	old.PSN--
	old.AckReq = false
	ms := []netio.Message{
		{Buf: wrong, Addr: from},
		{Buf: forge(from, to, &stranger), Addr: from},
		{Buf: forge(at(addrC), to, goodPacket(a, b)), Addr: at(addrC)},
		{Buf: forge(from, to, &old), Addr: from},
		{Buf: wrong[:3], Addr: from},
	}
	if n := testing.AllocsPerRun(1000, func() {
		e.rx.Lock()
		e.receive(ms)
		e.rx.Unlock()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A train whose last packet is shorter is cut as it was built; sizes that make no sense
// are one packet.
func TestTrainsAreCut(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{}, path{})
		e, err := b.ctx.d.endpoint(addrB)
		if err != nil {
			t.Fatal(err)
		}
		from, to := at(addrA), at(addrB)
		flow := wire.NewFlow(from, to)
		var train []byte
		first := b.recv(0, 200)
		b.recv(200, 200)
		for i, text := range []string{"first of the train", "last"} {
			p := *goodPacket(a, b)
			p.PSN += ib.PSN(i)
			p.Payload = []byte(text)
			x := append(p.AppendTo(nil), 0, 0, 0, 0)
			flow.Put(x, uint16(i)) // numbered by the system
			train = append(train, x...)
			if i == 0 {
				e.ms[0].Segment = len(x)
			}
		}
		e.rx.Lock()
		e.receive([]netio.Message{{Buf: train, Segment: e.ms[0].Segment, Addr: from}})
		e.acknowledge()
		e.rx.Unlock()
		ok(t, b.next(b.rcq), first)
		ok(t, b.next(b.rcq), first+1)
		if string(b.mem[:18]) != "first of the train" || string(b.mem[200:204]) != "last" {
			t.Errorf("%q", b.mem[:204])
		}
		for _, size := range []int{-1, 1 << 30, 1} {
			e.rx.Lock()
			e.receive([]netio.Message{{Buf: train, Segment: size, Addr: from}, {Segment: size, Addr: from}})
			e.acknowledge()
			e.rx.Unlock()
		}
	})
}

// C-335: a congestion mark makes the receiver tell the sender, not too often.
func TestC335_Marks(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := pairOf(t, n, sideConfig{}, path{tc: 0x20})
		cnps, ect := 0, 0
		n.setHook(func(from, to netip.AddrPort, p []byte, tos *uint8) bool {
			if p[0] == byte(wire.CNP) {
				cnps++
			} else if *tos == 0x20|ecnCapable {
				ect++
			} else {
				t.Errorf("traffic class %#x", *tos)
			}
			if from == at(addrA) {
				*tos |= ecnMarked
			}
			return true
		})
		for range 10 {
			rid := b.recv(0, 60_000)
			sid := a.send(0, 60_000, 0)
			ok(t, b.next(b.rcq), rid)
			ok(t, a.next(a.scq), sid)
		}
		n.setHook(nil)
		s := b.ctx.d.stats.snapshot()
		if s.MarksIn < 400 || cnps == 0 || cnps > 20 || ect < 400 {
			t.Errorf("%d marks, %d CNPs, %d capable packets", s.MarksIn, cnps, ect)
		}
	})
}

// FuzzReceive gives arbitrary datagrams to an endpoint with a connected queue pair that
// has everything outstanding. The first byte says how much of a packet is made right.
func FuzzReceive(f *testing.F) {
	n := newNetwork()
	pa, pb := n.provider(f, 1, addrA), n.provider(f, 2, addrB)
	from, to := at(addrA), at(addrB)
	seedQP := &wire.Packet{PKey: defaultPKey, DestQP: 2, PSN: 3, AckReq: true, Payload: []byte("data")}
	for op := range 256 {
		p := *seedQP
		p.Opcode = wire.Opcode(op)
		if p.Opcode.Known() && p.Opcode.Has(wire.Supported) {
			if !p.Opcode.Has(wire.HasPayload) {
				p.Payload = nil
			}
			for mode := range byte(4) {
				f.Add(append([]byte{mode}, forge(from, to, &p)...))
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		a := newSide(t, pa, addrA, sideConfig{depth: 4, size: 8192})
		b := newSide(t, pb, addrB, sideConfig{depth: 4, size: 8192})
		n.setHook(func(netip.AddrPort, netip.AddrPort, []byte, *uint8) bool { return false })
		connect(t, a, b, path{timeout: time.Hour})
		b.recv(0, 2048)
		b.send(0, 3000, 0)
		b.write(a, 0, 0, 3000)
		b.post(func(w *driver.SendSlot) {
			w.Opcode, w.Addr, w.RKey = ib.OpRead, a.base, a.rkey
			w.SGL = append(w.SGL, b.sge(0, 3000))
		})
		e, err := pb.dev.endpoint(addrB)
		if err != nil {
			t.Fatal(err)
		}
		mode, data := data[0], data[1:]
		before := pb.Stats()
		var messages []netio.Message
		const size = 100 // pieces of the input are packets of one message
		msg := netio.Message{Buf: bytes.Clone(data), Addr: from, TOS: mode}
		if mode&8 != 0 {
			msg.Segment = size
		}
		b.qp.mu.Lock()
		psn := b.qp.eng.Query().RQPSN
		b.qp.mu.Unlock()
		for at := 0; at < len(msg.Buf); at += size {
			p := msg.Buf[at:min(at+size, len(msg.Buf))]
			if msg.Segment == 0 {
				p = msg.Buf
				at = len(msg.Buf)
			}
			if len(p) < minPacket {
				continue
			}
			if mode&1 != 0 { // to the queue pair
				binary.BigEndian.PutUint32(p[4:], uint32(b.qp.num))
				p[2], p[3] = 0xFF, 0xFF
				p[1] &= 0xF0
			}
			if mode&4 != 0 { // in its window
				v := uint32(psn) + uint32(p[11]&7)
				if p[11]&8 != 0 {
					v = uint32(psnOf(b.qp.num)) + uint32(p[11]&7)
				}
				p[9], p[10], p[11] = byte(v>>16), byte(v>>8), byte(v)
			}
			if mode&2 != 0 { // and whole
				flow := wire.NewFlow(from, to)
				flow.Put(p, 0)
			}
		}
		messages = append(messages, msg)
		e.rx.Lock()
		e.receive(messages)
		e.acknowledge()
		e.rx.Unlock()
		after := pb.Stats()
		if n := after.PacketsIn - before.PacketsIn; dropped(after)-dropped(before) > n {
			t.Errorf("%d packets, %d drops", n, dropped(after)-dropped(before))
		}
		if len(pb.dev.window.peers) != 1 {
			t.Errorf("%d peers", len(pb.dev.window.peers))
		}
		for _, c := range []*cq{b.scq, b.rcq} {
			ws, err := c.Poll()
			if err != nil {
				t.Fatal(err)
			}
			if len(ws) > 4 {
				t.Errorf("%d completions", len(ws))
			}
		}
	})
}
