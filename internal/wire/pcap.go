package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// Datagram is a UDP datagram with what its IP header says.
type Datagram struct {
	Src, Dst netip.AddrPort
	TOS, TTL uint8  // traffic class and hop limit on IPv6; zero TTL is written as 64
	ID       uint16 // IPv4 identification
	DF       bool   // don't fragment; it is always written
	Payload  []byte // from BTH to ICRC
}

const (
	pcapMagicMicro = 0xA1B2C3D4
	pcapMagicNano  = 0xA1B23C4D
	pcapSnap       = 1 << 18
	pcapEthernet   = 1
	etherLen       = 14
	etherIPv4      = 0x0800
	etherIPv6      = 0x86DD
)

// PcapWriter writes datagrams as Ethernet frames in a pcap file with times in
// nanoseconds. Ethernet addresses are made from the IP addresses. The UDP checksum is
// 0, as NICs send it. It is used by one goroutine at a time.
type PcapWriter struct {
	w   io.Writer
	buf []byte
}

// NewPcapWriter writes the file header to w. Every packet is one Write.
func NewPcapWriter(w io.Writer) (*PcapWriter, error) {
	var h [24]byte
	binary.LittleEndian.PutUint32(h[0:], pcapMagicNano)
	binary.LittleEndian.PutUint16(h[4:], 2)
	binary.LittleEndian.PutUint16(h[6:], 4)
	binary.LittleEndian.PutUint32(h[16:], pcapSnap)
	binary.LittleEndian.PutUint32(h[20:], pcapEthernet)
	if _, err := w.Write(h[:]); err != nil {
		return nil, err
	}
	return &PcapWriter{w: w}, nil
}

// Write writes d with the time t since 1970. The ICRC in d.Payload must have been made
// for d.ID.
func (p *PcapWriter) Write(t time.Duration, d *Datagram) error {
	b, err := AppendFrame(append(p.buf[:0], make([]byte, 16)...), d)
	if err != nil {
		return err
	}
	p.buf = b
	n := uint32(len(b) - 16)
	binary.LittleEndian.PutUint32(b[0:], uint32(t/time.Second))
	binary.LittleEndian.PutUint32(b[4:], uint32(t%time.Second))
	binary.LittleEndian.PutUint32(b[8:], n)
	binary.LittleEndian.PutUint32(b[12:], n)
	_, err = p.w.Write(b)
	return err
}

// AppendFrame appends d as an Ethernet frame.
func AppendFrame(b []byte, d *Datagram) ([]byte, error) {
	s, t := d.Src.Addr().Unmap(), d.Dst.Addr().Unmap()
	n := len(d.Payload) + 8
	if !s.IsValid() || !t.IsValid() || s.Is4() != t.Is4() || len(d.Payload) > MaxLen {
		return b, fmt.Errorf("wire: no frame from %v to %v of %d bytes", d.Src, d.Dst, len(d.Payload))
	}
	b = appendMAC(appendMAC(b, t), s)
	if s.Is4() {
		b = binary.BigEndian.AppendUint16(b, etherIPv4)
	} else {
		b = binary.BigEndian.AppendUint16(b, etherIPv6)
	}
	f := ipFields{tos: d.TOS, ttl: d.TTL, id: d.ID, len: n}
	if f.ttl == 0 {
		f.ttl = 64
	}
	at := len(b)
	b = appendIP(b, s, t, f)
	if s.Is4() {
		binary.BigEndian.PutUint16(b[at+10:], ^onesSum(b[at:]))
	}
	b = appendUDP(b, d.Src.Port(), d.Dst.Port(), n, 0)
	return append(b, d.Payload...), nil
}

// appendMAC appends a locally administered address that ends like a.
func appendMAC(b []byte, a netip.Addr) []byte {
	x := a.As16()
	return append(append(b, 2, 0), x[12:]...)
}

