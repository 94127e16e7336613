package cm

import (
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// MaxPrivate is what every transport carries: connect 56, accept 196, reject 148.
// Datagram services (ib.PortSpaceUDP, ib.PortSpaceIPoIB) carry 136 in accept and
// reject. The limits hold on every provider, so that a program that works on one
// works on all.
const (
	MaxPrivateConnect = 56
	MaxPrivateAccept  = 196
	MaxPrivateReject  = 148

	maxPrivateDatagram = 136
)

// Defaults of ConnParam.
const (
	defaultRetry  = 7
	defaultRNR    = 7 // for ever
	defaultMinRNR = 640 * time.Microsecond
	maxMinRNR     = 655360 * time.Microsecond
)

// ConnParam says how a connection shall be; nil and zero fields mean the defaults.
// In contrast to C a zero retry count is the default, and none is a negative
// number: a zeroed rdma_conn_param is the classic way to lose connections.
//
// In an Event, and in what Request.Param and ID.Param give, the fields are those that
// the peer sent, seen from this side: ResponderResources is what this side would
// serve. There, too, none is negative, so that such a value can be passed on.
//
// Nothing of it is kept by a call, Private included.
type ConnParam struct {
	Private            []byte
	ResponderResources int           // reads and atomics served at once; zero: as many as both can; negative: none
	InitiatorDepth     int           // issued at once; zero: as many as both can; negative: none
	RetryCount         int           // zero: 7, which is for ever on Linux Soft-RoCE; negative: none. Connect only: the peer takes this side's
	RNRRetryCount      int           // zero: 7, for ever; negative: none
	MinRNRTimer        time.Duration // zero: 0.64 ms
	AckTimeout         time.Duration // zero: from the path
	FlowControl        bool
	NoReceives         bool   // do not insist on posted receives
	QPN                ib.QPN // of a queue pair not tied to the id; see ID.QPAttr
}

// depths are the limits of a device, in the 8 bits that the messages have.
type depths struct{ responder, initiator int }

func deviceDepths(dev *verbs.Device) (depths, error) {
	a, err := dev.Attr()
	if err != nil {
		return depths{}, err
	}
	return depths{
		responder: min(max(a.MaxQPRDAtomic, 0), math.MaxUint8),
		initiator: min(max(a.MaxQPInitRDAtomic, 0), math.MaxUint8),
	}, nil
}

// settings is a ConnParam with its defaults filled in and checked.
type settings struct {
	conn       driver.ConnParam
	minRNR     time.Duration
	ackTimeout time.Duration // zero: leave it
	noReceives bool
}

// settle fills in the defaults. limit bounds the depths by the device; offer, if not
// nil, by what the peer asked for. An explicit depth beyond the device is an error,
// beyond the peer's offer it is cut, as both ends must agree.
func (p *ConnParam) settle(op string, maxPrivate int, limit depths, offer *driver.ConnParam) (settings, error) {
	if p == nil {
		p = &ConnParam{}
	}
	s := settings{minRNR: p.MinRNRTimer, ackTimeout: p.AckTimeout, noReceives: p.NoReceives}
	if err := checkPrivate(op, p.Private, maxPrivate); err != nil {
		return s, err
	}
	resp, err := depth("ResponderResources", p.ResponderResources, limit.responder)
	if err != nil {
		return s, err
	}
	init, err := depth("InitiatorDepth", p.InitiatorDepth, limit.initiator)
	if err != nil {
		return s, err
	}
	if offer != nil {
		resp = min(resp, int(offer.ResponderResources))
		init = min(init, int(offer.InitiatorDepth))
	}
	retry, err := retries("RetryCount", p.RetryCount, defaultRetry)
	if err != nil {
		return s, err
	}
	rnr, err := retries("RNRRetryCount", p.RNRRetryCount, defaultRNR)
	if err != nil {
		return s, err
	}
	switch {
	case s.minRNR == 0:
		s.minRNR = defaultMinRNR
	case s.minRNR < 0 || s.minRNR > maxMinRNR:
		return s, wrong(fmt.Sprintf("cm: ConnParam.MinRNRTimer is %v: it must be between 0.01 ms and %v", s.minRNR, maxMinRNR))
	}
	if s.ackTimeout < 0 {
		return s, wrong(fmt.Sprintf("cm: ConnParam.AckTimeout is negative (%v)", s.ackTimeout))
	}
	if p.QPN > 1<<24-1 {
		return s, wrong(fmt.Sprintf("cm: ConnParam.QPN is %#x: a queue pair number has 24 bits", uint32(p.QPN)))
	}
	s.conn = driver.ConnParam{
		Private:            p.Private,
		ResponderResources: uint8(resp),
		InitiatorDepth:     uint8(init),
		FlowControl:        p.FlowControl,
		RetryCount:         retry,
		RNRRetryCount:      rnr,
		QPN:                p.QPN,
	}
	return s, nil
}

func depth(name string, v, limit int) (int, error) {
	switch {
	case v == 0:
		return limit, nil
	case v < 0:
		return 0, nil
	case v > limit:
		return 0, wrong(fmt.Sprintf("cm: ConnParam.%s is %d: the device has %d", name, v, limit))
	}
	return v, nil
}

func retries(name string, v, def int) (uint8, error) {
	switch {
	case v == 0:
		return uint8(def), nil
	case v < 0:
		return 0, nil
	case v > 7:
		return 0, wrong(fmt.Sprintf("cm: ConnParam.%s is %d: the most is 7", name, v))
	}
	return uint8(v), nil
}

// privateError says that private data is too long. It gives all limits, as the sides
// of a protocol need all of them.
type privateError struct {
	op       string
	len, max int
}

func (e *privateError) Error() string {
	return fmt.Sprintf("cm: %d bytes of private data in %s, at most %d go: every transport carries %d in connect, %d in accept, %d in reject (datagram services %d in the last two)",
		e.len, e.op, e.max, MaxPrivateConnect, MaxPrivateAccept, MaxPrivateReject, maxPrivateDatagram)
}

func (e *privateError) Is(target error) bool {
	return target == syscall.EINVAL || target == syscall.EMSGSIZE
}

func checkPrivate(op string, p []byte, limit int) error {
	if len(p) > limit {
		return &privateError{op: op, len: len(p), max: limit}
	}
	return nil
}

// privateLimit gives the room for private data of a step in a port space.
func privateLimit(op string, ps ib.PortSpace) int {
	switch {
	case op == opConnect:
		return MaxPrivateConnect
	case datagram(ps):
		return maxPrivateDatagram
	case op == opReject:
		return MaxPrivateReject
	}
	return MaxPrivateAccept
}

// datagram reports whether a port space is one of UD.
func datagram(ps ib.PortSpace) bool { return ps == ib.PortSpaceUDP || ps == ib.PortSpaceIPoIB }

// qpType gives the transport service that a port space stands for.
func qpType(ps ib.PortSpace) ib.QPType {
	if datagram(ps) {
		return ib.UD
	}
	return ib.RC
}

// paramOf is the ConnParam of what a peer sent.
func paramOf(c *driver.ConnParam, private []byte) ConnParam {
	none := func(n uint8) int {
		if n == 0 {
			return -1
		}
		return int(n)
	}
	return ConnParam{
		Private:            private,
		ResponderResources: none(c.ResponderResources),
		InitiatorDepth:     none(c.InitiatorDepth),
		RetryCount:         none(c.RetryCount),
		RNRRetryCount:      none(c.RNRRetryCount),
		FlowControl:        c.FlowControl,
		QPN:                c.QPN,
	}
}
