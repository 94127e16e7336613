package transport

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var (
	simSeeds = flag.Int("sim.seeds", 3000, "seeds of the random simulation")
	simSeed  = flag.Uint64("sim.seed", 0, "run this one seed only, with a log")
)

// TestC310_Simulation (C-310) lets random requests run over a random network in virtual
// time. Whatever is lost, repeated, late or out of order:
//
//   - each SEND and each WRITE with immediate completes one receive, in order, with its
//     bytes and its immediate data;
//   - each WRITE and READ moves its bytes and no other;
//   - each atomic is executed once, in order;
//   - each posted request completes once, in order, unsignaled ones not at all unless
//     they fail;
//   - nothing is left over when no packet flies and no timer runs.
//
// In some runs a queue pair is closed, a region is removed, or a limit is small, so that
// requests fail: then what completed successfully must have happened, and the rest must
// complete too.
func TestC310_Simulation(t *testing.T) {
	t.Parallel()
	if *simSeed != 0 {
		if err := simulate(*simSeed, true); err != nil {
			t.Fatal(err)
		}
		return
	}
	n := *simSeeds
	if testing.Short() {
		n = min(n, 200)
	}
	if raceEnabled {
		n = min(n, max(n/10, 50))
	}
	var next atomic.Uint64
	var wg sync.WaitGroup
	var total simTotals
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				seed := next.Add(1)
				if seed > uint64(n) || t.Failed() {
					return
				}
				if err := simulate(seed, false, &total); err != nil {
					t.Errorf("seed %d: %v\nreplay: go test ./internal/transport -run TestC310_Simulation -sim.seed=%d", seed, err, seed)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds: %v", n, &total)
	total.check(t, n)
}

// simTotals shows that the simulation does what it is meant to do.
type simTotals struct {
	mu                          sync.Mutex
	packets, lost, repeated     int
	requests, failed, flushed   int
	recoveries, timeouts, rnrs  uint64
	probes, replays, duplicates uint64
}

func (s *simTotals) String() string {
	return fmt.Sprintf("%d requests, %d failed, %d flushed; %d packets, %d lost, %d repeated; %d recoveries, %d timeouts, %d RNR, %d probes, %d replays, %d duplicates",
		s.requests, s.failed, s.flushed, s.packets, s.lost, s.repeated, s.recoveries, s.timeouts, s.rnrs, s.probes, s.replays, s.duplicates)
}

func (s *simTotals) check(t *testing.T, seeds int) {
	if seeds < 50 || t.Failed() {
		return
	}
	for name, n := range map[string]uint64{
		"lost packets": uint64(s.lost), "repeated packets": uint64(s.repeated), "failed requests": uint64(s.failed),
		"flushed requests": uint64(s.flushed), "recoveries": s.recoveries, "timeouts": s.timeouts, "RNR": s.rnrs,
		"probes": s.probes, "replays": s.replays, "duplicates": s.duplicates,
	} {
		if n == 0 {
			t.Errorf("the simulation has no %s", name)
		}
	}
}

const (
	simROM   = 32 << 10 // bytes that never change: sources
	simSlot  = 12 << 10 // one message
	simSlots = 48
	simRecvs = 8 // receives posted at most
	simSlot0 = simROM + 4096
	simWords = simROM // 64 words for atomics
	simSize  = simSlot0 + simSlots*simSlot
	simBase  = 0x7000_0000_0000
	poison   = 0xA5
)

var simPattern = pattern(make([]byte, simROM), 4711)

// sim is one run.
type sim struct {
	rng    *rand.Rand
	now    time.Duration
	events simHeap
	order  uint64
	ends   []*simEnd
	loud   bool
	log    []string
	err    error

	loss, dup, late       float64 // probabilities
	delay, jitter, behind time.Duration
	outMax                int
	lazyAck               bool // answers wait for the application, as the reader lets them
	lazy                  bool // everything waits, as in a batch of packets
	chaos                 bool // requests may fail
	total                 simTotals
}

type simEvent struct {
	at    time.Duration
	order uint64
	kind  uint8
	end   *simEnd
	b     []byte
}

const (
	simPacket uint8 = iota
	simTimer
	simFlush
	simWork
	simClose
	simRemove
)

func simulate(seed uint64, loud bool, total ...*simTotals) (err error) {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 0xbeef)), loud: loud}
	defer func() {
		if r := recover(); r != nil {
			stack := make([]byte, 8<<10)
			err = fmt.Errorf("panic: %v\n%s", r, stack[:runtime.Stack(stack, false)])
		}
		if err != nil && loud {
			err = fmt.Errorf("%w\n%s", err, strings.Join(s.log, "\n"))
		}
	}()
	s.build()
	s.run()
	if s.err == nil {
		s.finish()
	}
	for _, t := range total {
		s.addTo(t)
	}
	return s.err
}

