package netio

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	for _, addr := range loopbacks {
		l := open(t, addr, everything).Limits()
		if l.MTU < 16384 || l.Segments != maxSegments || l.TrainBytes != ipv4Payload || l.ReceiveSize != trainSize || l.RecvBuffer < 64<<10 {
			t.Errorf("%s: %+v", addr, l)
		}
		l = open(t, addr, options{}).Limits()
		if l.Segments != 1 || l.ReceiveSize != singleSize {
			t.Errorf("%s without offload: %+v", addr, l)
		}
	}
}

func TestInUse(t *testing.T) {
	t.Parallel()
	for _, addr := range loopbacks {
		c := open(t, addr, everything)
		_, err := Listen(c.LocalAddr())
		var in *InUseError
		if !errors.As(err, &in) || !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("%v", err)
		}
		if want := fmt.Sprintf("process %d (", os.Getpid()); in.Addr != c.LocalAddr() || !strings.HasPrefix(in.Holder, want) {
			t.Errorf("%+v", in)
		}
		if !strings.Contains(err.Error(), in.Holder) || !strings.Contains(err.Error(), c.LocalAddr().String()) {
			t.Error(err)
		}
		c.Close()
		again, err := Listen(c.LocalAddr())
		if err != nil {
			t.Fatal(err)
		}
		again.Close()
	}
}

func TestListenErrors(t *testing.T) {
	t.Parallel()
	if _, err := Listen(netip.AddrPort{}); err == nil {
		t.Error("the zero address is listened on")
	}
	if _, err := Listen(netip.MustParseAddrPort("192.0.2.77:4791")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Error(err)
	}
}

// TestLinkLocal needs an interface with a link-local address, which not every host has.
func TestLinkLocal(t *testing.T) {
	t.Parallel()
	list, err := Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, ifi := range list {
		for _, ip := range ifi.Addrs {
			if !ifi.Up || ip.Zone() == "" {
				continue
			}
			c, err := Listen(netip.AddrPortFrom(ip, 0))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if c.LocalAddr().Addr() != ip || c.Limits().MTU != ifi.MTU {
				t.Errorf("listens on %v with %+v", c.LocalAddr(), c.Limits())
			}
			for _, to := range []netip.Addr{ip, ip.WithZone("")} {
				if n, err := c.Write([]Message{{Buf: []byte("x"), Addr: netip.AddrPortFrom(to, c.LocalAddr().Port())}}); n != 1 || err != nil {
					t.Fatal(n, err)
				}
				in := room(1, 64)
				if n, err := c.Read(in); n != 1 || err != nil || in[0].Addr != c.LocalAddr() {
					t.Fatal(n, err, in[0].Addr)
				}
			}
			return
		}
	}
	t.Skip("no interface of this host has a link-local IPv6 address")
}
