package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area M, second part: connections. Their ends are in area_m_end.go, the floor that
// waits in area_m_floor.go.
func areaCMEvents() []check {
	return []check{
		{"C-143_PeerDropsQueuePair", Patience, peerDropsQueuePair},
		{"C-143_SevenRetries", Patience, peerDropsQueuePairForEver},
		{"C-212_PassiveSide", 0, passiveSide},
		{"C-212_WaitingFloor", 0, waitingFloor},
		{"C-215_OrderlyDisconnect", 0, orderlyDisconnect},
		{"C-216_DisconnectAgain", 0, disconnectAgain},
		{"C-216_BothAtOnce", 0, bothAtOnce},
		{"C-217_CloseInsteadOfDisconnect", 0, closeInsteadOfDisconnect},
		{"C-217_ChannelClosed", 0, channelClosedUnderConnection},
		{"C-218_ClientGivesUp", 0, clientGivesUp},
		{"C-219_ListenerClosed", 0, listenerClosed},
		{"C-219_ListenerClosedUnderRequests", 0, listenerClosedUnderRequests},
		{"C-220_Backlog", Patience, backlog},
		{"C-222_NoAnswer", VirtualTime, noAnswer},
		{"C-222_OwnDeadline", 0, ownDeadline},
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

// Seven retries are an end as well, though some devices take them for none.
func peerDropsQueuePairForEver(t *tb) {
	c, s, _ := t.meet(&cm.ConnParam{AckTimeout: 16 * time.Millisecond, RetryCount: 7}, nil)
	t.closed(s.qp, "the peer's queue pair")
	c.send(verbs.Send(50, c.sge(0, 8), ib.Signaled))
	time.Sleep(3 * time.Second)
	if _, ended := c.sentAt(50, "C-143/sender", ib.StatusRetryExc); ended {
		c.state(ib.StateError)
		t.isErr(c.qp.Err(), ib.ErrRetryExc, "cause")
	} else {
		c.state(ib.StateRTS)
	}
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
}

// Each side needs a deadline of its own against a program that does not answer: nothing
// comes meanwhile, and the deadline ends the waiting.
func ownDeadline(t *tb) {
	const patience = time.Second
	l, addr := t.serve()
	type request struct {
		r   *cm.Request
		err error
	}
	taken := make(chan request, 1)
	go func() {
		r, err := l.Accept(t.limit)
		taken <- request{r, err}
	}()
	ctx, cancel := context.WithTimeout(t.limit, patience)
	defer cancel()
	start := time.Now()
	_, err := t.connectTo(ctx, addr, nil)
	t.isErr(err, context.DeadlineExceeded, "connect to who does not answer")
	if took := time.Since(start); took < patience || t.Virtual && took > patience+100*time.Millisecond {
		t.Errorf("gave up after %v", took)
	}
	// The request's peer is gone: to accept it fails, at once or at the server's deadline.
	x := <-taken
	t.ok(x.err, "take the request")
	r := x.r
	w, err := t.gear(r.Device(), r.CreateQP)
	t.ok(err, "equip the request")
	ctx, cancel = context.WithTimeout(t.limit, patience)
	defer cancel()
	if c, err := r.Accept(ctx, nil); err == nil {
		t.Error("accepted a request whose peer is gone")
		t.closed(c, "connection")
	}
	t.closed(r, "request")
	t.ok(w.close(), "close what the request had")
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
