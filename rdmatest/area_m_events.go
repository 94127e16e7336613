package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area M, second part: connections and their ends.
func areaCMEvents() []check {
	return []check{
		{"C-143_PeerDropsQueuePair", VirtualTime, peerDropsQueuePair},
		{"C-212_PassiveSide", 0, passiveSide},
		{"C-212_WaitingFloor", 0, waitingFloor},
		{"C-215_OrderlyDisconnect", 0, orderlyDisconnect},
		{"C-216_DisconnectAgain", 0, disconnectAgain},
		{"C-216_BothAtOnce", 0, bothAtOnce},
		{"C-217_CloseInsteadOfDisconnect", 0, closeInsteadOfDisconnect},
		{"C-218_ClientGivesUp", 0, clientGivesUp},
		{"C-219_ListenerClosed", 0, listenerClosed},
		{"C-219_ListenerClosedUnderRequests", 0, listenerClosedUnderRequests},
		{"C-220_Backlog", VirtualTime, backlog},
		{"C-222_NoAnswer", VirtualTime, noAnswer},
		{"C-223_Cancel", 0, cancelEachStep},
		{"C-225_Migrate", 0, migrate},
		{"C-228_ConcurrentConnects", 0, concurrentConnects},
		{"C-230_DeviceRemoval", Changes, cmDeviceRemoval},
		{"C-231_Notify", 0, notify},
	}
}

// A peer that destroys its queue pair and keeps its id is noticed by who sends.
func peerDropsQueuePair(t *tb) {
	c, s, _ := t.meet(&cm.ConnParam{AckTimeout: 16 * time.Millisecond, RetryCount: 2}, nil)
	t.closed(s.qp, "the peer's queue pair")
	c.send(verbs.Send(50, c.sge(0, 8), ib.Signaled))
	c.sent(50, ib.StatusRetryExc)
	c.state(ib.StateError)
	t.isErr(c.qp.Err(), ib.ErrRetryExc, "cause")
	t.noEvent(c.ch)
}

func passiveSide(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	s := t.requested(lch, l)
	t.ok(s.id.Accept(nil), "accept")
	t.event(ch, cm.Established)
	// Data may be there before the event; it is not lost.
	c.fill(32<<10, 10, 5)
	c.send(verbs.Send(60, c.sge(32<<10, 10), ib.Signaled))
	c.sent(60, ib.StatusSuccess)
	s.got(0, ib.StatusSuccess)
	s.check(0, 10, 5, "data before Established")
	ev := t.event(lch, cm.Established)
	if len(ev.Private) != 0 {
		t.Errorf("%d bytes of private data on the passive side", len(ev.Private))
	}
	t.grace()
	t.noEvent(ch, lch)
	t.closed(c.id, "client")
	t.event(lch, cm.Disconnected)
}

// waiting is a connection of the floor that waits.
type waiting struct {
	conn *cm.Conn
	pd   *verbs.PD
	cq   *verbs.CQ
	mr   *verbs.MR
	qp   *verbs.QP
}

// gear makes what a connection needs, and posts a receive of the first 1024 bytes.
func (t *tb) gear(dev *verbs.Device, create func(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)) (*waiting, error) {
	w := &waiting{}
	var err error
	if w.pd, err = dev.AllocPD(); err != nil {
		return w, err
	}
	if w.cq, err = dev.CreateCQ(32, nil); err != nil {
		return w, err
	}
	if w.mr, err = w.pd.Alloc(4096, allRights); err != nil {
		return w, err
	}
	if w.qp, err = create(w.pd, verbs.QPConfig{SendCQ: w.cq, MaxSendWR: 8, MaxRecvWR: 8}); err != nil {
		return w, err
	}
	return w, w.qp.PostRecv(verbs.Recv(1, w.mr.SGE(0, 1024)))
}

func (w *waiting) close() error {
	var errs []error
	if w.conn != nil {
		errs = append(errs, w.conn.Close())
	}
	if w.mr != nil {
		errs = append(errs, w.mr.Close())
	}
	if w.cq != nil {
		errs = append(errs, w.cq.Close())
	}
	if w.pd != nil {
		errs = append(errs, w.pd.Close())
	}
	return errors.Join(errs...)
}

// serveOne accepts the next request of a listener.
func (t *tb) serveOne(ctx context.Context, l *cm.Listener, private []byte) (*waiting, error) {
	r, err := l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	w, err := t.gear(r.Device(), r.CreateQP)
	if err == nil {
		w.conn, err = r.Accept(ctx, &cm.ConnParam{Private: private})
	}
	if err != nil {
		return nil, errors.Join(err, r.Close(), w.close())
	}
	return w, nil
}

