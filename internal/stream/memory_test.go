package stream

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

// TestGrowAndShrink: bulk data make the engine ask for memory, it is used, and it comes
// back when the peer is idle, though receives cannot be taken back.
func TestGrowAndShrink(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		c := defaultPair(m)
		a, b, now := newPair(t, c, 1)
		for round := range 5 {
			for range 40 {
				a.toWrite += 100_000
				for a.written < a.toWrite {
					a.write(100_000)
					settle(a, b)
					b.doRead(1 << 20)
				}
			}
			settle(a, b)
			b.doRead(1 << 20)
			if b.regions != 1 || b.read != a.toWrite {
				t.Fatalf("round %d: %d regions lent, read %d of %d", round, b.regions, b.read, a.toWrite)
			}
			for range 10 {
				if at, ok := b.e.Deadline(); ok {
					*now = at
					b.e.Advance(at)
					b.pump()
					settle(a, b)
				}
			}
			if m == Compatible {
				// What was advertised stays until it is filled.
				for b.regions > 0 && a.toWrite < 1<<30 {
					a.toWrite += 1000
					a.write(1000)
					settle(a, b)
					b.doRead(1 << 20)
				}
			}
			if b.regions != 0 {
				t.Fatalf("round %d: memory did not come back: %+v", round, b.e.v)
			}
			if m == Verbena && len(b.recvs) != 12 {
				t.Errorf("round %d: %d receives", round, len(b.recvs))
			}
			if m == Compatible {
				*now += 2 * time.Second
			}
		}
		if at, ok := b.e.Deadline(); ok {
			t.Errorf("an idle engine wants to be called at %v", at)
		}
	})
}

// TestShrinkUnused: memory that was lent and never used comes back too.
func TestShrinkUnused(t *testing.T) {
	t.Parallel()
	a, b, now := newPair(t, defaultPair(Verbena), 1)
	b.lendMemory(64<<10, 16)
	b.pump()
	settle(a, b)
	for i := 0; b.regions > 0; i++ {
		at, ok := b.e.Deadline()
		if !ok || i == 20 {
			t.Fatalf("it does not come back: %+v", b.e.v)
		}
		*now = at
		b.e.Advance(at)
		b.pump()
		settle(a, b)
	}
	a.toWrite = 5000
	a.write(5000)
	settle(a, b)
	for b.doRead(5000) {
		settle(a, b)
	}
	if b.read != 5000 || a.rnr != 0 {
		t.Errorf("read %d", b.read)
	}
}

