package rdma_test

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// ipv6Places are pairs of addresses of which one is enough for a connection: those of a
// network, and those of a link, which mean nothing without its zone.
var ipv6Places = map[string][2]string{
	"global":     {"fd00::1", "fd00::2"},
	"link-local": {"fe80::1%x", "fe80::2%x"},
}

// onFabric6 is onFabric over IPv6.
func onFabric6(t testing.TB, server, client string) *place {
	t.Helper()
	f := rdmatest.NewFabric(t, 0)
	a, b := netip.MustParseAddr(server), netip.MustParseAddr(client)
	return &place{name: "fabric6", server: f.Host(a), client: f.Host(b), address: netip.AddrPortFrom(a, 0).String(), fabric: f}
}

// onKernel6 gives the pairs of the lab: the interface that has its address has others, of IPv6.
func onKernel6(t *testing.T, p *place) map[string][2]string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		of, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		here, pairs := false, map[string][2]string{}
		for _, a := range of {
			x := netip.MustParsePrefix(a.String()).Addr()
			here = here || x == p.from
			switch {
			case x.Is4():
			case x.IsLinkLocalUnicast():
				zoned := x.WithZone(i.Name).String()
				pairs["link-local"] = [2]string{zoned, zoned}
			default:
				pairs["global"] = [2]string{x.String(), x.String()}
			}
		}
		if here && len(pairs) == 2 {
			return pairs
		}
	}
	t.Fatalf("no interface has %v and addresses of IPv6", p.from)
	return nil
}

// TestC286_IPv6: networks rdma and rdma6 over IPv6, zones included: both ends say the same of
// each other, what the listener says can be dialled, and all bytes arrive in both directions.
func TestC286_IPv6(t *testing.T) {
	lab := onKernel(t)
	places := ipv6Places
	if lab != nil {
		places = onKernel6(t, lab)
	}
	for name, at := range places {
		for _, network := range []string{"rdma", "rdma6"} {
			for _, m := range modes {
				t.Run(name+"/"+network+"/"+m.name, func(t *testing.T) {
					if lab != nil {
						p := *lab
						p.address, p.from = netip.AddrPortFrom(netip.MustParseAddr(at[0]), 0).String(), netip.Addr{}
						overIPv6(t, &p, network, m.compatible, at)
						return
					}
					synctest.Test(t, func(t *testing.T) { overIPv6(t, onFabric6(t, at[0], at[1]), network, m.compatible, at) })
				})
			}
		}
	}
}

func overIPv6(t *testing.T, p *place, network string, compatible bool, at [2]string) {
	cfg := rdma.Config{Compatible: compatible}
	l := &rig{place: p, server: cfg, client: cfg}
	cfg.Provider = l.place.server
	n, err := (&rdma.ListenConfig{Config: &cfg}).Listen(t.Context(), network, l.address)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	c, err := l.dialer().Dial(network, n.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := n.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer closeBoth(s, c)
	server, client := s.LocalAddr().(rdma.Addr), c.LocalAddr().(rdma.Addr)
	if p.name == "kernel" && server.Addr().Zone() == "" && server.Addr().IsLinkLocalUnicast() {
		// A kernel tells the zone to who dials, and not to who is dialled.
		at := n.Addr().(rdma.Addr).Addr().WithZone("")
		if server.Addr() != at || s.RemoteAddr().(rdma.Addr).Addr() != at || c.RemoteAddr() != n.Addr() {
			t.Errorf("%v to %v, and the peer says %v to %v", c.LocalAddr(), c.RemoteAddr(), s.RemoteAddr(), s.LocalAddr())
		}
		carries(t, s, c)
		return
	}
	if server.Addr().String() != at[0] || client.Addr().String() != at[1] {
		t.Errorf("the ends are %v and %v", server, client)
	}
	if c.RemoteAddr() != s.LocalAddr() || s.RemoteAddr() != c.LocalAddr() || server != n.Addr() {
		t.Errorf("%v to %v, and the peer says %v to %v", c.LocalAddr(), c.RemoteAddr(), s.RemoteAddr(), s.LocalAddr())
	}
	carries(t, s, c)
}

// carries sends a megabyte in each direction.
func carries(t *testing.T, s, c net.Conn) {
	const size = 1 << 20
	go func() {
		if _, err := c.Write(pattern(size, 1)); err != nil {
			t.Error(err)
		}
	}()
	reads(t, s, pattern(size, 1))
	go func() {
		if _, err := s.Write(pattern(size, 2)); err != nil {
			t.Error(err)
		}
	}()
	reads(t, c, pattern(size, 2))
}
