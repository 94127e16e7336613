package netio

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// batch is the number of messages that one system call moves.
const batch = 64

// headers are message headers for one direction, with the memory that they point to.
// They are filled in place for each call.
type headers struct {
	msg     [batch]unix.Mmsghdr
	iov     [batch]unix.Iovec
	name    [batch]sockaddr
	control [batch]control
}

func (h *headers) init() {
	for i := range h.msg {
		m := &h.msg[i].Hdr
		m.Name = &h.name[i][0]
		m.Iov = &h.iov[i]
		m.SetIovlen(1)
		m.Control = &h.control[i].bytes()[0]
	}
}

// release forgets the memory of n messages.
func (h *headers) release(n int) {
	for i := range h.iov[:n] {
		h.iov[i].Base = nil
	}
}

func (h *headers) setBuf(i int, b []byte) {
	h.iov[i].Base = unsafe.SliceData(b)
	h.iov[i].SetLen(len(b))
}

// sockaddr is a struct sockaddr_in or sockaddr_in6.
type sockaddr [unix.SizeofSockaddrInet6]byte

// put writes an address and gives its length. scope is used for link-local addresses.
func (s *sockaddr) put(a netip.Addr, port uint16, scope uint32) uint32 {
	binary.BigEndian.PutUint16(s[2:], port)
	if a.Is4() {
		binary.NativeEndian.PutUint16(s[0:], unix.AFInet)
		b := a.As4()
		copy(s[4:8], b[:])
		clear(s[8:16])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(s[0:], unix.AFInet6)
	clear(s[4:8])
	b := a.As16()
	copy(s[8:24], b[:])
	binary.NativeEndian.PutUint32(s[24:], scope)
	return unix.SizeofSockaddrInet6
}

// get reads an address.
func (s *sockaddr) get(v4 bool) netip.AddrPort {
	port := binary.BigEndian.Uint16(s[2:])
	if v4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(s[8:24])), port)
}

// control has room for the control messages of one message, aligned as the kernel
// wants it.
type control [controlSize / 8]uint64

const controlSize = 160

func (c *control) bytes() *[controlSize]byte { return (*[controlSize]byte)(unsafe.Pointer(c)) }

// put appends a control message with n bytes of data at off and gives the new end.
func (c *control) put(off, level, typ, n int, value uint32) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c.bytes()[off]))
	h.Level = int32(level)
	h.Type = int32(typ)
	h.SetLen(unix.CmsgLen(n))
	data := c.bytes()[off+unix.CmsgLen(0):]
	if n == 2 {
		binary.NativeEndian.PutUint16(data, uint16(value))
	} else {
		binary.NativeEndian.PutUint32(data, value)
	}
	return off + unix.CmsgSpace(n)
}

// marks is what control messages of a received message say.
type marks struct {
	segment  int
	tos, ttl uint8
	overflow uint32
	dropped  bool // overflow is known
}

// get reads the first n bytes of control messages.
func (c *control) get(n int) (m marks) {
	b := c.bytes()[:min(n, controlSize)]
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(unsafe.SliceData(b)))
		length := int(h.Len) // its type differs between architectures
		if length < unix.CmsgLen(0) || length > len(b) {
			break
		}
		data := b[unix.CmsgLen(0):length]
		value := uint32(0)
		switch {
		case len(data) >= 4:
			value = binary.NativeEndian.Uint32(data)
		case len(data) >= 1:
			value = uint32(data[0])
		}
		switch h.Level {
		case unix.IPProtoUDP:
			if h.Type == unix.UDPGRO {
				m.segment = int(value)
			}
		case unix.IPProtoIP:
			switch h.Type {
			case unix.IPTOS:
				m.tos = uint8(value)
			case unix.IPTTL:
				m.ttl = uint8(value)
			}
		case unix.IPProtoIPv6:
			switch h.Type {
			case unix.IPv6TClass:
				m.tos = uint8(value)
			case unix.IPv6HopLimit:
				m.ttl = uint8(value)
			}
		case unix.SolSocket:
			if h.Type == unix.SoRxqOvfl {
				m.overflow, m.dropped = value, true
			}
		}
		next := unix.CmsgSpace(len(data))
		if next > len(b) {
			break
		}
		b = b[next:]
	}
	return m
}