// TestDecline: without memory it goes on, with small messages, and asks again later.
func TestDecline(t *testing.T) {
	t.Parallel()
	a, b, now := newPair(t, defaultPair(Verbena), 1)
	b.noPump = true
	a.toWrite = 100_000
	a.write(100_000)
	settle(a, b)
	asked := 0
	for i := 0; b.read < a.toWrite; i++ {
		if b.e.Events()&WantRecv != 0 {
			asked++
			if b.e.Want() != 64<<10 {
				t.Errorf("wants %d", b.e.Want())
			}
			b.e.Decline(*now)
		}
		b.noPump = false
		b.lend = false
		b.doRead(1 << 20)
		b.noPump = true
		settle(a, b)
		if i == 100 {
			*now += 2 * time.Second
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// TestLendRefused: memory that does not fit the protocol is refused, and more regions than
// there are numbers for, until one was taken back.
func TestLendRefused(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		_, b, now := newPair(t, defaultPair(m), 1)
		mem := func(size, count int) RecvMemory {
			return RecvMemory{Size: size, Count: count, Mem: make([]byte, max(0, size*count)), Addr: 0x1234, RKey: 0x4321}
		}
		bad := []RecvMemory{mem(0, 8), mem(4096, 0), mem(-1, -1), {Size: 1 << 21, Count: 1 << 11}}
		if m == Compatible {
			bad = append(bad, mem(4096, 1))
		} else {
			bad = append(bad, mem(5000, 8), mem(32, 8), mem(4096, MinCredits-1), RecvMemory{Size: 4096, Count: 8, Mem: make([]byte, 8*4096-1)},
				mem(64, 512))
		}
		for _, r := range bad {
			var ce *ConfigError
			if _, err := b.e.Lend(*now, r); !errors.As(err, &ce) || ce.Field != "Lend" || ce.Error() == "" {
				t.Errorf("%d buffers of %d: %v", r.Count, r.Size, err)
			}
		}
		lent := 0
		for ; ; lent++ {
			if _, err := b.e.Lend(*now, mem(4096, 8)); err == errRegions {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if lent != maxRegions-1 { // the first is the configuration's
			t.Errorf("%d regions lent", lent)
		}
		r, ok := b.e.TakeReturned()
		if !ok {
			t.Fatal("no region came back")
		}
		if again, err := b.e.Lend(*now, mem(4096, 8)); again != r || err != nil {
			t.Errorf("region %d, %v, want %d", again, err, r)
		}
	})
}

// TestC297_Maps: one-sided writes to what the peer mapped; after Unmapped there are none.
func TestC297_Maps(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		c := defaultPair(m)
		c.iomap = [2]int{3, 3}
		a, b, _ := newPair(t, c, 1)
		settle(a, b)
		target := make([]byte, 1000)
		b.register(0x9000, 0x99, target)
		if err := b.e.MapLocal(3, 0, 0x9000, 0x99, 1000); err == nil {
			t.Error("a map beyond the peer's table")
		}
		if err := b.e.MapLocal(1, 1<<40, 0x9000, 0x99, 1000); err != nil {
			t.Fatal(err)
		}
		if err := b.e.MapLocal(1, 1<<40, 0x9000, 0x99, 1000); err != ErrMapBusy {
			t.Errorf("twice: %v", err)
		}
		b.pump()
		if _, err := a.e.MapRoom(1 << 40); err != ErrNoMap {
			t.Errorf("before it arrived: %v", err)
		}
		settle(a, b)
		if a.events&PeerMapped == 0 {
			t.Error("no event")
		}
		for _, off := range []uint64{1<<40 - 1, 1<<40 + 1000, 0} {
			if _, err := a.e.MapRoom(off); err != ErrNoMap {
				t.Errorf("offset %#x: %v", off, err)
			}
		}
		l, err := a.e.MapRoom(1<<40 + 900)
		if err != nil || l.Len != 100 {
			t.Fatalf("%+v, %v", l, err)
		}
		copy(a.send[l.Off:], bytes.Repeat([]byte{7}, 100))
		a.e.CommitMap(1<<40+900, 100)
		if l, err := a.e.Room(); l.Len != 0 || err != nil {
			t.Errorf("room behind a write that was not posted: %+v, %v", l, err)
		}
		a.pump()
		a.toWrite = 10
		a.write(10) // tells the reader; it arrives behind
		for a.deliverTo(b) {
		}
		if !bytes.Equal(target[900:], bytes.Repeat([]byte{7}, 100)) {
			t.Error("the bytes are not there")
		}
		settle(a, b)
		if b.doRead(10); b.read != 10 || a.events&Drained == 0 {
			t.Errorf("read %d, events %b", b.read, a.events)
		}
		if err := b.e.UnmapLocal(1); err != nil {
			t.Fatal(err)
		}
		if m == Verbena {
			if _, ok := b.e.TakeUnmapped(); ok {
				t.Error("unmapped before the peer said so")
			}
		}
		b.pump()
		settle(a, b)
		if i, ok := b.e.TakeUnmapped(); !ok || i != 1 {
			t.Errorf("TakeUnmapped: %d, %v", i, ok)
		}
		if _, err := a.e.MapRoom(1<<40 + 900); err != ErrNoMap {
			t.Errorf("after Unmap: %v", err)
		}
		if err := b.e.MapLocal(1, 0, 0x9000, 0x99, 1000); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

// TestMapRoomWaits: a writer to a map that must wait for data before it is woken when they
// were posted, even if nothing completes.
func TestMapRoomWaits(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		c := defaultPair(m)
		c.iomap = [2]int{1, 1}
		a, b, _ := newPair(t, c, 1)
		if err := b.e.MapLocal(0, 0, 0x9000, 0x99, 1000); err != nil {
			t.Fatal(err)
		}
		b.pump()
		settle(a, b)
		b.lend = false
		a.toWrite = 100_000
		a.write(a.toWrite)
		settle(a, b)
		for i := 0; ; i++ {
			l, err := a.e.MapRoom(0)
			if err != nil {
				t.Fatal(err)
			}
			if l.Len > 0 {
				break
			}
			a.events = 0
			for j := 0; a.events&Writable == 0; j++ {
				settle(a, b)
				if !b.doRead(1000) && j > 1000 {
					t.Fatalf("not woken: %d unsent, read %d", a.e.Unsent(), b.read)
				}
			}
			if i > 10 {
				t.Fatalf("woken %d times for nothing", i)
			}
		}
	})
}

// TestMapInOrder: the peer hears of a map behind what was written before it, however long that
// waits, and before what is written later.
func TestMapInOrder(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		c := defaultPair(m)
		c.iomap = [2]int{2, 2}
		a, b, _ := newPair(t, c, 1)
		b.lend = false
		a.toWrite = 100_000
		var sent int // bytes of the stream
		var told []int
		a.log = func(op *wireOp) {
			data, mapped := word(op.Imm).op() == wordData, word(op.Imm).op() == wordIOMap
			if m == Verbena {
				data, mapped = vword(op.Imm).kind() == vData, vword(op.Imm).kind() == vMap
			}
			if data {
				sent += op.Len()
			} else if mapped {
				told = append(told, sent)
			}
		}
		for round := range 2 {
			a.write(40_001)
			settle(a, b)
			if a.e.Unsent() == 0 {
				t.Fatal("nothing waits for credit")
			}
			if err := a.e.MapLocal(round, uint64(round)<<20, 0x9000, 0x99, 1000); err != nil {
				t.Fatal(err)
			}
			a.pump()
		}
		a.write(10_000)
		for settle(a, b); b.doRead(1000); settle(a, b) {
		}
		if len(told) != 2 || told[0] != 40_001 || told[1] != 80_002 || b.read != 90_002 || b.e.Err() != nil {
			t.Errorf("told behind %v bytes, read %d, %v", told, b.read, b.e.Err())
		}
		// To ask for it back waits for no reader.
		a.toWrite += 50_000
		a.write(50_000)
		settle(a, b)
		if err := a.e.UnmapLocal(0); err != nil {
			t.Fatal(err)
		}
		a.pump()
		b.doRead(20 * 512)
		settle(a, b)
		if i, ok := a.e.TakeUnmapped(); !ok || i != 0 || a.e.Unsent() == 0 {
			t.Errorf("%d, %v, %d unsent", i, ok, a.e.Unsent())
		}
	})
}

// TestRoomAfterMapRoom: who gave up waiting for MapRoom and waits for Room is woken when there
// is room, and not only when all data were posted.
func TestRoomAfterMapRoom(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		c := defaultPair(m)
		c.iomap = [2]int{1, 1}
		a, b, _ := newPair(t, c, 1)
		if err := b.e.MapLocal(0, 0, 0x9000, 0x99, 1000); err != nil {
			t.Fatal(err)
		}
		b.pump()
		settle(a, b)
		b.lend = false
		a.toWrite = 2 * len(a.send)
		a.write(len(a.send))
		settle(a, b)
		if l, err := a.e.MapRoom(0); l.Len != 0 || err != nil {
			t.Fatalf("%+v, %v", l, err)
		}
		for a.write(a.toWrite) { // until there is no room
			settle(a, b)
		}
		a.events = 0
		for a.events&Writable == 0 {
			settle(a, b)
			b.doRead(1000)
			if a.e.Unsent() == 0 {
				t.Fatal("not woken before everything was posted")
			}
		}
	})
}
