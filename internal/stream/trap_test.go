package stream

import (
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// The traps of rsockets version 1 that concern the machine, by their numbers in
// docs/stream-protocol.md, part 4.

// TestTrap01_DisconnectBeforeEnd: however a connection ends from this side, DISCONNECT goes
// first, and the engine does not say Finished before the peer had its time.
func TestTrap01_DisconnectBeforeEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *side){
		"close":    func(s *side) { s.e.Close(*s.now) },
		"abort":    func(s *side) { s.e.Abort(*s.now, Reset) },
		"protocol": func(s *side) { s.word(makeWord(5, 1), 1) },
	} {
		s := one(t, Compatible, nil)
		end(s)
		s.pump()
		last := s.sq[len(s.sq)-1]
		if w := word(last.Imm); w != makeWord(wordControl, controlDisconnect) || !last.Signaled {
			t.Errorf("%s: last word %v", name, w)
		}
		if s.events&(Finished|Failed) != 0 {
			t.Errorf("%s: over before DISCONNECT arrived", name)
		}
		n := s.opCount
		s.e.Sent(*s.now, last.ID)
		s.pump()
		if name != "close" {
			if s.events&(Finished|Failed) == 0 {
				t.Errorf("%s: not over", name)
			}
			continue
		}
		if s.events&Finished != 0 {
			t.Error("close: over before the peer has closed")
		}
		// The peer still sends: it is answered, receives stay posted, no credits go out.
		s.word(makeWord(wordData, 10), 10)
		s.word(makeWord(wordCredit, 60), 0)
		if len(s.recvs) != s.e.cfg.RecvQueue || s.opCount != n || s.e.Err() != nil {
			t.Errorf("close: %d receives, %d requests, %v", len(s.recvs), s.opCount-n, s.e.Err())
		}
		// It closes as well: one second more, or its DREQ.
		s.word(makeWord(wordControl, controlDisconnect), 0)
		if at, ok := s.e.Deadline(); !ok || at != *s.now+lastWordTime {
			t.Errorf("close: deadline %v, %v", at, ok)
		}
		*s.now += lastWordTime
		s.e.Advance(*s.now)
		s.pump()
		if s.events&Finished == 0 {
			t.Errorf("close: events %b", s.events)
		}
	}
}

// TestTrap02_FiniteRetries: the parameters are finite where 7 would mean for ever.
func TestTrap02_FiniteRetries(t *testing.T) {
	t.Parallel()
	if RetryCount != 6 || RNRRetryCount != 7 || !FlowControl {
		t.Errorf("retry count %d, RNR retry count %d, flow control %v", RetryCount, RNRRetryCount, FlowControl)
	}
}

// TestTrap03_ZeroLength: data of no bytes mean the end to C: none are sent, and what
// arrives is no end.
func TestTrap03_ZeroLength(t *testing.T) {
	t.Parallel()
	s := one(t, Compatible, nil)
	n := s.opCount
	s.e.Commit(0)
	s.pump()
	if s.opCount != n {
		t.Error("an empty write was sent")
	}
	s.word(makeWord(wordData, 0), 0)
	if l, err := s.e.Peek(); l.Len != 0 || err != nil {
		t.Errorf("%+v, %v", l, err)
	}
	// In the simulations cPeer.checkArrival fails on DATA of no bytes.
}

// TestTrap04_Limits: only 16 bits of a limit count, they are compared by difference, and
// a map update is counted as consumed.
func TestTrap04_Limits(t *testing.T) {
	t.Parallel()
	s := one(t, Compatible, func(c *pairConfig) { c.wrap = 0xFFFF_FFF0; c.iomap = [2]int{4, 4} })
	c := s.e.c
	s.word(makeWord(wordCredit, 0x10000|uint32(c.limit+100)), 0)
	if s.e.Err() != nil || c.credit != 156 {
		t.Fatalf("%v, credit %d", s.e.Err(), c.credit)
	}
	granted := c.granted
	for i := range 60 {
		s.word(makeWord(wordIOMap, uint32(i%4)), 24)
	}
	if s.e.Err() != nil || c.granted-granted < 28 {
		t.Errorf("%v: limit %d after 60 maps, was %d", s.e.Err(), c.granted, granted)
	}
}

