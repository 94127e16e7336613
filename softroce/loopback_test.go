package softroce

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
)

// A device whose addresses are configured meets its peers on the loopback from one of
// them, whether or not it is open already.
func TestConfiguredLoopback(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddr("127.9.9.9")
	for _, c := range []struct {
		addrs []netip.Addr
		want  netip.Addr
	}{
		{[]netip.Addr{netip.MustParseAddr("10.0.0.1"), own}, own},
		{[]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.IPv6Loopback()}, netip.Addr{}},
	} {
		p, err := New(&Config{Addrs: c.addrs, ListenPacket: func(netip.AddrPort) (net.PacketConn, error) {
			return net.ListenPacket("udp", "127.0.0.1:0")
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		got, err := p.dev.loopback()
		if got != c.want || (err == nil) != c.want.IsValid() || err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("%v: %v, %v", c.addrs, got, err)
		}
	}
}
