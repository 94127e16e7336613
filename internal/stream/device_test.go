package stream

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// A device is one end of a virtual reliable connection: what is posted arrives in order,
// whenever the test says so; memory is read when a message travels, unless it was inline,
// and written only where it is registered.
type device struct {
	t     testing.TB
	name  string
	peer  *device
	mem   []registered
	recvs []Recv
	sq    []wireOp
	cq    []cqe
	rnr   int // messages that met no receive
	sent  int // messages that arrived at the peer
	dead  bool
	// check looks at a message that arrives, before anything is written.
	check func(op *wireOp)
	log   func(op *wireOp)
}

type registered struct {
	addr uint64
	key  ib.RKey
	b    []byte
}

// wireOp is a request on its way.
type wireOp struct {
	Op
	inline []byte
	gather func() []byte
}

func (w *wireOp) bytes() []byte {
	if w.gather != nil {
		return w.gather()
	}
	return w.inline
}

type cqe struct {
	recv bool
	a    Arrival
	id   uint64
}

// register makes b writable for the peer.
func (d *device) register(addr uint64, key ib.RKey, b []byte) {
	d.mem = append(d.mem, registered{addr, key, b})
}

func (d *device) deregister(key ib.RKey) {
	for i, m := range d.mem {
		if m.key == key {
			d.mem = append(d.mem[:i], d.mem[i+1:]...)
			return
		}
	}
	d.t.Fatalf("%s: no region with key %#x", d.name, key)
}

func (d *device) at(addr uint64, key ib.RKey, n int) []byte {
	for _, m := range d.mem {
		if m.key == key && addr >= m.addr && addr-m.addr+uint64(n) <= uint64(len(m.b)) {
			return m.b[addr-m.addr:][:n]
		}
	}
	d.t.Fatalf("%s: remote access error: %#x key %#x length %d", d.name, addr, key, n)
	return nil
}

// deliver moves the oldest posted request to the peer. It reports whether it could.
func (d *device) deliver(recvMem func(Loc) []byte) bool {
	if len(d.sq) == 0 || d.dead {
		return false
	}
	op, p := &d.sq[0], d.peer
	imm := op.Opcode != ib.OpWrite
	if imm && len(p.recvs) == 0 {
		d.rnr++
		return false
	}
	b := op.bytes()
	if len(b) != op.Len() {
		d.t.Fatalf("%s: message of %d bytes has %d", d.name, op.Len(), len(b))
	}
	if p.check != nil {
		p.check(op)
	}
	if d.log != nil {
		d.log(op)
	}
	c := cqe{recv: true, a: Arrival{Opcode: ib.WCRecvWriteImm, HasImm: true, Imm: op.Imm, Len: uint32(len(b))}}
	switch op.Opcode {
	case ib.OpWrite, ib.OpWriteImm:
		if len(b) > 0 {
			copy(p.at(op.Remote, op.RKey, len(b)), b)
		}
	case ib.OpSendImm:
		c.a.Opcode = ib.WCRecv
		r := p.recvs[0]
		if len(b) > int(r.Loc.Len) {
			d.t.Fatalf("%s: message of %d bytes for a receive of %d", d.name, len(b), r.Loc.Len)
		}
		if len(b) > 0 {
			copy(recvMem(r.Loc), b)
		}
	default:
		d.t.Fatalf("%s: opcode %v", d.name, op.Opcode)
	}
	if imm {
		p.recvs = p.recvs[1:]
		p.cq = append(p.cq, c)
	}
	if op.Signaled {
		d.cq = append(d.cq, cqe{id: op.ID})
	}
	d.sq = d.sq[1:]
	d.sent++
	return true
}

// side is an engine with its owner.
type side struct {
	*device
	e       *Engine
	rnd     *rand.Rand
	send    []byte
	mems    map[Region][]byte
	keys    map[Region]ib.RKey
	nextKey ib.RKey
	table   []byte
	hello   Hello
	now     *time.Duration
	events  Events
	lend    bool
	moody   bool // lends only sometimes
	noPump  bool
	noRoom  bool // Room gave nothing, and there was no Writable since
	noData  bool // the same for Peek and Readable
	nextID  uint64
	recvID  uint64

	opCount   int
	signals   int
	regions   int // lent
	lends     int // how often
	maxPosted int

	// The user.
	toWrite  int // bytes
	written  int
	read     int
	eof      bool
	werr     error
	rerr     error
	shut     bool
	lazy     bool                    // pumps after a read only if that is Due
	useWrite func(off int, b []byte) // what the stream has at off
	wantRead func(off int, b []byte) bool
}

