// Package driver defines what a provider implements: the kernel's devices, the
// embedded device, the test fabric. Most code should use packages verbs and cm.
// The contract is unstable until v1.
//
// Rules of the contract, in order of importance:
//
//  1. Providers never call back. Completions, events and their descriptors are
//     pulled. So no lock of a provider is ever held while user code runs.
//  2. Slots and entries belong to the provider. On the data path no pointer or
//     slice of a caller crosses the interface: the caller's stack stays a stack.
//  3. Identity and accounting belong to package verbs. SendSlot.ID is an index
//     that verbs chose; a provider returns it and gives it no meaning.
//  4. verbs has checked the arguments: protection domain, bounds, room, state.
//     Providers check again only what a hostile peer could influence.
//  5. Every call but Poll, Arm, *Slots, Commit* and Next may sleep for a short
//     time (a system call). None waits for a peer. None waits for an
//     acknowledgement of an event: what Next handed out is acknowledged.
//  6. Calls on one object come one at a time, except Close, which comes last.
//  7. Optional abilities are optional interfaces; a missing one, or an error that
//     wraps errors.ErrUnsupported, means the same.
package driver

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// Provider is a source of devices.
type Provider interface {
	Name() string // "kernel", "soft", "fabric"
	Devices() ([]DeviceInfo, error)
	OpenDevice(name string) (Context, error)
	OpenCM() (CM, error) // errors.ErrUnsupported: this provider has no connection manager
}

type DeviceInfo struct {
	Name      string
	Path      string // /sys path, empty for soft devices
	GUID      ib.GUID
	NodeType  ib.NodeType
	Transport ib.Transport
	Index     int
}

// Notifier is how a consumer learns that Next has something.
type Notifier interface {
	// FD gives a non-blocking descriptor that is readable exactly while Next has
	// an event. It may be made by the first call. The provider keeps ownership.
	FD() (int, error)
}

// Waiter is an optional ability of a Notifier: to wait without a descriptor, for
// pure Go providers. verbs then opens no descriptor unless a user asks for one,
// and tests may run in a testing/synctest bubble.
type Waiter interface {
	Wait(ctx context.Context) error
}

// ErrDeviceGone is the answer of every call on a device that was removed or failed
// for good; Close still works. Next gives it after the last event.
var ErrDeviceGone = errors.New("device is gone")

// Moderator is an optional ability of a CQ (ibv_modify_cq).
type Moderator interface {
	Moderate(count int, period time.Duration) error
}

// Resizer is an optional ability of a CQ (ibv_resize_cq).
type Resizer interface {
	Resize(entries int) error
}

// Clock is an optional ability of a Context.
type Clock interface {
	Clock() (time.Duration, error)
}

// Context is an open device.
type Context interface {
	Device() DeviceInfo
	QueryDevice() (DeviceAttr, error)
	QueryPort(port int) (PortAttr, error)
	GIDs() ([]GIDEntry, error)
	PKey(port, index int) (ib.PKey, error)
	AllocPD() (PD, error)
	CreateCompChannel() (CompChannel, error)
	CreateCQ(CQConfig) (CQ, error)
	Async() AsyncQueue
	Close() error
}

type PD interface {
	// RegMR registers p. The memory stays where it is, and is not freed, until the
	// MR is closed: verbs sees to both. iova is the address of the first byte in
	// requests, usually that of p itself.
	RegMR(p []byte, iova uint64, a ib.Access) (MR, error)
	CreateSRQ(SRQConfig) (SRQ, error)
	CreateQP(QPConfig) (QP, error)
	CreateAH(AHAttr) (AH, error)
	Close() error
}

type MR interface {
	Keys() (ib.LKey, ib.RKey)
	Close() error
}

type AH interface {
	Handle() uint64 // goes into SendSlot.AH
	Close() error
}

// CompChannel queues one event per arm.
type CompChannel interface {
	Notifier
	// Next takes one event: the handle of the CQ that fired. It never blocks.
	Next() (cq uint64, ok bool, err error)
	Close() error
}

type CQConfig struct {
	Handle  uint64
	Entries int
	Channel CompChannel
	Vector  int
}

type CQ interface {
	Entries() int
	// Poll gives entries of the provider, valid until the next Poll. None: empty slice.
	Poll() ([]WC, error)
	// Arm sets the one-shot notification. Completions that are already there need
	// not fire: verbs polls again afterwards (the strict model).
	Arm(solicited bool) error
	Close() error
}

// WC is one completion. Only ID, Status, QPN and VendorErr are valid if Status is
// not success.
type WC struct {
	ID        uint64
	ByteLen   uint32
	Imm       uint32 // host order; or the invalidated rkey
	QPN       ib.QPN
	SrcQPN    ib.QPN
	VendorErr uint32
	Status    ib.Status
	Opcode    ib.WCOpcode
	Flags     ib.WCFlags
	SL        uint8
	PathBits  uint8
	SLID      ib.LID
	PKeyIndex uint16
}

type SGE struct {
	Addr uint64
	Len  uint32
	LKey ib.LKey
}

