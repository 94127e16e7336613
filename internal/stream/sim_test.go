package stream

import (
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	seedsFlag = flag.Int("stream.seeds", 1500, "seeds of each simulation")
	seedFlag  = flag.Uint64("stream.seed", 0, "run only this seed")
)

// randomPair makes a configuration with small and odd values.
func randomPair(m Mode, rnd *rand.Rand) pairConfig {
	c := defaultPair(m)
	for i := range 2 {
		if m == Verbena {
			c.recvSize[i] = 64 << rnd.IntN(6)
			c.recvCount[i] = MinCredits + rnd.IntN(8)
			c.recvQueue[i] = c.recvCount[i] + rnd.IntN(40)
		} else {
			c.recvSize[i] = 1 + rnd.IntN(3000)
			c.recvCount[i] = 2 + rnd.IntN(4)
			c.recvQueue[i] = 16 + rnd.IntN(40)
			c.sgl[i] = 2 + rnd.IntN(5)
			c.net[i] = rnd.IntN(4) == 0
		}
		c.sendQueue[i] = 16 + rnd.IntN(20)
		c.sendBuf[i] = 1 + rnd.IntN(1<<(1+rnd.IntN(15)))
		c.inline[i] = rnd.IntN(3) * 40
	}
	c.noDelay = rnd.IntN(4) == 0
	c.shrink = time.Duration(1+rnd.IntN(2000)) * time.Microsecond
	c.maxRecv = 1 << (10 + rnd.IntN(5))
	if rnd.IntN(3) == 0 {
		c.keepAlive = KeepAlive{Idle: time.Millisecond, Interval: time.Second, Count: 10}
	}
	if rnd.IntN(2) == 0 {
		c.wrap = -uint32(rnd.IntN(200))
	}
	return c
}