// pattern is what a stream from name has at off.
func pattern(seed uint64, off int) byte {
	x := uint64(off)*0x9E3779B97F4A7C15 ^ seed
	return byte(x >> 40)
}

// pump does what the owner does after every call.
func (s *side) pump() {
	if s.noPump {
		return
	}
	var r Recv
	for s.e.NextRecv(&r) {
		if r.ID != s.recvID {
			s.t.Fatalf("%s: receive %d, want %d", s.name, r.ID, s.recvID)
		}
		s.recvID++
		if r.Loc.Region != NoRegion && int(r.Loc.Off+r.Loc.Len) > len(s.mems[r.Loc.Region]) {
			s.t.Fatalf("%s: receive outside of its region: %+v", s.name, r)
		}
		s.recvs = append(s.recvs, r)
		if len(s.recvs) > s.e.cfg.RecvQueue {
			s.t.Fatalf("%s: %d receives", s.name, len(s.recvs))
		}
	}
	s.maxPosted = max(s.maxPosted, len(s.recvs))
	var op Op
	for n := 0; s.e.Next(*s.now, &op); n++ {
		s.post(op)
		if n > 1<<16 {
			s.t.Fatalf("%s: requests without end", s.name)
		}
	}
	ev := s.e.Events()
	s.events |= ev
	s.noRoom = s.noRoom && ev&Writable == 0
	s.noData = s.noData && ev&Readable == 0
	if ev&WantRecv != 0 {
		s.answer()
	}
	if ev&RecvReturned != 0 {
		for {
			r, ok := s.e.TakeReturned()
			if !ok {
				break
			}
			s.regions--
			gone := s.mems[r]
			for i := range gone {
				gone[i] = 0xDD
			}
			delete(s.mems, r)
			if k, ok := s.keys[r]; ok {
				s.deregister(k)
				delete(s.keys, r)
			}
		}
	}
	s.invariants()
}

// post gives the device a request.
func (s *side) post(op Op) {
	if op.ID != s.nextID+1 {
		s.t.Fatalf("%s: request %d, want %d", s.name, op.ID, s.nextID+1)
	}
	s.nextID = op.ID
	s.opCount++
	if op.Signaled {
		s.signals++
	}
	w := wireOp{Op: op}
	if op.N == 0 {
		w.inline = bytes.Clone(op.Data[:op.DataN])
	} else {
		for _, l := range op.Segs[:op.N] {
			if m := s.local(l); len(m) != int(l.Len) || l.Len == 0 {
				s.t.Fatalf("%s: piece %+v", s.name, l)
			}
		}
		gather := func() []byte {
			var b []byte
			for _, l := range op.Segs[:op.N] {
				b = append(b, s.local(l)...)
			}
			return b
		}
		if op.Inline {
			w.inline = gather()
		} else {
			w.gather = gather
		}
	}
	s.sq = append(s.sq, w)
	if out := int(s.e.out.last - s.e.out.done); out > s.e.cfg.SendQueue {
		s.t.Fatalf("%s: %d requests outstanding", s.name, out)
	}
}

func (s *side) local(l Loc) []byte {
	m := s.mems[l.Region]
	if l.Region == SendRegion {
		m = s.send
	}
	return m[l.Off : l.Off+l.Len]
}

// answer lends memory, or not.
func (s *side) answer() {
	if !s.lend || s.moody && s.rnd.IntN(4) == 0 {
		s.e.Decline(*s.now)
		return
	}
	size := s.e.Want()
	count := MinCredits + s.rnd.IntN(8)
	if s.e.Mode() == Verbena {
		count = min(count, s.e.cfg.RecvQueue-MinCredits)
	}
	s.lendMemory(size, count)
}

func (s *side) lendMemory(size, count int) Region {
	m := RecvMemory{Size: size, Count: count, Mem: make([]byte, size*count)}
	s.nextKey++
	if s.e.Mode() == Compatible {
		m.Addr, m.RKey = uint64(s.nextKey)<<32|0x123, s.nextKey
	}
	r, err := s.e.Lend(*s.now, m)
	if err != nil {
		s.t.Fatalf("%s: Lend: %v", s.name, err)
	}
	s.mems[r] = m.Mem
	if s.e.Mode() == Compatible {
		s.keys[r] = m.RKey
		s.register(m.Addr, m.RKey, m.Mem)
	}
	s.regions++
	s.lends++
	return r
}

