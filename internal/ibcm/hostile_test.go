package ibcm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// give hands an agent a message from an address, and gives its answers.
func (e *end) give(from netip.Addr, m Message) []Packet {
	e.agent.Receive(e.w.now, e.addr, from, encode(m)[:])
	return e.agent.Packets()
}

// strangers are addresses from which messages for the connection of a and b must not be
// believed.
var stranger = netip.MustParseAddr("10.9.0.66")

// TestC327_Forged sends messages for live connections that know too little, or come from
// elsewhere.
func TestC327_Forged(t *testing.T) {
	t.Parallel()
	for _, state := range []State{StateReqSent, StateRepRcvd, StateReqRcvd, StateRepSent, StateEstablished, StateDreqSent, StateDreqRcvd} {
		t.Run(state.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 40)
			e, peer := w.a, w.b
			switch state {
			case StateReqSent:
				w.fault = lose(AttrREQ, 0)
			case StateRepRcvd:
				w.a.manualEstablish = true
			case StateReqRcvd:
				w.b.manualAccept = true
				e, peer = w.b, w.a
			case StateRepSent:
				w.fault = lose(AttrRTU, 0)
				e, peer = w.b, w.a
			case StateDreqRcvd:
				w.b.manualDisconnect = true
				e, peer = w.b, w.a
			}
			ca := w.a.connect(w.b)
			w.run(time.Millisecond)
			if state == StateDreqSent || state == StateDreqRcvd {
				w.fault = lose(AttrDREP, 0)
				w.a.do(w.a.agent.Disconnect(w.now, ca))
				if state == StateDreqSent {
					w.flights = nil
				}
				w.run(w.now + time.Millisecond)
			}
			c := ca
			if e == w.b {
				c = w.b.conn
			}
			if c.State() != state {
				t.Fatalf("state is %v", c.State())
			}
			wrong := uint32(0x12345678)
			guid := make([]byte, MaxARI)
			binary.BigEndian.PutUint64(guid, uint64(c.Peer.GUID))
			rej := func(local, remote uint32, stage Stage, reason ib.RejectReason) *REJ {
				m := &REJ{LocalCommID: local, RemoteCommID: remote, Message: stage, Reason: reason, ARILen: 8}
				copy(m.ARI[:], guid)
				return m
			}
			theirs, ours := c.Peer.CommID, c.CommID()
			messages := func(theirs, ours uint32, qpn ib.QPN) []Message {
				return []Message{
					&REP{LocalCommID: theirs, RemoteCommID: ours, LocalQPN: 99, LocalGUID: c.Peer.GUID},
					&RTU{LocalCommID: theirs, RemoteCommID: ours},
					&MRA{LocalCommID: theirs, RemoteCommID: ours, Message: StageREQ, ServiceTimeout: 31},
					&MRA{LocalCommID: theirs, RemoteCommID: ours, Message: StageREP, ServiceTimeout: 31},
					rej(theirs, ours, StageREQ, ib.RejectConsumer),
					rej(theirs, ours, StageREP, ib.RejectConsumer),
					rej(theirs, ours, StageOther, ib.RejectTimeout),
					&DREQ{LocalCommID: theirs, RemoteCommID: ours, RemoteQPN: qpn},
					&DREP{LocalCommID: theirs, RemoteCommID: ours},
				}
			}
			deadline, _ := e.agent.Deadline()
			try := func(from netip.Addr, m Message) {
				t.Helper()
				out := e.give(from, m)
				again, _ := e.agent.Deadline()
				if c.State() != state || len(e.agent.Events()) != 0 || again != deadline {
					t.Fatalf("%v %+v from %v: state %v, deadline %v", m.Attr(), m, from, c.State(), again)
				}
				for _, p := range out {
					if p.Remote != from || len(out) > 1 {
						t.Errorf("%v from %v: answers to %v", m.Attr(), from, p.Remote)
					}
				}
			}
			// The right ids from another address.
			for _, m := range messages(theirs, ours, c.QPN) {
				try(stranger, m)
			}
			// The right address and guessed ids.
			for _, m := range messages(theirs, wrong, c.QPN) {
				if r, ok := m.(*REJ); ok && r.Reason == ib.RejectTimeout && state != StateReqSent {
					continue // by GUID and the peer's id: it knows enough
				}
				try(peer.addr, m)
			}
			if state != StateReqSent {
				for _, m := range messages(wrong, ours, c.QPN) {
					try(peer.addr, m)
				}
			}
			// A disconnect that does not know the queue pair.
			try(peer.addr, &DREQ{LocalCommID: theirs, RemoteCommID: ours, RemoteQPN: c.QPN ^ 1})
			// A repeated request from another address is a new one, to another local
			// address nothing.
			if c.Passive {
				var mad [MADLen]byte
				q := REQ{LocalCommID: theirs, LocalGUID: c.Peer.GUID, LocalQPN: c.Peer.QPN, MTU: ib.MTU1024}
				q.Encode(&mad)
				e.agent.Receive(w.now, netip.MustParseAddr("10.9.0.77"), peer.addr, mad[:])
				if out := e.agent.Packets(); len(out) != 0 || c.State() != state {
					t.Errorf("a request to another address: %d answers, state %v", len(out), c.State())
				}
			}
		})
	}
}

