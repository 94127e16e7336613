package rdmatest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
)

// Area M, fourth part: who ends what, and when.

func orderlyDisconnect(t *tb) {
	c, s, _ := t.meet(nil, nil)
	t.exchange(c, s)
	t.ok(c.id.Disconnect(), "disconnect")
	c.state(ib.StateError) // at once
	s.over(io.EOF)
	c.over(net.ErrClosed)
	c.flushed()
	s.flushed()
	t.ok(s.id.Disconnect(), "disconnect after the peer")
	// What may still come is for information only.
	t.pass(realGrace, time.Minute)
	for _, p := range []*peer{c, s} {
		ev, ok, err := p.ch.TryEvent()
		t.ok(err, "look for an event")
		if ok && ev.Type != cm.TimewaitExit {
			t.Errorf("%s: event %v after the end", p.name, ev.Type)
		}
	}
}

func disconnectAgain(t *tb) {
	c, s, l := t.meet(nil, nil)
	t.ok(c.id.Disconnect(), "disconnect")
	t.ok(c.id.Disconnect(), "disconnect again")
	s.over(io.EOF)
	c.over(net.ErrClosed)
	t.ok(c.id.Disconnect(), "disconnect after the end")
	t.ok(s.id.Disconnect(), "disconnect after the end")
	// After a rejection there is nothing to disconnect.
	ch := t.channel(t.Provider)
	r := t.ask(ch, l, nil)
	id, _ := t.request(s.ch, l)
	t.ok(id.Reject(nil), "reject")
	t.event(ch, cm.Rejected)
	t.ok(r.id.Disconnect(), "disconnect after a rejection")
}

func bothAtOnce(t *tb) {
	for range 10 {
		c, s, _ := t.meet(nil, nil)
		var wg sync.WaitGroup
		for _, p := range []*peer{c, s} {
			wg.Go(func() {
				if err := p.id.Disconnect(); err != nil {
					t.Errorf("%s: disconnect: %v", p.name, err)
				}
			})
		}
		wg.Wait()
		for _, p := range []*peer{c, s} {
			if ev := t.event(p.ch, cm.Disconnected); ev.Err != nil {
				t.Errorf("%s: %v", p.name, ev.Err)
			}
			p.state(ib.StateError)
		}
		t.settleCM(c, s)
	}
}

// settleCM checks that nothing but TimewaitExit comes any more.
func (t *tb) settleCM(ps ...*peer) {
	t.Helper()
	t.grace()
	for _, p := range ps {
		for {
			ev, ok, err := p.ch.TryEvent()
			t.ok(err, "look for an event")
			if !ok {
				break
			}
			if ev.Type != cm.TimewaitExit {
				t.Errorf("%s: event %v that must not be", p.name, ev.Type)
			}
		}
	}
}

func closeInsteadOfDisconnect(t *tb) {
	c, s, l := t.meet(nil, nil)
	start := time.Now()
	t.closed(c.id, "client's id")
	s.over(io.EOF)
	if took := time.Since(start); t.Virtual && took > 100*time.Millisecond {
		t.Errorf("the peer heard of it after %v", took)
	}
	s.flushed()
	c.empty() // nothing is given after Close
	t.noEvent(c.ch)
	// The server's side does the same.
	c, s = t.dial(t.channel(t.Provider), s.ch, l, nil, nil)
	t.closed(s.id, "server's id")
	c.over(io.EOF)
}

// A channel that is closed leaves its connections alone; the peer hears of their ends.
func channelClosedUnderConnection(t *tb) {
	c, s, _ := t.meet(nil, nil)
	t.closed(c.ch, "client's channel")
	t.exchange(c, s)
	t.noEvent(s.ch)
	t.closed(c.id, "client's id")
	s.over(io.EOF)
	s.flushed()
}

// A client that goes before it is answered: the request is delivered all the same, neither
// accept nor reject finds anybody, and nothing more is heard of it.
func clientGivesUp(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	for _, c := range []struct {
		what           string
		early, refused bool // closed before the request is fetched; answered with a rejection
	}{
		{"before the request is fetched", true, false},
		{"before the request is fetched, and rejected", true, true},
		{"before accept", false, false},
		{"before reject", false, true},
	} {
		p := t.ask(ch, l, nil)
		var s *peer
		if !c.early {
			s = t.requested(lch, l)
		}
		t.grace()
		t.closed(p.id, "client")
		t.grace()
		if c.early {
			s = t.requested(lch, l)
		}
		if c.refused {
			t.isErr(s.id.Reject(nil), einval, "%s: reject", c.what)
		} else {
			t.isErr(s.id.Accept(nil), einval, "%s: accept", c.what)
		}
		t.grace()
		t.noEvent(lch)
		t.closed(s.id, "request")
	}
	t.grace()
	t.noEvent(lch)
	t.dial(ch, lch, l, nil, nil) // the listener goes on
}

func listenerClosed(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	// A request that nobody has fetched is refused.
	t.ask(ch, l, nil)
	t.grace()
	t.closed(l, "listener with a request")
	t.isErr(t.event(ch, cm.Rejected).Err, erefused, "a request whose listener was closed")
	t.noEvent(lch)
	// One that was fetched can still be accepted.
	lch, l = t.listener(0)
	c := t.ask(ch, l, nil)
	s := t.requested(lch, l)
	t.closed(l, "listener with a fetched request")
	t.ok(s.id.Accept(nil), "accept")
	t.event(ch, cm.Established)
	t.event(lch, cm.Established)
	t.exchange(c, s)
}

func listenerClosedUnderRequests(t *tb) {
	t.latency()
	for range 3 {
		l, addr := t.serve()
		ctx, stop := context.WithCancel(t.limit)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				w, err := t.serveOne(ctx, l, nil)
				if w != nil {
					w.close()
				}
				if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
					return
				}
			}
		})
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					w, err := t.connectTo(ctx, addr, nil)
					if err != nil {
						if errors.Is(err, erefused) {
							return
						}
						continue
					}
					w.close()
				}
			})
		}
		t.pass(3*time.Millisecond, time.Millisecond)
		t.closed(l, "listener under requests")
		t.pass(3*time.Millisecond, 10*time.Millisecond)
		stop()
		wg.Wait()
	}
}
