package ibcm

import (
	"fmt"

	"github.com/verbena-rdma/verbena/ib"
)

// ServiceID is what a listener listens on and a REQ asks for.
type ServiceID uint64

// Service gives the service id of a port in a port space (annex A11.3).
func Service(ps ib.PortSpace, port uint16) ServiceID {
	return ServiceID(ps)<<16 | ServiceID(port)
}

// PortSpace gives the port space; it is one only if IP is true.
func (s ServiceID) PortSpace() ib.PortSpace { return ib.PortSpace(s >> 16) }

// Port gives the port; it is one only if IP is true.
func (s ServiceID) Port() uint16 { return uint16(s) }

// IP reports whether s is a port in the TCP or UDP port space, the service ids of the
// RDMA CM.
func (s ServiceID) IP() bool {
	return s>>32 == 0 && (s.PortSpace() == ib.PortSpaceTCP || s.PortSpace() == ib.PortSpaceUDP)
}

// String gives "TCP 7174", or the number.
func (s ServiceID) String() string {
	if s.IP() {
		return fmt.Sprintf("%v %d", s.PortSpace(), s.Port())
	}
	return fmt.Sprintf("0x%016x", uint64(s))
}

// Sizes of private data, in bytes; those of REQ, REP and REJ are in limits.go.
const (
	MaxPrivateMRA     = 222
	MaxPrivateRTU     = 224
	MaxPrivateDREQ    = 220
	MaxPrivateDREP    = 224
	MaxPrivateSIDRREQ = 216
	MaxPrivateSIDRREP = 136
	MaxPrivateLAP     = 168
	MaxPrivateAPR     = 148
)

// Stage says which message an MRA or REJ answers.
type Stage uint8

const (
	StageREQ   Stage = 0
	StageREP   Stage = 1
	StageOther Stage = 2 // LAP in an MRA
)

// Service types of a REQ.
const (
	TransportRC  = 0
	TransportUC  = 1
	TransportRD  = 2
	TransportExt = 3 // see REQ.ExtTransport
)