// poll gives the engine the oldest completion.
func (s *side) poll() bool {
	if len(s.cq) == 0 {
		return false
	}
	c := s.cq[0]
	s.cq = s.cq[1:]
	if c.recv {
		s.e.Received(*s.now, c.a)
	} else {
		s.e.Sent(*s.now, c.id)
	}
	s.pump()
	return true
}

// write lets the user write up to n bytes.
func (s *side) write(n int) bool {
	n = min(n, s.toWrite-s.written)
	did := false
	for n > 0 {
		l, err := s.e.Room()
		if err != nil {
			s.werr = err
			return did
		}
		if l.Len == 0 {
			s.noRoom = true
			break
		}
		m := min(n, int(l.Len))
		s.useWrite(s.written, s.send[l.Off:][:m])
		s.e.Commit(m)
		s.written += m
		n -= m
		did = true
	}
	if did {
		s.pump()
	}
	return did
}

// doRead lets the user read up to n bytes.
func (s *side) doRead(n int) bool {
	did := false
	for n > 0 {
		l, err := s.e.Peek()
		if err != nil {
			s.eof, s.rerr = true, err
			break
		}
		if l.Len == 0 {
			s.noData = true
			break
		}
		m := min(n, int(l.Len))
		b := s.mems[l.Region][l.Off:][:m]
		if !s.wantRead(s.read, b) {
			s.t.Fatalf("%s: wrong bytes at %d, length %d, region %d", s.name, s.read, m, l.Region)
		}
		s.read += m
		s.e.Consume(m)
		n -= m
		did = true
	}
	if did && (!s.lazy || s.e.Due()) {
		s.pump()
	}
	return did
}

// invariants that hold after every pump.
func (s *side) invariants() {
	o := &s.e.out
	switch {
	case o.head > o.next || o.next > o.tail || o.tail-o.head > o.size:
		s.t.Fatalf("%s: send buffer %+v", s.name, o)
	case o.done > o.last || int(o.last-o.done) > len(o.slots):
		s.t.Fatalf("%s: slots %+v", s.name, o)
	case o.signaled < 0:
		s.t.Fatalf("%s: %d signaled", s.name, o.signaled)
	}
	in := &s.e.in
	var queued uint64
	for i := range in.count {
		queued += uint64(in.span(i).n)
	}
	if queued != in.queued || in.eaten+in.queued != in.total {
		s.t.Fatalf("%s: queued %d, spans %d, eaten %d, total %d", s.name, in.queued, queued, in.eaten, in.total)
	}
	if v := s.e.v; v != nil && s.e.end.err == nil {
		if v.used() < 0 || v.used() > len(v.fifo) || int32(v.told-v.taken) < 0 && !s.e.end.over || int32(v.posted-v.told) < 0 {
			s.t.Fatalf("%s: posted %d told %d taken %d", s.name, v.posted, v.told, v.taken)
		}
		if c := int32(v.limit - v.seq); c < 0 || int32(v.seq-v.acked) < 0 {
			s.t.Fatalf("%s: seq %d limit %d acked %d", s.name, v.seq, v.limit, v.acked)
		}
	}
	if c := s.e.c; c != nil && s.e.end.err == nil {
		if c.posted < 0 || c.have < 0 || c.have > len(c.entries) || c.toldN < 0 || c.toldN > len(c.told) {
			s.t.Fatalf("%s: %+v", s.name, c)
		}
	}
}

// cfg of a pair.
type pairConfig struct {
	mode               Mode
	recvSize           [2]int
	recvCount          [2]int
	recvQueue          [2]int
	sendQueue, sendBuf [2]int
	inline             [2]int
	sgl                [2]int
	iomap              [2]int
	net                [2]bool
	noDelay            bool
	keepAlive          KeepAlive
	shrink             time.Duration
	maxRecv            int
	wrap               uint32 // all counters start here
	posted             int    // receives before the hello, with a C peer
}

func defaultPair(m Mode) pairConfig {
	return pairConfig{
		mode: m, recvSize: [2]int{512, 512}, recvCount: [2]int{12, 12}, recvQueue: [2]int{64, 64},
		sendQueue: [2]int{32, 32}, sendBuf: [2]int{128 << 10, 128 << 10}, inline: [2]int{64, 64}, sgl: [2]int{4, 4},
	}
}

