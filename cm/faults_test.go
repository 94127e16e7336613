package cm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestR11_EveryCallFails runs a whole life of a connection on each floor and has the
// n-th call of the driver fail, for every n: somebody is told, nobody waits for ever
// (synctest sees that), and nothing is left over (the world's end sees that).
func TestR11_EveryCallFails(t *testing.T) {
	t.Parallel()
	for name, life := range map[string]func(*world) []error{"upper": upperLife, "waiting": waitingLife, "lower": lowerLife} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n, more := 1, true; more; n++ {
				if n > 200 {
					t.Fatal("the scenario has no end")
				}
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.cm.FailCall(n, syscall.ENOMEM)
					errs := life(w)
					more = w.cm.Failed()
					told := false
					for _, err := range errs {
						told = told || err != nil
						if err != nil && !more {
							t.Errorf("no call failed, but: %v", err)
						}
					}
					calls := w.cm.Calls()
					// Nobody waits for these, or for what they answer: the other side was
					// served, and this one is closing.
					last := calls[min(n, len(calls))-1].Name
					if more && !told && last != "Disconnect" && last != "Reject" && last != "Leave" {
						t.Errorf("call %d (%s) failed and nobody was told", n, last)
					}
					synctest.Wait()
				})
			}
		})
	}
}

// TestR11_QueuePairCallsFail is the same for the calls that make and move queue pairs.
func TestR11_QueuePairCallsFail(t *testing.T) {
	t.Parallel()
	for name, life := range map[string]func(*world) []error{"upper": upperLife, "waiting": waitingLife, "lower": lowerLife} {
		for op, most := range map[string]int{"create qp": 2, "modify qp": 8} { // INIT, and INIT, RTR, RTS, twice
			for n := 1; n <= most; n++ {
				t.Run(fmt.Sprintf("%s/%s/%d", name, op, n), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(t)
						w.sp.FailOp(op, n, syscall.ENOMEM)
						errs := life(w)
						told := false
						for _, err := range errs {
							told = told || errors.Is(err, syscall.ENOMEM)
						}
						if w.sp.Count(op) < n || !told {
							t.Errorf("%d calls, errors %v", w.sp.Count(op), errs)
						}
						synctest.Wait()
					})
				})
			}
		}
	}
}

// upperLife connects, disconnects, and gives all errors.
func upperLife(w *world) (errs []error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Hour)
	defer cancel()
	l, err := cm.Listen(w.p, "10.0.0.1:0", &cm.Config{TOS: 1, ReuseAddr: true})
	if err != nil {
		return []error{err}
	}
	defer l.Close()
	server := make(chan error, 1)
	sctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		server <- func() error {
			req, err := l.Accept(sctx)
			if err != nil {
				return err
			}
			defer req.Close()
			qp, err := w.tryCreate(req.CreateQP)
			if err != nil {
				return err
			}
			w.post(qp)
			c, err := req.Accept(sctx, nil)
			if err != nil {
				return err
			}
			defer c.Close()
			<-c.Done()
			if c.Err() != io.EOF {
				return c.Err()
			}
			return nil
		}()
	}()
	client := func() error {
		r, err := cm.Resolve(ctx, w.p, l.Addr().String(), &cm.Config{TOS: 1})
		if err != nil {
			return err
		}
		defer r.Close()
		qp, err := w.tryCreate(r.CreateQP)
		if err != nil {
			return err
		}
		w.post(qp)
		c, err := r.Connect(ctx, &cm.ConnParam{AckTimeout: time.Second})
		if err != nil {
			return err
		}
		return c.Close()
	}()
	if client != nil {
		// The server may have had no request, or one that will never be established.
		synctest.Wait()
		stop()
	}
	serr := <-server
	if client != nil && errors.Is(serr, context.Canceled) {
		serr = nil
	}
	return []error{client, serr}
}

