package netio

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
)

func TestInterfaces(t *testing.T) {
	t.Parallel()
	list, err := Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, ifi := range list {
		if ifi.Name == "" || ifi.Index <= 0 {
			t.Errorf("%+v", ifi)
		}
		for _, ip := range ifi.Addrs {
			if !ip.IsValid() || ip.Is4In6() || ip.IsMulticast() || (ip.Is6() && ip.IsLinkLocalUnicast()) != (ip.Zone() == ifi.Name) {
				t.Errorf("%s has %v", ifi.Name, ip)
			}
			if ip.IsLoopback() {
				found = true
				if !ifi.Up || ifi.MTU < 1280 {
					t.Errorf("%+v", ifi)
				}
			}
			if got := interfaceOf(ip); got.Index != ifi.Index {
				t.Errorf("%v is on %s, not %s", ip, ifi.Name, got.Name)
			}
		}
	}
	if !found {
		t.Error("no loopback address")
	}
	if ifi := interfaceOf(netip.MustParseAddr("127.9.8.7")); ifi.Index != interfaceOf(netip.MustParseAddr("127.0.0.1")).Index {
		t.Errorf("127.9.8.7 is on %+v", ifi)
	}
	for _, a := range []string{"0.0.0.0", "::", "192.0.2.77"} {
		if ifi := interfaceOf(netip.MustParseAddr(a)); ifi.Index != 0 || ifi.MTU < 576 || ifi.MTU > ethernetMTU {
			t.Errorf("%s is on %+v", a, ifi)
		}
	}
}

func TestPrivateLoopback(t *testing.T) {
	t.Parallel()
	prefix := netip.MustParsePrefix("127.0.0.0/8")
	seen := map[netip.Addr]bool{}
	for pid := 1; pid < 1<<22; pid += 4093 { // first choices of any two processes differ
		a := privateLoopback(pid, 0, 0)
		if seen[a] || !prefix.Contains(a) {
			t.Fatalf("process %d gets %v", pid, a)
		}
		seen[a] = true
	}
	for n := range 1000 {
		a, again := PrivateLoopback(n), PrivateLoopback(n)
		if a != again || !prefix.Contains(a) {
			t.Fatalf("choice %d is %v and %v", n, a, again)
		}
		if n > 0 && seen[a] {
			t.Fatalf("choice %d is %v, which is taken", n, a)
		}
		seen[a] = true
		if b := a.As4(); b[1] < 64 || b[1] > 191 {
			t.Fatalf("choice %d is %v, outside the range", n, a)
		}
	}
	if privateLoopback(1, 5, 1) == privateLoopback(1, 6, 1) {
		t.Error("processes with the same number get the same second choice")
	}
}

func TestRouteSource(t *testing.T) {
	t.Parallel()
	for _, k := range []struct{ dst, src string }{
		{"127.0.0.1", "127.0.0.1"},
		{"127.3.4.5", "127.0.0.1"},
		{"::ffff:127.0.0.1", "127.0.0.1"},
		{"::1", "::1"},
	} {
		src, err := RouteSource(netip.MustParseAddr(k.dst))
		if err != nil || src.String() != k.src {
			t.Errorf("%s: %v, %v", k.dst, src, err)
		}
	}
	list, err := Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, ifi := range list { // towards itself a host sends from the address itself
		for _, ip := range ifi.Addrs {
			if ifi.Up && !ip.IsLoopback() {
				if src, err := RouteSource(ip); err != nil || src != ip {
					t.Errorf("%v: %v, %v", ip, src, err)
				}
			}
		}
	}
	var errno syscall.Errno
	if src, err := RouteSource(netip.MustParseAddr("fe80::1")); !errors.As(err, &errno) {
		t.Errorf("%v, %v", src, err)
	}
}

func TestAddrPortOf(t *testing.T) {
	t.Parallel()
	if a := addrPortOf(nil); a.IsValid() {
		t.Error(a)
	}
	if a := addrPortOf(textAddr("10.0.0.1:7")); a.String() != "10.0.0.1:7" {
		t.Error(a)
	}
	if a := addrPortOf(textAddr("pipe")); a.IsValid() {
		t.Error(a)
	}
}

type textAddr string

func (textAddr) Network() string  { return "text" }
func (a textAddr) String() string { return string(a) }
