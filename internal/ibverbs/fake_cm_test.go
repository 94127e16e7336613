//go:build linux && cgo

package ibverbs

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var fakeAddr = netip.MustParseAddr("10.9.0.2")

// resolved gives an id that has a device and a route.
func (r *rig) resolved(ch driver.CMChannel, handle uint64, to netip.AddrPort) driver.CMID {
	r.Helper()
	id := r.id(ch, handle)
	if err := id.ResolveAddr(netip.AddrPort{}, to, time.Second); err != nil {
		r.Fatal(err)
	}
	r.event(ch, ib.CMAddrResolved, handle)
	if err := id.ResolveRoute(time.Second); err != nil {
		r.Fatal(err)
	}
	r.event(ch, ib.CMRouteResolved, handle)
	return id
}

// listener gives an id that listens.
func (r *rig) listener(ch driver.CMChannel, handle uint64) driver.CMID {
	r.Helper()
	l := r.id(ch, handle)
	if err := l.BindAddr(netip.AddrPortFrom(fakeAddr, 0)); err != nil {
		r.Fatal(err)
	}
	if err := l.Listen(0); err != nil {
		r.Fatal(err)
	}
	return l
}

func (r *rig) noEvent(ch driver.CMChannel) {
	r.Helper()
	if ev, ok, err := ch.Next(); ok || err != nil {
		r.Errorf("%+v, %v, %v", ev, ok, err)
	}
}

// TestFakeFullAcceptFails: the peer left, or the kernel refuses. The child is there, takes no
// event, and is closed; the listener goes on (P24).
func TestFakeFullAcceptFails(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	server, client := r.channel(), r.channel()
	l := r.listener(server, 1)
	for i, errno := range []syscall.Errno{0, syscall.EINVAL, syscall.ECONNRESET, syscall.ENOMEM, syscall.ETIMEDOUT} {
		a := must(client.CreateID(100, ib.PortSpaceTCP, ib.RC))(t)
		if err := a.ResolveAddr(netip.AddrPort{}, l.Info().Local, time.Second); err != nil {
			t.Fatal(err)
		}
		r.event(client, ib.CMAddrResolved, 100)
		if err := a.Connect(driver.ConnParam{}); err != nil {
			t.Fatal(err)
		}
		req := r.event(server, ib.CMConnectRequest, 1)
		if errno == 0 { // gave up
			r.within("close", a.Close)
			errno = syscall.EINVAL
		} else {
			f.fail("rdma_accept", errno, 0)
		}
		if err := req.Child.Accept(driver.ConnParam{}); !errors.Is(err, errno) {
			t.Errorf("%d: %v", i, err)
		}
		f.fail("rdma_accept", 0, 0)
		r.noEvent(server)
		r.within("close child", req.Child.Close)
		if i > 0 {
			r.event(client, ib.CMRejected, 100)
			r.within("close", a.Close)
		}
	}
	// A request whose id the library could not make: readable, and no event (P11).
	a := r.resolved(client, 101, l.Info().Local)
	f.set("drop_request", 1)
	if err := a.Connect(driver.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	if !r.readable(server, time.Second) {
		t.Error("not readable")
	}
	r.noEvent(server)
	// The next one comes.
	b := r.resolved(client, 102, l.Info().Local)
	if err := b.Connect(driver.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	r.within("close child", r.event(server, ib.CMConnectRequest, 1).Child.Close)
	r.event(client, ib.CMRejected, 102)
}

// TestFakeFullScarce: what fails as the process can open no file says so, in place of what the
// libraries make of it; and it goes away with its cause.
func TestFakeFullScarce(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	server, client, spare := r.channel(), r.channel(), r.channel()
	l := r.listener(server, 1)
	id := r.id(spare, 2)
	lost := r.id(client, 3)
	if err := lost.ResolveAddr(netip.AddrPort{}, l.Info().Local, time.Second); err != nil {
		t.Fatal(err)
	}
	r.event(client, ib.CMAddrResolved, 3)
	f.set("drop_request", 1) // as librdmacm does if it cannot open the device
	if err := lost.Connect(driver.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"rdma_create_id": func() error { _, err := spare.CreateID(4, ib.PortSpaceTCP, ib.RC); return err },
		"rdma_bind_addr": func() error { return id.BindAddr(netip.AddrPortFrom(fakeAddr, 0)) },
		"rdma_listen":    func() error { return id.Listen(0) },
	} {
		f.fail(name, syscall.ENODEV, 0)
		if err := call(); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%s: %v, want ENODEV", name, err)
		}
		withoutDescriptors(t, func() {
			if err := call(); !errors.Is(err, syscall.EMFILE) {
				t.Errorf("%s: %v, want EMFILE", name, err)
			}
		})
		f.fail(name, 0, 0)
	}
	withoutDescriptors(t, func() {
		ev, ok, err := server.Next()
		if !ok || err != nil || ev.Type != ib.CMConnectRequest || ev.Child != nil || ev.Status != -int(syscall.EMFILE) {
			t.Errorf("a request that the library dropped: %+v, %v, %v", ev, ok, err)
		}
		r.noEvent(server) // it is told of once
		if _, err := r.p.OpenShared("fake1"); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("a device: %v, want EMFILE", err)
		}
		if n := f.calls("rdma_get_devices"); n != 0 {
			t.Error("the connection manager was asked for a device that it could not open")
		}
	})
	again := r.resolved(client, 5, l.Info().Local)
	if err := again.Connect(driver.ConnParam{}); err != nil {
		t.Fatal(err)
	}
	r.within("close child", r.event(server, ib.CMConnectRequest, 1).Child.Close)
	r.event(client, ib.CMRejected, 5)
}

