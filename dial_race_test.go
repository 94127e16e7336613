package rdma

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestDialRace: of the addresses of a name those of the second family are tried beside those
// of the first after a delay, or as soon as those have failed; the first connection is taken,
// and the other attempt leaves nothing behind.
func TestDialRace(t *testing.T) {
	var (
		six, four   = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1")
		from6       = netip.MustParseAddr("fd00::2")
		from4       = netip.MustParseAddr("10.0.0.2")
		port, other = uint16(7471), uint16(7472) // somebody listens on the one
	)
	const delay = 300 * time.Millisecond
	for _, c := range []struct {
		name         string
		silent       bool // nobody answers over IPv6
		first, after uint16
		want         netip.Addr
		took         time.Duration
	}{
		{"the first answers", false, port, port, six, 0},
		{"the first is silent", true, port, port, four, delay},
		{"the first is refused", false, other, port, four, 0},
		{"both are refused", false, other, other, netip.Addr{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newTestNet(t)
				defer synctest.Wait() // the attempt that lost puts its things away
				server, client := f.MultiHost(four, six), f.MultiHost(from4, from6)
				ln, err := (&ListenConfig{Config: &Config{Provider: server}}).Listen(t.Context(), "rdma", ":7471")
				if err != nil {
					t.Fatal(err)
				}
				defer ln.Close()
				if c.silent {
					f.Cut(from6, six)
				}
				cfg, err := (&Config{Provider: client}).settle()
				if err != nil {
					t.Fatal(err)
				}
				a := attempt{cfg: &cfg, network: "rdma"}
				start := time.Now()
				conn, err := a.parallel(t.Context(), []netip.AddrPort{netip.AddrPortFrom(six, c.first)}, []netip.AddrPort{netip.AddrPortFrom(four, c.after)}, delay)
				if took := time.Since(start); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				if !c.want.IsValid() {
					if !errors.Is(err, syscall.ECONNREFUSED) {
						t.Error(err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				accepted, err := ln.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer accepted.Close()
				if got := conn.RemoteAddr().(Addr).Addr(); got != c.want {
					t.Errorf("connected to %v, want %v", got, c.want)
				}
			})
		})
	}
}
