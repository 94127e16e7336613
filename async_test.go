package rdma_test

import (
	"testing"
	"testing/synctest"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestTraceAsync: each event of a device is told once, however many connections it carries,
// on both sides, and no more when the last of them is closed.
func TestTraceAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &rig{place: onFabric(t)}
		var got [2][]ib.EventType
		trace := func(i int) *rdma.Trace {
			return &rdma.Trace{Async: func(ev verbs.AsyncEvent) {
				switch ev.Type {
				case ib.EventPortErr, ib.EventPortActive:
					got[i] = append(got[i], ev.Type)
					if ev.Device == nil || ev.Port != 1 {
						t.Errorf("%v of device %v, port %d", ev.Type, ev.Device, ev.Port)
					}
				}
			}}
		}
		l.server.Trace, l.client.Trace = trace(0), trace(1)
		ln := l.listen(t)
		s, c := l.connect(t, ln)
		s2, c2 := l.connect(t, ln)
		flap := func(what string, server, client int) {
			t.Helper()
			for _, a := range []bool{false, true} {
				l.fabric.SetLink(serverAddr, a)
				l.fabric.SetLink(clientAddr, a)
				synctest.Wait()
			}
			for i, want := range []int{server, client} {
				if len(got[i]) != 2*want || want > 0 && (got[i][0] != ib.EventPortErr || got[i][1] != ib.EventPortActive) {
					t.Errorf("%s, side %d: %v, want %d times down and up", what, i, got[i], want)
				}
				got[i] = nil
			}
		}
		flap("two connections", 1, 1)
		closeBoth(s, c)
		flap("one connection", 1, 1)
		closeBoth(s2, c2)
		flap("a listener", 1, 0)
		ln.Close()
		flap("nothing", 0, 0)
	})
}
