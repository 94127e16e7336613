package rdma

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// hosts46 gives two hosts with addresses of both families.
func hosts46(t *testing.T) (server, client verbs.Provider, addrs [2]netip.Addr) {
	f := newTestNet(t)
	addrs = [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	return f.MultiHost(addrs[:]...), f.MultiHost(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")), addrs
}

// TestListenFamily: a wildcard of one family takes connections of that one alone, so that two
// listeners can share a port, as with package net; the one of both takes both.
func TestListenFamily(t *testing.T) {
	t.Parallel()
	server, client, addrs := hosts46(t)
	lc := &ListenConfig{Config: &Config{Provider: server}}
	open := func(network, address string) *Listener {
		t.Helper()
		ln, err := lc.Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		return ln.(*Listener)
	}
	meets := func(ln *Listener, to netip.Addr) bool {
		t.Helper()
		d := &Dialer{Config: &Config{Provider: client}, Timeout: time.Minute}
		c, err := d.Dial("rdma", netip.AddrPortFrom(to, ln.addr.Port()).String())
		if err != nil {
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%v: %v", to, err)
			}
			return false
		}
		s, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() { c.Close(); close(closed) }()
		s.Close()
		<-closed
		return true
	}
	for _, x := range []struct {
		network, address string
		want             [2]bool
	}{
		{"rdma", ":0", [2]bool{true, true}},
		{"rdma", "[::]:0", [2]bool{true, true}},
		{"rdma4", ":0", [2]bool{true, false}},
		{"rdma4", "0.0.0.0:0", [2]bool{true, false}},
		{"rdma6", ":0", [2]bool{false, true}},
		{"rdma6", "[::]:0", [2]bool{false, true}},
	} {
		ln := open(x.network, x.address)
		for i, a := range addrs {
			if got := meets(ln, a); got != x.want[i] {
				t.Errorf("%s %s takes a connection to %v: %v", x.network, x.address, a, got)
			}
		}
	}
	six := open("rdma6", ":7471")
	if four := open("rdma4", ":7471"); !meets(six, addrs[1]) || !meets(four, addrs[0]) {
		t.Error("one port for both families")
	}
}

// TestListenName: of the addresses of a name a listener has one, of IPv4 if there is one and
// the device has it; a port that is taken there is no reason for another address.
func TestListenName(t *testing.T) {
	t.Parallel()
	server, _, addrs := hosts46(t)
	foreign := netip.MustParseAddr("10.0.0.77")
	bind := func(port uint16, name ...netip.Addr) (*Listener, error) {
		cfg, err := (&Config{Provider: server}).settle()
		if err != nil {
			t.Fatal(err)
		}
		l := &Listener{cfg: cfg, network: "rdma", backlog: 1}
		l.init()
		to := &target{host: "name", port: port}
		for _, a := range name {
			to.add(a)
		}
		if err := l.bindOne(to); err != nil {
			return nil, err
		}
		l.start()
		t.Cleanup(func() { l.Close() })
		return l, nil
	}
	for _, x := range []struct {
		name []netip.Addr
		want netip.Addr
	}{
		{[]netip.Addr{addrs[1], addrs[0]}, addrs[0]},
		{[]netip.Addr{addrs[1], foreign}, addrs[1]},
		{[]netip.Addr{foreign, addrs[1], addrs[0]}, addrs[0]},
	} {
		l, err := bind(0, x.name...)
		if err != nil || l.addr.Addr() != x.want {
			t.Fatalf("%v: %v, %v", x.name, l, err)
		}
	}
	if _, err := bind(7471, addrs[0]); err != nil {
		t.Fatal(err)
	}
	_, err := bind(7471, addrs[1], addrs[0])
	var op *net.OpError
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) || op.Addr.String() != "10.0.0.1:7471" {
		t.Errorf("a port that is taken: %v", err)
	}
}
