// Package transport is the protocol machine of a queue pair: requester, responder and
// completer of the reliable connection (IBTA Vol 1 ch. 9.7, 10.3). It has no clock,
// goroutine, lock or socket: it takes the time, posted work and packets, and gives
// packets, completions, events and the time at which it wants to be called again.
//
// A QP is used by one goroutine at a time; its owner has the lock.
package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Config of a queue pair.
type Config struct {
	QPN       ib.QPN
	Type      ib.QPType
	Caps      driver.Caps
	SignalAll bool
	Domain    mem.Domain
	Memory    *mem.Table
}

// QP is the protocol machine of one queue pair.
type QP struct{}

// New makes a queue pair in RESET.
func New(c Config) (*QP, error) { return &QP{}, nil }

// Modify changes attributes and state (IBTA Vol 1 §11.2.5.2). The caller has checked
// the transition; values are checked here. On error nothing has changed.
func (q *QP) Modify(now time.Duration, a *driver.QPAttr, m ib.QPAttrMask) error { return nil }

// Query gives all attributes.
func (q *QP) Query() driver.QPAttr { return driver.QPAttr{} }

func (q *QP) State() ib.QPState { return 0 }

// SendSlots gives the free places of the send queue that follow one another, at least
// one unless the queue is full; CommitSend posts the first n. See driver.QP.
func (q *QP) SendSlots() []driver.SendSlot { return nil }
func (q *QP) CommitSend(n int)             {}
func (q *QP) RecvSlots() []driver.RecvSlot { return nil }
func (q *QP) CommitRecv(n int)             {}

// Receive takes a packet that is addressed to this queue pair: ICRC, addresses and
// P_Key have been checked. It does not keep p or its payload.
func (q *QP) Receive(now time.Duration, p *wire.Packet) {}

// Congested says that a packet of the peer carried a congestion mark; the machine
// answers with at most one CNP per interval (annex A17.9.3).
func (q *QP) Congested(now time.Duration) {}

// Advance says that time has passed.
func (q *QP) Advance(now time.Duration) {}

// Deadline gives the time at which Advance must be called; false: no timer runs.
func (q *QP) Deadline() (time.Duration, bool) { return 0, false }

// Transmit appends packets that may be sent now. more means that out was full.
func (q *QP) Transmit(now time.Duration, out *Output) (more bool) { return false }

// AckPending reports whether Transmit would send nothing but acknowledgements, which
// may wait a moment for data to travel with.
func (q *QP) AckPending() bool { return false }

// SetWindow bounds the bytes that are on their way to the peer, or asked of it, at any
// time: what its socket buffer is known to hold.
func (q *QP) SetWindow(bytes int) {}

// Output collects packets for one peer.
type Output struct {
	Buf  []byte // one packet behind the other, each from BTH to four bytes for the ICRC
	Ends []int  // where each packet ends
	Max  int    // do not grow Buf beyond this
}

// Completion is a finished request.
type Completion struct {
	driver.WC
	Recv      bool // for the receive queue's CQ
	Solicited bool // counts for a solicited-only arm
}

// Completions gives what has been completed since the last call, in order. The slice
// is valid until the next call of any method.
func (q *QP) Completions() []Completion { return nil }

// Events gives the asynchronous events since the last call.
func (q *QP) Events() []ib.EventType { return nil }
