package ibcm

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// State of a connection (IBTA Vol 1 §12.9.5, §12.9.6). The states in which an MRA was
// sent or received are not told apart from those that they prolong.
type State uint8

const (
	StateDead        State = iota // over; the agent has forgotten it
	StateReqSent                  // active: waiting for the reply
	StateRepRcvd                  // active: the owner is to call Establish, or Reject
	StateReqRcvd                  // passive: the owner is to call Accept, or Reject
	StateRepSent                  // passive: waiting for the ready-to-use message, or data
	StateEstablished              // both
	StateDreqSent                 // both: waiting for the answer to our disconnect
	StateDreqRcvd                 // both: the owner is to call Disconnect
	StateTimeWait                 // both: over, but late packets may come
	StateRejected                 // passive: over, but the request may come again
)

var stateNames = [...]string{
	StateDead:        "dead",
	StateReqSent:     "REQ sent",
	StateRepRcvd:     "REP received",
	StateReqRcvd:     "REQ received",
	StateRepSent:     "REP sent",
	StateEstablished: "established",
	StateDreqSent:    "DREQ sent",
	StateDreqRcvd:    "DREQ received",
	StateTimeWait:    "time wait",
	StateRejected:    "rejected",
}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown state"
}

// ECE is what two peers of one vendor tell each other (IBTA Vol 1 r1.4, enhanced
// connection establishment): a vendor id of 24 bits and 32 bits of options. Zero means
// nothing.
type ECE struct {
	Vendor  uint32
	Options uint32
}

// Path is how packets of a connection travel.
type Path struct {
	Local, Remote netip.Addr // link-local ones with their zone
	TOS           uint8
	HopLimit      uint8
	FlowLabel     uint32
	MTU           ib.MTU
	AckTimeout    uint8 // 5-bit code of the acknowledgement timeout of the peer's requester
}

// ConnectParam is what a request says (IBTA Vol 1 §12.6.5).
type ConnectParam struct {
	Path
	ServiceID          ServiceID
	QPN                ib.QPN
	ResponderResources uint8
	InitiatorDepth     uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	FlowControl        bool
	SRQ                bool
	ECE                ECE
	Private            []byte // at most MaxPrivateREQ; copied
}

// AcceptParam is what a reply says (IBTA Vol 1 §12.6.8).
type AcceptParam struct {
	QPN                ib.QPN
	ResponderResources uint8
	InitiatorDepth     uint8
	RNRRetryCount      uint8
	AckDelay           uint8 // 5-bit code of our delay of acknowledgements
	FlowControl        bool
	SRQ                bool
	ECE                ECE
	Private            []byte // at most MaxPrivateREP; copied
}

// Peer is what the other side has said of itself, in a request or a reply, by its own
// view: its ResponderResources are the reads that it serves.
type Peer struct {
	GUID               ib.GUID
	CommID             uint32
	QPN                ib.QPN
	ResponderResources uint8
	InitiatorDepth     uint8
	RetryCount         uint8 // requests only
	RNRRetryCount      uint8
	AckDelay           uint8 // replies only
	FlowControl        bool
	SRQ                bool
	ECE                ECE
}

// Conn is one exchange between two communication managers. It belongs to an Agent; the
// fields that are exported may be read by the owner between calls of the agent, and
// only Owner may be written.
type Conn struct {
	// Owner is the owner's: the agent does not look at it.
	Owner any

	Path
	Peer      Peer
	ServiceID ServiceID
	Passive   bool

	// SQPSN is the PSN of our first packet, RQPSN that of the peer's. The first is known
	// when the peer has spoken.
	SQPSN, RQPSN ib.PSN

	// QPN is our queue pair; zero on the passive side before Accept.
	QPN ib.QPN

	agent     *Agent
	state     State
	detached  bool // the owner has closed it: no more events
	alternate bool // the request names an alternate path

	id  uint32 // our communication id
	tid uint64 // transaction of the request, and of the disconnect

	// What is repeated until it is answered, or kept to be said again.
	message  *[MADLen]byte
	tries    int
	interval time.Duration

	when time.Duration // of its timer
	pos  int           // in the heap of timers, plus one

	prev, next *Conn // in a list of what is over
	list       *connList

	inRemote, inQPN bool // in the agent's tables
}

// State gives the state.
func (c *Conn) State() State { return c.state }

// CommID gives our communication id.
func (c *Conn) CommID() uint32 { return c.id }

// TimeWait is how long the connection stays in TIMEWAIT after its end.
func (c *Conn) timeWait() time.Duration {
	return min(max(4096*time.Nanosecond<<min(c.AckTimeout, 31), minTimeWait), maxTimeWait)
}

// EventType says what happened to a connection.
type EventType uint8

const (
	// EventRequest: a peer wants to connect (passive). Event.Private is its private data.
	EventRequest EventType = iota + 1
	// EventReply: the peer has accepted (active). The owner readies its queue pair and
	// calls Establish.
	EventReply
	// EventEstablished: the peer is ready (passive).
	EventEstablished
	// EventRejected: the peer said no, or gave up: Reason, Info, Private.
	EventRejected
	// EventUnreachable: the peer does not answer.
	EventUnreachable
	// EventDisconnected: the connection is over: the peer disconnected, or has answered
	// our disconnect, or, with TimedOut, has not.
	EventDisconnected
	// EventTimeWaitExit: no late packet can come; the queue pair number is free.
	EventTimeWaitExit
)

var eventNames = [...]string{
	EventRequest:      "request",
	EventReply:        "reply",
	EventEstablished:  "established",
	EventRejected:     "rejected",
	EventUnreachable:  "unreachable",
	EventDisconnected: "disconnected",
	EventTimeWaitExit: "time wait exit",
}

func (t EventType) String() string {
	if int(t) < len(eventNames) && t != 0 {
		return eventNames[t]
	}
	return "unknown event"
}

// Event is something that the owner of a connection must know. Its bytes are its own.
type Event struct {
	Type     EventType
	Conn     *Conn
	Reason   ib.RejectReason
	Info     []byte // additional reject information
	Private  []byte // as long as the message allows, padded with zeros by the peer
	TimedOut bool
}
