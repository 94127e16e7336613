package rdma_test

import (
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

// TestC286_IPv6: networks rdma and rdma6 over IPv6, zones included: both ends say the same of
// each other, what the listener says can be dialled, and all bytes arrive in both directions.
func TestC286_IPv6(t *testing.T) {
	for name, at := range ipv6Places {
		for _, network := range []string{"rdma", "rdma6"} {
			for _, m := range modes {
				t.Run(name+"/"+network+"/"+m.name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						cfg := rdma.Config{Compatible: m.compatible}
						l := &rig{place: onFabric6(t, at[0], at[1]), server: cfg, client: cfg}
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
						if server.Addr().String() != at[0] || client.Addr().String() != at[1] {
							t.Errorf("the ends are %v and %v", server, client)
						}
						if c.RemoteAddr() != s.LocalAddr() || s.RemoteAddr() != c.LocalAddr() || server != n.Addr() {
							t.Errorf("%v to %v, and the peer says %v to %v", c.LocalAddr(), c.RemoteAddr(), s.RemoteAddr(), s.LocalAddr())
						}
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
					})
				})
			}
		}
	}
}