// connectTo connects to an address.
func (t *tb) connectTo(ctx context.Context, addr string, p *cm.ConnParam) (*waiting, error) {
	r, err := cm.Resolve(ctx, t.Provider, addr, nil)
	if err != nil {
		return nil, err
	}
	w, err := t.gear(r.Device(), r.CreateQP)
	if err == nil {
		w.conn, err = r.Connect(ctx, p)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close(), w.close())
	}
	return w, nil
}

// serve listens on the peer's address, on the floor that waits.
func (t *tb) serve() (*cm.Listener, string) {
	t.Helper()
	l, err := cm.Listen(t.Peer, netip.AddrPortFrom(t.PeerAddr, 0).String(), nil)
	t.ok(err, "listen")
	t.Cleanup(func() { t.closed(l, "listener") })
	a, err := netip.ParseAddrPort(l.Addr().String())
	t.ok(err, "parse the listener's address %v", l.Addr())
	return l, a.String()
}

func waitingFloor(t *tb) {
	l, addr := t.serve()
	type result struct {
		w   *waiting
		err error
	}
	served := make(chan result, 1)
	go func() {
		w, err := t.serveOne(t.limit, l, []byte("welcome"))
		served <- result{w, err}
	}()
	c, err := t.connectTo(t.limit, addr, &cm.ConnParam{Private: []byte("hello")})
	t.ok(err, "connect")
	r := <-served
	t.ok(r.err, "accept")
	s := r.w
	if p := string(c.conn.Private()[:7]); p != "welcome" {
		t.Errorf("the client got %q", p)
	}
	if p := string(s.conn.Private()[:5]); p != "hello" {
		t.Errorf("the server got %q", p)
	}
	if c.conn.RemoteAddr().String() != addr || c.conn.LocalAddr() != s.conn.RemoteAddr() || s.conn.LocalAddr() != c.conn.RemoteAddr() {
		t.Errorf("addresses %v %v, %v %v", c.conn.LocalAddr(), c.conn.RemoteAddr(), s.conn.LocalAddr(), s.conn.RemoteAddr())
	}
	copy(c.mr.Bytes()[2048:], "ping")
	t.ok(c.qp.PostSend(verbs.Send(2, c.mr.SGE(2048, 4), ib.Signaled)), "post")
	wc, err := s.cq.Next(t.limit)
	t.ok(err, "wait for the message")
	if wc.Status != ib.StatusSuccess || string(s.mr.Bytes()[:4]) != "ping" {
		t.Errorf("message: %v", wc.Status)
	}
	wc, err = c.cq.Next(t.limit)
	t.ok(err, "wait for the send")
	t.ok(wc.Err(), "send")
	select {
	case <-s.conn.Done():
		t.Error("the connection has ended")
	default:
	}
	// The peer's end is seen in the queue, with its cause.
	t.ok(s.qp.PostRecv(verbs.Recv(3, s.mr.SGE(0, 1024))), "post a receive")
	t.ok(c.close(), "close the client")
	wc, err = s.cq.Next(t.limit)
	t.ok(err, "wait for the end")
	if wc.Status != ib.StatusWRFlush {
		t.Errorf("receive ended with %v", wc.Status)
	}
	t.isErr(s.qp.Err(), io.EOF, "cause of the queue pair")
	<-s.conn.Done()
	t.isErr(s.conn.Err(), io.EOF, "cause of the connection")
	t.ok(s.close(), "close the server")
	t.isErr(s.conn.Err(), io.EOF, "cause after Close")
	t.isErr(c.conn.Err(), net.ErrClosed, "cause at who closed")
}

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

func clientGivesUp(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	// Before the request is fetched: it is delivered all the same, and is dead.
	c := t.ask(ch, l, nil)
	t.grace()
	t.closed(c.id, "client")
	t.grace()
	ev, ok, err := lch.TryEvent()
	t.ok(err, "look for the request")
	if ok {
		s := t.equip("server", lch, ev.ID)
		t.anyErrOrEnd(s, "accept a request whose peer is gone")
		t.closed(ev.ID, "request")
	}
	// Before accept, and before reject.
	for _, rejected := range []bool{false, true} {
		c := t.ask(ch, l, nil)
		s := t.requested(lch, l)
		t.closed(c.id, "client")
		t.grace()
		if rejected {
			if err := s.id.Reject(nil); err != nil && err.Error() == "" {
				t.Error("error without text")
			}
		} else {
			t.anyErrOrEnd(s, "accept after the peer gave up")
		}
		t.closed(s.id, "request")
	}
	t.grace()
	for { // of children nothing comes any more
		ev, ok, err := lch.TryEvent()
		t.ok(err, "look for an event")
		if !ok {
			break
		}
		t.Errorf("event %v of a request that is over", ev.Type)
	}
	t.dial(ch, lch, l, nil, nil) // the listener goes on
}

