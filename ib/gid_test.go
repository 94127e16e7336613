package ib

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

func TestGID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in, out, addr               string
		v4, linkLocal, multi, zero_ bool
	}{
		{"10.9.0.3", "::ffff:10.9.0.3", "10.9.0.3", true, false, false, false},
		{"::ffff:10.9.0.3", "::ffff:10.9.0.3", "10.9.0.3", true, false, false, false},
		{"fd00:9::2", "fd00:9::2", "fd00:9::2", false, false, false, false},
		{"fe80:0000:0000:0000:5054:00ff:fe00:0001", "fe80::5054:ff:fe00:1", "fe80::5054:ff:fe00:1", false, true, false, false},
		{"febf::1", "febf::1", "febf::1", false, true, false, false},
		{"fec0::1", "fec0::1", "fec0::1", false, false, false, false},
		{"ff12:401b::1", "ff12:401b::1", "ff12:401b::1", false, false, true, false},
		{"239.1.2.3", "::ffff:239.1.2.3", "239.1.2.3", true, false, true, false},
		{"::", "::", "::", false, false, false, true},
	} {
		g, err := ParseGID(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		a := netip.MustParseAddr(c.addr)
		if g.String() != c.out || g.Addr() != a || GIDFromAddr(a) != g || g.Is4() != c.v4 ||
			g.IsLinkLocal() != c.linkLocal || g.IsMulticast() != c.multi || g.IsZero() != c.zero_ {
			t.Errorf("%s: %v, %v, %v %v %v %v", c.in, g, g.Addr(), g.Is4(), g.IsLinkLocal(), g.IsMulticast(), g.IsZero())
		}
		var again GID
		b, err := json.Marshal(g)
		if err == nil {
			err = json.Unmarshal(b, &again)
		}
		if err != nil || again != g {
			t.Errorf("%s as JSON: %s, %v, %v", c.in, b, again, err)
		}
	}
	for _, s := range []string{"", "10.9.0", "fe80::1%eth0", "0x0a090003", "::ffff:10.9.0.3/24"} {
		g := GID{1}
		if err := g.UnmarshalText([]byte(s)); err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("%q: %v", s, err)
		}
		if g != (GID{1}) {
			t.Errorf("%q: a failed parse has changed the GID", s)
		}
	}
	if g := GIDFromAddr(netip.Addr{}); !g.IsZero() {
		t.Error(g)
	}
	zoned := netip.MustParseAddr("fe80::1%eth0")
	if g := GIDFromAddr(zoned); g.Addr() != zoned.WithZone("") {
		t.Error(g)
	}
	g, _ := ParseGID("fe80::5054:ff:fe00:1")
	if g.Prefix() != 0xFE80<<48 || g.InterfaceID() != 0x505400fffe000001 {
		t.Errorf("%x %v", g.Prefix(), g.InterfaceID())
	}
}

func TestGUID(t *testing.T) {
	t.Parallel()
	g := GUIDFromMAC([]byte{0x52, 0x54, 0, 0, 0, 1})
	if g != 0x505400fffe000001 || g.String() != "5054:00ff:fe00:0001" {
		t.Errorf("%v", g)
	}
	for _, n := range []int{0, 5, 7, 8} {
		if g := GUIDFromMAC(make([]byte, n)); g != 0 {
			t.Errorf("an address of %d bytes gives %v", n, g)
		}
	}
	for _, s := range []string{"5054:00ff:fe00:0001", "505400fffe000001", "0x505400fffe000001"} {
		var again GUID
		if err := again.UnmarshalText([]byte(s)); err != nil || again != g {
			t.Errorf("%s: %v, %v", s, again, err)
		}
	}
	if b, err := g.MarshalText(); err != nil || string(b) != g.String() {
		t.Errorf("%s, %v", b, err)
	}
	for _, s := range []string{"", "505400fffe00001", "5054:00ff:fe00", "5054:00ff:fe00:00001", "505:400ff:fe00:0001x",
		"50540:0ff:fe00:0001:", "x05400fffe000001", "+05400fffe000001", "5054:+0ff:fe00:0001", "-505400fffe00001"} {
		g := GUID(7)
		if err := g.UnmarshalText([]byte(s)); err == nil || g != 7 {
			t.Errorf("%q gives %v", s, g)
		}
	}
}
