package wire

import (
	"strconv"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// Syndrome of an AETH: the kind in bits 6 and 5, a value in the lower five (IBTA Vol 1
// §9.7.5.2).
type Syndrome uint8

// AckKind is what a syndrome says.
type AckKind uint8

const (
	AckReserved AckKind = iota // drop the packet
	AckOK                      // positive
	AckRNR                     // receiver not ready: wait RNRTime
	AckNAK                     // negative: see the codes
)

const (
	// AckNoLimit is a positive acknowledgement without end-to-end flow control.
	AckNoLimit Syndrome = 0x1F

	NAKSequence  Syndrome = 0x60 // PSN sequence error
	NAKInvalid   Syndrome = 0x61 // invalid request
	NAKAccess    Syndrome = 0x62 // remote access error
	NAKOperation Syndrome = 0x63 // remote operational error
	NAKInvalidRD Syndrome = 0x64 // invalid RD request
)

// RNRNAK asks the peer to wait at least d, as far as the table goes (ib.RNRTimer).
func RNRNAK(d time.Duration) Syndrome { return 0x20 | Syndrome(ib.RNRTimer(d)) }

// Kind says what s is. A reserved NAK code is AckReserved too.
func (s Syndrome) Kind() AckKind {
	switch {
	case s < 0x20:
		return AckOK
	case s < 0x40:
		return AckRNR
	case s >= NAKSequence && s <= NAKInvalidRD:
		return AckNAK
	}
	return AckReserved
}

// Code gives the lower five bits.
func (s Syndrome) Code() uint8 { return uint8(s & 31) }

// RNRTime gives the time of an RNR NAK.
func (s Syndrome) RNRTime() time.Duration { return ib.RNRTimerDuration(s.Code()) }

// Credits gives the receives that a positive acknowledgement promises; false: it sets
// no limit.
func (s Syndrome) Credits() (n int, limited bool) {
	if s >= AckNoLimit {
		return 0, false
	}
	return int(credits[s]), true
}

func (s Syndrome) String() string {
	switch s.Kind() {
	case AckOK:
		if n, limited := s.Credits(); limited {
			return "ACK " + strconv.Itoa(n)
		}
		return "ACK"
	case AckRNR:
		return "RNR NAK " + s.RNRTime().String()
	case AckNAK:
		return nakNames[s.Code()]
	}
	return "syndrome 0x" + strconv.FormatUint(uint64(s), 16)
}

var nakNames = [...]string{
	"NAK PSN sequence error", "NAK invalid request", "NAK remote access error", "NAK remote operational error",
	"NAK invalid RD request",
}

// credits: IBTA Vol 1 §9.7.7.2.1, table 46.
var credits = [...]uint16{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}
