package softroce

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// lose makes a network lose management datagrams: the n-th of a kind, or all if n is 0.
func TestC216_BothDisconnect(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ida, idb := join(t, a, b)
		done := make(chan error, 1)
		go func() { done <- ida.Disconnect() }()
		b.do(idb.Disconnect())
		a.do(<-done)
		a.want(ib.CMDisconnected)
		b.want(ib.CMDisconnected)
		a.do(ida.Disconnect())
		b.do(idb.Disconnect())
		a.want(ib.CMTimewaitExit)
		b.want(ib.CMTimewaitExit)
		a.quiet()
		b.quiet()
		if n := a.held().conns + b.held().conns; n != 0 {
			t.Errorf("%d connections are remembered", n)
		}
	})
}

func TestC217_CloseInsteadOfDisconnect(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ida, _ := join(t, a, b)
		a.do(ida.Close())
		start := time.Now()
		if ev := b.want(ib.CMDisconnected); ev.Status != 0 || time.Since(start) > 10*time.Millisecond {
			t.Errorf("%+v after %v", ev, time.Since(start))
		}
		fails(t, "disconnect of a closed id", ida.Disconnect(), net.ErrClosed)
		a.quiet()
		// The end of the provider tells the peers too.
		_, idb := join(t, a, b)
		a.do(a.p.Close())
		if ev := b.want(ib.CMDisconnected); ev.Status != 0 || ev.Handle != idb.handle {
			t.Errorf("%+v", ev)
		}
		b.do(idb.Disconnect())
	})
}

func TestC215_PeerNeverAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ida, _ := join(t, a, b)
		start := time.Now()
		a.do(ida.Disconnect())
		b.want(ib.CMDisconnected)
		if ev := a.want(ib.CMDisconnected); ev.Status != -int(syscall.ETIMEDOUT) || time.Since(start) < 20*time.Second {
			t.Errorf("%+v after %v", ev, time.Since(start))
		}
	})
}

func TestC218_ClientGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		for _, when := range []string{"before the request is fetched", "before accept", "before reject"} {
			id := a.resolve(l.Info().Local)
			a.ask(id)
			var child *cmID
			if when != "before the request is fetched" {
				child = b.want(ib.CMConnectRequest).Child.(*cmID)
			}
			synctest.Wait()
			a.do(id.Close())
			synctest.Wait()
			if child == nil {
				child = b.want(ib.CMConnectRequest).Child.(*cmID)
			}
			b.ready(child)
			if when == "before reject" {
				fails(t, when, child.Reject(nil), syscall.EINVAL)
			} else {
				fails(t, when, child.Accept(b.param(child)), syscall.EINVAL)
			}
			b.quiet()
			b.do(child.Close())
		}
		// It goes on listening.
		a.ask(a.resolve(l.Info().Local))
		b.want(ib.CMConnectRequest)
	})
}

func TestC219_ListenerClosed(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		first := a.resolve(l.Info().Local)
		a.ask(first)
		ev := b.want(ib.CMConnectRequest)
		second := a.resolve(l.Info().Local)
		a.ask(second)
		synctest.Wait()
		b.do(l.Close())
		if ev := a.want(ib.CMRejected); ev.Status != 28 || ev.Handle != second.handle {
			t.Errorf("unfetched: %+v", ev)
		}
		b.quiet()
		// The fetched one can still be accepted, and works.
		child := b.accept(ev)
		a.establish(first)
		if ev := b.want(ib.CMEstablished); ev.Handle != child.handle {
			t.Errorf("%+v", ev)
		}
		third := a.resolve(l.Info().Local)
		a.ask(third)
		if ev := a.want(ib.CMRejected); ev.Status != 8 {
			t.Errorf("%+v", ev)
		}
		// The port is free at once.
		b.listen(l.local.Port())
	})
}

