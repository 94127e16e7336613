// Package wire has the packet formats of RoCEv2: base and extended transport
// headers, the opcode table, and the invariant CRC (IBTA Vol 1 ch. 9, annex A17).
// It neither allocates nor touches a socket, a clock or a lock.
package wire

import (
	"errors"

	"github.com/verbena-rdma/verbena/ib"
)

// Port is the UDP destination port of RoCEv2.
const Port = 4791

// Sizes in bytes.
const (
	BTHLen    = 12
	ICRCLen   = 4
	MaxHeader = 12 + 16 + 28 // more than any combination of headers of one packet
)

// Opcode is the first byte of the base transport header.
type Opcode uint8

// Packet is a decoded packet. Only the extended headers that the opcode has are
// valid. Payload refers to the decoded buffer.
type Packet struct {
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	FECN      bool
	BECN      bool
	AckReq    bool
	PKey      ib.PKey
	DestQP    ib.QPN
	PSN       ib.PSN

	RETH      RETH
	AETH      AETH
	Atomic    AtomicETH
	AtomicAck uint64 // original remote data
	Imm       uint32
	InvRKey   ib.RKey
	DETH      DETH

	Payload []byte // without pad
}

// RETH is the RDMA extended transport header.
type RETH struct {
	Addr uint64
	RKey ib.RKey
	Len  uint32
}

// AETH is the ACK extended transport header.
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits
}

// Syndrome of an AETH (IBTA Vol 1 §9.7.5.2).
type Syndrome uint8

// AtomicETH is the atomic extended transport header. For FETCH_ADD the operand is in
// Swap.
type AtomicETH struct {
	Addr    uint64
	RKey    ib.RKey
	Swap    uint64
	Compare uint64
}

// DETH is the datagram extended transport header.
type DETH struct {
	QKey  ib.QKey
	SrcQP ib.QPN
}

// ErrMalformed is wrapped by every error of Decode.
var ErrMalformed = errors.New("wire: malformed packet")

// Decode parses b, a UDP payload without its ICRC, into p. It does not allocate.
func (p *Packet) Decode(b []byte) error { return ErrMalformed }

// AppendTo appends the packet, from BTH to pad, without ICRC. It does not allocate if
// b has room.
func (p *Packet) AppendTo(b []byte) []byte { return b }

// AppendHeaders appends the headers of a packet whose payload of n bytes the caller
// appends itself, followed by Pad(n) zero bytes.
func (p *Packet) AppendHeaders(b []byte, n int) []byte { return b }

// Pad gives the number of pad bytes after n bytes of payload.
func Pad(n int) int { return -n & 3 }
