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

// TestFallbackNames: TCP takes the place of RDMA where no address of a name has RDMA, and not
// where only the first has none, as those of IPv6 of many networks. A silent one does not take
// the time of those behind it.
func TestFallbackNames(t *testing.T) {
	t.Parallel()
	f := newTestNet(t)
	server, client := f.Host(netip.MustParseAddr("127.0.0.1")), f.MultiHost(netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("::1"))
	rdma, port := listenBeside(t, server, "127.0.0.2", "::1") // there RDMA is silent, and refused
	at := func(ip string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(ip), port) }
	f.Cut(netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("127.0.0.2"))
	for _, x := range []struct {
		what      string
		primaries []netip.AddrPort
		others    []netip.AddrPort
		kind      string
		remote    string
	}{
		{"refused, then RDMA", []netip.AddrPort{at("::1"), at("127.0.0.1")}, nil, "rdma", "127.0.0.1"},
		{"silent, then RDMA", []netip.AddrPort{at("127.0.0.2"), at("127.0.0.1")}, nil, "rdma", "127.0.0.1"},
		{"refused, RDMA in the other family", []netip.AddrPort{at("::1")}, []netip.AddrPort{at("127.0.0.1")}, "rdma", "127.0.0.1"},
		{"no RDMA", []netip.AddrPort{at("127.0.0.2")}, []netip.AddrPort{at("::1")}, "tcp", "127.0.0.2"},
	} {
		fell, connected, failed := 0, 0, 0
		cfg, err := (&Config{Provider: client, Fallback: TCPFallback, Trace: &Trace{
			FellBack: func(string, error) { fell++ },
			Connected: func(_ *Conn, _ time.Duration, err error) {
				if err == nil {
					connected++
				} else {
					failed++
				}
			},
		}}).settle()
		if err != nil {
			t.Fatal(err)
		}
		a := attempt{cfg: &cfg, network: "rdma"}
		c, err := a.parallel(t.Context(), x.primaries, x.others, 10*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", x.what, err)
		}
		remote := netip.MustParseAddrPort(c.RemoteAddr().String()).Addr().String()
		if tr := c.Transport(); tr.Kind != x.kind || remote != x.remote || (fell > 0) != (x.kind == "tcp") {
			t.Errorf("%s: %+v to %v, fell back %d times", x.what, tr, remote, fell)
		}
		if want := map[string]int{"rdma": 1}[x.kind]; connected != 1 || failed != want {
			t.Errorf("%s: %d addresses are told to be connected, and %d not", x.what, connected, failed)
		}
		closed := make(chan struct{})
		go func() { c.Close(); close(closed) }()
		if x.kind == "rdma" {
			s, err := rdma.Accept()
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
		}
		<-closed
	}
}

// listenBeside listens over RDMA on 127.0.0.1, and over TCP on one port number at others.
func listenBeside(t *testing.T, p verbs.Provider, others ...string) (*Listener, uint16) {
	t.Helper()
	for {
		ln, err := (&ListenConfig{Config: &Config{Provider: p}}).Listen(t.Context(), "rdma", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := ln.Addr().(Addr).Port()
		all := []net.Listener{ln}
		for _, a := range others {
			tcp, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr(a), port).String())
			if errors.Is(err, syscall.EADDRINUSE) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, tcp)
		}
		if len(all) == 1+len(others) {
			t.Cleanup(func() {
				for _, l := range all {
					l.Close()
				}
			})
			return ln.(*Listener), port
		}
		for _, l := range all { // the port is taken at one of them
			l.Close()
		}
	}
}
