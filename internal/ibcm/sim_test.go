package ibcm

import (
	cmdline "flag"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

var (
	simSeeds = cmdline.Int("ibcm.seeds", 2000, "number of seeds of the simulation")
	simSeed  = cmdline.Uint64("ibcm.seed", 0, "run this seed only")
)

// sim is a world in which programs act at random and the network is bad.
type sim struct {
	*world
	known map[*Conn]*history
	order []*Conn // of known: maps are not repeatable
}

// history is what a program has seen of a connection.
type history struct {
	e       *end
	request bool // passive
	reply   bool
	up      bool // established, by what the program was told
	ended   int
	exit    bool
	closed  bool
}

// TestC310_Simulation checks, whatever happens to messages and whenever programs act,
// that each connection has a life that makes sense, that both ends agree on what they
// are connected to, and that in the end nothing is left.
func TestC310_Simulation(t *testing.T) {
	t.Parallel()
	if *simSeed != 0 {
		simulate(t, *simSeed)
		return
	}
	n := *simSeeds
	if testing.Short() {
		n /= 10
	}
	for seed := range uint64(n) {
		simulate(t, seed+1)
		if t.Failed() {
			t.Fatalf("seed %d: go test -run Simulation -ibcm.seed %d", seed+1, seed+1)
		}
	}
}

func simulate(t *testing.T, seed uint64) {
	s := &sim{world: newWorld(t, seed), known: make(map[*Conn]*history)}
	r := s.rng
	loss, dup, late := r.IntN(40), r.IntN(30), r.IntN(30)
	s.fault = func(Packet, Attr, int) []time.Duration {
		if r.IntN(100) < loss {
			return nil
		}
		delay := func() time.Duration {
			if r.IntN(100) < late {
				return time.Duration(r.Int64N(int64(3 * time.Second)))
			}
			return latency + time.Duration(r.Int64N(int64(latency)))
		}
		d := []time.Duration{delay()}
		for r.IntN(100) < dup {
			d = append(d, delay())
		}
		return d
	}
	for _, e := range []*end{s.a, s.b} {
		e.program = func(ev Event) { s.event(e, ev) }
		e.admit = func(*Request) Verdict {
			switch r.IntN(12) {
			case 0:
				return Verdict{}
			case 1:
				return Verdict{Reason: ib.RejectInvalidServiceID}
			}
			return Verdict{Take: true, Owner: e}
		}
	}
	for i := range 1 + r.IntN(6) {
		from, to := s.a, s.b
		if r.IntN(4) == 0 {
			from, to = to, from
		}
		if r.IntN(8) == 0 {
			to = from
		}
		qpn := ib.QPN(0x1000 + i)
		s.later(func() {
			p := from.param(to)
			p.QPN = qpn
			c, err := from.agent.Connect(s.now, p)
			if err != nil {
				t.Error(err)
				return
			}
			s.learn(c, from)
			s.meddle(c)
			from.settle()
		})
	}
	s.run(2 * time.Hour)
	// Whatever is still held by a program is closed; then all must be forgotten.
	for _, c := range s.order {
		if !s.known[c].closed {
			s.close(c)
		}
	}
	s.rest()
	if t.Failed() {
		t.Logf("seed %d: loss %d%%, duplicates %d%%, late %d%%\n%s", seed, loss, dup, late, s.story())
	}
}

func (s *sim) learn(c *Conn, e *end) *history {
	h := &history{e: e}
	s.known[c] = h
	s.order = append(s.order, c)
	return h
}

// later plans something for the next seconds, mostly for soon.
func (s *sim) later(f func()) {
	d := time.Duration(s.rng.Int64N(int64(time.Second)))
	switch s.rng.IntN(4) {
	case 0:
		d *= 40
	case 1, 2:
		d /= 1000
	}
	s.tasks = append(s.tasks, task{s.now + d, f})
}

// meddle plans what a program does to a connection by its own will.
func (s *sim) meddle(c *Conn) {
	switch s.rng.IntN(4) {
	case 0:
		s.later(func() { s.close(c) })
	case 1:
		s.later(func() { s.disconnect(c) })
	case 2:
		s.later(func() {
			// Data can come only from an end that is established.
			if h := s.known[c]; !h.closed && c.State() == StateRepSent && s.reached(c) {
				h.e.do(h.e.agent.CommEstablished(s.now, c))
			}
		})
	}
}

func (s *sim) close(c *Conn) {
	h := s.known[c]
	h.closed = true
	h.e.agent.Close(s.now, c)
	h.e.settle()
}

func (s *sim) disconnect(c *Conn) {
	h := s.known[c]
	if h.closed {
		return
	}
	if err := h.e.agent.Disconnect(s.now, c); err != nil && c.State() != StateReqSent && c.State() != StateReqRcvd {
		s.t.Errorf("disconnect in %v: %v", c.State(), err)
	}
	h.e.settle()
}

// event is the program: it checks the event and plans its answer.
func (s *sim) event(e *end, ev Event) {
	c := ev.Conn
	h := s.known[c]
	fail := func(format string, args ...any) {
		s.t.Helper()
		s.t.Errorf("%s: %v: %s", e.name, ev.Type, fmt.Sprintf(format, args...))
	}
	if h == nil {
		if ev.Type != EventRequest || !c.Passive {
			fail("first event of an unknown connection")
		}
		h = s.learn(c, e)
	}
	if h.closed {
		fail("after Close")
		return
	}
	if h.e != e {
		fail("of another agent")
	}
	if h.exit {
		fail("after the last event")
	}
	switch ev.Type {
	case EventRequest:
		if h.request {
			fail("twice")
		}
		h.request = true
		s.meddle(c)
		s.later(func() { s.answer(c) })
	case EventReply:
		if h.reply || c.Passive || h.ended > 0 {
			fail("twice, or on the passive side, or after the end")
		}
		h.reply = true
		s.later(func() {
			if !h.closed && c.State() == StateRepRcvd {
				if err := e.agent.Establish(s.now, c); err != nil {
					fail("establish: %v", err)
				}
				h.up = true
				e.settle()
			}
		})
	case EventEstablished:
		if h.up || !c.Passive || h.ended > 0 {
			fail("twice, or on the active side, or after the end")
		}
		h.up = true
		s.agree(c, fail)
	case EventRejected, EventUnreachable, EventDisconnected:
		if h.ended++; h.ended > 1 {
			fail("second end")
		}
		if ev.Type == EventUnreachable && h.up {
			fail("after it was established")
		}
		s.later(func() { s.disconnect(c) })
		if s.rng.IntN(2) == 0 {
			s.later(func() { s.close(c) })
		}
	case EventTimeWaitExit:
		h.exit = true
	}
}

// answer accepts or rejects.
func (s *sim) answer(c *Conn) {
	h := s.known[c]
	if h.closed || c.State() != StateReqRcvd {
		return
	}
	if s.rng.IntN(5) == 0 {
		h.e.do(h.e.agent.Reject(s.now, c, ib.RejectConsumer, nil, nil))
		return
	}
	p := h.e.accept
	p.QPN = ib.QPN(0x10000 + len(s.known)*7 + s.rng.IntN(7))
	h.e.do(h.e.agent.Accept(s.now, c, &p))
}

// reached reports whether the other end of a passive connection is connected to it.
func (s *sim) reached(c *Conn) bool {
	o := s.other(c)
	return o != nil && s.known[o].up && o.Peer.CommID == c.CommID()
}

// agree checks an established passive connection against its other end.
func (s *sim) agree(c *Conn, fail func(string, ...any)) {
	o := s.other(c)
	if o == nil {
		fail("there is no other end")
		return
	}
	if o.Peer.CommID != c.CommID() || o.Peer.QPN != c.QPN || c.Peer.QPN != o.QPN ||
		o.SQPSN != c.RQPSN || o.RQPSN != c.SQPSN {
		fail("the ends do not fit: %+v and %+v", o, c)
	}
}

// other gives the active end of a passive connection.
func (s *sim) other(c *Conn) *Conn {
	for _, o := range s.order {
		if c.Passive && !o.Passive && o.CommID() == c.Peer.CommID && o.Local == c.Remote {
			return o
		}
	}
	return nil
}

func FuzzAgentReceive(f *testing.F) {
	w := newWorld(f, 60)
	for _, m := range []Message{
		w.b.requestFrom(w.a.addr, 1, 2, 3),
		&REP{LocalCommID: 5, RemoteCommID: 1, LocalQPN: 9, LocalGUID: 7},
		&RTU{LocalCommID: 5, RemoteCommID: 2}, &MRA{RemoteCommID: 1, ServiceTimeout: 31},
		&REJ{RemoteCommID: 1, Reason: 28, ARILen: 72}, &REJ{LocalCommID: 1, Reason: ib.RejectTimeout, ARILen: 8},
		&DREQ{LocalCommID: 5, RemoteCommID: 2, RemoteQPN: 0x222222}, &DREP{LocalCommID: 5, RemoteCommID: 1},
		&SIDRREQ{RequestID: 4}, &LAP{},
	} {
		f.Add(encode(m)[:], uint8(0))
		f.Add(encode(m)[:], uint8(1))
	}
	f.Fuzz(func(t *testing.T, tape []byte, peer uint8) {
		// The agent has a connection in each state, with ids that the fuzzer can hit, and
		// gets the tape as messages of 256 bytes.
		var n uint64
		a := NewAgent(Config{
			GUID:  1,
			Rand:  func() uint64 { n++; return n << 32 },
			Admit: func(*Request) Verdict { return Verdict{Take: n%3 != 0, Reason: ib.RejectReason(n % 2)} },
		})
		w := newWorld(t, 61)
		local := w.b.addr
		remote := []netip.Addr{w.a.addr, stranger}[peer%2]
		for i := range 4 {
			p := w.b.param(w.a)
			p.QPN += ib.QPN(i)
			if _, err := a.Connect(0, p); err != nil {
				t.Fatal(err)
			}
		}
		now := time.Duration(0)
		for len(tape) > 0 {
			k := min(len(tape), MADLen)
			a.Receive(now, local, remote, tape[:k])
			tape = tape[k:]
			for _, ev := range append([]Event(nil), a.Events()...) {
				switch ev.Type {
				case EventRequest:
					_ = a.Accept(now, ev.Conn, &AcceptParam{QPN: 0x222222})
				case EventReply:
					_ = a.Establish(now, ev.Conn)
				}
			}
			for _, p := range a.Packets() {
				if _, err := Parse(p.MAD[:]); err != nil {
					t.Fatalf("sends a message that it would not read: %v", err)
				}
			}
			if at, ok := a.Deadline(); ok && at < now+10*time.Second {
				now = max(now, at)
				a.Advance(now)
			}
		}
		a.Shutdown(now)
		if a.Len() != 0 || a.HalfOpen() != 0 || len(a.remote) != 0 || len(a.qpns) != 0 || len(a.timers) != 0 {
			t.Fatalf("left: %d connections, %d half-open, %d, %d, %d timers", a.Len(), a.HalfOpen(), len(a.remote), len(a.qpns), len(a.timers))
		}
	})
}
