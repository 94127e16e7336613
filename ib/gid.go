package ib

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// GID is a global identifier (union ibv_gid). On RoCEv2 it is an IP address: IPv6 as
// it is, IPv4 as ::ffff:a.b.c.d. The zero value is the empty entry of a GID table.
type GID [16]byte

// GIDFromAddr maps an IP address the way RoCEv2 does. A zone is left out; the zero
// Addr gives the zero GID.
func GIDFromAddr(a netip.Addr) GID { return a.As16() }

// ParseGID reads the text of an IPv4 or IPv6 address, long or short, without zone.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return GID{}, fmt.Errorf("ib: GID %q: not an address", s)
	}
	if a.Zone() != "" {
		return GID{}, fmt.Errorf("ib: GID %q: a GID has no zone", s)
	}
	return GIDFromAddr(a), nil
}

// Addr gives the IP address of a RoCEv2 GID: IPv4 for a mapped one, else IPv6 without
// a zone.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether g is the empty entry of a table.
func (g GID) IsZero() bool { return g == GID{} }

// Is4 reports whether g is an IPv4 address.
func (g GID) Is4() bool { return netip.AddrFrom16(g).Is4In6() }

// IsLinkLocal reports whether g is of fe80::/10 and therefore needs an interface.
func (g GID) IsLinkLocal() bool { return g[0] == 0xFE && g[1]&0xC0 == 0x80 }

// IsMulticast reports whether g names a group: an IPv6 multicast address (so are all
// groups of InfiniBand) or a mapped IPv4 one.
func (g GID) IsMulticast() bool { return g.Addr().IsMulticast() }

// Prefix gives the upper half, the subnet prefix of InfiniBand.
func (g GID) Prefix() uint64 { return binary.BigEndian.Uint64(g[:8]) }

// InterfaceID gives the lower half, a GUID on InfiniBand.
func (g GID) InterfaceID() GUID { return GUID(binary.BigEndian.Uint64(g[8:])) }

// String gives the short form of the address, ::ffff:10.9.0.3 or fd00:9::2.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// AppendText appends the form of String.
func (g GID) AppendText(b []byte) ([]byte, error) { return netip.AddrFrom16(g).AppendText(b) }

// MarshalText gives the form of String.
func (g GID) MarshalText() ([]byte, error) { return g.AppendText(nil) }

// UnmarshalText reads what ParseGID reads.
func (g *GID) UnmarshalText(b []byte) error {
	v, err := ParseGID(string(b))
	if err == nil {
		*g = v
	}
	return err
}

// GUID is a 64-bit identifier of a node, system or port, in host order.
type GUID uint64

// GUIDFromMAC makes the EUI-64 of a 6-byte Ethernet address with its universal bit
// turned over, as RoCE devices do (RFC 4291 appendix A). Other lengths give 0.
func GUIDFromMAC(mac []byte) GUID {
	if len(mac) != 6 {
		return 0
	}
	return GUID(mac[0]^2)<<56 | GUID(mac[1])<<48 | GUID(mac[2])<<40 | 0xFFFE<<24 |
		GUID(mac[3])<<16 | GUID(mac[4])<<8 | GUID(mac[5])
}

// String gives four groups of four digits, 5054:00ff:fe00:0001, as ibv_devinfo does.
func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// AppendText appends the form of String.
func (g GUID) AppendText(b []byte) ([]byte, error) { return append(b, g.String()...), nil }

// MarshalText gives the form of String.
func (g GUID) MarshalText() ([]byte, error) { return g.AppendText(nil) }

// UnmarshalText reads the form of String, or 16 hexadecimal digits with or without 0x.
func (g *GUID) UnmarshalText(b []byte) error {
	s := string(b)
	if strings.Contains(s, ":") {
		part := strings.Split(s, ":")
		if len(part) != 4 || len(s) != 19 {
			return fmt.Errorf("ib: GUID %q: %w", s, errGUID)
		}
		s = strings.Join(part, "")
	}
	s = strings.TrimPrefix(s, "0x")
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil || len(s) != 16 {
		return fmt.Errorf("ib: GUID %q: %w", b, errGUID)
	}
	*g = GUID(v)
	return nil
}

var errGUID = errors.New("want 16 hexadecimal digits")
