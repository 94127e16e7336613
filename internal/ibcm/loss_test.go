package ibcm

import (
	"fmt"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// lose makes a fault that loses the n-th message of a kind; n 0: all of them.
func lose(attr Attr, n int) func(Packet, Attr, int) []time.Duration {
	return func(_ Packet, a Attr, i int) []time.Duration {
		if a == attr && (n == 0 || i == n) {
			return nil
		}
		return []time.Duration{latency}
	}
}

// oneLoss is more than one lost message may cost: the first repetition, a quarter of it
// for chance, and the way.
const oneLoss = firstRetry*5/4 + 10*latency

func TestC232_OneMessageLost(t *testing.T) {
	t.Parallel()
	for _, attr := range []Attr{AttrREQ, AttrREP, AttrRTU, AttrDREQ, AttrDREP} {
		t.Run(attr.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 10)
			w.fault = lose(attr, 1)
			ca := w.a.connect(w.b)
			w.run(oneLoss)
			w.a.want("reply")
			w.b.want("request", "established")
			w.a.do(w.a.agent.Disconnect(w.now, ca))
			w.run(w.now + oneLoss)
			w.a.want("reply", "disconnected")
			w.b.want("request", "established", "disconnected")
			w.rest()
			w.a.want("reply", "disconnected", "time wait exit")
			w.b.want("request", "established", "disconnected", "time wait exit")
		})
	}
}

func TestC232_RejectLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 11)
	w.fault = lose(AttrREJ, 1)
	w.b.manualAccept = true
	w.a.connect(w.b)
	w.run(latency)
	w.b.do(w.b.agent.Reject(w.now, w.b.conn, ib.RejectConsumer, nil, []byte("full")))
	w.run(w.now + oneLoss)
	w.a.want("rejected 28")
	w.b.want("request") // the repetition is not shown to the program
	w.rest()
}

// TestC232_RTULostHealedByData has the peer's first packet instead of its RTU.
func TestC232_RTULostHealedByData(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 12)
	w.fault = lose(AttrRTU, 0)
	w.a.connect(w.b)
	w.run(time.Millisecond)
	w.b.want("request")
	w.b.do(w.b.agent.CommEstablished(w.now, w.b.conn))
	w.b.want("request", "established")
	if err := w.b.agent.CommEstablished(w.now, w.b.conn); err != ErrConnected {
		t.Errorf("a second time: %v", err)
	}
	w.run(time.Minute)
	w.b.want("request", "established")
	if w.sent[AttrREP] != 1 {
		t.Errorf("sent %d REPs", w.sent[AttrREP])
	}
}

func TestC232_MessageAlwaysLost(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		attr   Attr
		a, b   []string
		within time.Duration
	}{
		{AttrREQ, []string{"unreachable"}, nil, 40 * time.Second},
		{AttrREP, []string{"rejected 4"}, []string{"request", "unreachable"}, 40 * time.Second},
		// The active side was established, and learns that the other has given up.
		{AttrRTU, []string{"reply", "disconnected", "time wait exit"}, []string{"request", "unreachable"}, 40 * time.Second},
	} {
		t.Run(s.attr.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 13)
			w.fault = lose(s.attr, 0)
			w.a.connect(w.b)
			w.run(s.within)
			w.a.want(s.a...)
			w.b.want(s.b...)
			w.rest()
		})
	}
	for _, s := range []struct {
		attr Attr
		b    []string
	}{
		{AttrDREQ, []string{"request", "established"}},
		{AttrDREP, []string{"request", "established", "disconnected", "time wait exit"}},
	} {
		t.Run(s.attr.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 14)
			w.fault = lose(s.attr, 0)
			ca := w.a.connect(w.b)
			w.run(time.Second)
			w.a.do(w.a.agent.Disconnect(w.now, ca))
			w.run(w.now + 70*time.Second)
			w.a.want("reply", "disconnected timed out", "time wait exit")
			w.b.want(s.b...)
			if n := w.sent[AttrDREQ]; n != disconnectTries {
				t.Errorf("%d DREQs", n)
			}
		})
	}
}