// onesSum is the ones' complement sum of the 16-bit words in b (RFC 1071).
func onesSum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xFFFF
	}
	return uint16(sum)
}

// ParseFrame finds the UDP datagram in an Ethernet frame: no VLAN tag, no IP options,
// no fragment. The payload refers to the frame.
func ParseFrame(frame []byte) (d Datagram, ok bool) {
	if len(frame) < etherLen {
		return d, false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherIPv4, etherIPv6:
		return ParseIP(frame[etherLen:])
	}
	return d, false
}

// ParseIP finds the UDP datagram in an IP packet; see ParseFrame. Bytes behind the
// packet's length are left out.
func ParseIP(b []byte) (d Datagram, ok bool) {
	if len(b) < 20 {
		return d, false
	}
	var src, dst netip.Addr
	n := 0
	switch {
	case b[0] == 0x45:
		n = int(binary.BigEndian.Uint16(b[2:]))
		flags := binary.BigEndian.Uint16(b[6:])
		if b[9] != 17 || flags&^(dontFragment) != 0 || n < 28 || n > len(b) {
			return d, false
		}
		src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		d.TOS, d.TTL, d.ID, d.DF = b[1], b[8], binary.BigEndian.Uint16(b[4:]), flags != 0
		b = b[20:n]
	case b[0]>>4 == 6 && len(b) >= 48:
		n = int(binary.BigEndian.Uint16(b[4:]))
		if b[6] != 17 || n < 8 || n > len(b)-40 {
			return d, false
		}
		src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		d.TOS, d.TTL = b[0]<<4|b[1]>>4, b[7]
		b = b[40 : 40+n]
	default:
		return d, false
	}
	if int(binary.BigEndian.Uint16(b[4:])) != len(b) {
		return d, false
	}
	d.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	d.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	d.Payload = b[8:]
	return d, true
}

// PcapReader reads a pcap file of Ethernet frames, of either byte order, with times in
// microseconds or nanoseconds. It is used by one goroutine at a time.
type PcapReader struct {
	r     io.Reader
	order binary.ByteOrder
	unit  time.Duration
	buf   []byte
}

// NewPcapReader reads the file header.
func NewPcapReader(r io.Reader) (*PcapReader, error) {
	var h [24]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, fmt.Errorf("wire: pcap header: %w", err)
	}
	p := &PcapReader{r: r, order: binary.LittleEndian, unit: time.Microsecond}
	magic := p.order.Uint32(h[:])
	if magic != pcapMagicMicro && magic != pcapMagicNano {
		p.order = binary.BigEndian
		magic = p.order.Uint32(h[:])
	}
	switch magic {
	case pcapMagicMicro:
	case pcapMagicNano:
		p.unit = time.Nanosecond
	default:
		return nil, errors.New("wire: not a pcap file")
	}
	if link := p.order.Uint32(h[20:]); link != pcapEthernet {
		return nil, fmt.Errorf("wire: pcap link type %d is not Ethernet", link)
	}
	return p, nil
}

// Next gives the next frame and its time since 1970; the frame is valid until the next
// call. At the end of the file it gives io.EOF.
func (p *PcapReader) Next() (t time.Duration, frame []byte, err error) {
	var h [16]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		return 0, nil, err
	}
	n, size := p.order.Uint32(h[8:]), p.order.Uint32(h[12:])
	if n > pcapSnap || n > size {
		return 0, nil, fmt.Errorf("wire: pcap frame of %d bytes", n)
	}
	if int(n) > cap(p.buf) {
		p.buf = make([]byte, n)
	}
	p.buf = p.buf[:n]
	if _, err := io.ReadFull(p.r, p.buf); err != nil {
		return 0, nil, fmt.Errorf("wire: pcap frame: %w", err)
	}
	t = time.Duration(p.order.Uint32(h[0:]))*time.Second + time.Duration(p.order.Uint32(h[4:]))*p.unit
	return t, p.buf, nil
}
