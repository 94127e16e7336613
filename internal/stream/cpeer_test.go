package stream

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// A cPeer behaves as a program on librdmacm's rsockets does, as far as the wire shows it:
// a ring of two halves, a table of two entries, receives that are posted again only when
// the program is inside a call that polls, credits that are given after half of them, and
// no look at what it is sent. It checks what arrives more strictly than C would.
type cPeer struct {
	*device
	rnd *rand.Rand

	ring       []byte
	ringAddr   uint64
	ringKey    ib.RKey
	half       uint32
	table      []byte // two entries, and the map
	tableAddr  uint64
	tableKey   ib.RKey
	net        bool // reads its table in network order
	rq, sq     int
	hello      Hello
	engine     Hello // of the other side
	nextID     uint64
	sends      int // outstanding
	sbuf, free int
	sizes      []int // of the outstanding sends

	// Sending.
	seq, limit uint16
	cur        int

	// Receiving.
	queue     []uint32 // lengths
	partial   uint32
	at        uint64 // where the next byte is read in the ring
	rseq      uint16
	comp      uint16
	freeBytes uint32
	nextHalf  uint32
	nextSlot  uint32
	ctrlOut   int

	connected, readable, writable bool

	// What the checks know.
	advertised []sglEntry // halves that were told and are not full
	gotSeq     uint16     // messages that arrived
	toldLimit  uint16
	slotWant   uint32
	limitSeen  uint16
	disc       bool // DISCONNECT has arrived
	shut       bool // SHUTDOWN has

	read, written, toWrite int
	eof                    bool
}