// TestIntervals has the times of the repetitions of each message.
func TestIntervals(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		attr  Attr
		tries int
		last  time.Duration // the greatest interval, without chance
	}{
		{AttrREQ, requestTries, requestRetryCap},
		{AttrREP, replyTries, retryCap},
		{AttrDREQ, disconnectTries, retryCap},
	} {
		w := newWorld(t, 15)
		var at []time.Duration
		w.fault = func(_ Packet, a Attr, _ int) []time.Duration {
			if a == s.attr {
				at = append(at, w.now)
			}
			if a == s.attr || a == AttrDREP || a == AttrREJ {
				return nil
			}
			return []time.Duration{latency}
		}
		if s.attr == AttrREP {
			// The repeated request would make b say it again.
			w.a.agent.cfg.RequestTries = 1
		}
		ca := w.a.connect(w.b)
		if s.attr == AttrDREQ {
			w.run(time.Second)
			w.a.do(w.a.agent.Disconnect(w.now, ca))
		}
		w.run(w.now + 2*time.Minute)
		if len(at) != s.tries {
			t.Errorf("%v: %d times, want %d", s.attr, len(at), s.tries)
			continue
		}
		for i := 1; i < len(at); i++ {
			d := at[i] - at[i-1]
			low := firstRetry
			if i == len(at)-1 {
				low = s.last
			}
			if d < low || d > s.last*5/4 {
				t.Errorf("%v: interval %d is %v", s.attr, i, d)
			}
		}
		if first := at[1] - at[0]; first > firstRetry*5/4 {
			t.Errorf("%v: the first repetition comes after %v", s.attr, first)
		}
	}
}

// TestC222_SlowProgram: the request's repetitions are answered with MRA, and the client
// stays as long as they come.
func TestC222_SlowProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 16)
	w.b.manualAccept = true
	w.a.connect(w.b)
	w.run(20 * time.Minute)
	w.a.want()
	w.b.want("request")
	if w.sent[AttrMRA] == 0 || w.sent[AttrREQ] != w.sent[AttrMRA]+1 {
		t.Errorf("sent %v", w.sent)
	}
	if n := w.sent[AttrREQ]; n > 40 {
		t.Errorf("%d requests in 20 minutes", n)
	}
	w.b.do(w.b.agent.Accept(w.now, w.b.conn, &w.b.accept))
	w.run(w.now + time.Millisecond)
	w.a.want("reply")
	w.b.want("request", "established")
}

// TestC222_SlowProgramDies: patience ends.
func TestC222_SlowProgramDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 17)
	w.b.manualAccept = true
	w.a.connect(w.b)
	w.run(time.Minute)
	w.fault = func(Packet, Attr, int) []time.Duration { return nil }
	w.run(3 * time.Minute)
	w.a.want("unreachable")
}

// TestMRALost loses patience messages: the request is repeated, nothing else.
func TestC232_MRALost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 18)
	w.fault = lose(AttrMRA, 1)
	w.b.manualAccept = true
	w.a.connect(w.b)
	w.run(3 * time.Second)
	if w.sent[AttrMRA] != 2 {
		t.Errorf("sent %v", w.sent)
	}
	w.b.do(w.b.agent.Accept(w.now, w.b.conn, &w.b.accept))
	w.run(w.now + time.Second)
	w.a.want("reply")
	w.b.want("request", "established")
}

// TestSlowEstablish: the active program takes its time, and the passive side waits.
func TestSlowEstablish(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 19)
	w.a.manualEstablish = true
	c := w.a.connect(w.b)
	w.run(time.Minute)
	w.a.want("reply")
	w.b.want("request")
	if w.sent[AttrMRA] == 0 {
		t.Error("no MRA was sent")
	}
	w.a.do(w.a.agent.Establish(w.now, c))
	w.run(w.now + time.Second)
	w.b.want("request", "established")
}

// TestMRABounded: what a peer may ask of us has an end.
func TestMRABounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 20)
	c := w.a.connect(w.b)
	m := MRA{LocalCommID: 1, RemoteCommID: c.CommID(), Message: StageREQ, ServiceTimeout: 31}
	w.flights = nil
	w.a.agent.Receive(0, w.a.addr, w.b.addr, encode(&m)[:])
	at, ok := w.a.agent.Deadline()
	if limit := ib.AckTimeoutDuration(maxServiceTimeout) + 2*firstRetry; !ok || at > limit || at < limit/2 {
		t.Errorf("waits until %v", at)
	}
	// A short one does not shorten the wait.
	m.ServiceTimeout = 0
	w.a.agent.Receive(0, w.a.addr, w.b.addr, encode(&m)[:])
	if again, _ := w.a.agent.Deadline(); again != at {
		t.Errorf("waits until %v, then until %v", at, again)
	}
}

