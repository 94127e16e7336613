package stream

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"
)

// simulateEnd lets one or both sides end at any moment, in any way, while data flow. Every
// connection ends on both sides, nobody is called a breaker of the protocol, and what
// was read is right; who reads on after an orderly Close of the other side reads all.
func simulateEnd(t *testing.T, m Mode, seed uint64) (orderly, reset int) {
	rnd := rand.New(rand.NewPCG(seed, 1234))
	cfg := randomPair(m, rnd)
	cfg.keepAlive = KeepAlive{}
	a, b, now := newPair(t, cfg, seed)
	ss := [2]*side{a, b}
	for _, s := range ss {
		s.toWrite = min(rnd.IntN(1<<(1+rnd.IntN(15))), 50*min(len(s.send), s.e.cfg.Recv.Size*2))
		s.lend, s.moody = rnd.IntN(2) == 0, true
	}
	const (
		open = iota
		closed
		aborted
		failed
	)
	var how [2]int
	var gone [2]bool // the queue pair
	endAt := [2]int{rnd.IntN(1 << (1 + rnd.IntN(11))), 1 << 30}
	if rnd.IntN(2) == 0 {
		endAt[1] = rnd.IntN(2000)
	}
	if rnd.IntN(2) == 0 {
		endAt[0], endAt[1] = endAt[1], endAt[0]
	}
	step := func(i int) bool {
		s, p := ss[i], ss[1-i]
		switch rnd.IntN(5) {
		case 0:
			return !gone[i] && !gone[1-i] && s.deliverTo(p)
		case 1:
			return s.poll()
		case 2:
			if how[i] != open {
				return false
			}
			if s.written == s.toWrite {
				if s.shut {
					return false
				}
				s.shut = true
				s.e.CloseWrite()
				s.pump()
				return true
			}
			return s.write(1 + rnd.IntN(500))
		case 3:
			return how[i] == open && !s.eof && s.doRead(1+rnd.IntN(500))
		}
		return false
	}
	idle := 0
	for n := 0; ; n++ {
		for i, s := range ss {
			if n >= endAt[i] && how[i] == open && !s.e.end.over {
				switch rnd.IntN(6) {
				case 0:
					how[i] = aborted
					s.e.Abort(*now, Reset)
				case 1:
					how[i] = failed
					gone[i] = true
					s.e.Fail(errTest)
				default:
					how[i] = closed
					s.e.Close(*now)
				}
				s.pump()
			}
			if s.e.end.over && !gone[i] {
				gone[i] = true // the owner disconnects
			}
			// The peer of one that is gone hears of it when it has taken everything.
			if p := ss[1-i]; gone[i] && !gone[1-i] && len(p.cq) == 0 && (p.e.end.closing || len(p.e.in.spans) > 0) {
				gone[1-i] = true
				p.e.Disconnected()
				p.pump()
			}
		}
		if step(rnd.IntN(2)) {
			idle = 0
			continue
		}
		if idle++; idle < 60 {
			continue
		}
		idle = 0
		if a.e.end.over && b.e.end.over {
			break
		}
		// Nothing moves: who has not ended does now, or time passes.
		ended := false
		for i, s := range ss {
			if how[i] == failed && !s.e.end.over && !s.e.end.closing {
				s.e.Close(*now) // the peer had closed before, so the user has the last word
				s.pump()
				ended = true
			}
			if how[i] == open && (gone[1-i] || gone[i] || how[1-i] != open || n >= 1<<20) {
				for s.doRead(1 << 20) {
				}
				if how[1-i] == open || s.eof || gone[i] {
					how[i] = closed
					s.e.Close(*now)
					s.pump()
					ended = true
				}
			}
		}
		if ended {
			continue
		}
		for _, s := range ss {
			if at, ok := s.e.Deadline(); ok {
				*now = max(*now, at)
				s.e.Advance(*now)
				s.pump()
			}
		}
		*now += time.Millisecond
		if n > 5_000_000 {
			t.Fatalf("seed %d: no end: %+v, %+v, how %v, gone %v", seed, a.e.end, b.e.end, how, gone)
		}
	}
	for i, s := range ss {
		p := ss[1-i]
		var pe *ProtocolError
		if errors.As(s.e.Err(), &pe) || errors.As(s.rerr, &pe) {
			t.Fatalf("seed %d: %s: %v", seed, s.name, s.e.Err())
		}
		if s.rerr == io.EOF && how[1-i] == closed && p.e.Err() == nil && s.read != p.written {
			t.Fatalf("seed %d: %s read %d of %d, and the end", seed, s.name, s.read, p.written)
		}
		if m == Verbena && s.rerr == io.EOF && !s.e.end.peerFin && how[i] == open {
			t.Fatalf("seed %d: %s: the end without FIN", seed, s.name)
		}
		if s.rerr == io.EOF && s.read > 0 && s.read == p.written {
			orderly++
		} else if s.rerr != nil && s.rerr != io.EOF {
			reset++
		}
		if ev := s.events & (Finished | Failed); ev == 0 || ev == Finished|Failed {
			t.Fatalf("seed %d: %s: events %b", seed, s.name, s.events)
		}
	}
	return orderly, reset
}

// TestC290_SimulationEnds: ends at any time, in both modes.
func TestC290_SimulationEnds(t *testing.T) {
	both(t, func(t *testing.T, m Mode) {
		if *seedFlag != 0 {
			simulateEnd(t, m, *seedFlag)
			return
		}
		orderly, reset := 0, 0
		for seed := range uint64(2 * *seedsFlag) {
			o, r := simulateEnd(t, m, seed)
			orderly, reset = orderly+o, reset+r
		}
		t.Logf("%d sides read all and the end, %d an error", orderly, reset)
		if n := *seedsFlag / 10; orderly < n || reset < n {
			t.Error("the test does not show what it should")
		}
	})
}