// newCPair makes an engine that is connected to a C program.
func newCPair(t testing.TB, seed uint64, cfg pairConfig, rq int, half uint32) (*side, *cPeer, *time.Duration) {
	now := new(time.Duration)
	rnd := rand.New(rand.NewPCG(seed, 7))
	c := &cPeer{
		device: &device{t: t, name: "C"}, rnd: rnd, half: half, ring: make([]byte, 2*half), ringAddr: 0x5600_0000_1000, ringKey: 0x77,
		table: make([]byte, TableLen(2, 4)), tableAddr: 0x5500_0000_2000, tableKey: 0x99, rq: rq, sq: 16 + rnd.IntN(370), sbuf: 4096,
		limit: uint16(cfg.recvQueue[0] - SpareRecvs), comp: uint16(rq / 2), freeBytes: half, nextHalf: 1, nextSlot: 1 % uint32(cfg.sgl[0]),
		connected: true, readable: true, writable: true, toldLimit: uint16(rq), slotWant: 1, net: cfg.net[1],
	}
	c.free = c.sbuf
	c.limitSeen = c.limit
	c.register(c.ringAddr, c.ringKey, c.ring)
	c.register(c.tableAddr, c.tableKey, c.table)
	c.hello = Hello{
		Flags: FlagIOMap, Credits: uint16(rq), IOMap: 4, SGLAddr: c.tableAddr, SGLKey: c.tableKey, SGLLen: 2,
		BufAddr: c.ringAddr, BufKey: c.ringKey, BufLen: half,
	}
	if c.net {
		c.hello.Flags |= FlagNet
	}
	c.advertised = []sglEntry{{c.ringAddr, c.ringKey, half}}
	for range rq {
		c.recvs = append(c.recvs, Recv{Loc: Loc{Region: NoRegion}})
	}
	s := &side{
		device: &device{t: t, name: "engine"}, rnd: rnd, mems: map[Region][]byte{}, keys: map[Region]ib.RKey{}, now: now,
		nextKey: 0x1000, send: make([]byte, cfg.sendBuf[0]), lend: true,
	}
	s.useWrite = func(off int, b []byte) {
		for j := range b {
			b[j] = pattern(seed, off+j)
		}
	}
	s.wantRead = func(off int, b []byte) bool {
		for j := range b {
			if b[j] != pattern(seed+1, off+j) {
				return false
			}
		}
		return true
	}
	s.mems[FirstRecv] = make([]byte, cfg.recvSize[0]*cfg.recvCount[0])
	s.table = make([]byte, TableLen(cfg.sgl[0], cfg.iomap[0]))
	s.hello = Hello{
		Flags: FlagIOMap, IOMap: cfg.iomap[0], Credits: uint16(cfg.recvQueue[0] - SpareRecvs), SGLAddr: 0x7f00_0000_1000, SGLKey: 0x50, SGLLen: uint32(cfg.sgl[0]),
		BufAddr: 0x7e00_0000_0001, BufKey: 0x60, BufLen: uint32(cfg.recvSize[0]),
	}
	if cfg.posted > 0 {
		// An active side that had receives for Verbena ready, and met C.
		s.hello.Credits = uint16(cfg.posted - SpareRecvs)
		for i := range cfg.posted {
			s.recvs = append(s.recvs, Recv{ID: uint64(i), Loc: Loc{Region: FirstRecv, Len: 512}})
		}
		s.recvID = uint64(cfg.posted)
		c.limit, c.limitSeen = s.hello.Credits, s.hello.Credits
	}
	s.register(s.hello.SGLAddr, s.hello.SGLKey, s.table)
	s.register(s.hello.BufAddr, s.hello.BufKey, s.mems[FirstRecv])
	s.peer, c.peer = c.device, s.device
	c.engine = s.hello
	c.check = c.checkArrival
	c.log = c.told
	// C's own table starts with our first buffer.
	c.put(c.table, sglEntry{s.hello.BufAddr, s.hello.BufKey, s.hello.BufLen})
	e, err := New(Config{
		Mode: Compatible, Local: &s.hello, Peer: &c.hello, SendQueue: cfg.sendQueue[0], RecvQueue: cfg.recvQueue[0], Posted: cfg.posted, Inline: cfg.inline[0],
		Recv:  RecvMemory{Size: cfg.recvSize[0], Count: cfg.recvCount[0], Mem: s.mems[FirstRecv], Addr: s.hello.BufAddr, RKey: s.hello.BufKey},
		Table: s.table, SendBuffer: cfg.sendBuf[0], NoDelay: cfg.noDelay, Shrink: cfg.shrink, MaxRecv: cfg.maxRecv, KeepAlive: cfg.keepAlive,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.e = e
	s.pump()
	return s, c, now
}

func (c *cPeer) order() binary.ByteOrder {
	if c.net {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

func (c *cPeer) put(b []byte, s sglEntry) { s.put(b, c.order()) }

// entry reads C's own table, which the engine writes.
func (c *cPeer) entry(i int) sglEntry { return parseSGL(c.table[16*i:], c.order()) }

// checkArrival holds what the engine sends against the rules.
func (c *cPeer) checkArrival(op *wireOp) {
	n := uint32(op.Len())
	if op.Opcode == ib.OpWrite {
		return // keep-alive, or a write to a map
	}
	if op.Opcode != ib.OpWriteImm {
		c.t.Fatalf("C got opcode %v", op.Opcode)
	}
	w := word(op.Imm)
	if c.disc {
		c.t.Fatalf("%v after DISCONNECT", w)
	}
	switch w.op() {
	case wordData:
		if c.shut {
			c.t.Fatal("data after SHUTDOWN")
		}
		if n == 0 || w.value() != n {
			c.t.Fatalf("%v with %d bytes", w, n)
		}
		if c.gotSeq == c.toldLimit {
			c.t.Fatalf("%v beyond the limit", w)
		}
		c.gotSeq++
		if len(c.advertised) == 0 {
			c.t.Fatalf("%v without a buffer", w)
		}
		a := &c.advertised[0]
		if op.Remote != a.addr || op.RKey != a.key || n > a.n {
			c.t.Fatalf("%v of %d bytes to %#x key %#x, want %+v", w, n, op.Remote, op.RKey, *a)
		}
		a.addr += uint64(n)
		a.n -= n
		if a.n == 0 {
			c.advertised = c.advertised[1:]
		}
	case wordCredit:
		if n == 16 {
			if op.Remote != c.tableAddr+16*uint64(c.slotWant) || op.RKey != c.tableKey {
				c.t.Fatalf("an entry at %#x, want slot %d", op.Remote, c.slotWant)
			}
			c.slotWant = (c.slotWant + 1) % 2
		} else if n != 0 {
			c.t.Fatalf("an update of %d bytes", n)
		}
		limit := uint16(w.value())
		if int16(limit-c.limitSeen) < 0 {
			c.t.Fatalf("limit %d after %d", limit, c.limitSeen)
		}
		c.limitSeen = limit
	case wordIOMap:
		if n != 24 || op.Remote != c.tableAddr+32+24*uint64(w.value()) {
			c.t.Fatalf("a map of %d bytes at %#x", n, op.Remote)
		}
		if c.gotSeq == c.toldLimit {
			c.t.Fatalf("%v beyond the limit", w)
		}
		c.gotSeq++
	case wordControl:
		if n != 0 {
			c.t.Fatalf("%v of %d bytes", w, n)
		}
		switch w.value() {
		case controlDisconnect:
			c.disc = true
		case controlShutdown:
			c.shut = true
		default:
			c.t.Fatalf("%v", w)
		}
	default:
		c.t.Fatalf("%v", w)
	}
}

// told notes what C's messages gave when they arrive.
func (c *cPeer) told(op *wireOp) {
	if w := word(op.Imm); op.Opcode == ib.OpWriteImm && w.op() == wordCredit {
		c.toldLimit = uint16(w.value())
		if len(op.inline) == 16 {
			o := binary.ByteOrder(binary.LittleEndian)
			c.advertised = append(c.advertised, parseSGL(op.inline, o))
		}
	}
}

func (c *cPeer) post(opcode ib.Opcode, w word, addr uint64, key ib.RKey, b []byte, control bool) {
	c.nextID++
	op := Op{ID: c.nextID, Opcode: opcode, Imm: uint32(w), Remote: addr, RKey: key, Signaled: true}
	op.Segs[0].Len, op.N = uint32(len(b)), 1
	c.device.sq = append(c.device.sq, wireOp{Op: op, inline: b})
	c.sends++
	n := len(b)
	if control {
		n = 0
		c.ctrlOut++
	}
	c.sizes = append(c.sizes, n)
}

// poll takes all completions: only calls that poll do this.
func (c *cPeer) poll() {
	for len(c.cq) > 0 && c.connected {
		e := c.cq[0]
		c.cq = c.cq[1:]
		if !e.recv {
			c.free += c.sizes[0]
			if c.sizes[0] == 0 {
				c.ctrlOut--
			}
			c.sizes = c.sizes[1:]
			c.sends--
			continue
		}
		w := word(e.a.Imm)
		switch w.op() {
		case wordCredit:
			c.limit = uint16(w.value())
		case wordIOMap, 2:
		case wordControl:
			switch w.value() {
			case controlDisconnect:
				c.connected = false
			case controlShutdown:
				c.readable = false
				if !c.writable {
					c.connected = false
				}
			}
		default:
			c.queue = append(c.queue, w.value())
		}
		if c.connected {
			c.recvs = append(c.recvs, Recv{Loc: Loc{Region: NoRegion}})
		}
	}
	c.update()
}

// update gives credits and buffers, inside of calls that poll.
func (c *cPeer) update() {
	for c.connected && (c.freeBytes >= c.half || int16(c.rseq-c.comp) >= 0) && c.ctrlOut < 2 {
		c.comp = c.rseq + uint16(c.rq/2)
		w := makeWord(wordCredit, uint32(c.rseq)+uint32(c.rq)) // bit 16 can be set
		if c.freeBytes < c.half {
			c.post(ib.OpWriteImm, w, 0xdeadbeef, 0x8100, nil, true) // C leaves garbage here
			return
		}
		b := make([]byte, 16)
		o := binary.ByteOrder(binary.LittleEndian)
		sglEntry{c.ringAddr + uint64(c.nextHalf*c.half), c.ringKey, c.half}.put(b, o)
		c.post(ib.OpWriteImm, w, c.engine.SGLAddr+16*uint64(c.nextSlot), c.engine.SGLKey, b, true)
		c.nextSlot = (c.nextSlot + 1) % c.engine.SGLLen
		c.freeBytes -= c.half
		c.nextHalf ^= 1
	}
}

func (c *cPeer) canSend() bool {
	return c.sends < c.sq-4 && c.free >= 2048 && c.seq != c.limit && c.entry(c.cur).n != 0
}

// rsend writes up to n bytes, as a nonblocking rsend does.
func (c *cPeer) rsend(n int, seed uint64) bool {
	n = min(n, c.toWrite-c.written)
	step, did := 2048, false
	for n > 0 {
		if !c.canSend() {
			c.poll()
			if !c.canSend() {
				return did
			}
		}
		e := c.entry(c.cur)
		m := min(n, step, c.free, int(e.n))
		b := make([]byte, m)
		for i := range b {
			b[i] = pattern(seed+1, c.written+i)
		}
		c.seq++
		c.post(ib.OpWriteImm, makeWord(wordData, uint32(m)), e.addr, e.key, b, false)
		c.free -= m
		e.addr += uint64(m)
		e.n -= uint32(m)
		c.put(c.table[16*c.cur:], e)
		if e.n == 0 {
			c.cur = (c.cur + 1) % 2
		}
		c.written += m
		n -= m
		step = min(2*step, 65536)
		did = true
	}
	return did
}

// rrecv reads up to n bytes; it polls only if there are none.
func (c *cPeer) rrecv(n int, seed uint64) bool {
	if len(c.queue) == 0 {
		c.poll()
	}
	did := false
	for n > 0 && len(c.queue) > 0 {
		m := min(uint32(n), c.queue[0]-c.partial, uint32(len(c.ring))-uint32(c.at))
		for i := range m {
			if c.ring[c.at+uint64(i)] != pattern(seed, c.read+int(i)) {
				c.t.Fatalf("C read a wrong byte at %d", c.read+int(i))
			}
		}
		c.read += int(m)
		c.at = (c.at + uint64(m)) % uint64(len(c.ring))
		c.freeBytes += m
		n -= int(m)
		if c.partial += m; c.partial == c.queue[0] {
			c.queue, c.partial = c.queue[1:], 0
			c.rseq++
		}
		did = true
	}
	if !did && len(c.queue) == 0 && (!c.readable || !c.connected) {
		c.eof = true
	}
	return did
}

// shutdownWrite is rshutdown(SHUT_WR).
func (c *cPeer) shutdownWrite() {
	if !c.connected || !c.writable {
		return
	}
	c.writable = false
	v := uint32(controlShutdown)
	if !c.readable {
		v = controlDisconnect
	}
	c.post(ib.OpWriteImm, makeWord(wordControl, v), 0x7ffcbe343e70, 0xbe343e30, nil, true)
}

// simulateC runs a user of the engine against a C program.
func simulateC(t *testing.T, seed uint64) (rnr int) {
	rnd := rand.New(rand.NewPCG(seed, 199))
	cfg := randomPair(Compatible, rnd)
	if rnd.IntN(2) == 0 {
		cfg.posted = 9 + rnd.IntN(7)
	}
	half := uint32(1 + rnd.IntN(1<<(1+rnd.IntN(15))))
	rq := 16 + rnd.IntN(1<<rnd.IntN(9))
	s, c, now := newCPair(t, seed, cfg, rq, half)
	s.toWrite = rnd.IntN(1 << (1 + rnd.IntN(17)))
	c.toWrite = rnd.IntN(1 << (1 + rnd.IntN(17)))
	s.lend, s.moody = rnd.IntN(3) > 0, true
	maxWrite, maxRead := 1+rnd.IntN(1<<rnd.IntN(17)), 1+rnd.IntN(1<<rnd.IntN(17))
	s.toWrite = min(s.toWrite, 100*min(len(s.send), int(half)), 500*maxWrite)
	c.toWrite = min(c.toWrite, 100*cfg.recvSize[0], 500*maxWrite)
	const steps = 8
	var weight [steps]int
	total := 0
	for i := range weight {
		weight[i] = 1 + rnd.IntN(20)*rnd.IntN(6)
		total += weight[i]
	}
	do := func(i int) bool {
		switch i {
		case 0:
			return s.deliver(func(Loc) []byte { return nil })
		case 1:
			return c.deliver(func(Loc) []byte { return nil })
		case 2:
			return s.poll()
		case 3: // rpoll
			if len(c.cq) == 0 || !c.connected {
				return false
			}
			c.poll()
			return true
		case 4:
			if s.written < s.toWrite {
				return !s.noRoom && s.write(1+rnd.IntN(maxWrite))
			}
			if s.shut {
				return false
			}
			s.shut = true
			s.e.CloseWrite()
			s.pump()
			return true
		case 5:
			return !s.eof && !s.noData && (s.doRead(1+rnd.IntN(maxRead)) || s.eof)
		case 6:
			if c.written < c.toWrite {
				return c.rsend(1+rnd.IntN(maxWrite), seed)
			}
			if !c.writable {
				return false
			}
			c.shutdownWrite()
			return true
		default:
			return !c.eof && (c.rrecv(1+rnd.IntN(maxRead), seed) || c.eof)
		}
	}
	for idle, step := 0, 0; !s.eof || !c.eof || !s.shut || c.writable; step++ {
		if step > 20_000_000 {
			t.Fatalf("seed %d: no end", seed)
		}
		x, i := rnd.IntN(total), 0
		for x >= weight[i] {
			x -= weight[i]
			i++
		}
		*now += time.Duration(rnd.IntN(10)) * time.Microsecond
		if at, ok := s.e.Deadline(); ok && at <= *now {
			s.e.Advance(*now)
			s.pump()
		}
		if err := s.e.Err(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if do(i) {
			idle = 0
			continue
		}
		if idle++; idle < 100 {
			continue
		}
		any := false
		for i := range 2 * steps { // twice, as rrecv may post an update
			any = any || do(i%steps)
		}
		if !any && (!s.eof || !c.eof) {
			t.Fatalf("seed %d: deadlock: engine wrote %d of %d, read %d; C wrote %d of %d, read %d sq %d recvs %d cq %d %d dead %v\n%+v\n%+v", seed, s.written, s.toWrite, s.read, c.written, c.toWrite, c.read, len(c.device.sq), len(s.recvs), len(c.cq), len(s.cq), c.dead, s.e.c, c)
		}
		idle = 0
	}
	if s.read != c.toWrite || c.read != s.toWrite || s.rerr != io.EOF {
		t.Fatalf("seed %d: engine read %d of %d (%v), C %d of %d", seed, s.read, c.toWrite, s.rerr, c.read, s.toWrite)
	}
	// C closes with DREQ; the engine has DISCONNECT on the wire by then.
	s.e.Close(*now)
	s.pump()
	for s.deliver(nil) || s.poll() || c.deliver(nil) {
	}
	if !c.disc {
		t.Fatalf("seed %d: the engine closed without DISCONNECT", seed)
	}
	s.e.Disconnected()
	s.pump()
	if s.events&Finished == 0 || s.e.Err() != nil {
		t.Fatalf("seed %d: events %b, %v", seed, s.events, s.e.Err())
	}
	return s.rnr
}

// TestC294_SimulationC: the engine against a strict model of a C program.
func TestC294_SimulationC(t *testing.T) {
	t.Parallel()
	if *seedFlag != 0 {
		simulateC(t, *seedFlag)
		return
	}
	n := *seedsFlag
	if testing.Short() {
		n = 200
	}
	rnr := 0
	for seed := range uint64(n) {
		if simulateC(t, seed) > 0 {
			rnr++
		}
	}
	t.Logf("%d seeds; in %d a word of the engine met no receive of C", n, rnr)
}