// waitingLife does the same with ids whose calls wait.
func waitingLife(w *world) (errs []error) {
	add := func(err error) bool {
		errs = append(errs, err)
		return err == nil
	}
	l, err := cm.NewID(w.p, 0)
	if !add(err) {
		return errs
	}
	defer l.Close()
	l.SetTimeout(time.Hour)
	if !add(l.Bind(someSrc)) || !add(l.Listen(3)) {
		return errs
	}
	a, err := cm.NewID(w.p, 0)
	if !add(err) {
		return errs
	}
	defer a.Close()
	a.SetTimeout(time.Hour)
	if !add(a.SetTOS(3)) || !add(a.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), time.Second)) || !add(a.ResolveRoute(time.Second)) {
		return errs
	}
	qp, err := w.tryCreate(a.CreateQP)
	if !add(err) {
		return errs
	}
	w.post(qp)
	connected := make(chan error, 1)
	go func() { connected <- a.Connect(nil) }()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Hour)
	defer cancel()
	ev, err := l.GetRequest(ctx)
	if add(err) {
		b := ev.ID
		defer b.Close()
		b.SetTimeout(time.Hour)
		qp, err := w.tryCreate(b.CreateQP)
		if add(err) {
			w.post(qp)
			if add(b.Accept(nil)) {
				defer func() { errs = append(errs, b.Disconnect()) }()
			}
		}
		if errs[len(errs)-1] != nil {
			b.Close()
		}
	}
	if add(<-connected) {
		add(a.Disconnect())
	}
	return errs
}

// lowerLife does the same with channels.
func lowerLife(w *world) (errs []error) {
	add := func(err error) bool {
		errs = append(errs, err)
		return err == nil
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Hour)
	defer cancel()
	ch, err := cm.NewEventChannel(w.p)
	if !add(err) {
		return errs
	}
	defer ch.Close()
	other, err := cm.NewEventChannel(w.p)
	if !add(err) {
		return errs
	}
	defer other.Close()
	l, err := ch.NewID(0)
	if !add(err) {
		return errs
	}
	defer l.Close()
	a, err := ch.NewID(0)
	if !add(err) {
		return errs
	}
	defer a.Close()
	if !add(l.Listen(0)) || !add(a.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(anyDst.Addr(), l.LocalAddr().Port()), 0)) {
		return errs
	}
	ended := 0
	for ev, err := range ch.Events(ctx) {
		if !add(err) || !add(ev.Err) {
			return errs
		}
		ok := true
		switch ev.Type {
		case cm.AddrResolved:
			ok = add(a.ResolveRoute(0))
		case cm.RouteResolved:
			qp, err := w.tryCreate(a.CreateQP)
			if ok = add(err); ok {
				w.post(qp)
				ok = add(a.Connect(nil))
			}
		case cm.ConnectRequest:
			defer ev.ID.Close()
			qp, err := w.tryCreate(ev.ID.CreateQP)
			if ok = add(err); ok {
				w.post(qp)
				ok = add(ev.ID.Migrate(other)) && add(ev.ID.Migrate(ch)) && add(ev.ID.Accept(nil))
			}
		case cm.Established:
			if ev.ID == a {
				ok = add(a.Disconnect())
			}
		case cm.Disconnected:
			if ended++; ended == 2 {
				return errs
			}
		default:
			return append(errs, fmt.Errorf("event %v", ev.Type))
		}
		if !ok {
			return errs
		}
	}
	return errs
}

