package event_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cmRig is a connection manager that does what the test says.
type cmRig struct {
	testing.TB
	p  *scripted.Provider
	cm *scripted.CM
}

func newCMRig(t testing.TB, only bool) *cmRig {
	t.Helper()
	r := &cmRig{TB: t, p: scripted.New(nil), cm: scripted.NewCM("fake0")}
	r.cm.Descriptors = only
	r.p.SetCM(func() (driver.CM, error) { return r.cm, nil })
	t.Cleanup(func() {
		for _, s := range append(r.cm.Faults(), r.p.Violations()...) {
			t.Errorf("contract: %s", s)
		}
	})
	return r
}

func (r *cmRig) channel() *cm.EventChannel {
	r.Helper()
	ch := get[*cm.EventChannel](r)(cm.NewEventChannel(r.p))
	r.Cleanup(func() { ch.Close() })
	return ch
}

func (r *cmRig) id(ch *cm.EventChannel) (*cm.ID, *scripted.CMID) {
	r.Helper()
	before := r.cm.IDs()
	id := get[*cm.ID](r)(ch.NewID(ib.PortSpaceTCP))
	r.Cleanup(func() { id.Close() })
	raw := slices.DeleteFunc(r.cm.IDs(), func(x *scripted.CMID) bool { return slices.Contains(before, x) })
	if len(raw) != 1 {
		r.Fatalf("%d new ids", len(raw))
	}
	return id, raw[0]
}

func connectionManagers(t *testing.T, f func(t *testing.T, r *cmRig, b event.Backend)) {
	t.Helper()
	for _, only := range []bool{false, true} {
		t.Run(fmt.Sprintf("descriptors=%v", only), func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, b event.Backend) { f(t, newCMRig(t, only), b) })
		})
	}
}

// TestCM: events come in order, with a budget; spurious readiness and events of closed ids do
// nothing.
func TestCM(t *testing.T) {
	t.Parallel()
	connectionManagers(t, func(t *testing.T, r *cmRig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b, Batch: 3})
		ch := r.channel()
		id, raw := r.id(ch)
		raw.Post(driver.CMEvent{Type: cm.AddrChange})
		var got []cm.EventType
		w := get[*event.Watch](t)(l.CM(ch, func(ev cm.Event) {
			if ev.ID != id {
				t.Errorf("event of %v", ev.ID)
			}
			got = append(got, ev.Type)
		}))
		turn(t, l, 1)
		raw.Channel().Spurious(2)
		turn(t, l, 0)
		turn(t, l, 0)
		want := []cm.EventType{cm.AddrChange}
		for _, typ := range []cm.EventType{cm.Disconnected, cm.DeviceRemoval, 77, cm.AddrChange} {
			raw.Post(driver.CMEvent{Type: typ})
			want = append(want, typ)
		}
		other, otherRaw := r.id(ch)
		otherRaw.Post(driver.CMEvent{Type: cm.AddrChange})
		must(t, other.Close())
		turn(t, l, 3)
		turn(t, l, 1)
		turn(t, l, 0)
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		_, err := l.CM(ch, func(cm.Event) {})
		is(t, err, verbs.ErrOneConsumer, "twice")
		_, err = ch.Event(t.Context())
		is(t, err, verbs.ErrOneConsumer, "Event beside the loop")

		// A panic, and a Close, in the middle: the next event is the next one's.
		must(t, w.Close())
		got = nil
		var w2 *event.Watch
		w2 = get[*event.Watch](t)(l.CM(ch, func(ev cm.Event) {
			got = append(got, ev.Type)
			switch len(got) {
			case 1:
				panic("x")
			case 2:
				must(t, w2.Close())
			}
		}))
		for _, typ := range []cm.EventType{60, 61, 62} {
			raw.Post(driver.CMEvent{Type: typ})
		}
		if p := call(func() { l.Turn(0) }); p != "x" {
			t.Errorf("panic %v", p)
		}
		turn(t, l, 1)
		turn(t, l, 0)
		ev, ok, err := ch.TryEvent()
		if ev.Type != 62 || !ok || err != nil {
			t.Error(ev.Type, ok, err)
		}
	})
}

// TestCMClosed: a channel that is closed under the loop, by a handler, by another goroutine,
// and one that breaks.
func TestCMClosed(t *testing.T) {
	t.Parallel()
	connectionManagers(t, func(t *testing.T, r *cmRig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		failing := func(ch *cm.EventChannel) *error {
			w := get[*event.Watch](t)(l.CM(ch, func(cm.Event) {}))
			failed := new(error)
			w.OnError(func(err error) { *failed = err })
			turn(t, l, 0)
			return failed
		}
		ch := r.channel()
		failed := failing(ch)
		l.Do(func() { must(t, ch.Close()) })
		until(t, l, "the end", func() bool { return *failed != nil })
		is(t, *failed, net.ErrClosed, "closed in a handler")
		_, err := l.CM(ch, func(cm.Event) {})
		is(t, err, net.ErrClosed, "watch of a closed channel")

		ch = r.channel()
		failed = failing(ch)
		var wg sync.WaitGroup
		t.Cleanup(wg.Wait)
		wg.Go(func() { ch.Close() })
		until(t, l, "the end", func() bool { return *failed != nil })
		is(t, *failed, net.ErrClosed, "closed by a goroutine")

		ch = r.channel()
		failed = failing(ch)
		r.cm.Break(syscall.EIO)
		until(t, l, "the end", func() bool { return *failed != nil })
		is(t, *failed, syscall.EIO, "broken")
		turn(t, l, 0)
		if n := event.Watched(l); n != 2 {
			t.Errorf("%d descriptors are left in the set", n)
		}
	})
}