// TestTrap04_MapBudget: C never gives back the credit of a map update: so many that it
// would matter are refused.
func TestTrap04_MapBudget(t *testing.T) {
	t.Parallel()
	for seed, rq := range []int{16, 64, 384} {
		cfg := defaultPair(Compatible)
		s, c, _ := newCPair(t, uint64(seed), cfg, rq, 4096)
		n := 0
		for ; n < 1000; n++ {
			if err := s.e.MapLocal(n%4, 0, 1, 1, 1); err == ErrMapBudget {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			s.pump()
			for s.deliver(nil) || s.poll() {
			}
			c.poll()
			if err := s.e.UnmapLocal(n % 4); err != nil {
				t.Fatal(err)
			}
			s.pump()
			for s.deliver(nil) || s.poll() {
			}
			c.poll()
			if _, ok := s.e.TakeUnmapped(); !ok {
				t.Fatal("TakeUnmapped")
			}
		}
		if n == 1000 || n == 0 {
			t.Errorf("rq %d: %d maps", rq, n)
		}
		// Data still flow, for as long as one likes.
		s.toWrite = 300_000
		for i := 0; c.read < s.toWrite; i++ {
			s.write(100)
			for s.deliver(nil) || s.poll() || c.deliver(nil) {
			}
			c.rrecv(1000, uint64(seed))
			c.poll()
			if i > 100_000 {
				t.Fatalf("rq %d: stuck at %d", rq, c.read)
			}
		}
	}
}

// TestTrap05_ZeroLengthWrites: a word of no bytes with a senseless address is taken; ours
// have an address of the peer's. A keep-alive is a WRITE of no bytes without immediate.
func TestTrap05_ZeroLengthWrites(t *testing.T) {
	t.Parallel()
	s := one(t, Compatible, func(c *pairConfig) { c.keepAlive = KeepAlive{Idle: time.Second, Interval: time.Second, Count: 1} })
	*s.now = time.Second
	s.e.Advance(*s.now)
	s.pump()
	op := s.sq[len(s.sq)-1]
	if op.Opcode != ib.OpWrite || op.Len() != 0 || op.Remote != s.e.peer.SGLAddr || op.RKey != s.e.peer.SGLKey || !op.Signaled {
		t.Errorf("probe %+v", op.Op)
	}
	s.e.Sent(*s.now+time.Millisecond, op.ID)
	if at, _ := s.e.Deadline(); at != *s.now+time.Millisecond+time.Second {
		t.Errorf("deadline %v", at)
	}
	// C's probes are invisible, so they do not put ours off; its words do, whatever their
	// address: the machine never sees it.
	s.word(makeWord(wordCredit, 57), 0)
	if s.e.Err() != nil {
		t.Error(s.e.Err())
	}
}

// TestTrap06_SlotOrder: the peer writes our table from slot 1 on, modulo its length; we
// write the peer's from slot 1 on, modulo its own; data begin with entry 0.
func TestTrap06_SlotOrder(t *testing.T) {
	t.Parallel()
	s := one(t, Compatible, func(c *pairConfig) { c.sgl = [2]int{4, 3}; c.recvCount[0] = 8 })
	var slots []uint64
	for range 8 {
		for _, op := range s.sq {
			if word(op.Imm).op() == wordCredit && op.DataN == 16 {
				slots = append(slots, (op.Remote-s.e.peer.SGLAddr)/16)
			}
		}
		s.sq = nil
		s.word(makeWord(wordData, 512), 512)
		s.e.Consume(512)
		s.pump()
	}
	for i, slot := range slots {
		if slot != uint64(1+i)%3 {
			t.Fatalf("slots %v", slots)
		}
	}
	if len(slots) < 7 {
		t.Errorf("slots %v", slots)
	}
	// Ours: the hello's buffer is entry 0, then 1, 2, 3, 0 …
	at := s.e.peer.BufAddr
	s.toWrite = 1 << 20
	for i := range 12 {
		s.sq = nil
		s.write(512)
		var op *wireOp
		for j := range s.sq {
			if word(s.sq[j].Imm).op() == wordData {
				op = &s.sq[j]
			}
		}
		if op == nil || op.Remote != at || op.Len() != 512 {
			t.Fatalf("message %d: %+v, want %#x", i, op, at)
		}
		s.e.Sent(*s.now, op.ID)
		at = 0x10000 * uint64(i+1)
		s.entry((i+1)%4, sglEntry{at, 1, 512})
		s.word(makeWord(wordCredit, uint32(56+i)), 16)
	}
}

// TestTrap07_EntryReadOnce: what the peer writes to an entry after it was told of it
// changes nothing.
func TestTrap07_EntryReadOnce(t *testing.T) {
	t.Parallel()
	s := one(t, Compatible, nil)
	s.toWrite = 10_000
	s.entry(1, sglEntry{0x5000, 1, 512})
	s.word(makeWord(wordCredit, 57), 16)
	for i := range s.table {
		s.table[i] = 0xFF
	}
	s.sq = nil
	s.write(1024)
	s.e.Sent(*s.now, s.e.out.last)
	s.pump()
	var got flat
	for _, op := range s.sq {
		if word(op.Imm).op() == wordData {
			got.add(op.Remote, op.RKey, op.Len())
		}
	}
	if len(got) != 2 || got[0] != (sglEntry{s.e.peer.BufAddr, s.e.peer.BufKey, 512}) || got[1] != (sglEntry{0x5000, 1, 512}) {
		t.Errorf("wrote to %v", got)
	}
}

// TestTrap08_ValueChecked: a length beyond what was advertised ends the connection before
// anything is given to the user. TestC296_Misbehaving has all of this kind.
func TestTrap08_ValueChecked(t *testing.T) {
	t.Parallel()
	s := one(t, Compatible, nil)
	s.word(makeWord(wordData, 400), 400)
	s.word(makeWord(wordData, 113), 113)
	if s.e.Buffered() != 400 || s.e.Err() == nil {
		t.Errorf("%d bytes, %v", s.e.Buffered(), s.e.Err())
	}
}

// TestTrap09_DataAfterEnd: data and updates of C after SHUTDOWN and DISCONNECT are normal;
// the user has had the end and gets none of them.
func TestTrap09_DataAfterEnd(t *testing.T) {
	t.Parallel()
	for _, w := range []uint32{controlShutdown, controlDisconnect} {
		s := one(t, Compatible, nil)
		s.word(makeWord(wordData, 5), 5)
		s.word(makeWord(wordControl, w), 0)
		s.word(makeWord(wordData, 7), 7)
		s.word(makeWord(wordCredit, 60), 0)
		s.word(makeWord(wordControl, w), 0)
		if s.e.Err() != nil || s.e.Buffered() != 5 {
			t.Errorf("%v, %d bytes", s.e.Err(), s.e.Buffered())
		}
		s.e.Consume(5)
		if _, err := s.e.Peek(); err != io.EOF {
			t.Errorf("%v", err)
		}
		if len(s.recvs) != s.e.cfg.RecvQueue {
			t.Errorf("%d receives", len(s.recvs))
		}
	}
}

// TestTrap09_BufferOfTheEnd: data after the end may fill the buffer in which the last data of
// before still lie. It is not free before those are read: it is not advertised again, and
// its region does not go back.
func TestTrap09_BufferOfTheEnd(t *testing.T) {
	t.Parallel()
	for _, w := range []uint32{controlShutdown, controlDisconnect} {
		s := one(t, Compatible, func(c *pairConfig) { c.recvCount[0] = 4 })
		s.word(makeWord(wordData, 5), 5)
		s.word(makeWord(wordControl, w), 0)
		loc, _ := s.e.Peek()
		s.sq = nil
		for i := range 6 {
			n := 512
			if i == 0 {
				n -= 5
			}
			if s.e.c.toldN == 0 { // after DISCONNECT there are no new buffers
				break
			}
			s.word(makeWord(wordData, uint32(n)), n)
			for _, op := range s.sq {
				if word(op.Imm).op() == wordCredit && op.DataN == sglLen && binary.LittleEndian.Uint64(op.Data[:]) == s.hello.BufAddr {
					t.Fatalf("control %d: the buffer of unread data is advertised again", w)
				}
			}
		}
		if again, err := s.e.Peek(); again != loc || err != nil || s.e.Err() != nil {
			t.Errorf("control %d: %+v became %+v, %v, %v", w, loc, again, err, s.e.Err())
		}
		free := len(s.e.in.regions[0].free)
		s.e.Consume(5)
		if _, err := s.e.Peek(); err != io.EOF || len(s.e.in.regions[0].free) != free+1 {
			t.Errorf("control %d: %v, %d free buffers, and %d before the data were read", w, err, len(s.e.in.regions[0].free), free)
		}
	}
	// The same in memory that was lent.
	s := one(t, Compatible, nil)
	r := s.lendMemory(1024, 2)
	s.pump()
	for s.e.c.told[s.e.c.toldHead].region != 1 {
		s.word(makeWord(wordData, 512), 512)
		s.e.Consume(512)
		s.pump()
	}
	s.word(makeWord(wordData, 5), 5)
	*s.now += 2 * time.Second
	s.e.Advance(*s.now)
	s.pump()
	s.word(makeWord(wordControl, controlShutdown), 0)
	s.word(makeWord(wordData, 1019), 1019)
	for s.e.c.told[s.e.c.toldHead].region == 1 {
		s.word(makeWord(wordData, 1024), 1024)
	}
	if loc, err := s.e.Peek(); loc.Region != r || loc.Len != 5 || err != nil || s.regions != 1 {
		t.Fatalf("%+v, %v, %d regions lent", loc, err, s.regions)
	}
	s.e.Consume(5)
	s.pump()
	if _, err := s.e.Peek(); err != io.EOF || s.regions != 0 || s.e.Err() != nil {
		t.Errorf("%v, %d regions lent, %v", err, s.regions, s.e.Err())
	}
}

// TestTrap10_HalfClosedGrants: after the peer's SHUTDOWN credits and buffers still go both
// ways; CloseRead alone sends nothing.
func TestTrap10_HalfClosedGrants(t *testing.T) {
	t.Parallel()
	s := one(t, Compatible, nil)
	n := s.opCount
	s.e.CloseRead()
	s.pump()
	if s.opCount != n {
		t.Error("CloseRead sent something")
	}
	s.word(makeWord(wordControl, controlShutdown), 0)
	s.word(makeWord(wordCredit, 70), 0)
	s.toWrite = 100
	s.write(100)
	if s.written != 100 || s.e.Unsent() != 0 {
		t.Errorf("wrote %d, %d unsent", s.written, s.e.Unsent())
	}
	s.sq = nil
	s.word(makeWord(wordData, 512), 512)
	if len(s.sq) == 0 || word(s.sq[0].Imm).op() != wordCredit {
		t.Error("no buffer for what C sends after SHUTDOWN")
	}
}

// TestTrap11_GrantsWithoutTheUser: credits and buffers are given when messages arrive, not
// when the user reads; so a user that computes stops nobody before the buffers are full.
func TestTrap11_GrantsWithoutTheUser(t *testing.T) {
	t.Parallel()
	s := one(t, Compatible, func(c *pairConfig) { c.recvSize[0] = 4096; c.recvCount[0] = 4 })
	for range 3000 {
		s.word(makeWord(wordData, 1), 1)
		s.e.Sent(*s.now, s.e.out.last)
	}
	if s.e.Err() != nil || s.e.Buffered() != 3000 {
		t.Errorf("%v, %d bytes", s.e.Err(), s.e.Buffered())
	}
	// And the engine keeps credits back for words that C has no receives for.
	if s.e.c.kept() < reserve {
		t.Errorf("keeps %d credits", s.e.c.kept())
	}
}

// TestTrap12_LittleEndian: our hello has no NET flag unless the owner sets it, and entries
// for a peer are in the peer's order.
func TestTrap12_LittleEndian(t *testing.T) {
	t.Parallel()
	for _, net := range []bool{false, true} {
		s := one(t, Compatible, func(c *pairConfig) { c.net[1] = net })
		op := s.sq[0]
		addr := s.hello.BufAddr + 512
		if net {
			if binary.BigEndian.Uint64(op.Data[:]) != addr || binary.BigEndian.Uint32(op.Data[12:]) != 512 {
				t.Errorf("%x", op.Data[:16])
			}
		} else if binary.LittleEndian.Uint64(op.Data[:]) != addr || binary.LittleEndian.Uint32(op.Data[12:]) != 512 {
			t.Errorf("%x", op.Data[:16])
		}
	}
}

// TestTrap13_DataBeforeAccept: data that arrive before the owner knows of the connection
// are there when it has made the engine.
func TestTrap13_DataBeforeAccept(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		a, b, _ := newPair(t, defaultPair(m), 1)
		b.noPump = true
		a.toWrite = 100
		a.write(100)
		for a.deliverTo(b) {
		}
		b.noPump = false
		for b.poll() {
		}
		if b.doRead(100); b.read != 100 {
			t.Errorf("read %d", b.read)
		}
	})
}

// TestTrap15_Halves: buffers of any length and address, C's halves among them.
func TestTrap15_Halves(t *testing.T) {
	t.Parallel()
	for _, half := range []uint32{1, 100, 1001, 65536} {
		s, c, _ := newCPair(t, 1, defaultPair(Compatible), 384, half)
		s.toWrite = 5 * int(half)
		for i := 0; c.read < s.toWrite; i++ {
			s.write(1 << 20)
			for s.deliver(nil) || s.poll() || c.deliver(nil) {
			}
			c.rrecv(1<<20, 1)
			if i > 1000 {
				t.Fatalf("half %d: C read %d of %d", half, c.read, s.toWrite)
			}
		}
	}
}