// withoutDescriptors runs f while this process can open nothing.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var was, few syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few = was
	few.Cur = 1 // of zero poll would complain
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)
	f()
}

// TestFakeFullCallsFail: every call of an id gives the errno of the library.
func TestFakeFullCallsFail(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	ch, other := r.channel(), r.channel()
	l := r.listener(other, 1)
	id := r.resolved(ch, 2, l.Info().Local)
	to := netip.AddrPortFrom(fakeAddr, 9)
	waiting := r.channel() // with an event, which it keeps
	if err := r.id(waiting, 3).ResolveAddr(netip.AddrPort{}, to, time.Second); err != nil {
		t.Fatal(err)
	}
	group := netip.MustParseAddr("239.1.2.3")
	for name, call := range map[string]func() error{
		"rdma_create_id":         func() error { _, err := ch.CreateID(3, ib.PortSpaceTCP, ib.RC); return err },
		"rdma_bind_addr":         func() error { return id.BindAddr(to) },
		"rdma_resolve_addr":      func() error { return id.ResolveAddr(netip.AddrPort{}, to, 0) },
		"rdma_resolve_route":     func() error { return id.ResolveRoute(0) },
		"rdma_init_qp_attr":      func() error { _, _, err := id.InitQPAttr(ib.StateInit); return err },
		"rdma_listen":            func() error { return id.Listen(0) },
		"rdma_connect":           func() error { return id.Connect(driver.ConnParam{}) },
		"rdma_accept":            func() error { return id.Accept(driver.ConnParam{}) },
		"rdma_reject":            func() error { return id.Reject(nil) },
		"rdma_establish":         id.Establish,
		"rdma_notify":            func() error { return id.Notify(ib.EventCommEst) },
		"rdma_disconnect":        id.Disconnect,
		"rdma_migrate_id":        func() error { return id.Migrate(other) },
		"rdma_set_option":        func() error { return id.SetOption(0, 0, []byte{1}) },
		"rdma_join_multicast_ex": func() error { return id.Join(group, 0, 9) },
		"rdma_leave_multicast":   func() error { return id.Leave(group) },
		"rdma_get_cm_event":      func() error { _, _, err := waiting.Next(); return err },
		"rdma_destroy_id":        id.Close,
	} {
		for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.ENOMEM, syscall.EPERM, syscall.ENODEV, syscall.EACCES} {
			f.fail(name, errno, 0)
			want := error(errno)
			if name == "rdma_get_cm_event" && errno == syscall.ENODEV {
				want = driver.ErrDeviceGone
			}
			if err := call(); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
		f.fail(name, 0, 0)
	}
}

// TestFakeFullEndsTwice: the same end may come more than once, and others behind it (P22).
func TestFakeFullEndsTwice(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	ch := r.channel()
	l := r.listener(ch, 1)
	r.resolved(ch, 2, l.Info().Local) // the newest id
	for _, typ := range []ib.CMEventType{
		ib.CMRejected, ib.CMRejected, ib.CMDisconnected, ib.CMUnreachable, ib.CMDisconnected, ib.CMConnectError, ib.CMAddrChange, 77,
	} {
		f.cmEvent(byte(typ))
		if ev := r.event(ch, typ, 2); ev.Child != nil || ev.Private != nil {
			t.Errorf("%+v", ev)
		}
	}
	f.cmEvent(byte(ib.CMDisconnected)) // stays: the id is closed before
}

