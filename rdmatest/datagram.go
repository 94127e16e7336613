package rdmatest

import (
	"net"
	"net/netip"
	"sync"

	"github.com/verbena-rdma/verbena/ib"
)

// Opcodes of the base transport header, for Rule and Datagram (IBTA Vol 1 §9.2.1).
const (
	OpSendFirst       = 0x00
	OpSendMiddle      = 0x01
	OpSendLast        = 0x02
	OpSendLastImm     = 0x03
	OpSendOnly        = 0x04
	OpSendOnlyImm     = 0x05
	OpWriteFirst      = 0x06
	OpWriteMiddle     = 0x07
	OpWriteLast       = 0x08
	OpWriteLastImm    = 0x09
	OpWriteOnly       = 0x0A
	OpWriteOnlyImm    = 0x0B
	OpReadRequest     = 0x0C
	OpReadRespFirst   = 0x0D
	OpReadRespMiddle  = 0x0E
	OpReadRespLast    = 0x0F
	OpReadRespOnly    = 0x10
	OpAcknowledge     = 0x11
	OpAtomicAck       = 0x12
	OpCompareSwap     = 0x13
	OpFetchAdd        = 0x14
	OpSendLastInv     = 0x16
	OpSendOnlyInv     = 0x17
	OpDatagram        = 0x64 // UD SEND_ONLY, which carries the connection manager
	OpCongestionNotif = 0x81 // CNP
)

// Messages of the connection manager, for Rule and Datagram (IBTA Vol 1 §12.6).
const (
	CMReq  = 0x10
	CMMra  = 0x11
	CMRej  = 0x12
	CMRep  = 0x13
	CMRtu  = 0x14
	CMDreq = 0x15
	CMDrep = 0x16
)

// Datagram is what a rule sees.
type Datagram struct {
	From, To netip.AddrPort
	TOS      uint8  // IPv4 TOS or IPv6 traffic class
	Payload  []byte // from the base transport header to the ICRC; valid only during the call

	Opcode uint8
	DestQP ib.QPN
	PSN    ib.PSN
	AckReq bool
	CM     uint16 // attribute of a message of the connection manager, else 0
	AETH   uint8  // syndrome of an acknowledgement, else 0
}

// datagram is one on its way.
type datagram struct {
	from, to netip.AddrPort
	source   net.Addr // from as a net.Addr, if there is one
	tos      uint8
	device   bool // sent by a device
	altered  bool // by a rule: captures leave it out
	b        []byte
}

// room is enough for any datagram of the default MTU.
const room = 8192

var datagrams = sync.Pool{New: func() any { return &datagram{b: make([]byte, 0, room)} }}

func newDatagram(from, to netip.AddrPort, b []byte, tos uint8) *datagram {
	d := datagrams.Get().(*datagram)
	d.from, d.to, d.source, d.tos, d.device, d.altered = from, to, nil, tos, false, false
	d.b = append(d.b[:0], b...)
	return d
}

func (d *datagram) clone() *datagram {
	c := newDatagram(d.from, d.to, d.b, d.tos)
	c.source, c.device, c.altered = d.source, d.device, d.altered
	return c
}

// take copies the datagram out, as far as it fits, and frees it.
func (d *datagram) take(b []byte) (n int, tos uint8, from net.Addr) {
	n, tos, from = copy(b, d.b), d.tos, d.source
	if from == nil {
		from = net.UDPAddrFromAddrPort(d.from)
	}
	d.free()
	return n, tos, from
}

func (d *datagram) free() { datagrams.Put(d) }

// view decodes what rules ask for. Short garbage gives zeros.
func (d *datagram) view() Datagram {
	v := Datagram{From: d.from, To: d.to, TOS: d.tos, Payload: d.b}
	b := d.b
	if len(b) < 12 {
		return v
	}
	v.Opcode = b[0]
	v.DestQP = ib.QPN(b[5])<<16 | ib.QPN(b[6])<<8 | ib.QPN(b[7])
	v.AckReq = b[8]&0x80 != 0
	v.PSN = ib.PSN(b[9])<<16 | ib.PSN(b[10])<<8 | ib.PSN(b[11])
	switch {
	case v.Opcode == OpDatagram && v.DestQP == 1 && len(b) >= 40:
		v.CM = uint16(b[36])<<8 | uint16(b[37])
	case v.Opcode == OpAcknowledge && len(b) >= 16:
		v.AETH = b[12]
	}
	return v
}
