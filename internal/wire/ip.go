package wire

import (
	"encoding/binary"
	"net/netip"
)

// ipFields are the fields of an IP header that are not addresses or lengths.
type ipFields struct {
	tos  uint8
	ttl  uint8
	id   uint16
	sum  uint16 // IPv4
	flow uint32 // IPv6
	len  int    // of the UDP datagram, with its header
}

const dontFragment = 0x4000

// appendIP appends an IPv4 or IPv6 header without options. The length counts only if it
// is not 0.
func appendIP(b []byte, src, dst netip.Addr, f ipFields) []byte {
	if src.Is4() {
		total := 0
		if f.len != 0 {
			total = f.len + 20
		}
		b = append(b, 0x45, f.tos, byte(total>>8), byte(total), byte(f.id>>8), byte(f.id), dontFragment>>8, 0,
			f.ttl, 17, byte(f.sum>>8), byte(f.sum))
		s, d := src.As4(), dst.As4()
		b = append(b, s[:]...)
		return append(b, d[:]...)
	}
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(f.tos)<<20|f.flow&0xFFFFF)
	b = append(b, byte(f.len>>8), byte(f.len), 17, f.ttl)
	s, d := src.As16(), dst.As16()
	b = append(b, s[:]...)
	return append(b, d[:]...)
}

func appendUDP(b []byte, src, dst uint16, n int, sum uint16) []byte {
	return append(b, byte(src>>8), byte(src), byte(dst>>8), byte(dst), byte(n>>8), byte(n), byte(sum>>8), byte(sum))
}
