package cm_test

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestP02_CloseWhileHandling: whatever the event, its id, the listener of a request, and the
// channel may be closed by who handles it, as no event is in anybody's hands. A Close that
// waits stops the bubble.
func TestP02_CloseWhileHandling(t *testing.T) {
	t.Parallel()
	for _, typ := range []cm.EventType{
		cm.AddrResolved, cm.AddrError, cm.RouteResolved, cm.RouteError, cm.ConnectRequest, cm.Established,
		cm.Rejected, cm.Unreachable, cm.Disconnected, cm.DeviceRemoval, cm.AddrChange, cm.TimewaitExit, 99,
	} {
		for _, channel := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				ch := w.channel()
				var id, l *cm.ID
				if typ == cm.ConnectRequest {
					l = w.listen(ch)
					id = w.routed(w.channel(), l.LocalAddr())
					w.qp(id)
					must(t, id.Connect(nil))
				} else {
					id = w.id(ch)
					w.cmid(id).Post(driver.CMEvent{Type: typ, Status: -1})
					w.cmid(id).Post(driver.CMEvent{Type: typ, Status: -1}) // one is left behind
				}
				seen := 0
				for ev, err := range ch.Events(t.Context()) {
					if err != nil {
						break // the channel is closed
					}
					seen++
					if ev.Type == cm.ConnectRequest {
						must(t, l.Close())
					}
					must(t, ev.ID.Close())
					must(t, ev.ID.Close())
					if channel {
						must(t, ch.Close())
						continue
					}
					break
				}
				if seen != 1 {
					t.Errorf("%v: handled %d events, want 1", typ, seen)
				}
				if !channel {
					w.none(ch)
				}
			})
		}
	}
}

// TestP18_FetchBesideDestroy: one goroutine fetches, which moves queue pairs, while others
// close the queue pairs and the ids. The scripted provider sees calls beside each other and
// after Close, the race detector the rest.
func TestP18_FetchBesideDestroy(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 18))
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		w := newWorld(t)
		lch, ch := w.channel(), w.channel()
		l := w.listen(lch)
		id := w.routed(ch, netip.AddrPortFrom(l.LocalAddr().Addr(), l.LocalAddr().Port()))
		qp := w.qp(id)
		must(t, id.Connect(nil))
		child := w.want(lch, cm.ConnectRequest, nil).ID
		cqp := w.qp(child)
		must(t, child.Accept(nil))
		// Now ch has the response, whose fetch moves the queue pair to RTS.
		order := rnd.IntN(4)
		var wg sync.WaitGroup
		begin := make(chan struct{})
		run := func(pause int, f func()) {
			wg.Go(func() {
				<-begin
				for range pause {
					runtime.Gosched()
				}
				f()
			})
		}
		fetch := func(ch *cm.EventChannel) func() {
			return func() {
				for range 4 {
					if _, _, err := ch.TryEvent(); err != nil {
						return
					}
					runtime.Gosched()
				}
			}
		}
		for range 2 {
			run(rnd.IntN(4), fetch(ch))
			run(rnd.IntN(4), fetch(lch))
		}
		run(rnd.IntN(8), func() { qp.Close() })
		run(rnd.IntN(8), func() { cqp.Close() })
		if order&1 != 0 {
			run(rnd.IntN(8), func() { id.Close() })
		}
		if order&2 != 0 {
			run(rnd.IntN(8), func() { child.Close() })
		}
		close(begin)
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("it hangs")
		}
		w.end()
		if t.Failed() {
			return
		}
	}
}