// newPair makes two engines that are connected.
func newPair(t testing.TB, c pairConfig, seed uint64) (a, b *side, now *time.Duration) {
	t.Helper()
	now = new(time.Duration)
	var ss [2]*side
	for i := range ss {
		s := &side{
			device: &device{t: t, name: fmt.Sprintf("%c (seed %d)", 'A'+i, seed)},
			rnd:    rand.New(rand.NewPCG(seed, uint64(i))), mems: map[Region][]byte{}, keys: map[Region]ib.RKey{}, now: now,
			nextKey: ib.RKey(0x1000 * (i + 1)), send: make([]byte, c.sendBuf[i]),
			lend: true,
		}
		me := uint64(i)
		s.useWrite = func(off int, b []byte) {
			for j := range b {
				b[j] = pattern(seed+me, off+j)
			}
		}
		s.wantRead = func(off int, b []byte) bool {
			for j := range b {
				if b[j] != pattern(seed+1-me, off+j) {
					return false
				}
			}
			return true
		}
		s.mems[FirstRecv] = make([]byte, c.recvSize[i]*c.recvCount[i])
		h := &s.hello
		h.Flags = FlagIOMap
		h.IOMap = c.iomap[i]
		if c.mode == Verbena {
			h.Ext = Extension{Version: ExtensionVersion, Credits: uint8(c.recvCount[i]), RecvSize: uint32(c.recvSize[i]), Instance: seed}
		} else {
			if c.net[i] {
				h.Flags |= FlagNet
			}
			h.Credits = uint16(c.recvQueue[i] - SpareRecvs)
			h.SGLAddr, h.SGLKey, h.SGLLen = 0x7f00_0000_1000+uint64(i)<<40, ib.RKey(0x50+i), uint32(c.sgl[i])
			h.BufAddr, h.BufKey, h.BufLen = 0x7e00_0000_0001+uint64(i)<<40, ib.RKey(0x60+i), uint32(c.recvSize[i])
			s.table = make([]byte, TableLen(c.sgl[i], c.iomap[i]))
			s.register(h.SGLAddr, h.SGLKey, s.table)
			s.register(h.BufAddr, h.BufKey, s.mems[FirstRecv])
		}
		ss[i] = s
	}
	ss[0].peer, ss[1].peer = ss[1].device, ss[0].device
	for i, s := range ss {
		peer := ss[1-i].hello
		cfg := Config{
			Mode: c.mode, Local: &s.hello, Peer: &peer, SendQueue: c.sendQueue[i], RecvQueue: c.recvQueue[i], Inline: c.inline[i],
			Recv:  RecvMemory{Size: c.recvSize[i], Count: c.recvCount[i], Mem: s.mems[FirstRecv], Addr: s.hello.BufAddr, RKey: s.hello.BufKey},
			Table: s.table, SendBuffer: c.sendBuf[i], NoDelay: c.noDelay, KeepAlive: c.keepAlive, Shrink: c.shrink, MaxRecv: c.maxRecv,
		}
		for n := 0; c.mode == Verbena; n++ {
			r, ok := InitialRecv(&s.hello, &cfg.Recv, n)
			if !ok {
				break
			}
			s.recvs = append(s.recvs, r)
			cfg.Posted++
			s.recvID++
		}
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.e = e
	}
	if x := c.wrap; x != 0 {
		for i, s := range ss {
			p := ss[1-i]
			s.e.out.last += uint64(x)
			s.e.out.done += uint64(x)
			s.nextID += uint64(x)
			if v := s.e.v; v != nil {
				v.seq, v.limit, v.acked = v.seq+x, v.limit+x, v.acked+x
				w := p.e.v
				w.taken, w.posted, w.told = w.taken+x, w.posted+x, w.told+x
				w.lastAt += x
				v.burn += x
				v.bound += x
			} else {
				s.e.c.limit += uint16(x)
				p.e.c.seq += uint16(x)
				p.e.c.granted += uint16(x)
			}
		}
	}
	for _, s := range ss {
		s.pump()
	}
	return ss[0], ss[1], now
}

// deliverOne moves one message from s.
func (s *side) deliverTo(p *side) bool {
	return s.deliver(func(l Loc) []byte { return p.mems[l.Region][l.Off:][:l.Len] })
}

// settle lets everything that is on its way arrive.
func settle(a, b *side) {
	for range 1 << 20 {
		if !a.deliverTo(b) && !b.deliverTo(a) && !a.poll() && !b.poll() {
			return
		}
	}
	a.t.Fatalf("%s: no end", a.name)
}