// anyErrOrEnd accepts a request whose peer is gone: the accept fails, or the
// connection ends at once.
func (t *tb) anyErrOrEnd(s *peer, what string) {
	t.Helper()
	if err := s.id.Accept(nil); err != nil {
		t.isErr(err, nil, "%s", what)
		return
	}
	ev, err := s.ch.Event(t.limit)
	t.ok(err, "%s: wait for the end", what)
	switch ev.Type {
	case cm.Disconnected, cm.Rejected, cm.Unreachable, cm.ConnectError:
	default:
		t.Errorf("%s: event %v", what, ev.Type)
	}
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

// More requests than the backlog are kept out for a while, and never refused.
func backlog(t *tb) {
	lch, l := t.listener(1)
	ch := t.channel(t.Provider)
	var clients []*peer
	for range 4 {
		clients = append(clients, t.ask(ch, l, nil))
	}
	time.Sleep(2 * time.Second)
	t.noEvent(ch)
	// Both sides are served: a client's part of the handshake is done by who fetches.
	connected := make(chan error, len(clients))
	go func() {
		for range clients {
			ev, err := ch.Event(t.limit)
			if err == nil && ev.Type != cm.Established {
				err = fmt.Errorf("event %v (%w)", ev.Type, ev.Err)
			}
			connected <- err
		}
	}()
	for established := 0; established < len(clients); {
		ev, err := lch.Event(t.limit)
		t.ok(err, "wait for the next request or connection")
		switch ev.Type {
		case cm.ConnectRequest:
			t.Cleanup(func() { t.closed(ev.ID, "id of a request") })
			s := t.equip("server", lch, ev.ID)
			t.ok(s.id.Accept(nil), "accept")
		case cm.Established:
			established++
		default:
			t.Fatalf("event %v", ev.Type)
		}
	}
	for range clients {
		t.ok(<-connected, "connect")
	}
}

// A peer whose program does not answer keeps a client waiting, for its own deadline.
func noAnswer(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	s := t.requested(lch, l)
	time.Sleep(4 * time.Minute)
	t.noEvent(ch)
	t.ok(s.id.Accept(nil), "accept after four minutes")
	t.event(ch, cm.Established)
	t.event(lch, cm.Established)
	t.exchange(c, s)
	// The client's own deadline.
	wl, addr := t.serve()
	ctx, cancel := context.WithTimeout(t.limit, time.Second)
	defer cancel()
	start := time.Now()
	_, err := t.connectTo(ctx, addr, nil)
	t.isErr(err, context.DeadlineExceeded, "connect to who does not answer")
	if took := time.Since(start); took > 1100*time.Millisecond {
		t.Errorf("gave up after %v", took)
	}
	// The server's own: the request's peer is gone.
	r, err := wl.Accept(t.limit)
	if err == nil {
		t.closed(r, "request")
	}
}

func cancelEachStep(t *tb) {
	l, addr := t.serve()
	gone, cancel := context.WithCancel(t.limit)
	cancel()
	_, err := cm.Resolve(gone, t.Provider, addr, nil)
	t.isErr(err, context.Canceled, "resolve with a context that has ended")
	_, err = l.Accept(gone)
	t.isErr(err, context.Canceled, "accept with a context that has ended")

	// While connecting.
	ctx, cancel := context.WithCancel(t.limit)
	failed := make(chan error, 1)
	go func() {
		_, err := t.connectTo(ctx, addr, nil)
		failed <- err
	}()
	r, err := l.Accept(t.limit)
	t.ok(err, "take the request")
	cancel()
	t.isErr(<-failed, context.Canceled, "connect that is cancelled")
	t.grace()
	w, err := t.gear(r.Device(), r.CreateQP)
	t.ok(err, "make a queue pair")
	short, cancelShort := context.WithTimeout(t.limit, 500*time.Millisecond)
	defer cancelShort()
	_, err = r.Accept(short, nil)
	t.isErr(err, nil, "accept whose peer cancelled")
	t.ok(errors.Join(r.Close(), w.close()), "close")

	// While accepting: the reply is lost, or the context has ended before.
	go func() {
		w, err := t.connectTo(t.limit, addr, nil)
		if err == nil {
			w.close()
		}
		failed <- err
	}()
	r, err = l.Accept(t.limit)
	t.ok(err, "take the request")
	w, err = t.gear(r.Device(), r.CreateQP)
	t.ok(err, "make a queue pair")
	_, err = r.Accept(gone, nil)
	t.isErr(err, context.Canceled, "accept with a context that has ended")
	t.ok(errors.Join(r.Close(), w.close()), "close")
	<-failed // refused, or connected and ended
}

func migrate(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	c := t.ask(ch, l, nil)
	id, _ := t.request(lch, l)
	own := t.channel(t.Peer)
	t.ok(id.Migrate(own), "move a request to a channel of its own")
	s := t.equip("server", own, id)
	t.ok(id.Accept(nil), "accept")
	t.event(ch, cm.Established)
	if ev := t.event(own, cm.Established); ev.ID != id {
		t.Error("event of another id")
	}
	t.exchange(c, s)
	t.ok(c.id.Disconnect(), "disconnect")
	t.pass(realGrace, 10*time.Millisecond)
	t.ok(id.Migrate(lch), "move back with an event pending")
	if ev := t.event(lch, cm.Disconnected); ev.ID != id {
		t.Error("event of another id")
	}
	t.event(ch, cm.Disconnected) // the answer came with the fetch
	t.noEvent(own)
	// An idle id becomes one whose calls wait.
	sync, err := ch.NewID(ib.PortSpaceTCP)
	t.ok(err, "make an id")
	t.ok(sync.Migrate(nil), "make its calls wait")
	t.ok(sync.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(t.PeerAddr, 7), resolveLimit), "resolve and wait")
	if sync.Device() != t.a {
		t.Error("resolved without a device")
	}
	t.noEvent(ch)
	t.closed(sync, "id")
	t.isErr(s.id.Migrate(t.channel(emptyProvider{t.Peer})), nil, "move to another provider's channel")
}