// TestC250_CloseDuringCalls closes each object while each of its calls waits.
func TestC250_CloseDuringCalls(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	silent := func(names ...string) func(*scripted.CMID, scripted.CMCall) (bool, error) {
		return func(_ *scripted.CMID, c scripted.CMCall) (bool, error) { return contains(names, c.Name), nil }
	}
	// Each gives what waits, and what is closed meanwhile.
	for name, begin := range map[string]func(w *world) (call func() error, closer io.Closer){
		"EventChannel.Event": func(w *world) (func() error, io.Closer) {
			ch := w.channel()
			return func() error { _, err := ch.Event(ctx); return err }, ch
		},
		"EventChannel.Events": func(w *world) (func() error, io.Closer) {
			ch := w.channel()
			return func() (err error) {
				for _, err = range ch.Events(ctx) {
				}
				return err
			}, ch
		},
		"Listener.Accept": func(w *world) (func() error, io.Closer) {
			l, err := cm.Listen(w.p, "10.0.0.1:0", nil)
			must(w.t, err)
			return func() error { _, err := l.Accept(ctx); return err }, l
		},
		"Listener.Requests": func(w *world) (func() error, io.Closer) {
			l, err := cm.Listen(w.p, "10.0.0.1:0", nil)
			must(w.t, err)
			return func() (err error) {
				for _, err = range l.Requests(ctx) {
				}
				return err
			}, l
		},
		"Route.Connect": func(w *world) (func() error, io.Closer) {
			w.cm.Script(silent("Connect"))
			r, err := cm.Resolve(ctx, w.p, "10.0.0.2:1", nil)
			must(w.t, err)
			w.post(w.create(r.CreateQP))
			return func() error { _, err := r.Connect(ctx, nil); return err }, r
		},
		"Request.Accept": func(w *world) (func() error, io.Closer) {
			w.cm.Script(silent("Establish"))
			l := w.listener()
			go func() {
				r, err := cm.Resolve(ctx, w.p, l.Addr().String(), nil)
				if err != nil {
					w.t.Error(err)
					return
				}
				w.post(w.create(r.CreateQP))
				if c, err := r.Connect(ctx, nil); err == nil {
					<-c.Done()
					c.Close()
				}
			}()
			req, err := l.Accept(ctx)
			must(w.t, err)
			w.post(w.create(req.CreateQP))
			return func() error { _, err := req.Accept(ctx, nil); return err }, req
		},
		"ID.GetRequest": func(w *world) (func() error, io.Closer) {
			id := w.waiting()
			must(w.t, id.Listen(0))
			return func() error { _, err := id.GetRequest(ctx); return err }, id
		},
		"ID.ResolveAddr": func(w *world) (func() error, io.Closer) {
			w.cm.Script(silent("ResolveAddr"))
			id := w.waiting()
			return func() error { return id.ResolveAddr(netip.AddrPort{}, anyDst, 0) }, id
		},
		"ID.Connect": func(w *world) (func() error, io.Closer) {
			w.cm.Script(silent("Connect"))
			id := w.waiting()
			must(w.t, id.ResolveAddr(netip.AddrPort{}, anyDst, 0))
			must(w.t, id.ResolveRoute(0))
			w.qp(id)
			return func() error { return id.Connect(nil) }, id
		},
		"ID.JoinMulticast": func(w *world) (func() error, io.Closer) {
			w.cm.Script(silent("Join"))
			id, err := cm.NewID(w.p, ib.PortSpaceUDP)
			must(w.t, err)
			w.closes(id)
			must(w.t, id.ResolveAddr(netip.AddrPort{}, anyDst, 0))
			return func() error { return id.JoinMulticast(group, 0) }, id
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				call, c := begin(w)
				got := make(chan error, 1)
				go func() { got <- call() }()
				synctest.Wait()
				select {
				case err := <-got:
					t.Fatalf("it did not wait: %v", err)
				default:
				}
				for range 2 {
					go c.Close()
				}
				if err := <-got; !errors.Is(err, net.ErrClosed) {
					t.Errorf("got %v, want net.ErrClosed", err)
				}
				must(t, c.Close())
				if err := call(); !errors.Is(err, net.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
				synctest.Wait()
			})
		})
	}
}

func TestC250_Event(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ch := w.channel()
		id := w.id(ch)
		raw := w.cmid(id)
		raw.Post(driver.CMEvent{Type: cm.AddrChange})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := ch.Event(ended); err != context.Canceled {
			t.Errorf("a context that has ended wins: %v", err)
		}
		w.want(ch, cm.AddrChange, id)

		start := time.Now()
		later, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := ch.Event(later); err != context.DeadlineExceeded || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		n := 0
		for i := range 5 {
			raw.Post(driver.CMEvent{Type: cm.AddrChange, Status: -1 - i})
		}
		for ev, err := range ch.Events(t.Context()) {
			must(t, err)
			if ev.Err != syscall.Errno(1+n) {
				t.Errorf("event %d: %v", n, ev.Err)
			}
			if n++; n == 3 {
				break // loses nothing
			}
		}
		w.want(ch, cm.AddrChange, id)
		w.want(ch, cm.AddrChange, id)
		w.none(ch)
	})
}

// TestC252_TwoWaiters: each event goes to one of several waiters, and none is left.
func TestC252_TwoWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ch := w.channel()
		id := w.id(ch)
		const waiters, events = 4, 100
		var mu sync.Mutex
		seen := map[syscall.Errno]int{}
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				for ev, err := range ch.Events(t.Context()) {
					if err != nil {
						if !errors.Is(err, net.ErrClosed) {
							t.Error(err)
						}
						return
					}
					mu.Lock()
					seen[ev.Err.(syscall.Errno)]++
					mu.Unlock()
				}
			})
		}
		synctest.Wait()
		for i := range events {
			w.cmid(id).Post(driver.CMEvent{Type: cm.AddrChange, Status: -1 - i})
		}
		synctest.Wait()
		if len(seen) != events {
			t.Errorf("%d of %d events were seen", len(seen), events)
		}
		for e, n := range seen {
			if n != 1 {
				t.Errorf("event %d was given %d times", e, n)
			}
		}
		ch.Close()
		wg.Wait()
	})
}