func (e *end) requestFrom(from netip.Addr, id uint32, guid ib.GUID, qpn ib.QPN) *REQ {
	return &REQ{
		LocalCommID: id, LocalGUID: guid, LocalQPN: qpn, MTU: ib.MTU1024,
		ServiceID: Service(ib.PortSpaceTCP, 7174), MaxCMRetries: 15, LocalTimeout: 31,
		Primary: PathInfo{LocalGID: ib.GIDFromAddr(from), RemoteGID: ib.GIDFromAddr(e.addr), AckTimeout: 18},
	}
}

// TestImpossibleRequests is refused with the reason, and not shown to anybody.
func TestImpossibleRequests(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name   string
		change func(m *REQ)
		reason ib.RejectReason
	}{
		{"UC", func(m *REQ) { m.Transport = TransportUC }, ib.RejectInvalidTransport},
		{"XRC", func(m *REQ) { m.Transport, m.ExtTransport = TransportExt, 1 }, ib.RejectInvalidTransport},
		{"QP 0", func(m *REQ) { m.LocalQPN = 0 }, ib.RejectNoQP},
		{"QP 1", func(m *REQ) { m.LocalQPN = 1 }, ib.RejectNoQP},
		{"MTU 0", func(m *REQ) { m.MTU = 0 }, ib.RejectInvalidMTU},
		{"MTU 6", func(m *REQ) { m.MTU = 6 }, ib.RejectInvalidMTU},
		{"GID of another host", func(m *REQ) { m.Primary.LocalGID[15]++ }, ib.RejectInvalidGID},
		{"GID of another target", func(m *REQ) { m.Primary.RemoteGID[15]++ }, ib.RejectInvalidGID},
	} {
		w := newWorld(t, 41)
		m := w.b.requestFrom(w.a.addr, 7, 8, 9)
		m.TID = 1234
		s.change(m)
		out := w.b.give(w.a.addr, m)
		if len(out) != 1 {
			t.Errorf("%s: %d answers", s.name, len(out))
			continue
		}
		var r REJ
		if err := r.Decode(out[0].MAD[:]); err != nil || r.Reason != s.reason || r.RemoteCommID != 7 || r.TID != 1234 ||
			r.Message != StageREQ || r.LocalCommID != 0 {
			t.Errorf("%s: answer %+v, %v", s.name, r, err)
		}
		if w.b.agent.Len() != 0 || len(w.b.agent.Events()) != 0 {
			t.Errorf("%s: something is remembered", s.name)
		}
	}
}