// TestC223_ClientGivesUp withdraws the active side in each state.
func TestC223_ClientGivesUp(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name   string
		before func(w *world)
		b      []string
	}{
		{"before the request is answered", func(w *world) { w.b.manualAccept = true }, []string{"request", "rejected 4"}},
		{"before it establishes", func(w *world) { w.a.manualEstablish = true }, []string{"request", "rejected 28", "time wait exit"}},
		{"when established", func(w *world) {}, []string{"request", "established", "disconnected", "time wait exit"}},
		{"when disconnecting", func(w *world) {
			w.b.manualDisconnect = true
			w.run(time.Millisecond)
			w.a.do(w.a.agent.Disconnect(w.now, w.a.conn))
		}, []string{"request", "established", "disconnected"}},
	} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/lost=%v", s.name, lost), func(t *testing.T) {
				w := newWorld(t, 21)
				c := w.a.connect(w.b)
				s.before(w)
				w.run(2 * time.Millisecond)
				seen := len(w.a.log)
				if lost {
					w.fault = func(_ Packet, a Attr, n int) []time.Duration {
						if n == 1 && (a == AttrDREQ || a == AttrREJ) {
							return nil
						}
						return []time.Duration{latency}
					}
				}
				w.a.agent.Close(w.now, c)
				w.a.agent.Close(w.now, c)
				w.a.settle()
				w.run(w.now + 2*time.Second)
				if len(w.a.log) != seen {
					t.Errorf("events after Close: %v", w.a.log[seen:])
				}
				if c.Owner != nil {
					t.Error("a closed connection has an owner")
				}
				if lost && w.b.manualAccept {
					// The server learns when it answers.
					w.b.do(w.b.agent.Accept(w.now, w.b.conn, &w.b.accept))
					w.run(w.now + time.Second/2)
					w.b.want("request", "rejected 6")
					w.rest()
					return
				}
				if w.b.manualDisconnect {
					w.b.do(w.b.agent.Disconnect(w.now, w.b.conn))
					w.run(w.now + 10*time.Second)
					w.b.want(append(s.b, "time wait exit")...)
					w.rest()
					return
				}
				w.rest()
				if lost && w.a.manualEstablish {
					w.b.want("request", "rejected 6", "time wait exit")
					return
				}
				w.b.want(s.b...)
			})
		}
	}
}

// TestC217_ServerGivesUp withdraws the passive side in each state.
func TestC217_ServerGivesUp(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name   string
		before func(w *world)
		a      []string
	}{
		{"request", func(w *world) { w.b.manualAccept = true }, []string{"rejected 28"}},
		{"accepted", func(w *world) { w.fault = lose(AttrRTU, 0) }, []string{"reply", "disconnected", "time wait exit"}},
		{"established", func(w *world) {}, []string{"reply", "disconnected", "time wait exit"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 22)
			s.before(w)
			w.a.connect(w.b)
			w.run(2 * time.Millisecond)
			w.b.agent.Close(w.now, w.b.conn)
			w.b.settle()
			w.rest()
			w.a.want(s.a...)
		})
	}
}

// TestAbandonedDisconnect: nobody waits for the answer, so it is asked for less often.
func TestAbandonedDisconnect(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{false, true} {
		w := newWorld(t, 23)
		c := w.a.connect(w.b)
		w.run(time.Second)
		w.fault = lose(AttrDREQ, 0)
		if asked {
			w.a.do(w.a.agent.Disconnect(w.now, c))
		}
		w.a.agent.Close(w.now, c)
		w.a.settle()
		w.run(w.now + 2*time.Minute)
		if n := w.sent[AttrDREQ]; n > abandonedTries+1 {
			t.Errorf("%d DREQs", n)
		}
		if w.a.agent.Len() != 0 {
			t.Error("it is still remembered")
		}
	}
}
