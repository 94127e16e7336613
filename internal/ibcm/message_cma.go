package ibcm

import (
	"encoding/binary"
	"net/netip"
)

// CMAHeaderLen is the size of the address header at the start of the private data of
// REQ and SIDR_REQ; a program has what is left, 56 and 180 bytes.
const CMAHeaderLen = 36

// CMAHeader says which IP addresses a REQ or SIDR_REQ connects (annex A11.4). It comes
// from the peer and is not protected: compare it with the addresses of the packet.
type CMAHeader struct {
	Src, Dst netip.Addr // both IPv4 or both IPv6, without zone
	SrcPort  uint16     // of the connecting id; the destination port is in the service id
}

// Encode overwrites the first CMAHeaderLen bytes of b, which must be there. Addresses
// of different families give an error.
func (h *CMAHeader) Encode(b []byte) error {
	s, d := h.Src.Unmap(), h.Dst.Unmap()
	if !s.IsValid() || !d.IsValid() || s.Is4() != d.Is4() || len(b) < CMAHeaderLen {
		return ErrCMAHeader
	}
	clear(b[:CMAHeaderLen])
	binary.BigEndian.PutUint16(b[2:], h.SrcPort)
	if s.Is4() {
		b[1] = 4 << 4
		s4, d4 := s.As4(), d.As4()
		copy(b[16:], s4[:])
		copy(b[32:], d4[:])
		return nil
	}
	b[1] = 6 << 4
	s6, d6 := s.As16(), d.As16()
	copy(b[4:], s6[:])
	copy(b[20:], d6[:])
	return nil
}

// Decode reads the start of b, private data of any length. It refuses an unknown
// version or address family. The twelve bytes before an IPv4 address are ignored.
func (h *CMAHeader) Decode(b []byte) error {
	if len(b) < CMAHeaderLen || b[0] != 0 {
		return ErrCMAHeader
	}
	switch b[1] >> 4 {
	case 4:
		h.Src = netip.AddrFrom4([4]byte(b[16:20]))
		h.Dst = netip.AddrFrom4([4]byte(b[32:36]))
	case 6:
		h.Src = netip.AddrFrom16([16]byte(b[4:20]))
		h.Dst = netip.AddrFrom16([16]byte(b[20:36]))
	default:
		return ErrCMAHeader
	}
	h.SrcPort = binary.BigEndian.Uint16(b[2:])
	return nil
}
