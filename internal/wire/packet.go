package wire

import (
	"encoding/binary"
	"errors"

	"github.com/verbena-rdma/verbena/ib"
)

// ErrMalformed is wrapped by every error of Decode.
var ErrMalformed = errors.New("wire: malformed packet")

// The errors of Decode, one for each cause. None is made at the time of the call.
var (
	ErrShort       error = &malformed{"packet shorter than its headers"}
	ErrVersion     error = &malformed{"transport header version is not 0"}
	ErrOpcode      error = &malformed{"opcode that does not exist"}
	ErrUnsupported error = &malformed{"opcode that is not supported"}
	ErrLength      error = &malformed{"length or pad count does not fit the opcode"}
)

type malformed struct{ text string }

func (m *malformed) Error() string { return "wire: " + m.text }
func (m *malformed) Unwrap() error { return ErrMalformed }

// Bits of the BTH.
const (
	bitSolicited = 0x80 // byte 1
	bitMigReq    = 0x40
	bitFECN      = 0x80 // byte 4
	bitBECN      = 0x40
	bitAckReq    = 0x80 // byte 8
)

// Decode parses b, a UDP payload without its ICRC, into p. It does not allocate.
//
// It takes any bytes. After ErrOpcode, ErrUnsupported and ErrLength the fields of the
// BTH, those up to PSN, are valid, so that a responder may answer; after other errors
// nothing is. Reserved bits are ignored, and so are the bytes of the pad.
func (p *Packet) Decode(b []byte) error {
	if len(b) < BTHLen {
		return ErrShort
	}
	if b[1]&0x0F != 0 {
		return ErrVersion
	}
	o := Opcode(b[0])
	p.Opcode = o
	p.Solicited = b[1]&bitSolicited != 0
	p.MigReq = b[1]&bitMigReq != 0
	p.PKey = ib.PKey(binary.BigEndian.Uint16(b[2:]))
	qp, psn := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	p.FECN = b[4]&bitFECN != 0
	p.BECN = b[4]&bitBECN != 0
	p.DestQP = ib.QPN(qp) & ib.QPNMask
	p.AckReq = b[8]&bitAckReq != 0
	p.PSN = ib.PSN(psn) & ib.PSNMask
	p.Payload = nil

	f := o.Flags()
	if f&Supported == 0 {
		if f == 0 {
			return ErrOpcode
		}
		return ErrUnsupported
	}
	head, pad := o.HeaderLen(), int(b[1]>>4&3)
	if len(b) < head {
		return ErrLength
	}
	if n := len(b) - head; n&3 != 0 || n < pad || n > 0 && f&HasPayload == 0 || n == 0 && pad != 0 {
		return ErrLength
	}
	h := b[BTHLen:head]
	if f&HasDETH != 0 {
		p.DETH.QKey = ib.QKey(binary.BigEndian.Uint32(h))
		p.DETH.SrcQP = ib.QPN(binary.BigEndian.Uint32(h[4:])) & ib.QPNMask
		h = h[8:]
	}
	if f&HasRETH != 0 {
		p.RETH.Addr = binary.BigEndian.Uint64(h)
		p.RETH.RKey = ib.RKey(binary.BigEndian.Uint32(h[8:]))
		p.RETH.Len = binary.BigEndian.Uint32(h[12:])
		h = h[16:]
	}
	if f&HasAtomic != 0 {
		p.Atomic.Addr = binary.BigEndian.Uint64(h)
		p.Atomic.RKey = ib.RKey(binary.BigEndian.Uint32(h[8:]))
		p.Atomic.Swap = binary.BigEndian.Uint64(h[12:])
		p.Atomic.Compare = binary.BigEndian.Uint64(h[20:])
		h = h[28:]
	}
	if f&HasAETH != 0 {
		p.AETH.Syndrome = Syndrome(h[0])
		p.AETH.MSN = binary.BigEndian.Uint32(h) & 0xFFFFFF
		h = h[4:]
	}
	if f&HasAtomicAck != 0 {
		p.AtomicAck = binary.BigEndian.Uint64(h)
		h = h[8:]
	}
	if f&HasImm != 0 {
		p.Imm = binary.BigEndian.Uint32(h)
		h = h[4:]
	}
	if f&HasInv != 0 {
		p.InvRKey = ib.RKey(binary.BigEndian.Uint32(h))
		h = h[4:]
	}
	if f&HasReserved16 != 0 {
		p.Payload = h[:CNPLen:CNPLen]
		return nil
	}
	end := len(b) - pad
	p.Payload = b[head:end:end]
	return nil
}

