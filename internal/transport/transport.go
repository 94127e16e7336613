// Package transport is the protocol machine of a queue pair: requester, responder and
// completer of the reliable connection (IBTA Vol 1 ch. 9.7, 10.3). It has no clock,
// goroutine, lock or socket: it takes the time, posted work and packets, and gives
// packets, completions, events and the time at which it wants to be called again.
//
// A QP is used by one goroutine at a time; its owner has the lock.
//
// # How to drive it
//
// After every call that may change something (CommitSend, CommitRecv, Receive, Advance,
// Modify) the owner calls Transmit until it says that there is no more, then takes
// Completions and Events, then looks at Deadline. All of these calls, Transmit too, may
// complete requests and change the state, as memory can vanish at any moment. Advance
// may be called early or late, and a deadline that moved to a later time need not be set
// anew.
//
// A queue pair in the error state may still owe its peer an answer: the fatal NAK, or
// the acknowledgement of what it has delivered. So Transmit is called after every
// change of state as well.
//
// # What is where
//
// The files are named after the parts of IBTA Vol 1 ch. 9: requester (posted requests to
// packets), completer (responses), responder and responder_read (requests of the peer),
// retry (timers and recovery), congestion (how much may be in flight). Unreliable
// services and shared receive queues have no code yet; the places where they branch off
// are New, Receive and recvQueue.
package transport

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Limits of a queue pair; New and Modify refuse more.
const (
	MaxWR       = 1 << 15 // of each queue
	MaxSGE      = 32      // of each request
	MaxInline   = 1024    // bytes of each send request
	MaxRDAtomic = 128     // READs and atomics outstanding, in each direction
	MaxMessage  = 1 << 31 // bytes (IBTA Vol 1 §9.7.3)
)

// Our own choices.
const (
	defaultWindow  = 64 << 10               // what a socket buffer of 208 KiB surely holds
	packetOverhead = 256                    // what a packet costs of it beside its payload
	minWindowPSNs  = 64                     // packets that may be in flight whatever the window
	ackEvery       = 16                     // packets of a long message between requests for an ACK
	maxBurst       = 256 << 10              // bytes of READ responses without a pause
	burstPause     = 50 * time.Microsecond  // for the owner, and for the peer's socket
	cnpInterval    = 50 * time.Microsecond  // between two CNPs to a peer (annex A17.9.3)
	minProbe       = 500 * time.Microsecond // before a silent peer is probed
	firstProbe     = 20 * time.Millisecond  // the same when no round trip was measured yet
	maxProbe       = 2 * time.Second
)

// never is a time that does not come.
const never = time.Duration(1<<63 - 1)

// Config of a queue pair.
type Config struct {
	QPN       ib.QPN
	Type      ib.QPType // only ib.RC yet
	Caps      driver.Caps
	SignalAll bool
	Domain    mem.Domain
	Memory    *mem.Table

	// Bind binds a window as a request says; nil: there are none.
	Bind func(*driver.SendSlot) mem.Fault
}

// Output collects packets for one peer.
type Output struct {
	Buf  []byte // one packet behind the other, each from BTH to four bytes for the ICRC
	Ends []int  // where each packet ends
	Max  int    // do not grow Buf beyond this; at least MaxPacket
}

// MaxPacket is the room that any one packet fits in.
const MaxPacket = 4096 + 64

// Completion is a finished request.
type Completion struct {
	driver.WC
	Recv      bool // for the receive queue's CQ
	Solicited bool // counts for a solicited-only arm; failures do
}
