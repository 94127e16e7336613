package driver

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// CM opens channels of the connection manager.
type CM interface {
	OpenChannel() (CMChannel, error)
}

// CMChannel is an event channel of the connection manager (struct rdma_event_channel).
// Its ids are closed, or have been moved away, before it is.
type CMChannel interface {
	Notifier
	// Next takes one event, acknowledged. The event's bytes are copies. An event of an
	// id that was closed may still come: its handle finds nothing.
	Next() (CMEvent, bool, error)
	// CreateID makes an id whose events carry handle.
	CreateID(handle uint64, ps ib.PortSpace, t ib.QPType) (CMID, error)
	Close() error
}

// CMID never owns a queue pair: verbs made it, cm moves it through its states with
// the attributes from InitQPAttr. Calls do not wait for their answer, which is an
// event; an error means that there will be none. cm has checked the order of calls,
// the sizes of private data and the ranges of parameters.
type CMID interface {
	// SetHandle gives a request's id its handle. The id has no event before Accept.
	SetHandle(uint64)
	// Info gives what is known now. Device is empty until the id is bound to one: by
	// Bind to one of its addresses, by AddrResolved, in a request.
	Info() CMInfo
	// BindAddr binds; port 0 chooses one. [::] takes IPv4 too, see SetOption.
	BindAddr(a netip.AddrPort) error
	// ResolveAddr → AddrResolved, AddrError; an error at once if there is no route. src
	// may be invalid. A limit of 0 means one try. It may be repeated after AddrError.
	ResolveAddr(src, dst netip.AddrPort, limit time.Duration) error
	// ResolveRoute → RouteResolved, RouteError. It may be repeated after RouteError.
	ResolveRoute(limit time.Duration) error
	// InitQPAttr gives the attributes and their mask for the next state: INIT once the
	// device is known, and again when the peer's parameters are; RTR and RTS in a
	// request before Accept, and after ConnectResponse before Establish. The depths are
	// those of the peer's message; cm bounds them by its own. An ack time-out that was
	// set as an option is in the attributes of RTS.
	InitQPAttr(s ib.QPState) (QPAttr, ib.QPAttrMask, error)
	// Listen → ConnectRequest, whose Handle is the listener's and whose Child is the new
	// id, on the listener's channel. At most backlog requests (0: the system's limit)
	// wait to be fetched; what is beyond is dropped without an answer.
	Listen(backlog int) error
	// Connect → ConnectResponse (Established for datagrams), Rejected, Unreachable. It
	// does not touch the queue pair.
	Connect(ConnParam) error
	// Accept answers a request, when the queue pair is in RTS → Established. A peer that
	// gave up meanwhile is an error.
	Accept(ConnParam) error
	// Reject answers a request, or a ConnectResponse whose queue pair cannot be moved.
	Reject(private []byte) error
	// Establish tells the peer that the queue pair is in RTS, after ConnectResponse. No
	// event.
	Establish() error
	// Notify of COMM_EST ends the handshake before the peer's last message has come.
	Notify(ib.EventType) error
	// Disconnect asks the peer, or answers it, → Disconnected on both sides: on this one
	// when the peer has answered, or did not in time (-ETIMEDOUT). cm has failed the
	// queue pair, and answers a peer that began as soon as Disconnected is fetched.
	Disconnect() error
	// Migrate moves the id, and its events that wait, in their order, to a channel of
	// the same manager. No call on either channel is in progress, Wait apart.
	Migrate(CMChannel) error
	// SetOption sets an option of level 0 (RDMA_OPTION_ID): 0 TOS (1 byte), 1 REUSEADDR,
	// 2 AFONLY (C int in native order), 3 ACK_TIMEOUT (1 byte, the 5-bit code).
	SetOption(level, name int, value []byte) error
	// Join → MulticastJoin, MulticastError, which carry handle in place of the id's.
	Join(group netip.Addr, f ib.JoinFlags, handle uint64) error
	Leave(group netip.Addr) error
	// Close destroys the id: it ends a connection, withdraws a request of this side,
	// rejects one of a peer (reason 28), for a listener also those that nobody fetched,
	// and drops the events that wait. It does not wait for the peer.
	Close() error
}

// CMInfo is what an id is bound to.
type CMInfo struct {
	Device        string
	Port          int // of the device, from 1
	Local, Remote netip.AddrPort
}

// CMEvent is struct rdma_cm_event.
type CMEvent struct {
	Type    ib.CMEventType
	Handle  uint64 // the id; for a request the listener; for a group that of Join
	Child   CMID   // request only; nil with a Status: it had to be refused, and Handle may be zero
	Status  int    // 0, -errno, or the transport's reject code
	Conn    ConnParam
	UD      UDParam
	Private []byte
}

// ConnParam is struct rdma_conn_param. In events it is what the peer sent, seen from
// this side: ResponderResources is what this side may be asked to serve.
type ConnParam struct {
	Private            []byte // not kept by calls
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8
	RNRRetryCount      uint8
	SRQ                bool
	QPN                ib.QPN
}

// UDParam is struct rdma_ud_param.
type UDParam struct {
	AH   AHAttr
	QPN  ib.QPN
	QKey ib.QKey
}
