package ibcm

import (
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// capturedAgent makes an agent that takes every request.
func capturedAgent(seed uint64) *Agent {
	r := rand.New(rand.NewPCG(seed, 70))
	return NewAgent(Config{
		GUID:  ib.GUID(r.Uint64()),
		Rand:  r.Uint64,
		Admit: func(*Request) Verdict { return Verdict{Take: true} },
	})
}

// one takes the only event, which must be of a type.
func one(t *testing.T, a *Agent, want EventType) Event {
	t.Helper()
	ev := a.Events()
	if len(ev) != 1 || ev[0].Type != want {
		t.Fatalf("events %+v, want %v", ev, want)
	}
	return ev[0]
}

// answers takes the only packet.
func answers(t *testing.T, a *Agent, m Message) {
	t.Helper()
	p := a.Packets()
	if len(p) != 1 {
		t.Fatalf("%d packets, want %v", len(p), m.Attr())
	}
	if err := m.Decode(p[0].MAD[:]); err != nil {
		attr, _ := PeekAttr(p[0].MAD[:])
		t.Fatalf("%v instead of %v: %v", attr, m.Attr(), err)
	}
}

// TestCapturedRequests plays the server for every client that was recorded: the kernel's
// messages, with our id and queue pair in the place of those of the server it had.
func TestCapturedRequests(t *testing.T) {
	t.Parallel()
	all := capturedMADs(t)
	var requests, established, disconnected int
	for i, c := range all {
		var q REQ
		if q.Decode(c.mad) != nil || q.Transport != TransportRC {
			continue
		}
		requests++
		a := capturedAgent(uint64(i))
		a.Receive(0, c.dst, c.src, c.mad)
		conn := one(t, a, EventRequest).Conn
		if conn.Peer.QPN != q.LocalQPN || conn.SQPSN != q.StartingPSN || conn.MTU != q.MTU || conn.Remote != c.src ||
			conn.AckTimeout != q.Primary.AckTimeout || conn.Peer.RetryCount != q.RetryCount {
			t.Errorf("request %d: %+v", i, conn)
		}
		if err := a.Accept(0, conn, &AcceptParam{QPN: 0xabc, RNRRetryCount: 7}); err != nil {
			t.Fatal(err)
		}
		var rep REP
		answers(t, a, &rep)
		if rep.RemoteCommID != q.LocalCommID || rep.TID != q.TID || rep.LocalQPN != 0xabc {
			t.Errorf("request %d: reply %+v", i, rep)
		}
		for _, d := range all[i+1:] {
			m, err := Parse(d.mad)
			if err != nil || d.src != c.src || d.dst != c.dst || conn.State() == StateTimeWait {
				continue
			}
			switch m := m.(type) {
			case *RTU:
				if m.LocalCommID != q.LocalCommID || conn.State() != StateRepSent {
					continue
				}
				m.RemoteCommID = conn.CommID()
				a.Receive(0, d.dst, d.src, encode(m)[:])
				one(t, a, EventEstablished)
				established++
			case *DREQ:
				if m.LocalCommID != q.LocalCommID || conn.State() != StateEstablished {
					continue
				}
				m.RemoteCommID, m.RemoteQPN = conn.CommID(), 0xabc
				a.Receive(0, d.dst, d.src, encode(m)[:])
				one(t, a, EventDisconnected)
				if err := a.Disconnect(0, conn); err != nil {
					t.Fatal(err)
				}
				var drep DREP
				answers(t, a, &drep)
				if drep.TID != m.TID || drep.RemoteCommID != q.LocalCommID {
					t.Errorf("request %d: end %+v", i, drep)
				}
				disconnected++
			}
		}
	}
	if requests < 5 || established < 3 || disconnected < 3 {
		t.Errorf("%d requests, %d established, %d disconnected: the captures have more", requests, established, disconnected)
	}
}

// TestCapturedReplies plays the client for every server that was recorded.
func TestCapturedReplies(t *testing.T) {
	t.Parallel()
	all := capturedMADs(t)
	var replies, rejects, disconnected int
	for i, c := range all {
		m, err := Parse(c.mad)
		if err != nil {
			t.Fatal(err)
		}
		rep, _ := m.(*REP)
		rej, _ := m.(*REJ)
		if rep == nil && rej == nil {
			continue
		}
		a := capturedAgent(uint64(i))
		conn, err := a.Connect(0, &ConnectParam{
			Path:      Path{Local: c.dst, Remote: c.src, MTU: ib.MTU1024, AckTimeout: 18},
			ServiceID: Service(ib.PortSpaceTCP, 7174), QPN: 0xabc,
		})
		if err != nil {
			t.Fatal(err)
		}
		a.Packets()
		if rej != nil {
			rej.RemoteCommID = conn.CommID()
			a.Receive(0, c.dst, c.src, encode(rej)[:])
			if ev := one(t, a, EventRejected); ev.Reason != rej.Reason {
				t.Errorf("reject %d: %+v", i, ev)
			}
			rejects++
			continue
		}
		rep.RemoteCommID = conn.CommID()
		a.Receive(0, c.dst, c.src, encode(rep)[:])
		one(t, a, EventReply)
		replies++
		if conn.SQPSN != rep.StartingPSN || conn.Peer.QPN != rep.LocalQPN || conn.Peer.RNRRetryCount != rep.RNRRetryCount {
			t.Errorf("reply %d: %+v", i, conn)
		}
		if err := a.Establish(0, conn); err != nil {
			t.Fatal(err)
		}
		var rtu RTU
		answers(t, a, &rtu)
		for _, d := range all[i+1:] {
			m, err := Parse(d.mad)
			dreq, ok := m.(*DREQ)
			if err != nil || !ok || d.src != c.src || d.dst != c.dst || dreq.LocalCommID != rep.LocalCommID {
				continue
			}
			dreq.RemoteCommID, dreq.RemoteQPN = conn.CommID(), 0xabc
			a.Receive(0, d.dst, d.src, encode(dreq)[:])
			one(t, a, EventDisconnected)
			disconnected++
			break
		}
	}
	if replies < 5 || rejects < 1 {
		t.Errorf("%d replies, %d rejects, %d disconnected: the captures have more", replies, rejects, disconnected)
	}
}