// TestFakeFullAckFails: an id whose event cannot be acknowledged would be waited for without
// end. It is not destroyed, moved or made to leave; the error says why (P2).
func TestFakeFullAckFails(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	ch, other := r.channel(), r.channel()
	l := r.listener(other, 1)
	id := must(ch.CreateID(2, ib.PortSpaceTCP, ib.RC))(t)
	if err := id.ResolveAddr(netip.AddrPort{}, l.Info().Local, time.Second); err != nil {
		t.Fatal(err)
	}
	f.fail("rdma_ack_cm_event", syscall.EINVAL, 0)
	r.event(ch, ib.CMAddrResolved, 2) // the event is not lost
	f.fail("rdma_ack_cm_event", 0, 0)
	calls := f.calls("rdma_destroy_id") + f.calls("rdma_migrate_id") + f.calls("rdma_leave_multicast")
	for name, call := range map[string]func() error{
		"close": id.Close, "migrate": func() error { return id.Migrate(other) },
		"leave": func() error { return id.Leave(netip.MustParseAddr("239.1.2.3")) },
	} {
		if err := f.within(name, call); !errors.Is(err, syscall.EDEADLK) || !strings.Contains(err.Error(), "acknowledgement") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := f.calls("rdma_destroy_id") + f.calls("rdma_migrate_id") + f.calls("rdma_leave_multicast"); got != calls {
		t.Errorf("%d calls that wait without end", got-calls)
	}
	f.set("live_ids", f.get("live_ids")-1) // it stays
	f.set("live_events", f.get("live_events")-1)
}

// TestFakeFullIDsAtOnce makes, moves and closes ids in several goroutines while events are
// fetched. The library's table of ids bears no two of that at once (P20).
func TestFakeFullIDsAtOnce(t *testing.T) {
	newFake(t, "full")
	r := newRig(t)
	var chans [4]driver.CMChannel
	for i := range chans {
		chans[i] = r.channel()
	}
	var wg sync.WaitGroup
	for i, ch := range chans {
		wg.Go(func() {
			for n := range 100 {
				h := uint64(i)<<32 | uint64(n)
				id, err := ch.CreateID(h, ib.PortSpaceTCP, ib.RC)
				if err == nil {
					err = id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(fakeAddr, 9), 0)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n%3 == 0 { // its event stays
					if err := id.Close(); err != nil {
						t.Error(err)
					}
					continue
				}
				ev, ok, err := ch.Next()
				for err == nil && !ok {
					ev, ok, err = ch.Next()
				}
				if ev.Handle != h || err != nil {
					t.Errorf("%+v, %v", ev, err)
				}
				if i := id.Info(); i.Device != "fake0" {
					t.Errorf("%+v", i)
				}
				if err := id.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestFakeFullUnfetched: destroying an id and a listener drops what nobody has fetched, and
// waits for nothing; an event of an id that is gone is none (P2, P4, P19).
func TestFakeFullUnfetched(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	ch, other := r.channel(), r.channel()
	l := must(ch.CreateID(1, ib.PortSpaceTCP, ib.RC))(t)
	if err := l.BindAddr(netip.AddrPortFrom(fakeAddr, 0)); err != nil {
		t.Fatal(err)
	}
	if err := l.Listen(0); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a := r.resolved(other, 2, l.Info().Local)
		if err := a.Connect(driver.ConnParam{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.within("close listener", l.Close); err != nil {
		t.Error(err)
	}
	if !r.readable(ch, time.Second) {
		t.Error("not readable")
	}
	r.noEvent(ch)
}

// TestFakeFullNoVerbs: an address that was resolved to no device (P46a) reaches no call that
// needs one.
func TestFakeFullNoVerbs(t *testing.T) {
	f := newFake(t, "full")
	r := newRig(t)
	ch := r.channel()
	id := r.id(ch, 2)
	f.set("no_verbs", 1)
	if err := id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(fakeAddr, 9), time.Second); err != nil {
		t.Fatal(err)
	}
	r.event(ch, ib.CMAddrResolved, 2)
	if i := id.Info(); i.Device != "" {
		t.Errorf("%+v", i)
	}
	for i, call := range []func() error{
		func() error { return id.ResolveRoute(0) },
		func() error { _, _, err := id.InitQPAttr(ib.StateInit); return err },
		func() error { return id.Connect(driver.ConnParam{}) },
		id.Disconnect,
	} {
		if err := call(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestFakeFullGroups: events of groups carry the handle of Join, and are acknowledged before
// Leave waits for them (P4).
func TestFakeFullGroups(t *testing.T) {
	newFake(t, "full")
	r := newRig(t)
	ch := r.channel()
	id := must(ch.CreateID(1, ib.PortSpaceUDP, ib.UD))(t)
	r.closing("id", id.Close)
	group := func(i byte) netip.Addr { return netip.AddrFrom4([4]byte{239, 0, 0, i}) }
	if err := id.ResolveAddr(netip.AddrPortFrom(fakeAddr, 0), netip.AddrPortFrom(group(1), 0), time.Second); err != nil {
		t.Fatal(err)
	}
	r.event(ch, ib.CMAddrResolved, 1)
	for i := range byte(20) {
		if err := id.Join(group(i), 0, 1<<40|uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range byte(20) {
		r.event(ch, ib.CMMulticastJoin, 1<<40|uint64(i))
		if i%2 == 0 {
			r.within("leave", func() error { return id.Leave(group(i)) })
		}
	}
	if err := id.Leave(group(100)); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Error(err)
	}
}

// TestFakeFullShared: the connection manager's context is one, and looking for a device that
// is not there keeps nothing open.
func TestFakeFullShared(t *testing.T) {
	f := newFake(t, "full")
	a := must(f.p.OpenShared("fake0"))(t)
	lists := f.get("live_lists")
	for range 3 {
		if c, err := f.p.OpenShared("nosuch"); c != nil || !errors.Is(err, syscall.ENODEV) {
			t.Error(c, err)
		}
		if b := must(f.p.OpenShared("fake0"))(t); b != a {
			t.Error("two shared contexts")
		}
	}
	if got := f.get("live_lists"); got != lists {
		t.Errorf("%d lists of devices, before %d", got, lists)
	}
}

// TestFakeFullConnection: verbs and cm work on the provider as on every other, with the
// settings that librdmacm leaves to programs: retries (P28), the timer of a receiver that is
// not ready (P29), the time-out of an acknowledgement (P41), both completion queues.
func TestFakeFullConnection(t *testing.T) {
	f := newFake(t, "full")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	l := must(cm.Listen(f.p, "10.9.0.2:0", nil))(t)
	defer l.Close()
	dev := must(verbs.Open(f.p, "fake0"))(t)
	defer dev.Close()
	pd := must(dev.AllocPD())(t)
	defer pd.Close()
	q := must(dev.CreateCQ(100, nil))(t)
	defer q.Close()
	cfg := verbs.QPConfig{SendCQ: q, RecvCQ: q, MaxSendWR: 8, MaxRecvWR: 8}
	b := must(verbs.AllocBuffer(4096, nil))(t)
	defer b.Close()
	mr := must(pd.Register(b, ib.LocalWrite))(t)
	defer mr.Close()
	served := make(chan *cm.Conn, 1)
	go func() {
		defer close(served)
		req, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		v, err := req.CreateQP(pd, cfg)
		if err != nil {
			t.Error(err)
			return
		}
		if err := v.PostRecv(verbs.Recv(7, mr.SGE(0, 100))); err != nil {
			t.Error(err)
		}
		c, err := req.Accept(ctx, nil)
		if err != nil {
			t.Error(err)
			return
		}
		served <- c
	}()
	route := must(cm.Resolve(ctx, f.p, l.Addr().String(), nil))(t)
	v := must(route.CreateQP(pd, cfg))(t)
	if err := v.PostRecv(verbs.Recv(8, mr.SGE(200, 100))); err != nil {
		t.Fatal(err)
	}
	c := must(route.Connect(ctx, &cm.ConnParam{AckTimeout: 500 * time.Millisecond}))(t)
	defer c.Close()
	a := must(v.Query(ib.AttrTimeout | ib.AttrMinRNRTimer | ib.AttrRetryCount | ib.AttrRNRRetry))(t)
	if a.MinRNRTimer != 640*time.Microsecond || a.RNRRetry != 7 || a.Timeout < 500*time.Millisecond || a.Timeout > time.Second {
		t.Errorf("%+v", a)
	}
	s, ok := <-served
	if !ok {
		t.FailNow()
	}
	defer s.Close()
	if a := must(s.QP().Query(ib.AttrMinRNRTimer | ib.AttrRetryCount))(t); a.MinRNRTimer != 640*time.Microsecond || a.RetryCount != 7 {
		t.Errorf("%+v", a)
	}
	copy(b.Bytes()[1000:], "through both floors")
	if err := v.PostSend(verbs.Send(1, mr.SGE(1000, 19), ib.Signaled)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w := must(q.Next(ctx))(t)
		if w.Status != ib.StatusSuccess {
			t.Errorf("%+v", w)
		}
	}
	if got := string(b.Bytes()[:19]); got != "through both floors" {
		t.Errorf("%q", got)
	}
	// The kernel is asked to reject, and does it twice.
	c.Close()
	select {
	case <-s.Done():
	case <-ctx.Done():
		t.Error("the peer does not learn of the end")
	}
}