func (s *sim) addTo(t *simTotals) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.packets += s.total.packets
	t.lost += s.total.lost
	t.repeated += s.total.repeated
	t.requests += s.total.requests
	t.failed += s.total.failed
	t.flushed += s.total.flushed
	for _, e := range s.ends {
		st := e.q.Stats()
		t.recoveries += st.Recoveries
		t.timeouts += st.Timeouts
		t.rnrs += st.RNRsReceived
		t.probes += st.Probes
		t.replays += st.ReadsRepeated
		t.duplicates += st.Duplicates
	}
}

func (s *sim) fail(format string, v ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("at %v: "+format, append([]any{s.now}, v...)...)
	}
}

func (s *sim) note(format string, v ...any) {
	if s.loud {
		s.log = append(s.log, fmt.Sprintf("%12v  ", s.now)+fmt.Sprintf(format, v...))
	}
}

func pick[T any](r *rand.Rand, v ...T) T { return v[r.IntN(len(v))] }

func (s *sim) build() {
	r := s.rng
	s.loss = pick(r, 0, 0, 0.005, 0.02, 0.05, 0.1)
	s.dup = pick(r, 0, 0, 0.01, 0.05)
	s.late = pick(r, 0, 0, 0.01, 0.1)
	s.delay = pick(r, time.Microsecond, 20*time.Microsecond, 300*time.Microsecond)
	s.jitter = pick(r, 0, 0, time.Microsecond, 10*time.Microsecond)
	s.behind = pick(r, 5*time.Microsecond, 100*time.Microsecond, time.Millisecond)
	s.outMax = pick(r, MaxPacket, 3*MaxPacket, 64<<10)
	s.lazyAck = r.IntN(2) == 0
	s.lazy = r.IntN(4) == 0
	s.chaos = r.IntN(5) == 0
	pairs := pick(r, 1, 1, 2, 3)
	tables := [2]*mem.Table{mem.NewTable(r.Uint32), mem.NewTable(r.Uint32)}
	for i := range 2 * pairs {
		e := &simEnd{s: s, i: i, table: tables[i%2], buf: make([]byte, simSize)}
		for j := range e.buf {
			e.buf[j] = poison
		}
		copy(e.buf, simPattern)
		clear(e.buf[simWords:simSlot0])
		for j := range simSlots {
			e.free = append(e.free, j)
		}
		r.Shuffle(simSlots, func(i, j int) { e.free[i], e.free[j] = e.free[j], e.free[i] })
		var err error
		if e.mr, err = e.table.Register(mem.Domain(i/2), e.buf, simBase, ib.LocalWrite|ib.RemoteAny); err != nil {
			s.fail("%v", err)
			return
		}
		e.q, err = New(Config{
			QPN: ib.QPN(0x100 + i), Type: ib.RC, Domain: mem.Domain(i / 2), Memory: e.table, SignalAll: r.IntN(4) == 0,
			Caps: driver.Caps{MaxSendWR: pick(r, 1, 4, 16), MaxRecvWR: pick(r, 1, 4, 16), MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64},
		})
		if err != nil {
			s.fail("%v", err)
			return
		}
		e.q.SetWindow(pick(r, 1, 8<<10, 64<<10, 1<<20))
		e.out = Output{Buf: make([]byte, 0, s.outMax), Ends: make([]int, 0, 64), Max: s.outMax}
		e.toPost = 5 + r.IntN(40)
		s.ends = append(s.ends, e)
	}
	for i, e := range s.ends {
		e.peer = s.ends[i^1]
	}
	for i := 0; i < len(s.ends); i += 2 {
		s.connect(s.ends[i], s.ends[i+1])
	}
	for _, e := range s.ends {
		s.at(time.Duration(r.IntN(1000))*time.Microsecond, simEvent{kind: simWork, end: e})
	}
	if s.chaos {
		e := s.ends[r.IntN(len(s.ends))]
		s.at(time.Duration(r.IntN(int(20*time.Millisecond))), simEvent{kind: pick(r, simClose, simRemove), end: e})
	}
}