func TestC219_ChannelClosed(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ch := b.channel()
		l := b.newIDOn(ch, ib.PortSpaceTCP)
		b.do(l.BindAddr(netip.AddrPortFrom(addrB, 0)))
		b.do(l.Listen(0))
		a.ask(a.resolve(l.Info().Local))
		synctest.Wait()
		woken := make(chan error, 1)
		empty := b.channel()
		go func() { woken <- empty.Wait(context.Background()) }()
		synctest.Wait()
		b.do(empty.Close())
		if err := <-woken; err != nil {
			t.Errorf("wait on a channel that is closed: %v", err)
		}
		if _, _, err := empty.Next(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("next on a closed channel: %v", err)
		}
		b.do(ch.Close())
		b.do(ch.Close())
		if ev := a.want(ib.CMRejected); ev.Status != 28 {
			t.Errorf("%+v", ev)
		}
		// The listener is there, but nobody can see its requests.
		a.ask(a.resolve(l.Info().Local))
		if ev := a.want(ib.CMRejected); ev.Status != 28 {
			t.Errorf("%+v", ev)
		}
		_, err := ch.CreateID(1, ib.PortSpaceTCP, 0)
		fails(t, "id on a closed channel", err, net.ErrClosed)
		// Moved to another, it works again.
		fails(t, "migrate to a closed channel", l.Migrate(ch), net.ErrClosed)
		b.do(l.Migrate(b.ch))
		a.ask(a.resolve(l.Info().Local))
		b.want(ib.CMConnectRequest)
	})
}

func TestC220_Backlog(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.newID()
		b.do(l.BindAddr(netip.AddrPortFrom(addrB, 0)))
		b.do(l.Listen(1))
		for range 4 {
			a.ask(a.resolve(l.Info().Local))
		}
		time.Sleep(5 * time.Second) // of the bubble: nobody fetches
		a.quiet()
		if h := b.held(); h.events != 1 || h.conns != 1 {
			t.Errorf("%+v", h)
		}
		for i := range 4 {
			start := time.Now()
			b.want(ib.CMConnectRequest)
			if d := time.Since(start); i > 0 && d > 1300*time.Millisecond {
				t.Errorf("request %d comes after %v", i, d)
			}
		}
	})
}

func TestC222_ProgramNeverAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		id := a.resolve(l.Info().Local)
		a.ask(id)
		ev := b.want(ib.CMConnectRequest)
		time.Sleep(10 * time.Minute)
		a.quiet()
		b.quiet()
		b.accept(ev)
		a.establish(id)
		b.want(ib.CMEstablished)
	})
}

func TestC225_Migrate(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		id := a.resolve(l.Info().Local)
		a.ask(id)
		ev := b.want(ib.CMConnectRequest)
		child := ev.Child.(*cmID)
		other := b.channel()
		b.do(child.Migrate(other))
		b.do(child.Migrate(other))
		b.accept(ev)
		a.establish(id)
		if ev := b.wantOn(other, ib.CMEstablished); ev.Handle != child.handle {
			t.Errorf("%+v", ev)
		}
		b.quiet()
		// Back, with an event pending.
		a.do(id.Disconnect())
		synctest.Wait()
		b.do(child.Migrate(b.ch))
		if _, ok, _ := other.Next(); ok {
			t.Error("an event stayed behind")
		}
		b.want(ib.CMDisconnected)
		// A listener with its pending requests and their children.
		next := a.resolve(l.Info().Local)
		a.ask(next)
		synctest.Wait()
		b.do(l.Migrate(other))
		ev = b.wantOn(other, ib.CMConnectRequest)
		if ev.Child.(*cmID).ch != other {
			t.Error("the child's events would come elsewhere")
		}
		fails(t, "migrate to nothing", l.Migrate(nil), syscall.EINVAL)
		fails(t, "migrate to another device", l.Migrate(a.ch), syscall.EINVAL)
	})
}

func TestC228_ConcurrentConnects(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		const count = 64
		ids := make(map[uint64]*cmID)
		for range count {
			id := a.resolve(l.Info().Local)
			ids[id.handle] = id
			a.ask(id)
		}
		for range count {
			b.accept(b.want(ib.CMConnectRequest))
		}
		for range count {
			ev := a.want(ib.CMConnectResponse)
			id := ids[ev.Handle]
			a.ready(id, ib.StateInit, ib.StateRTR, ib.StateRTS)
			a.do(id.Establish())
		}
		seen := make(map[uint64]bool)
		for range count {
			seen[b.want(ib.CMEstablished).Handle] = true
		}
		if len(seen) != count {
			t.Errorf("%d connections are established", len(seen))
		}
		for _, id := range ids {
			a.do(id.Disconnect())
		}
		for range count {
			b.want(ib.CMDisconnected)
		}
		for id := range b.qps {
			b.do(id.Disconnect())
		}
		for range count {
			a.want(ib.CMDisconnected)
		}
	})
}

