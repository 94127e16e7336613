// Package wire has the packet formats of RoCEv2: base and extended transport
// headers, the opcode table, and the invariant CRC (IBTA Vol 1 ch. 9, annex A17).
// It touches no socket, clock or lock, and only the pcap files allocate.
//
// A Packet is used by one goroutine at a time; everything else that is not said to be
// otherwise is a value that any goroutine may use. Numbers are in host order in Go and
// big endian on the wire, the ICRC little endian.
package wire

import "github.com/verbena-rdma/verbena/ib"

// Port is the UDP destination port of RoCEv2.
const Port = 4791

// Sizes in bytes.
const (
	BTHLen    = 12
	ICRCLen   = 4
	MaxHeader = 12 + 16 + 28 // more than any combination of headers of one packet
	CNPLen    = 16           // reserved bytes of a CNP
)

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

	Payload []byte // without pad; the reserved bytes of a CNP
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

// Pad gives the number of pad bytes after n bytes of payload.
func Pad(n int) int { return -n & 3 }
