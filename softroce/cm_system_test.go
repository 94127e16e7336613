package softroce

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
)

func TestCanonical(t *testing.T) {
	t.Parallel()
	lo, err := net.InterfaceByIndex(1)
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"::ffff:1.2.3.4":   "1.2.3.4",
		"fd00::1%eth0":     "fd00::1",
		"fe80::1%eth0":     "fe80::1%eth0",
		"fe80::1%1":        "fe80::1%" + lo.Name,
		"fe80::1%99999999": "fe80::1%99999999",
		"1.2.3.4":          "1.2.3.4",
	} {
		if got := canonical(netip.MustParseAddr(in)); got.String() != want {
			t.Errorf("%s: %v, want %s", in, got, want)
		}
	}
}

func TestIsBroadcast(t *testing.T) {
	t.Parallel()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	if isBroadcast(netip.MustParseAddr("8.8.8.7")) || isBroadcast(netip.MustParseAddr("fd00::3")) {
		t.Error("a broadcast address of a foreign network")
	}
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.To4() == nil {
			continue
		}
		ones, _ := n.Mask.Size()
		if ones >= 31 {
			continue
		}
		b := slices.Clone(n.IP.To4())
		if own, _ := netip.AddrFromSlice(b); isBroadcast(own) {
			t.Errorf("%v is an address of this host", own)
		}
		for i := range b {
			b[i] |= ^n.Mask[i]
		}
		if last, _ := netip.AddrFromSlice(b); !isBroadcast(last) {
			t.Errorf("%v is the broadcast address of %v", last, n)
		}
	}
}

func TestC201_RealLoopback(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	server := newCMSide(t, p, netip.Addr{})
	l := server.newID()
	if err := l.BindAddr(netip.AddrPortFrom(anyIPv4, 0)); err != nil {
		t.Fatal(err)
	}
	if err := l.Listen(0); err != nil {
		t.Fatal(err)
	}
	own, err := p.dev.loopback()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []*Provider{newProvider(t, nil), p} {
		client := newCMSide(t, q, netip.Addr{})
		id := client.resolve(netip.AddrPortFrom(own, l.Info().Local.Port()))
		if from := id.Info().Local.Addr(); !from.IsLoopback() || (from == own) != (q == p) {
			t.Errorf("%v is met from %v", own, from)
		}
		client.ask(id)
		ev := server.want(ib.CMConnectRequest)
		child := server.accept(ev)
		if i := child.Info(); i.Local.Addr() != own || i.Remote != id.Info().Local {
			t.Errorf("child: %+v", i)
		}
		client.establish(id)
		server.want(ib.CMEstablished)
		server.qp, client.qp = server.qps[child], client.qps[id]
		rid := server.recv(0, 100)
		sid := client.send(0, 100, 0)
		ok(t, client.next(client.scq), sid)
		ok(t, server.next(server.rcq), rid)
		client.do(id.Close())
		server.want(ib.CMDisconnected)
		server.do(child.Close())
	}
}

func TestC203_RealVacantLoopback(t *testing.T) {
	t.Parallel()
	s := newCMSide(t, newProvider(t, nil), netip.Addr{})
	start := time.Now()
	id := s.resolve(netip.AddrPortFrom(netio.PrivateLoopback(977), 5))
	s.ask(id)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.ch.Wait(ctx); err != nil {
		t.Fatalf("no answer after %v", time.Since(start))
	}
	if ev := s.want(ib.CMRejected); ev.Status != 8 {
		t.Errorf("%+v", ev)
	}
}

func TestC227_LinkLocal(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		one, two := netip.MustParseAddr("fe80::1%x"), netip.MustParseAddr("fe80::2%x")
		a, b := newCMSide(t, n.provider(t, 1, one), one), newCMSide(t, n.provider(t, 2, two), two)
		ida, idb := join(t, a, b)
		if i, j := ida.Info(), idb.Info(); i.Local.Addr() != one || i.Remote.Addr() != two || j.Local != i.Remote || j.Remote != i.Local {
			t.Errorf("%+v and %+v", i, j)
		}
		a.qp, b.qp = a.qps[ida], b.qps[idb]
		rid := b.recv(0, 100)
		sid := a.send(0, 100, 0)
		ok(t, a.next(a.scq), sid)
		ok(t, b.next(b.rcq), rid)
		a.do(ida.Close())
		b.want(ib.CMDisconnected)
	})
}

func ExampleProvider_OpenCM() {
	p, err := New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	m, err := p.OpenCM()
	if err != nil {
		fmt.Println(err)
		return
	}
	ch, err := m.OpenChannel()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ch.Close()
	_, any, err := ch.Next()
	fmt.Println(any, err)
	// Output: false <nil>
}
