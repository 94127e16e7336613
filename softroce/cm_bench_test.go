package softroce

import (
	"net/netip"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// BenchmarkConnect is one connection after the other between two devices over sockets
// of the system: from the resolution of the address to both ids closed. The queue pairs
// are made before and not moved.
func BenchmarkConnect(b *testing.B) {
	server := newCMSide(b, newProvider(b, nil), netip.Addr{})
	client := newCMSide(b, newProvider(b, nil), netip.Addr{})
	l := server.newID()
	server.do(l.BindAddr(netip.AddrPortFrom(anyIPv4, 0)))
	server.do(l.Listen(0))
	own, err := server.p.dev.loopback()
	if err != nil {
		b.Fatal(err)
	}
	to := netip.AddrPortFrom(own, l.Info().Local.Port())
	ps, pc := wholeParam, wholeParam
	ps.QPN, pc.QPN = server.qp.Num(), client.qp.Num()
	for b.Loop() {
		c, err := client.ch.CreateID(1, ib.PortSpaceTCP, ib.RC)
		if err != nil {
			b.Fatal(err)
		}
		id := c.(*cmID)
		client.do(id.ResolveAddr(netip.AddrPort{}, to, time.Second))
		client.want(ib.CMAddrResolved)
		client.do(id.ResolveRoute(time.Second))
		client.want(ib.CMRouteResolved)
		client.do(id.Connect(pc))
		child := server.want(ib.CMConnectRequest).Child
		server.do(child.Accept(ps))
		client.want(ib.CMConnectResponse)
		client.do(id.Establish())
		server.want(ib.CMEstablished)
		client.do(id.Disconnect())
		server.want(ib.CMDisconnected)
		server.do(child.Disconnect())
		client.want(ib.CMDisconnected)
		client.do(id.Close())
		server.do(child.Close())
	}
}