// TestStaleConnection: a peer that was restarted and got its old queue pair number
// again.
func TestC234_StaleConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 42)
	w.a.connect(w.b)
	w.run(time.Millisecond)
	old := w.b.conn
	guid := w.a.agent.cfg.GUID
	out := w.b.give(w.a.addr, w.b.requestFrom(w.a.addr, 0x77, guid, 0x111111))
	var reason ib.RejectReason
	var dreq int
	for _, p := range out {
		switch m, _ := Parse(p.MAD[:]); m := m.(type) {
		case *REJ:
			reason = m.Reason
		case *DREQ:
			dreq++
		}
	}
	if reason != ib.RejectStaleConn || dreq != 1 || old.State() != StateDreqSent {
		t.Errorf("reason %d, %d DREQs, old connection is %v", reason, dreq, old.State())
	}
	// The next try is welcome.
	w.b.give(w.a.addr, w.b.requestFrom(w.a.addr, 0x78, guid, 0x111111))
	w.b.settle()
	if n := len(w.b.log); n != 3 || w.b.log[2] != "request" {
		t.Errorf("b saw %v", w.b.log)
	}
}

// TestStaleRequest: the same with a request that was not answered yet.
func TestC234_StaleRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 43)
	w.b.manualAccept = true
	w.a.connect(w.b)
	w.run(time.Millisecond)
	out := w.b.give(w.a.addr, w.b.requestFrom(w.a.addr, 0x77, w.a.agent.cfg.GUID, 0x111111))
	w.b.settle()
	if len(out) != 1 {
		t.Errorf("%d answers", len(out))
	}
	w.b.want("request", "rejected 10")
	if w.b.agent.HalfOpen() != 0 {
		t.Error("the old request is still half-open")
	}
}

// TestStaleReply: the server was restarted and its new queue pair has the number of one
// that we hold for connected.
func TestC234_StaleReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 44)
	first := w.a.connect(w.b)
	w.run(time.Millisecond)
	guid := w.b.agent.cfg.GUID
	w.b.restart(Config{})
	w.b.agent.cfg.GUID = guid
	p := w.a.param(w.b)
	p.QPN = 0x333333
	second, err := w.a.agent.Connect(w.now, p)
	if err != nil {
		t.Fatal(err)
	}
	w.a.settle()
	w.run(w.now + 10*time.Second)
	w.a.wantState(second, StateEstablished)
	w.a.want("reply", "reply", "disconnected", "time wait exit")
	w.a.wantState(first, StateDead)
}

// TestC234_Restart: a peer that is killed and comes back with a new GUID is not taken
// for its predecessor, 100 times, with the same queue pair number.
func TestC234_Restart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 45)
	for i := range 100 {
		c := w.a.connect(w.b)
		w.run(w.now + time.Millisecond)
		w.a.wantState(c, StateEstablished)
		w.a.restart(Config{})
		if t.Failed() {
			t.Fatalf("after %d restarts", i)
		}
	}
}

// TestC326_Flood of requests with random ids: bounded memory, live connections live.
func TestC326_Flood(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 46)
	w.b.restart(Config{HalfOpen: 100})
	live := w.a.connect(w.b)
	w.run(time.Millisecond)
	cb := w.b.conn
	w.b.manualAccept = true
	for i := range 100_000 {
		from := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		out := w.b.give(from, w.b.requestFrom(from, w.rng.Uint32(), ib.GUID(w.rng.Uint64()), 17))
		if len(out) != 0 {
			t.Fatalf("request %d is answered", i)
		}
	}
	w.b.settle()
	g := w.b.agent
	if g.HalfOpen() != 100 || g.Len() != 101 || len(g.remote) != 101 || len(g.qpns) != 101 {
		t.Errorf("%d half-open, %d connections, %d %d", g.HalfOpen(), g.Len(), len(g.remote), len(g.qpns))
	}
	if n := g.Stats().Dropped; n != 100_000-100 {
		t.Errorf("%d dropped", n)
	}
	w.a.wantState(live, StateEstablished)
	w.b.wantState(cb, StateEstablished)
	// When the program has answered there is room.
	for _, c := range g.local {
		if c != cb {
			w.b.agent.Close(w.now, c)
		}
	}
	w.b.settle()
	if g.HalfOpen() != 0 {
		t.Errorf("%d half-open after all are closed", g.HalfOpen())
	}
	p := w.a.param(w.b)
	p.QPN++
	w.b.manualAccept = false
	c, err := w.a.agent.Connect(w.now, p)
	w.a.do(err)
	w.run(w.now + time.Second)
	w.a.wantState(c, StateEstablished)
}