// TestHammer has many goroutines call everything on the same objects in any order. The
// scripted manager tells of calls that the contract forbids, the race detector of the
// rest.
func TestHammer(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range 10 {
		w := newWorld(t)
		c := w.pair(nil, nil)
		extra := w.channel()
		l := w.listen(c.bch)
		wait := w.waiting()
		ids := []*cm.ID{c.a, c.b, l, wait}
		chans := []*cm.EventChannel{c.ach, c.bch, extra}
		var wg sync.WaitGroup
		for g := range 6 {
			rnd := rand.New(rand.NewPCG(seed, uint64(round*100+g)))
			wg.Go(func() {
				for range 200 {
					id := ids[rnd.IntN(len(ids))]
					ch := chans[rnd.IntN(len(chans))]
					switch rnd.IntN(14) {
					case 0:
						if ev, ok, _ := ch.TryEvent(); ok && ev.Type == cm.ConnectRequest {
							ev.ID.Close()
						}
					case 1:
						id.Migrate(ch)
					case 2:
						id.Migrate(nil)
					case 3:
						ctx, cancel := context.WithCancel(context.Background())
						cancel()
						ch.Event(ctx)
					case 4:
						id.SetTOS(1)
					case 5:
						id.LocalAddr()
						id.QP()
						id.Err()
					case 6:
						w.cmid(c.a).Post(driver.CMEvent{Type: cm.AddrChange})
					case 7:
						id.SetTimeout(time.Millisecond)
						id.ResolveRoute(0)
					case 8:
						if rnd.IntN(20) == 0 {
							id.Disconnect()
						}
					case 9:
						if rnd.IntN(50) == 0 {
							id.Close()
						}
					case 10:
						if rnd.IntN(100) == 0 {
							ch.Close()
						}
					case 11:
						if n, err := ch.NewID(0); err == nil {
							n.Close()
						}
					case 12:
						cm.Objects()
					case 13:
						id.Notify(ib.EventCommEst)
					}
				}
			})
		}
		wg.Wait()
		w.end()
	}
}

// TestC312_RefusedRequest: a request that was refused as the process lacks a descriptor or
// memory is an error of Accept, which goes on; what else the system says of a request that
// nobody sees is none.
func TestC312_RefusedRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		event := w.channel()
		l := w.listener()
		ch := w.cm.IDs()[0].Channel()
		// An id whose calls wait has a channel of its own, too.
		id := w.waiting()
		must(t, id.Bind(netip.MustParseAddrPort("10.0.0.1:0")))
		must(t, id.Listen(0))
		own := w.cmid(id).Channel()
		for name, c := range map[string]struct {
			ch     *scripted.CMChannel
			accept func(context.Context) error
		}{
			"Listener": {ch, func(ctx context.Context) error { _, err := l.Accept(ctx); return err }},
			"ID":       {own, func(ctx context.Context) error { _, err := id.GetRequest(ctx); return err }},
		} {
			for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
				c.ch.Post(driver.CMEvent{Type: cm.ConnectRequest, Status: -int(syscall.ECONNABORTED)})
				c.ch.Post(driver.CMEvent{Type: cm.ConnectRequest, Status: -int(errno)})
				err := c.accept(t.Context())
				var op *cm.OpError
				if !errors.Is(err, errno) || !errors.As(err, &op) {
					t.Errorf("%s: %v, want %v", name, err, errno)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if err := c.accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: afterwards: %v", name, err)
				}
				cancel()
			}
		}
		// The dispatcher's channel and a program's carry connections: they hear nothing.
		for _, c := range w.cm.Channels() {
			if c != ch && c != own {
				c.Post(driver.CMEvent{Type: cm.ConnectRequest, Status: -int(syscall.EMFILE)})
			}
		}
		w.none(event)
		a, b := w.conns(l)
		must(t, a.Close())
		must(t, b.Close())
	})
}