// simulate runs two users on a pair until both have closed.
func simulate(t *testing.T, m Mode, seed uint64) (a, b *side) {
	rnd := rand.New(rand.NewPCG(seed, 99))
	a, b, now := newPair(t, randomPair(m, rnd), seed)
	ss := [2]*side{a, b}
	for _, s := range ss {
		// So much that buffers are used many times over, and a seed takes milliseconds.
		s.toWrite = min(rnd.IntN(1<<(1+rnd.IntN(17))), 100*min(len(s.send), s.e.cfg.Recv.Size*2))
		s.lend, s.moody, s.lazy = rnd.IntN(3) > 0, true, rnd.IntN(2) == 0
	}
	// Each kind of step has a weight, so that some seeds have slow readers, slow polling …
	const steps = 6
	var weight [2 * steps]int
	for i := range weight {
		weight[i] = 1 + rnd.IntN(20)*rnd.IntN(6)
	}
	maxWrite, maxRead := 1+rnd.IntN(1<<rnd.IntN(17)), 1+rnd.IntN(1<<rnd.IntN(17))
	for _, s := range ss {
		s.toWrite = min(s.toWrite, 500*maxWrite, 500*maxRead)
	}
	do := func(i int) bool {
		s, p := ss[i/steps], ss[1-i/steps]
		switch i % steps {
		case 0:
			return s.deliverTo(p)
		case 1:
			return s.poll()
		case 2:
			if s.written == s.toWrite {
				if s.shut {
					return false
				}
				s.shut = true
				s.e.CloseWrite()
				s.pump()
				return true
			}
			return !s.noRoom && s.write(1+rnd.IntN(maxWrite))
		case 3:
			return !s.eof && !s.noData && (s.doRead(1+rnd.IntN(maxRead)) || s.eof)
		case 5: // memory that nobody asked for
			if !s.lend || s.lends >= 20 || rnd.IntN(10) > 0 || s.e.mayLend(nil) != nil {
				return false
			}
			count := 2 + rnd.IntN(8)
			if m == Verbena {
				count = min(MinCredits+rnd.IntN(8), s.e.cfg.RecvQueue-MinCredits)
			}
			s.lendMemory(64<<rnd.IntN(6), count)
			s.pump()
			return true
		default:
			*now += time.Duration(rnd.IntN(20)) * time.Microsecond
			if at, ok := s.e.Deadline(); ok && at <= *now {
				s.e.Advance(*now)
				s.pump()
				return true
			}
			return false
		}
	}
	done := func() bool { return a.eof && b.eof && a.shut && b.shut }
	total := 0
	for _, w := range weight {
		total += w
	}
	idle := 0
	for step := 0; !done(); step++ {
		if step > 2_000_000 {
			t.Fatalf("seed %d: no end: A wrote %d of %d, read %d, B %d of %d, read %d, shut %v %v, messages %d %d, weights %v\n%+v\n%+v", seed, a.written, a.toWrite, a.read, b.written, b.toWrite, b.read, a.shut, b.shut, a.sent, b.sent, weight, a.e.v, b.e.v)
		}
		x, i := rnd.IntN(total), 0
		for x >= weight[i] {
			x -= weight[i]
			i++
		}
		if a.e.Err() != nil || b.e.Err() != nil {
			t.Fatalf("seed %d: %v, %v", seed, a.e.Err(), b.e.Err())
		}
		if do(i) {
			idle = 0
			continue
		}
		if idle++; idle < 100 {
			continue
		}
		// Is anything possible at all?
		any := false
		for i := range weight {
			any = any || i%steps < 4 && do(i)
		}
		if any || done() {
			idle = 0
			continue
		}
		// Only time can help, and it should not be needed: held data, credits and memory
		// all come back by messages.
		t.Fatalf("seed %d: deadlock: A wrote %d of %d, read %d, B wrote %d of %d, read %d\n%+v\n%+v\n%+v\n%+v",
			seed, a.written, a.toWrite, a.read, b.written, b.toWrite, b.read, a.e.v, b.e.v, a.e.c, b.e.c)
	}
	for i, s := range ss {
		p := ss[1-i]
		if s.read != p.toWrite || s.rerr != io.EOF || s.werr != nil {
			t.Fatalf("seed %d: %s read %d of %d: %v, %v", seed, s.name, s.read, p.toWrite, s.rerr, s.werr)
		}
		if s.e.Err() != nil {
			t.Fatalf("seed %d: %v", seed, s.e.Err())
		}
	}
	first := rnd.IntN(2)
	ss[first].e.Close(*now)
	ss[first].pump()
	if rnd.IntN(2) == 0 {
		settle(a, b)
	}
	ss[1-first].e.Close(*now)
	ss[1-first].pump()
	settle(a, b)
	for i := 0; i < 10000 && !(a.e.end.over && b.e.end.over); i++ {
		for _, s := range ss {
			if at, ok := s.e.Deadline(); ok {
				*now = max(*now, at)
				s.e.Advance(*now)
				s.pump()
			}
		}
		settle(a, b)
	}
	for _, s := range ss {
		if s.events&Finished == 0 || s.events&Failed != 0 || s.e.Err() != nil {
			t.Fatalf("seed %d: %s: events %b, %v", seed, s.name, s.events, s.e.Err())
		}
		if m == Verbena && s.rnr+s.peer.rnr != 0 {
			t.Fatalf("seed %d: %d messages met no receive", seed, s.rnr+s.peer.rnr)
		}
	}
	return a, b
}

func simulateAll(t *testing.T, m Mode) {
	if *seedFlag != 0 {
		simulate(t, m, *seedFlag)
		return
	}
	n := *seedsFlag
	if testing.Short() {
		n = 200
	}
	lent, rnr := 0, 0
	for seed := range uint64(n) {
		a, b := simulate(t, m, seed)
		lent += a.lends + b.lends
		rnr += a.rnr + b.rnr
	}
	t.Logf("%d seeds: memory lent %d times, %d messages met no receive", n, lent, rnr)
	if lent < n/4 {
		t.Error("too little memory was lent: the test does not show what it should")
	}
}

// TestC276_SimulationVerbena and TestC276_SimulationCompatible: whatever the order of
// things, all bytes arrive, and there is progress as long as both users read.
func TestC276_SimulationVerbena(t *testing.T) {
	t.Parallel()
	simulateAll(t, Verbena)
}

func TestC276_SimulationCompatible(t *testing.T) {
	t.Parallel()
	simulateAll(t, Compatible)
}

var errTest = errors.New("test")