// TestC326_Rejected: a flood that the program rejects.
func TestC326_Rejected(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 47)
	w.b.manualAccept = true
	for i := range 5000 {
		w.b.give(w.a.addr, w.b.requestFrom(w.a.addr, uint32(i+1), 5, ib.QPN(i+100)))
		w.b.settle()
		w.b.do(w.b.agent.Reject(w.now, w.b.conn, ib.RejectConsumer, nil, nil))
	}
	if n := w.b.agent.Len(); n > maxRejected {
		t.Errorf("%d rejected requests are remembered", n)
	}
	w.flights = nil
	w.rest()
}

// TestC329_Reflection: a request whose address was forged costs its victim no more than
// a bounded number of datagrams of the size of the request.
func TestC329_Reflection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 48)
	var sent int
	count := func() {
		for _, p := range w.b.agent.Packets() {
			if p.Remote == stranger {
				sent++
			}
		}
	}
	w.b.agent.Receive(0, w.b.addr, stranger, encode(w.b.requestFrom(stranger, 1, 2, 3))[:])
	for _, ev := range append([]Event(nil), w.b.agent.Events()...) {
		if err := w.b.agent.Accept(0, ev.Conn, &w.b.accept); err != nil {
			t.Fatal(err)
		}
	}
	count()
	for {
		at, ok := w.b.agent.Deadline()
		if !ok {
			break
		}
		w.b.agent.Advance(at)
		count()
	}
	if sent > replyTries+1 {
		t.Errorf("the victim gets %d datagrams", sent)
	}
}

// TestStraysBounded: messages for unknown connections are answered, but not without end.
func TestStraysBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 49)
	answers := 0
	for i := range 10_000 {
		answers += len(w.b.give(stranger, &DREQ{LocalCommID: uint32(i), RemoteCommID: 5, RemoteQPN: 9}))
	}
	if answers != strayBurst {
		t.Errorf("%d answers at once, want %d", answers, strayBurst)
	}
	w.now += time.Second / 2
	answers = 0
	for i := range 10_000 {
		answers += len(w.b.give(stranger, &REP{LocalCommID: uint32(i), RemoteCommID: 5, LocalQPN: 9}))
	}
	if answers != strayRate/2 {
		t.Errorf("%d answers after half a second, want %d", answers, strayRate/2)
	}
	if n := w.b.agent.Stats().Muted; n != 20_000-strayBurst-strayRate/2 {
		t.Errorf("%d muted", n)
	}
}

// TestC328_Replay sends everything again that was sent in a session: while it lasts,
// in TIMEWAIT, and when it is forgotten.
func TestC328_Replay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 50)
	var tape []Packet
	w.fault = func(p Packet, _ Attr, _ int) []time.Duration {
		tape = append(tape, p)
		return []time.Duration{latency}
	}
	replay := func() {
		for _, p := range append([]Packet(nil), tape...) {
			w.deliver(p)
		}
		w.run(w.now + 10*latency)
	}
	ca := w.a.connect(w.b)
	w.run(time.Millisecond)
	cb := w.b.conn
	replay()
	w.a.want("reply")
	w.b.want("request", "established")
	w.a.wantState(ca, StateEstablished)
	w.b.wantState(cb, StateEstablished)
	w.a.do(w.a.agent.Disconnect(w.now, ca))
	w.run(w.now + time.Millisecond)
	replay()
	w.a.want("reply", "disconnected")
	w.b.want("request", "established", "disconnected")
	w.run(w.now + time.Minute)
	replay()
	w.run(w.now + time.Minute)
	// Long after, the request looks new; but nobody is there to go on.
	w.a.want("reply", "disconnected", "time wait exit")
	w.b.want("request", "established", "disconnected", "time wait exit", "request", "rejected 6", "time wait exit")
}