// SendSlot is a place of the provider in which verbs writes one request.
type SendSlot struct {
	ID      uint64
	SGL     []SGE  // len 0, cap = MaxSendSGE of the queue pair
	Data    []byte // inline data: len 0, cap = MaxInline
	Addr    uint64
	Compare uint64
	Swap    uint64
	AH      uint64
	RKey    ib.RKey
	Imm     uint32
	QPN     ib.QPN
	QKey    ib.QKey
	SRQN    uint32
	Opcode  ib.Opcode
	Flags   ib.SendFlags
}

type RecvSlot struct {
	ID  uint64
	SGL []SGE
}

type QPConfig struct {
	Handle     uint64
	Type       ib.QPType
	SendCQ     CQ
	RecvCQ     CQ
	SRQ        SRQ
	Cap        Caps
	SignalAll  bool
	CreateOpts uint32
}

type Caps struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline int
}

type QP interface {
	Num() ib.QPN
	Caps() Caps
	SendSlots() []SendSlot // free and contiguous, at least 1 unless the queue is full
	CommitSend(n int) (posted int, err error)
	RecvSlots() []RecvSlot
	CommitRecv(n int) (posted int, err error)
	Modify(a *QPAttr, m ib.QPAttrMask) error
	Query(m ib.QPAttrMask) (QPAttr, error)
	Attach(g ib.GID, l ib.LID) error
	Detach(g ib.GID, l ib.LID) error
	Close() error
}

type SRQConfig struct {
	Handle               uint64
	MaxWR, MaxSGE, Limit int
}

type SRQ interface {
	RecvSlots() []RecvSlot
	CommitRecv(n int) (posted int, err error)
	Modify(maxWR, limit int) error
	Query() (maxWR, limit int, err error)
	Close() error
}

// AsyncQueue gives asynchronous events of a device.
type AsyncQueue interface {
	Notifier
	Next() (AsyncEvent, bool, error)
}

type AsyncEvent struct {
	Type   ib.EventType
	Handle uint64 // of the CQ, QP, SRQ or WQ that it is about
	Port   int
}

// CM opens channels of the connection manager.
type CM interface {
	OpenChannel() (CMChannel, error)
}

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

type CMInfo struct {
	Device        string
	Port          int
	Local, Remote netip.AddrPort
}

type CMEvent struct {
	Type    ib.CMEventType
	Handle  uint64 // the id; for a request the listener
	Child   CMID   // request only
	Status  int    // 0, -errno, or the transport's reject code
	Conn    ConnParam
	UD      UDParam
	Private []byte
}

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

type UDParam struct {
	AH   AHAttr
	QPN  ib.QPN
	QKey ib.QKey
}

type DeviceAttr struct {
	Firmware                                  string
	NodeGUID, SysImageGUID                    ib.GUID
	VendorID, VendorPartID, HWVersion         uint32
	Caps                                      ib.DeviceCaps
	MaxMRSize                                 uint64
	PageSizes                                 uint64
	MaxQP, MaxQPWR, MaxSGE, MaxSGERead        int
	MaxCQ, MaxCQE, MaxMR, MaxPD, MaxMW, MaxAH int
	MaxQPRDAtomic, MaxQPInitRDAtomic          int
	MaxSRQ, MaxSRQWR, MaxSRQSGE               int
	MaxMcastGroups, MaxMcastQPAttach          int
	MaxPKeys, Ports, CompVectors              int
	Atomic                                    ib.AtomicCap
	AckDelay                                  time.Duration
	MaxModerationCount                        int
	MaxModerationPeriod                       time.Duration
	MaxDMSize                                 uint64
	ODP                                       ib.ODPCaps
}

type PortAttr struct {
	State             ib.PortState
	Phys              ib.PhysState
	Link              ib.LinkLayer
	MaxMTU, ActiveMTU ib.MTU
	GIDs, PKeys       int
	MaxMessage        uint32
	LID, SMLID        ib.LID
	Caps              ib.PortCaps
	Caps2             ib.PortCaps2
	SpeedMbps         int // lanes × lane speed
}

type GIDEntry struct {
	GID     ib.GID
	Index   int
	Port    int
	Type    ib.GIDType
	IfIndex int
}

type AHAttr struct {
	DGID         ib.GID
	SGIDIndex    int
	FlowLabel    uint32
	HopLimit     uint8
	TrafficClass uint8
	DLID         ib.LID
	SL           uint8
	PathBits     uint8
	Rate         ib.Rate
	Global       bool
	Port         int
}

// QPAttr: times are times; the 5-bit codes live in providers only.
type QPAttr struct {
	State, CurState                  ib.QPState
	PathMTU                          ib.MTU
	PathMigState                     ib.MigState
	QKey                             ib.QKey
	RQPSN, SQPSN                     ib.PSN
	DestQPN                          ib.QPN
	Access                           ib.Access
	Cap                              Caps
	AH, AltAH                        AHAttr
	PKeyIndex, AltPKeyIndex          int
	SQDNotify, SQDraining            bool
	MaxRDAtomic, MaxDestRDAtomic     int
	MinRNRTimer, Timeout, AltTimeout time.Duration
	Port, AltPort                    int
	RetryCount, RNRRetry             int // RNRRetry 7: for ever
	RateLimitKbps                    int
}