func (s *sim) connect(a, b *simEnd) {
	r := s.rng
	mtu := ib.MTU(1 + r.IntN(5))
	psn := func() ib.PSN {
		if r.IntN(2) == 0 {
			return 0xFFFFFF - ib.PSN(r.IntN(64))
		}
		return ib.PSN(r.Uint32()) & ib.PSNMask
	}
	psnA, psnB := psn(), psn()
	depth := [2]int{pick(r, 1, 2, 4, 16), pick(r, 1, 2, 4, 16)}
	for i, e := range []*simEnd{a, b} {
		mine, theirs := psnA, psnB
		if i == 1 {
			mine, theirs = psnB, psnA
		}
		for _, st := range []driver.QPAttr{
			{State: ib.StateInit, Access: ib.RemoteAny},
			{State: ib.StateRTR, PathMTU: mtu, DestQPN: e.peer.q.cfg.QPN, RQPSN: theirs, MaxDestRDAtomic: depth[1-i],
				MinRNRTimer: pick(r, 10*time.Microsecond, 160*time.Microsecond, time.Millisecond)},
			// Without a time-out probes alone must bring everything to its end.
			{State: ib.StateRTS, SQPSN: mine, MaxRDAtomic: depth[i], RetryCount: 7, RNRRetry: 7,
				Timeout: pick(r, 0, 4*time.Millisecond, 67*time.Millisecond)},
		} {
			if s.chaos && st.State == ib.StateRTS {
				st.Timeout = 4 * time.Millisecond
			}
			m := ib.AttrState
			switch st.State {
			case ib.StateInit:
				m |= ib.AttrAccess
			case ib.StateRTR:
				m |= ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer
			case ib.StateRTS:
				m |= ib.AttrSQPSN | ib.AttrMaxRDAtomic | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrTimeout
			}
			if err := e.q.Modify(s.now, &st, m); err != nil {
				s.fail("%v", err)
			}
		}
	}
}

func (s *sim) at(t time.Duration, e simEvent) {
	e.at, e.order = t, s.order
	s.order++
	s.events.push(e)
}

func (s *sim) run() {
	for n := 0; s.err == nil; n++ {
		e, ok := s.events.pop()
		if !ok {
			return
		}
		if n > 400000 {
			s.fail("no end: %d events", n)
			return
		}
		s.now = e.at
		x := e.end
		switch e.kind {
		case simPacket:
			x.receive(e.b)
		case simTimer:
			if x.timerAt != e.at {
				continue
			}
			x.timerAt = 0
			if d, ok := x.q.Deadline(); ok && d <= s.now {
				x.q.Advance(s.now)
				if d, ok := x.q.Deadline(); ok && d <= s.now {
					s.fail("%d: the deadline %v did not move", x.i, d)
				}
			}
			x.pump()
		case simFlush:
			x.flushAt = false
			x.pump()
		case simWork:
			x.work()
		case simClose:
			s.note("%d closes", x.i)
			x.dead, x.peer.dead = true, true
			if err := x.q.Modify(s.now, &driver.QPAttr{State: ib.StateError}, ib.AttrState); err != nil {
				s.fail("%v", err)
			}
			x.pump()
		case simRemove:
			s.note("%d removes its memory", x.i)
			x.dead, x.peer.dead = true, true
			x.table.Remove(x.mr)
			if !x.mr.Idle() {
				s.fail("the region is in use after its removal")
			}
		}
	}
}

// simHeap orders events by time, then by age.
type simHeap []simEvent

func (h simHeap) less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}

func (h *simHeap) push(e simEvent) {
	*h = append(*h, e)
	for i := len(*h) - 1; i > 0; {
		p := (i - 1) / 2
		if !h.less(i, p) {
			break
		}
		(*h)[i], (*h)[p] = (*h)[p], (*h)[i]
		i = p
	}
}

func (h *simHeap) pop() (simEvent, bool) {
	n := len(*h)
	if n == 0 {
		return simEvent{}, false
	}
	top := (*h)[0]
	(*h)[0] = (*h)[n-1]
	*h = (*h)[:n-1]
	for i := 0; ; {
		c := 2*i + 1
		if c >= n-1 {
			break
		}
		if c+1 < n-1 && h.less(c+1, c) {
			c++
		}
		if !h.less(c, i) {
			break
		}
		(*h)[i], (*h)[c] = (*h)[c], (*h)[i]
		i = c
	}
	return top, true
}