// TestLingerBounded: what is over is remembered up to a limit.
func TestLingerBounded(t *testing.T) {
	t.Parallel()
	a := newWorld(t, 51).a.agent
	for i := range 10 {
		c := a.newConn()
		c.AckTimeout = 18
		a.over(time.Duration(i), c, &a.timeWaits, 3, time.Second)
		c.state = StateTimeWait
	}
	if a.timeWaits.n != 3 || a.Len() != 3 || len(a.timers) != 3 {
		t.Errorf("%d in time wait, %d connections, %d timers", a.timeWaits.n, a.Len(), len(a.timers))
	}
	if n := len(a.Events()); n != 7 {
		t.Errorf("%d time wait exits", n)
	}
	a.Advance(time.Minute)
	if a.Len() != 0 || a.timeWaits.first != nil || a.timeWaits.last != nil {
		t.Error("something is left")
	}
}

// TestRandomIDs: ids and PSNs come from the random source, and never collide.
func TestRandomIDs(t *testing.T) {
	t.Parallel()
	// A source that repeats itself: each number three times.
	var n uint64
	a := NewAgent(Config{Rand: func() uint64 { n++; return (n / 3) << 32 }})
	seen := make(map[uint32]bool)
	for range 50 {
		c := a.newConn()
		if c.CommID() == 0 || seen[c.CommID()] {
			t.Fatalf("id %d twice, or zero", c.CommID())
		}
		seen[c.CommID()] = true
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 52)
	good := encode(w.b.requestFrom(w.a.addr, 1, 2, 3))[:]
	for i, f := range []func(b []byte) []byte{
		func(b []byte) []byte { return nil },
		func(b []byte) []byte { return b[:255] },
		func(b []byte) []byte { return append(b, 0) },
		func(b []byte) []byte { b[0] = 2; return b },
		func(b []byte) []byte { b[1] = 4; return b },
		func(b []byte) []byte { b[2] = 1; return b },
		func(b []byte) []byte { b[3] = 1; return b },
		func(b []byte) []byte { b[17] = 0x30; return b },
	} {
		w.b.agent.Receive(0, w.b.addr, w.a.addr, f(append([]byte(nil), good...)))
		if n := w.b.agent.Stats().Malformed; n != uint64(i+1) {
			t.Errorf("%d: %d malformed", i, n)
		}
	}
	for _, m := range []Message{&LAP{}, &APR{}, &SIDRREP{}} {
		if out := w.b.give(w.a.addr, m); len(out) != 0 {
			t.Errorf("%v is answered", m.Attr())
		}
	}
	if w.b.agent.Len() != 0 || len(w.b.agent.Events()) != 0 {
		t.Error("something is remembered")
	}
}

// TestDropVerdict: a full listener says nothing, and the client comes back soon.
func TestC220_BacklogFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 53)
	full := true
	w.b.admit = func(*Request) Verdict {
		if full {
			return Verdict{}
		}
		return Verdict{Take: true}
	}
	w.a.connect(w.b)
	w.run(9 * time.Second)
	w.a.want()
	if n := w.sent[AttrREQ]; n < 8 || w.sent[AttrREJ]+w.sent[AttrMRA] != 0 {
		t.Errorf("sent %v", w.sent)
	}
	full = false
	w.run(w.now + requestRetryCap*5/4 + time.Millisecond)
	w.a.want("reply")
}

func ExampleState() {
	fmt.Println(StateReqSent, StateTimeWait)
	// Output: REQ sent time wait
}