func concurrentConnects(t *tb) {
	const n = 64
	l, addr := t.serve()
	ctx, stop := context.WithCancel(t.limit)
	defer stop()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var servers, clients []*waiting
	for range n {
		wg.Go(func() {
			w, err := t.serveOne(ctx, l, nil)
			if err != nil {
				t.Errorf("accept: %v", err)
				return
			}
			mu.Lock()
			servers = append(servers, w)
			mu.Unlock()
		})
		wg.Go(func() {
			w, err := t.connectTo(ctx, addr, nil)
			if err != nil {
				t.Errorf("connect: %v", err)
				return
			}
			mu.Lock()
			clients = append(clients, w)
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(servers) != n || len(clients) != n {
		t.Errorf("%d and %d connections, want %d", len(servers), len(clients), n)
	}
	for _, c := range clients {
		t.ok(c.close(), "close a client")
	}
	for i, s := range servers {
		select {
		case <-s.conn.Done():
		case <-t.limit.Done():
			t.Fatalf("connection %d did not end", i)
		}
		t.isErr(s.conn.Err(), io.EOF, "cause of connection %d", i)
		t.ok(s.close(), "close a server")
	}
}

func cmDeviceRemoval(t *tb) {
	lch, l := t.listener(0)
	wild := t.newID(lch, ib.PortSpaceTCP)
	t.ok(wild.Bind(netip.AddrPortFrom(t.anyAddr(), 0)), "bind to every device")
	t.ok(wild.Listen(0), "listen on every device")
	c, s := t.dial(t.channel(t.Provider), lch, l, nil, nil)
	t.Peer.(changeable).RemoveDevice()
	hit := map[*cm.ID]int{}
	for range 2 {
		ev := t.event(lch, cm.DeviceRemoval)
		hit[ev.ID]++
	}
	if hit[l] != 1 || hit[s.id] != 1 || hit[wild] != 0 {
		t.Errorf("DeviceRemoval: listener %d, connection %d, wildcard %d", hit[l], hit[s.id], hit[wild])
	}
	t.isErr(s.qp.Err(), verbs.ErrDeviceGone, "cause of the queue pair")
	t.isErr(s.id.Disconnect(), verbs.ErrDeviceGone, "disconnect on a device that is gone")
	t.closed(s.id, "id of a device that is gone")
	t.closed(l, "listener of a device that is gone")
	t.noEvent(lch)
	if t.a == t.b {
		if ev := t.event(c.ch, cm.DeviceRemoval); ev.ID != c.id {
			t.Error("DeviceRemoval of the wrong id")
		}
	}
	t.closed(c.id, "client")
}

func notify(t *tb) {
	lch, l := t.listener(0)
	ch := t.channel(t.Provider)
	var lost *Filter
	if t.Fabric != nil {
		lost = t.Fabric.Rule(Rule{CM: CMRtu, Drop: true}) // so that Established does not come by itself
	}
	t.ask(ch, l, nil)
	s := t.requested(lch, l)
	t.ok(s.id.Accept(nil), "accept")
	t.event(ch, cm.Established)
	t.ok(s.id.Notify(ib.EventCommEst), "say that data came")
	t.event(lch, cm.Established)
	t.ok(s.id.Notify(ib.EventCommEst), "say it again")
	t.isErr(s.id.Notify(ib.EventQPFatal), einval, "notify another event")
	if lost != nil {
		lost.Remove()
	}
	t.settleCM(s)
}
