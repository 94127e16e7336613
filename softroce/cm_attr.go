package softroce

import (
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibcm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const (
	// packetLifetime is the code (4.096 µs × 2^17 = 0.54 s) of how long a packet may be
	// on its way. The acknowledgement timeout that follows is 1.07 s: with seven retries
	// a dead peer is noticed after nine seconds. It is long because the peer may be a
	// program that is slow for a moment; a lost packet is found by a probe much earlier.
	packetLifetime = 17

	// minRNRTimer is how long a sender waits that met an empty receive queue. The kernel's
	// manager leaves the code at 0, which means 655 ms.
	minRNRTimer = 640 * time.Microsecond

	// wholeDepth asks for as many reads as the device can have.
	wholeDepth = 0xff
)

// cmParams is what both sides have agreed on.
type cmParams struct {
	qpn        ib.QPN
	serve      uint8 // reads that this side serves: max_dest_rd_atomic
	issue      uint8 // reads that it has open: max_rd_atomic
	retry      uint8
	rnrRetry   uint8
	ackTimeout uint8
}

// askedByPeer is what a request comes to before it is accepted: as much of what the peer
// wants as the device can do.
func askedByPeer(c *ibcm.Conn) cmParams {
	return cmParams{
		serve:      min(c.Peer.InitiatorDepth, maxRDAtomic),
		issue:      min(c.Peer.ResponderResources, maxRDAtomic),
		retry:      c.Peer.RetryCount,
		rnrRetry:   c.Peer.RNRRetryCount,
		ackTimeout: c.AckTimeout,
	}
}

// depth checks a number of reads; limit is what wholeDepth stands for.
func depth(n, limit uint8) (uint8, bool) {
	if n == wholeDepth {
		return min(limit, maxRDAtomic), true
	}
	return n, n <= maxRDAtomic
}

// ackTimeoutCode gives the timeout of a requester from the life time of packets and the
// delay of the responder's acknowledgements, all as codes: one more than the greater,
// and another one if they are alike (IBTA Vol 1 §12.7.34, as the kernel does it).
func ackTimeoutCode(delay, lifetime uint8) uint8 {
	t := lifetime + 1
	switch {
	case t < delay:
		t = delay
		if lifetime+2 >= delay {
			t++
		}
	case delay >= lifetime:
		t++
	}
	return min(t, 31)
}

// lifetime gives the code of the life time of packets, which an option may set.
func (id *cmID) lifetime() uint8 {
	if id.ackSet && id.ackTimeout > 0 {
		return id.ackTimeout - 1
	}
	return packetLifetime
}

// InitQPAttr gives the attributes for the next state of a queue pair, and which of them
// count (rdma_init_qp_attr). The id must be bound to the device, and for RTR and RTS the
// peer must have spoken.
func (id *cmID) InitQPAttr(s ib.QPState) (driver.QPAttr, ib.QPAttrMask, error) {
	const op = "queue pair attributes"
	m := id.core
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := id.check(op); err != nil {
		return driver.QPAttr{}, 0, err
	}
	if !id.attached || id.state == idListening {
		return driver.QPAttr{}, 0, stateFail(op, id.state)
	}
	spoken := id.state == idReplied || id.state == idRequest || id.state == idAccepted || id.state == idConnected
	switch s {
	case ib.StateInit:
		return driver.QPAttr{
			State:  ib.StateInit,
			Port:   portNumber,
			Access: id.access(),
		}, ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccess, nil
	case ib.StateRTR, ib.StateRTS:
		if !spoken {
			return driver.QPAttr{}, 0, stateFail(op, id.state)
		}
	default:
		return driver.QPAttr{}, 0, cmFail(op, "for INIT, RTR and RTS only, not "+s.String(), syscall.EINVAL)
	}
	c, p := id.conn, &id.params
	if s == ib.StateRTS {
		return driver.QPAttr{
			State:       ib.StateRTS,
			SQPSN:       c.SQPSN,
			Timeout:     ib.AckTimeoutDuration(p.ackTimeout),
			RetryCount:  int(p.retry),
			RNRRetry:    int(p.rnrRetry),
			MaxRDAtomic: int(p.issue),
		}, ib.AttrState | ib.AttrSQPSN | ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrMaxRDAtomic, nil
	}
	index, ok := m.host.index(c.Local)
	if !ok {
		return driver.QPAttr{}, 0, cmFail(op, c.Local.String()+" is not an address of this device any more", syscall.EADDRNOTAVAIL)
	}
	return driver.QPAttr{
		State:   ib.StateRTR,
		PathMTU: c.MTU,
		DestQPN: c.Peer.QPN,
		RQPSN:   c.RQPSN,
		AH: driver.AHAttr{
			DGID:         ib.GIDFromAddr(plain(c.Remote)),
			SGIDIndex:    index,
			FlowLabel:    c.FlowLabel,
			HopLimit:     c.HopLimit,
			TrafficClass: id.trafficClass(),
			Global:       true,
			Port:         portNumber,
		},
		MaxDestRDAtomic: int(p.serve),
		MinRNRTimer:     minRNRTimer,
	}, ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer, nil
}

// access gives what a peer may do to the queue pair. Reads and atomics are left out if
// it was agreed that none are served.
func (id *cmID) access() ib.Access {
	a := ib.RemoteWrite
	if id.conn == nil || id.params.serve > 0 {
		a |= ib.RemoteRead | ib.RemoteAtomic
	}
	return a
}

// trafficClass is the one of the option, else the one that the peer asked for.
func (id *cmID) trafficClass() uint8 {
	if id.tosSet || id.conn == nil {
		return id.tos
	}
	return id.conn.TOS
}

// Two embedded devices tell each other in the ECE fields what their sockets hold: the
// options are version (4 bits), flags (8) and KiB (20).
const eceVersion = 1

func eceOf(bytes int) ibcm.ECE {
	kib := min(max(bytes, 0)>>10, 1<<20-1)
	return ibcm.ECE{Vendor: vendorID, Options: eceVersion<<28 | uint32(kib)}
}

// eceBuffer gives what the peer's socket holds, if it has said so.
func eceBuffer(e ibcm.ECE) (bytes int, ok bool) {
	if e.Vendor != vendorID || e.Options>>28 != eceVersion {
		return 0, false
	}
	kib := int(e.Options & (1<<20 - 1))
	return kib << 10, kib > 0
}
