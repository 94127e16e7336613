package ibcm

import (
	"fmt"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

var handshake = []Attr{AttrREQ, AttrREP, AttrRTU, AttrDREQ, AttrDREP}

// session is connect, a pause, disconnect, with the faults of w.
func session(w *world) {
	ca := w.a.connect(w.b)
	w.run(20 * time.Second)
	w.a.do(w.a.agent.Disconnect(w.now, ca))
	w.rest()
}

func wantSession(w *world) {
	w.t.Helper()
	w.a.want("reply", "disconnected", "time wait exit")
	w.b.want("request", "established", "disconnected", "time wait exit")
}

// TestC233_Duplicates delivers each message several times, at once and late.
func TestC233_Duplicates(t *testing.T) {
	t.Parallel()
	for _, attr := range handshake {
		for _, again := range []time.Duration{0, 1, 2 * latency, 10 * latency, 200 * time.Millisecond, 3 * time.Second} {
			t.Run(fmt.Sprintf("%v/%v", attr, again), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 30)
				if again > time.Second && (attr == AttrDREQ || attr == AttrDREP) {
					// Later than TIMEWAIT: a stray.
					again = 5 * time.Second
				}
				w.fault = func(_ Packet, a Attr, n int) []time.Duration {
					if a == attr && n == 1 {
						return []time.Duration{latency, latency + again, latency + 2*again}
					}
					return []time.Duration{latency}
				}
				session(w)
				wantSession(w)
				if w.b.agent.Stats().Forged+w.a.agent.Stats().Forged != 0 {
					t.Error("a duplicate was taken for a forgery")
				}
			})
		}
	}
}

// TestC233_AnswersToDuplicates says what each state answers to what it has seen before.
func TestC233_AnswersToDuplicates(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name   string
		state  State // of the end that gets the duplicate
		replay Attr
		answer Attr // zero: none
	}{
		{"REQ, program slow", StateReqRcvd, AttrREQ, AttrMRA},
		{"REQ, accepted", StateRepSent, AttrREQ, AttrREP},
		{"REQ, established", StateEstablished, AttrREQ, 0},
		{"REQ, over", StateTimeWait, AttrREQ, AttrREJ},
		{"REQ, rejected", StateRejected, AttrREQ, AttrREJ},
		{"REP, program slow", StateRepRcvd, AttrREP, AttrMRA},
		{"REP, established", StateEstablished, AttrREP, AttrRTU},
		{"REP, over", StateTimeWait, AttrREP, 0},
		{"RTU, established", StateEstablished, AttrRTU, 0},
		{"RTU, over", StateTimeWait, AttrRTU, 0},
		{"DREQ, program slow", StateDreqRcvd, AttrDREQ, 0},
		{"DREQ, over", StateTimeWait, AttrDREQ, AttrDREP},
		{"DREQ, forgotten", StateDead, AttrDREQ, AttrDREP},
		{"DREP, over", StateTimeWait, AttrDREP, 0},
		{"DREP, forgotten", StateDead, AttrDREP, 0},
		{"REJ, forgotten", StateDead, AttrREJ, 0},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 31)
			var recorded Packet
			w.fault = func(p Packet, a Attr, _ int) []time.Duration {
				if a == s.replay {
					recorded = p
				}
				if a == AttrRTU && s.state == StateRepSent {
					return nil
				}
				return []time.Duration{latency}
			}
			w.b.manualAccept = s.state == StateReqRcvd || s.state == StateRejected || s.replay == AttrREJ
			w.a.manualEstablish = s.state == StateRepRcvd
			w.b.manualDisconnect = s.state == StateDreqRcvd
			ca := w.a.connect(w.b)
			w.run(time.Millisecond)
			switch s.state {
			case StateTimeWait, StateDreqRcvd, StateDead:
				if s.replay == AttrREJ {
					w.b.do(w.b.agent.Reject(w.now, w.b.conn, ib.RejectConsumer, nil, nil))
					break
				}
				w.a.do(w.a.agent.Disconnect(w.now, ca))
			case StateRejected:
				w.b.do(w.b.agent.Reject(w.now, w.b.conn, ib.RejectConsumer, nil, nil))
			}
			w.run(w.now + time.Millisecond)
			if s.state == StateDead {
				w.run(w.now + time.Minute)
			}
			e := w.b
			if recorded.Remote == w.a.addr {
				e = w.a
			}
			if e.conn.State() != s.state {
				t.Fatalf("state is %v, want %v\n%s", e.conn.State(), s.state, w.story())
			}
			a, b := len(w.a.log), len(w.b.log)
			e.agent.Receive(w.now, recorded.Remote, recorded.Local, recorded.MAD[:])
			out := e.agent.Packets()
			switch {
			case s.answer == 0 && len(out) == 0:
			case s.answer == 0:
				attr, _ := PeekAttr(out[0].MAD[:])
				t.Errorf("answers %v", attr)
			case len(out) != 1:
				t.Fatalf("%d answers", len(out))
			default:
				if attr, _ := PeekAttr(out[0].MAD[:]); attr != s.answer {
					t.Errorf("answers %v, want %v", attr, s.answer)
				}
				if out[0].Remote != recorded.Local || out[0].Local != recorded.Remote {
					t.Errorf("answers from %v to %v", out[0].Local, out[0].Remote)
				}
			}
			if e.conn.State() != s.state || len(e.agent.Events()) != 0 || len(w.a.log) != a || len(w.b.log) != b {
				t.Errorf("state is %v; events were made", e.conn.State())
			}
		})
	}
}