// AppendTo appends the packet, from BTH to pad, without ICRC. It does not allocate if
// b has room. An opcode that is not supported gives the BTH only.
func (p *Packet) AppendTo(b []byte) []byte {
	f := p.Opcode.Flags()
	if f&HasReserved16 != 0 {
		if len(p.Payload) != CNPLen {
			return p.AppendHeaders(b, 0)
		}
		at := len(b) + BTHLen
		b = p.AppendHeaders(b, 0)
		copy(b[at:], p.Payload)
		return b
	}
	if f&HasPayload == 0 || f&Supported == 0 {
		return p.AppendHeaders(b, 0)
	}
	b = p.AppendHeaders(b, len(p.Payload))
	b = append(b, p.Payload...)
	return append(b, zeros[:Pad(len(p.Payload))]...)
}

var zeros [CNPLen]byte

// AppendHeaders appends the headers of a packet whose payload of n bytes the caller
// appends itself, followed by Pad(n) zero bytes. The reserved bytes of a CNP count as
// headers here, and are zero.
func (p *Packet) AppendHeaders(b []byte, n int) []byte {
	f := p.Opcode.Flags()
	flags := byte(Pad(n)) << 4
	if p.Solicited {
		flags |= bitSolicited
	}
	if p.MigReq {
		flags |= bitMigReq
	}
	qp := uint32(p.DestQP & ib.QPNMask)
	if p.FECN {
		qp |= bitFECN << 24
	}
	if p.BECN {
		qp |= bitBECN << 24
	}
	psn := uint32(p.PSN & ib.PSNMask)
	if p.AckReq {
		psn |= bitAckReq << 24
	}
	b = append(b, byte(p.Opcode), flags, byte(p.PKey>>8), byte(p.PKey),
		byte(qp>>24), byte(qp>>16), byte(qp>>8), byte(qp),
		byte(psn>>24), byte(psn>>16), byte(psn>>8), byte(psn))
	if f&Supported == 0 {
		return b
	}
	if f&HasDETH != 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(p.DETH.QKey))
		b = binary.BigEndian.AppendUint32(b, uint32(p.DETH.SrcQP&ib.QPNMask))
	}
	if f&HasRETH != 0 {
		b = binary.BigEndian.AppendUint64(b, p.RETH.Addr)
		b = binary.BigEndian.AppendUint32(b, uint32(p.RETH.RKey))
		b = binary.BigEndian.AppendUint32(b, p.RETH.Len)
	}
	if f&HasAtomic != 0 {
		b = binary.BigEndian.AppendUint64(b, p.Atomic.Addr)
		b = binary.BigEndian.AppendUint32(b, uint32(p.Atomic.RKey))
		b = binary.BigEndian.AppendUint64(b, p.Atomic.Swap)
		b = binary.BigEndian.AppendUint64(b, p.Atomic.Compare)
	}
	if f&HasAETH != 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(p.AETH.Syndrome)<<24|p.AETH.MSN&0xFFFFFF)
	}
	if f&HasAtomicAck != 0 {
		b = binary.BigEndian.AppendUint64(b, p.AtomicAck)
	}
	if f&HasImm != 0 {
		b = binary.BigEndian.AppendUint32(b, p.Imm)
	}
	if f&HasInv != 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(p.InvRKey))
	}
	if f&HasReserved16 != 0 {
		b = append(b, zeros[:]...)
	}
	return b
}
