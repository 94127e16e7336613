package rdmatest

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area P, second part: a long life on a network that is not perfect.
func areaSoak() []check {
	return []check{
		{"C-311_Soak", Faults | VirtualTime | Changes, longLife},
	}
}

const (
	soakTime = time.Hour
	soakFlap = 200 * time.Millisecond // less than a queue pair of newLink tries
)

// An hour of everything that a queue pair does, in connections that come and go, while one
// packet in a thousand is lost and the addresses of either side go now and then, in the middle
// of it: all arrives, once and whole; no wake-up is lost; nothing is counted that the
// losses and the missing addresses do not explain; nothing is left.
func longLife(t *tb) {
	loss := t.Fabric.Loss(netip.Addr{}, netip.Addr{}, 0.001)
	t.Fabric.Delay(netip.Addr{}, netip.Addr{}, 100*time.Microsecond, 50*time.Microsecond)
	flaps := 0
	objects := len(t.a.Objects()) + len(t.b.Objects())
	for start, round := time.Now(), 0; time.Since(start) < soakTime; {
		s := t.newSession()
		for range 50 {
			flapped := make(chan struct{})
			if round%7 == 0 {
				flaps++
				go func() {
					defer close(flapped)
					t.flap(flaps%2 == 0)
				}()
			} else {
				close(flapped)
			}
			s.run(fmt.Sprintf("round %d", round))
			<-flapped
			t.drainAsync(t.a) // the addresses, and the port, went and came
			t.drainAsync(t.b)
			time.Sleep(time.Duration(t.rng.Int64N(int64(4 * time.Second))))
			round++
		}
		s.close()
		for _, e := range []*end{s.a, s.b} {
			for _, cq := range []*verbs.CQ{e.scq, e.rcq} {
				if n := cq.Stats().Rescued; n != 0 {
					t.Errorf("%d wake-ups of %s were lost", n, e.name)
				}
				t.closed(cq, "completion queue")
			}
			t.closed(e.mr, "memory region")
			t.closed(e.pd, "protection domain")
		}
		if n := len(t.a.Objects()) + len(t.b.Objects()); n != objects {
			t.Errorf("%d objects in round %d, at first %d", n, round, objects)
		}
	}
	if loss.Hits() == 0 || flaps == 0 {
		t.Errorf("%d packets were lost, %d times there was no address", loss.Hits(), flaps)
	}
	if st := t.Fabric.Stats(); st.Dropped != loss.Hits() || st.Overflow != 0 || st.NoRoute != 0 {
		t.Errorf("the network lost other packets: %+v", st)
	}
	t.explained(loss.Hits())
}

// flap takes the addresses of a side away for a moment.
func (t *tb) flap(peer bool) {
	p, addr := t.Provider, t.Addr
	if peer {
		p, addr = t.Peer, t.PeerAddr
	}
	time.Sleep(300 * time.Microsecond) // the requests are on their way
	if err := p.(changeable).SetAddrs(nil); err != nil {
		t.Errorf("take the address away: %v", err)
	}
	time.Sleep(soakFlap)
	if err := p.(changeable).SetAddrs([]netip.Addr{addr}); err != nil {
		t.Errorf("give it back: %v", err)
	}
}

// explained reports what embedded devices have counted without a reason in longLife: packets
// arrive, but for those that the network lost and those that could not leave; of those that arrive
// some find no address, and some no queue pair, as it was closed behind the last completion.
func (t *tb) explained(lost int) {
	t.Helper()
	var all softroce.Stats
	for i, p := range []verbs.Provider{t.Provider, t.Peer} {
		x, ok := p.(interface{ Stats() softroce.Stats })
		if !ok {
			return
		}
		if i == 1 && t.a == t.b {
			break
		}
		s := x.Stats()
		all.PacketsIn += s.PacketsIn
		all.PacketsOut += s.PacketsOut
		all.SendErrors += s.SendErrors
		for _, known := range []*uint64{
			&s.PacketsIn, &s.PacketsOut, &s.BytesIn, &s.BytesOut, &s.ReadCalls, &s.SendCalls,
			&s.AcksDelayed, &s.AcksPiggybacked, &s.SendErrors, &s.DropLink, &s.DropNoQP,
		} {
			*known = 0
		}
		if s != (softroce.Stats{}) {
			t.Errorf("%s counted what nobody did: %+v", p.Name(), s)
		}
	}
	if all.PacketsOut != all.PacketsIn+all.SendErrors+uint64(lost) {
		t.Errorf("%d packets were sent, %d came, %d could not leave and %d were lost", all.PacketsOut, all.PacketsIn, all.SendErrors, lost)
	}
}