// TestC233_Reordering holds each message back until one or two others have passed it.
func TestC233_Reordering(t *testing.T) {
	t.Parallel()
	for _, attr := range handshake {
		for _, hold := range []time.Duration{2, 4, 7, 12, 20_000} {
			t.Run(fmt.Sprintf("%v/%d", attr, hold), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 32)
				w.fault = func(_ Packet, a Attr, n int) []time.Duration {
					if a == attr && n == 1 {
						return []time.Duration{hold * latency}
					}
					return []time.Duration{latency}
				}
				session(w)
				wantSession(w)
			})
		}
	}
}

// TestRTUBehindDREQ: the end overtakes the beginning.
func TestC233_RTUBehindDREQ(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 33)
	w.fault = func(_ Packet, a Attr, _ int) []time.Duration {
		if a == AttrRTU {
			return []time.Duration{20 * latency}
		}
		return []time.Duration{latency}
	}
	c := w.a.connect(w.b)
	w.run(2 * latency)
	w.a.do(w.a.agent.Disconnect(w.now, c))
	w.rest()
	w.a.want("reply", "disconnected", "time wait exit")
	w.b.want("request", "disconnected", "time wait exit")
}

// TestC216_BothDisconnect at the same time, with and without losses.
func TestC216_BothDisconnect(t *testing.T) {
	t.Parallel()
	for lost := range 4 {
		w := newWorld(t, 34)
		w.fault = func(p Packet, a Attr, n int) []time.Duration {
			if a == AttrDREQ && (n <= lost && n <= 2) || lost == 3 && a == AttrDREP && n == 1 {
				return nil
			}
			return []time.Duration{latency}
		}
		ca := w.a.connect(w.b)
		w.run(time.Millisecond)
		cb := w.b.conn
		w.a.do(w.a.agent.Disconnect(w.now, ca))
		w.b.do(w.b.agent.Disconnect(w.now, cb))
		w.a.do(w.a.agent.Disconnect(w.now, ca))
		w.run(w.now + 20*time.Second)
		w.a.do(w.a.agent.Disconnect(w.now, ca))
		w.a.want("reply", "disconnected", "time wait exit")
		w.b.want("request", "established", "disconnected", "time wait exit")
		w.rest()
	}
}

// TestC215_PeerAnswersLate: the initiator's end comes when the peer's program answers.
func TestC215_PeerAnswersLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 35)
	w.b.manualDisconnect = true
	ca := w.a.connect(w.b)
	w.run(time.Millisecond)
	w.a.do(w.a.agent.Disconnect(w.now, ca))
	w.run(10 * time.Second)
	w.a.want("reply")
	w.b.want("request", "established", "disconnected")
	w.b.do(w.b.agent.Disconnect(w.now, w.b.conn))
	w.run(w.now + time.Millisecond)
	w.a.want("reply", "disconnected")
	w.rest()
	w.b.want("request", "established", "disconnected", "time wait exit")
}

// TestDREQBeforeREP: the peer accepts and disconnects, and its reply is lost.
func TestDREQBeforeREP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 36)
	w.fault = lose(AttrREP, 0)
	w.a.connect(w.b)
	w.run(time.Millisecond)
	w.b.do(w.b.agent.Disconnect(w.now, w.b.conn))
	w.run(w.now + time.Millisecond)
	w.a.want("rejected 28")
	w.b.want("request", "disconnected")
	w.rest()
}
