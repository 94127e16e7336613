package wire

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"net/netip"
)

// MaxLen is the greatest UDP payload that has an ICRC here: IPv4's limit.
const MaxLen = 65535 - 20 - 8

// Flow computes the ICRC of the packets from one address to another. Its zero value is
// not valid; make one with NewFlow. It is a value that is only read: any goroutine may
// use it.
//
// The ICRC (annex A17.3.3) is the CRC-32 of Ethernet over eight bytes of ones, the IP
// header, the UDP header, the BTH and the rest, where fields that routers may change
// count as ones. What stands before the BTH changes only in the lengths and the IPv4
// identification, and a CRC is linear: so the register after it is that of the flow
// exclusive-or a few table entries, and only the packet itself is run through.
type Flow struct {
	base uint32 // the register before the BTH if lengths and identification were 0
	kind uint8
}

const (
	flow4 = 1 + iota
	flow6
)

// NewFlow takes UDP source and destination. Both must be of one family, else the flow
// is not valid. IPv4-mapped addresses are IPv4; zones do not count.
func NewFlow(src, dst netip.AddrPort) (f Flow) {
	s, d := src.Addr().Unmap(), dst.Addr().Unmap()
	if !s.IsValid() || !d.IsValid() || s.Is4() != d.Is4() {
		return Flow{}
	}
	var buf [40 + 8]byte
	head := appendIP(buf[:0], s, d, ipFields{tos: 0xFF, ttl: 0xFF, sum: 0xFFFF, flow: 0xFFFFF})
	head = appendUDP(head, src.Port(), dst.Port(), 0, 0xFFFF)
	f.kind = flow6
	if s.Is4() {
		f.kind = flow4
	}
	f.base = advance(afterOnes, head)
	return f
}

// Valid reports whether f was made by NewFlow from two addresses of one family.
func (f *Flow) Valid() bool { return f.kind != 0 }

// Put fills the last four bytes of b, a whole UDP payload, with its ICRC. id is the
// IPv4 identification that the packet will carry: 0, or its index in a segmented send.
// It does nothing if f is not valid or b cannot be a packet (shorter than BTH and ICRC,
// longer than MaxLen).
func (f *Flow) Put(b []byte, id uint16) {
	if f.fits(b) {
		binary.LittleEndian.PutUint32(b[len(b)-ICRCLen:], f.sum(b, id))
	}
}

// Check verifies the ICRC in the last four bytes of b. On IPv4 the identification is
// not known to a UDP socket: hint is tried first, then all others at once at the cost
// of 16 of the 32 bits, and at the same time those with the don't-fragment flag
// cleared. It gives the identification that fits, 0 on IPv6.
func (f *Flow) Check(b []byte, hint uint16) (id uint16, ok bool) {
	if !f.fits(b) {
		return 0, false
	}
	if f.kind == flow6 {
		hint = 0
	}
	diff := f.sum(b, hint) ^ binary.LittleEndian.Uint32(b[len(b)-ICRCLen:])
	if diff == 0 {
		return hint, true
	}
	if f.kind == flow6 {
		return 0, false
	}
	// What must have been different in bytes 4 to 7 of the IP header, and only there,
	// to make this difference? Run the register backwards to them.
	v := rewind(diff, len(b)-ICRCLen+16+8)
	if flags := v >> 16; flags != 0 && flags != dontFragment>>8 {
		return 0, false
	}
	return hint ^ bits.ReverseBytes16(uint16(v)), true
}

func (f *Flow) fits(b []byte) bool {
	return f.kind != 0 && len(b) >= BTHLen+ICRCLen && len(b) <= MaxLen
}

// sum gives the ICRC of b, whose length fits.
func (f *Flow) sum(b []byte, id uint16) uint32 {
	n := len(b) + 8
	r := f.base
	if f.kind == flow4 {
		t := n + 20
		r ^= ipLen[0][t>>8&0xFF] ^ ipLen[1][t&0xFF] ^ udpLen[0][n>>8&0xFF] ^ udpLen[1][n&0xFF] ^
			ipID[0][id>>8] ^ ipID[1][id&0xFF]
	} else {
		r ^= bothLen[0][n>>8&0xFF] ^ bothLen[1][n&0xFF]
	}
	// The BTH, with its byte of congestion marks as ones.
	r = step4(r ^ binary.LittleEndian.Uint32(b))
	r = step4(r ^ (binary.LittleEndian.Uint32(b[4:]) | 0xFF))
	r = step4(r ^ binary.LittleEndian.Uint32(b[8:]))
	return crc32.Update(^r, crc32.IEEETable, b[BTHLen:len(b)-ICRCLen])
}