func TestC230_DeviceRemoval(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		ida, _ := join(t, a, b)
		bound := a.listen(0)
		wild := a.newID()
		a.do(wild.BindAddr(netip.AddrPortFrom(anyIPv4, 7300)))
		a.do(wild.Listen(0))
		idle := a.newID()
		other := b.resolve(bound.Info().Local)
		b.ask(other)
		a.want(ib.CMConnectRequest) // fetched, not answered
		a.p.RemoveDevice()
		got := map[uint64]int{a.want(ib.CMDeviceRemoval).Handle: 1}
		got[a.want(ib.CMDeviceRemoval).Handle]++
		if got[ida.handle] != 1 || got[bound.handle] != 1 {
			t.Errorf("removal was told to %v", got)
		}
		a.quiet()
		for what, err := range map[string]error{
			"disconnect": ida.Disconnect(), "connect": ida.Connect(wholeParam), "listen": bound.Listen(0),
			"bind": idle.BindAddr(netip.AddrPortFrom(addrA, 0)), "resolve": idle.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(addrB, 1), 0),
		} {
			fails(t, what, err, driver.ErrDeviceGone)
			fails(t, what, err, syscall.ENODEV)
		}
		_, err := a.p.OpenCM()
		fails(t, "open without a device", err, syscall.ENODEV)
		_, err = a.cm.OpenChannel()
		fails(t, "open a channel without a device", err, syscall.ENODEV)
		for _, id := range []*cmID{ida, bound, idle} {
			a.do(id.Close())
		}
		// The wildcard listener survives, and takes the next device.
		a.p.RestoreDevice()
		to := netip.AddrPortFrom(addrA, 7300)
		next := b.resolve(to)
		b.ask(next)
		ev := a.want(ib.CMConnectRequest)
		if ev.Handle != wild.handle || ev.Child.(*cmID).Info().Local != to {
			t.Errorf("%+v", ev)
		}
	})
}

// TestC232_RTULostHealedByData needs nobody's help, in whichever state the queue pair is
// that the data come to.
// TestC326_ForgedRequests sends requests that cannot be, through the whole device.
// TestNarrowPeer: the active side takes the peer's smaller MTU by itself.
// TestECE: two embedded devices tell each other what their sockets hold.
// TestForeignECE: a vendor's id that is not ours is not echoed, as librdmacm would give
// up.
// TestNextIsFree: looking for an event that is not there costs nothing.
func TestNextAllocatesNothing(t *testing.T) {
	n := newNetwork()
	a := newCMSide(t, n.provider(t, 1, addrA), addrA)
	if got := testing.AllocsPerRun(100, func() {
		if _, ok, err := a.ch.Next(); ok || err != nil {
			t.Fatal(ok, err)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// TestC223_CloseDuringCalls closes ids and channels while calls on them run.
func TestC223_CloseDuringCalls(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := cmPair(t, n)
		l := b.listen(0)
		go func() {
			for {
				if b.ch.Wait(context.Background()) != nil {
					return
				}
				ev, ok, err := b.ch.Next()
				if err != nil {
					return
				}
				if ok && ev.Child != nil {
					ev.Child.Close()
				}
			}
		}()
		for range 50 {
			ch := a.channel()
			id := a.newIDOn(ch, ib.PortSpaceTCP)
			q := a.newQP(sideConfig{depth: 1, sge: 1})
			p := wholeParam
			p.QPN = q.Num()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = id.ResolveAddr(netip.AddrPort{}, l.Info().Local, 0)
				_ = id.ResolveRoute(0)
				_ = id.Connect(p)
				_ = id.Disconnect()
				_ = id.Establish()
				_, _, _ = id.InitQPAttr(ib.StateRTR)
			}()
			_ = id.Close()
			_ = ch.Close()
			<-done
		}
		b.do(b.ch.Close())
		time.Sleep(time.Hour)
		if h := a.held(); h != (held{}) {
			t.Errorf("left: %+v", h)
		}
		// The listener is there, on its closed channel.
		if h := b.held(); h != (held{ids: 1, ports: 1}) {
			t.Errorf("left: %+v", h)
		}
	})
}
