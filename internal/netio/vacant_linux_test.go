package netio

import (
	"net/netip"
	"testing"
)

func TestVacant(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"127.93.0.7:0", "[::1]:0"} {
		a := netip.MustParseAddrPort(s)
		c, err := Listen(a)
		if err != nil {
			t.Logf("%v: %v", a, err) // a host without IPv6
			continue
		}
		a = c.LocalAddr()
		if Vacant(a) {
			t.Errorf("%v is open, and said to be vacant", a)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if !Vacant(a) {
			t.Errorf("%v is closed, and not said to be vacant", a)
		}
	}
	if Vacant(netip.AddrPort{}) {
		t.Error("no address is vacant")
	}
}
