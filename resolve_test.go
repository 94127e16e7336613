package rdma

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// Addresses are taken as package net takes them.
func TestLookup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		network, address string
		listen           bool
		want             []string
	}{
		{"rdma", "10.0.0.1:7471", false, []string{"10.0.0.1:7471"}},
		{"rdma4", "10.0.0.1:7471", false, []string{"10.0.0.1:7471"}},
		{"rdma", "[::ffff:10.0.0.1]:1", false, []string{"10.0.0.1:1"}},
		{"rdma", "[fe80::1%lo]:http", false, []string{"[fe80::1%lo]:80"}},
		{"rdma6", "[fe80::1%lo]:1", true, []string{"[fe80::1%lo]:1"}},
		{"rdma", ":1", false, []string{"127.0.0.1:1"}},
		{"rdma6", ":1", false, []string{"[::1]:1"}},
		{"rdma", ":0", true, []string{"[::]:0"}},
		{"rdma4", ":0", true, []string{"0.0.0.0:0"}},
		{"rdma6", ":0", true, []string{"[::]:0"}},
		{"rdma", "0.0.0.0:5", true, []string{"0.0.0.0:5"}},
		{"rdma", "0.0.0.0:5", false, []string{"127.0.0.1:5"}},
		{"rdma", "[::]:5", false, []string{"127.0.0.1:5", "[::1]:5"}},
		{"rdma6", "[::]:5", false, []string{"[::1]:5"}},
		{"rdma4", "127.0.0.1:https", false, []string{"127.0.0.1:443"}},
	} {
		got, err := lookup(context.Background(), c.network, c.address, c.listen)
		if err != nil {
			t.Errorf("%s %s: %v", c.network, c.address, err)
			continue
		}
		var s []string
		for _, a := range got.addrs {
			s = append(s, a.String())
		}
		if !slices.Equal(s, c.want) {
			t.Errorf("%s %s (listen %v): %v, want %v", c.network, c.address, c.listen, s, c.want)
		}
	}
	if got, err := lookup(context.Background(), "rdma4", "localhost:7", false); err != nil || len(got.addrs) != 1 || got.addrs[0].String() != "127.0.0.1:7" {
		t.Errorf("localhost: %v, %v", got.addrs, err)
	}
}

func TestLookupErrors(t *testing.T) {
	t.Parallel()
	var unknown net.UnknownNetworkError
	var addr *net.AddrError
	var dns *net.DNSError
	for _, c := range []struct {
		network, address string
		as               any
	}{
		{"tcp", "10.0.0.1:1", &unknown},
		{"", "10.0.0.1:1", &unknown},
		{"rdma", "10.0.0.1", &addr},
		{"rdma", "", &addr},
		{"rdma", "[::1:1", &addr},
		{"rdma4", "[::1]:1", &addr},
		{"rdma6", "10.0.0.1:1", &addr},
		{"rdma", "10.0.0.1:65536", &addr},
		{"rdma", "10.0.0.1:-1", &addr},
		{"rdma", "10.0.0.1:nosuchservice", &dns},
	} {
		_, err := lookup(context.Background(), c.network, c.address, false)
		if err == nil || !errors.As(err, c.as) {
			t.Errorf("%s %q: %v (%T), want %T", c.network, c.address, err, err, c.as)
		}
	}
}

func TestPartition(t *testing.T) {
	t.Parallel()
	parse := netip.MustParseAddrPort
	a, b, c := parse("[::1]:1"), parse("1.2.3.4:1"), parse("[::2]:1")
	p, f := partition([]netip.AddrPort{a, b, c})
	if !slices.Equal(p, []netip.AddrPort{a, c}) || !slices.Equal(f, []netip.AddrPort{b}) {
		t.Errorf("%v, %v", p, f)
	}
}

func TestAddr(t *testing.T) {
	t.Parallel()
	a := Addr{netip.MustParseAddrPort("[fe80::1%eth0]:7471")}
	if a.Network() != "rdma" || a.String() != "[fe80::1%eth0]:7471" || (Addr{}).String() != "<nil>" {
		t.Error(a, a.Network())
	}
	for _, x := range []net.Addr{a, net.TCPAddrFromAddrPort(a.AddrPort), &net.UDPAddr{IP: a.Addr().AsSlice(), Zone: "eth0", Port: 7471}} {
		if got, ok := addrPortOf(x); !ok || got != a.AddrPort {
			t.Errorf("%T: %v, %v", x, got, ok)
		}
	}
	if got, ok := addrPortOf(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}); !ok || got.String() != "10.0.0.1:1" {
		t.Error(got, ok)
	}
	mapped := Addr{netip.MustParseAddrPort("[::ffff:10.0.0.1]:1")}
	for _, x := range []net.Addr{mapped, net.TCPAddrFromAddrPort(mapped.AddrPort), textAddr(mapped.String())} {
		if got, ok := addrPortOf(x); !ok || got.String() != "10.0.0.1:1" {
			t.Errorf("%T: %v, %v", x, got, ok)
		}
	}
	if _, ok := addrPortOf(&net.UnixAddr{Name: "x"}); ok {
		t.Error("a unix address has no numbers")
	}
}

// textAddr is an address of which only the text says something.
type textAddr string

func (a textAddr) Network() string { return "text" }
func (a textAddr) String() string  { return string(a) }