// TestMigrate: an id moves between the channels of two loops, with the events that nobody
// fetched; from a handler of the old loop, and from outside of both.
func TestMigrate(t *testing.T) {
	t.Parallel()
	connectionManagers(t, func(t *testing.T, r *cmRig, b event.Backend) {
		var loops [2]*event.Loop
		var chs [2]*cm.EventChannel
		var log [2][]cm.EventType
		var move func()
		for i := range loops {
			loops[i] = newLoop(t, event.Config{Backend: b})
			chs[i] = r.channel()
			get[*event.Watch](t)(loops[i].CM(chs[i], func(ev cm.Event) {
				log[i] = append(log[i], ev.Type)
				if ev.Type == cm.AddrChange {
					move()
				}
			}))
			turn(t, loops[i], 0)
		}
		id, raw := r.id(chs[0])
		move = func() { must(t, id.Migrate(chs[1])) }
		raw.Post(driver.CMEvent{Type: 60})
		raw.Post(driver.CMEvent{Type: cm.AddrChange})
		raw.Post(driver.CMEvent{Type: 61})
		until(t, loops[0], "the migration", func() bool { return len(log[0]) == 2 })
		until(t, loops[1], "the event that was left", func() bool { return len(log[1]) == 1 })
		// Back, with loops that run.
		for i := range loops {
			running(t, loops[i])
		}
		must(t, id.Migrate(chs[0]))
		raw.Post(driver.CMEvent{Type: 62})
		for seen := 0; seen < 3; {
			n := make(chan int)
			loops[0].Do(func() { n <- len(log[0]) })
			seen = arrive(t, n, "the length of the log")
		}
		for i, want := range [][]cm.EventType{{60, cm.AddrChange, 62}, {61}} {
			got := make(chan []cm.EventType)
			loops[i].Do(func() { got <- slices.Clone(log[i]) })
			if g := arrive(t, got, "the log"); !slices.Equal(g, want) {
				t.Errorf("loop %d: %v, want %v", i, g, want)
			}
		}
	})
}

// TestMigrateStorm: ids that are moved all the time between two loops that run lose no event.
func TestMigrateStorm(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		r := newCMRig(t, true)
		var chs [2]*cm.EventChannel
		var seen atomic.Int64
		for i := range chs {
			l := newLoop(t, event.Config{Backend: b})
			chs[i] = r.channel()
			get[*event.Watch](t)(l.CM(chs[i], func(ev cm.Event) {
				if err := ev.ID.Migrate(chs[1-i]); err != nil {
					t.Error(err)
				}
				seen.Add(1)
			}))
			running(t, l)
		}
		const ids, events = 3, 200
		var raws [ids]*scripted.CMID
		for i := range raws {
			_, raws[i] = r.id(chs[i%2])
		}
		for range events {
			for _, raw := range raws {
				raw.Post(driver.CMEvent{Type: 60})
			}
		}
		waitFor(t, "all events", func() bool { return seen.Load() == ids*events })
	})
}

// TestRequest: a listener's requests, answered from handlers.
func TestRequest(t *testing.T) {
	t.Parallel()
	connectionManagers(t, func(t *testing.T, r *cmRig, b event.Backend) {
		l := newLoop(t, event.Config{Backend: b})
		server, client := r.channel(), r.channel()
		ln, _ := r.id(server)
		must(t, ln.Bind(netip.MustParseAddrPort("10.0.0.1:0")))
		must(t, ln.Listen(0))
		order := &recorder{}
		get[*event.Watch](t)(l.CM(server, func(ev cm.Event) {
			order.add("server %v", ev.Type)
			if ev.Type == cm.ConnectRequest {
				must(t, ev.ID.Reject([]byte("no")))
				must(t, ev.ID.Close())
			}
		}))
		id, _ := r.id(client)
		get[*event.Watch](t)(l.CM(client, func(ev cm.Event) {
			order.add("client %v", ev.Type)
			switch ev.Type {
			case cm.AddrResolved:
				must(t, id.ResolveRoute(0))
			case cm.RouteResolved:
				err := id.Connect(nil)
				if err != nil && !errors.Is(err, verbs.ErrNoReceives) {
					order.add("connect %v", err)
				}
				l.Stop()
			}
		}))
		must(t, id.ResolveAddr(netip.AddrPort{}, ln.LocalAddr(), 0))
		must(t, l.Run(t.Context()))
		if len(order.log) < 2 || order.log[0] != fmt.Sprint("client ", cm.AddrResolved) || order.log[1] != fmt.Sprint("client ", cm.RouteResolved) {
			t.Error(order.log)
		}
	})
}
