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
type CMChannel interface {
	Notifier
	// Next takes one event, acknowledged. The event's bytes are copies.
	Next() (CMEvent, bool, error)
	CreateID(handle uint64, ps ib.PortSpace, t ib.QPType) (CMID, error)
	Close() error
}

// CMID never owns a queue pair: verbs made it, cm moves it through its states with
// the attributes from InitQPAttr.
type CMID interface {
	SetHandle(uint64)
	Info() CMInfo
	BindAddr(a netip.AddrPort) error
	ResolveAddr(src, dst netip.AddrPort, limit time.Duration) error
	ResolveRoute(limit time.Duration) error
	InitQPAttr(s ib.QPState) (QPAttr, ib.QPAttrMask, error)
	Listen(backlog int) error
	Connect(ConnParam) error
	Accept(ConnParam) error
	Reject(private []byte) error
	Establish() error
	Notify(ib.EventType) error
	Disconnect() error
	Migrate(CMChannel) error
	SetOption(level, name int, value []byte) error
	Join(group netip.Addr, f ib.JoinFlags, handle uint64) error
	Leave(group netip.Addr) error
	Close() error
}

// CMInfo is what an id is bound to.
type CMInfo struct {
	Device        string
	Port          int
	Local, Remote netip.AddrPort
}

// CMEvent is struct rdma_cm_event.
type CMEvent struct {
	Type    ib.CMEventType
	Handle  uint64 // the id; for a request the listener
	Child   CMID   // request only
	Status  int    // 0, -errno, or the transport's reject code
	Conn    ConnParam
	UD      UDParam
	Private []byte
}

// ConnParam is struct rdma_conn_param.
type ConnParam struct {
	Private            []byte
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
