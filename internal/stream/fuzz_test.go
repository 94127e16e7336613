package stream

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// FuzzHello: any private data; what parses comes out as it went in, as far as it means
// something.
func FuzzHello(f *testing.F) {
	h := Hello{Flags: FlagIOMap, Credits: 384, IOMap: 3, SGLAddr: 1 << 40, SGLKey: 5, SGLLen: 2, BufAddr: 1 << 41, BufKey: 6, BufLen: 65536,
		Ext: Extension{Version: 1, Credits: 12, RecvSize: 512, Instance: 77}}
	f.Add(h.Append(nil), false)
	f.Add(h.Append(nil)[:40], true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		side := Request
		if reply {
			side = Reply
		}
		h, err := ParseHello(b, side)
		if err != nil {
			var he *HelloError
			if !errors.As(err, &he) || he.Error() == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		g, err := ParseHello(h.Append(nil), side)
		if err != nil || g != h {
			t.Fatalf("%+v, %+v, %v", h, g, err)
		}
		if h.Ext.Version == 0 || side == Request {
			if TableLen(int(h.SGLLen), h.IOMap) <= 0 || h.BufLen == 0 {
				t.Fatalf("%+v", h)
			}
		}
	})
}

// FuzzCompatible and FuzzVerbena give an engine any words, completions, calls and times.
func FuzzCompatible(f *testing.F) { fuzzEngine(f, Compatible) }
func FuzzVerbena(f *testing.F)    { fuzzEngine(f, Verbena) }

func fuzzEngine(f *testing.F, m Mode) {
	f.Add([]byte{0, 0, 0, 0})
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b)
	}
	for op := byte(0); op < 15; op++ {
		f.Add([]byte{4, 40, op, 1, 8, op, 0, 5, 4, 3, 8, 5, 1, 9, 9, 0, 8, 16, 0, 2, op})
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 1<<14 {
			fuzzRun(t, m, b)
		}
	})
}

// TestFuzzRandom runs the body of the fuzz tests on seeded random input, so that an
// ordinary test run does some of it.
func TestFuzzRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		b := make([]byte, rnd.IntN(600))
		for i := range b {
			b[i] = byte(rnd.Uint32() >> (8 * rnd.IntN(3)))
		}
		fuzzRun(t, Mode(1+seed%2), b)
	}
}

// fuzzRun: whatever comes, no panic, no piece outside of its region, all invariants, and
// an end when time passes.
func fuzzRun(t *testing.T, m Mode, in []byte) {
	next := func() byte {
		if len(in) == 0 {
			return 0
		}
		b := in[0]
		in = in[1:]
		return b
	}
	s := one(t, m, func(c *pairConfig) {
		c.sendBuf[0] = 700
		c.iomap = [2]int{3, 3}
		c.keepAlive = KeepAlive{Idle: time.Second, Interval: time.Second, Count: 3}
		if m == Compatible {
			c.recvCount[0], c.recvSize[0] = 3, 100
		} else {
			c.recvSize[0] = 128
		}
	})
	s.toWrite = 1 << 30
	for len(in) > 0 {
		s.sq = nil
		switch next() % 15 {
		case 0, 1, 2: // a message that may be right
			body := make([]byte, next()%130)
			for i := range body {
				body[i] = next()
			}
			if m == Compatible {
				at := int(next()) % len(s.table)
				copy(s.table[at:], body)
				n := uint32(next())
				w := makeWord(uint32(next())%8, n)
				if w.op() == wordData {
					body = body[:min(int(n), len(body))]
					w = makeWord(wordData, uint32(len(body)))
				} else if w.op() == wordCredit {
					w = makeWord(wordCredit, uint32(s.e.c.limit)+n%9)
					body = body[:min(len(body), 16)]
				}
				s.get(ib.WCRecvWriteImm, uint32(w), body)
			} else {
				v := s.e.v
				s.get(ib.WCRecv, uint32(makeVword(uint32(next())%16, uint32(next()), v.seq-uint32(next()%2), v.limit+uint32(next()%10))), body)
			}
		case 3: // any message
			imm := uint32(next())<<24 | uint32(next())<<16 | uint32(next())<<8 | uint32(next())
			op := ib.WCRecv
			if next()%2 == 0 {
				op = ib.WCRecvWriteImm
			}
			s.raw(Arrival{Opcode: op, HasImm: next()%8 != 0, Imm: imm, Len: uint32(next()) << (next() % 25)})
		case 4, 5:
			s.write(int(next()) * 4)
		case 6:
			l, _ := s.e.Peek()
			s.e.Consume(min(int(next()), int(l.Len)))
		case 7, 8:
			s.e.Sent(*s.now, s.e.out.done+uint64(next()%4))
		case 9:
			s.e.Sent(*s.now, uint64(next())<<next())
		case 10:
			*s.now += time.Duration(next()) * 20 * time.Millisecond
			s.e.Advance(*s.now)
		case 11:
			s.lend = next()%2 == 0
			if s.e.in.active == 0 && next()%4 == 0 && !s.e.end.over && s.e.mayLend(nil) == nil {
				s.lendMemory(64<<(next()%4), 8+int(next()%8))
			}
		case 12:
			off := uint64(next())
			if l, err := s.e.MapRoom(off); err == nil {
				s.e.CommitMap(off, min(int(next()), int(l.Len)))
			}
		case 13:
			if next()%2 == 0 {
				_ = s.e.MapLocal(int(next()%4), uint64(next()), uint64(next()), 1, uint32(next()))
			} else {
				_ = s.e.UnmapLocal(int(next() % 4))
			}
			s.e.TakeUnmapped()
		default:
			switch next() % 32 {
			case 0:
				s.e.CloseWrite()
			case 1:
				s.e.CloseRead()
			case 2:
				s.e.Close(*s.now)
			case 3:
				s.e.Abort(*s.now, Reset)
			case 4:
				s.e.Fail(errTest)
			case 5:
				s.e.Disconnected()
			}
		}
		s.pump()
	}
	// Time ends everything.
	s.e.Close(*s.now)
	s.pump()
	for range 50 {
		if at, ok := s.e.Deadline(); ok {
			*s.now = max(*s.now, at)
			s.e.Advance(*s.now)
			s.pump()
		}
	}
	if !s.e.end.over || s.events&(Failed|Finished) == 0 || s.events&Failed != 0 && s.events&Finished != 0 {
		t.Fatalf("no end: events %b, %+v", s.events, s.e.end)
	}
}
