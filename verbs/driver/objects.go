package driver

import (
	"context"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// PD is a protection domain (struct ibv_pd).
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

// DMABufRegistrar is an optional ability of a PD (ibv_reg_dmabuf_mr).
type DMABufRegistrar interface {
	RegDMABuf(fd int, off uint64, n int, iova uint64, a ib.Access) (MR, error)
}

// MWAllocator is an optional ability of a PD (ibv_alloc_mw).
type MWAllocator interface {
	AllocMW(t ib.MWType) (MW, error)
}

// MR is a memory region (struct ibv_mr).
type MR interface {
	Keys() (ib.LKey, ib.RKey)
	Handle() uint64 // goes into SendSlot.MR
	// Close takes the region away. When it returns the device touches the memory no
	// more, whatever is in flight.
	Close() error
}

// MW is a memory window (struct ibv_mw).
type MW interface {
	RKey() ib.RKey  // of the window as it was made; verbs chooses those of binds
	Handle() uint64 // goes into SendSlot.MW
	Close() error
}

// AH is an address handle (struct ibv_ah).
type AH interface {
	Handle() uint64 // goes into SendSlot.AH
	Close() error
}

// CompChannel queues one event per arm (struct ibv_comp_channel).
type CompChannel interface {
	Notifier
	// Next takes one event: the handle of the CQ that fired. It never blocks. A handle
	// of a CQ that was closed is allowed: verbs drops it.
	Next() (cq uint64, ok bool, err error)
	Close() error
}

// CQConfig describes a completion queue.
type CQConfig struct {
	Handle  uint64
	Entries int
	Channel CompChannel
	Vector  int
}

// CQ is a completion queue (struct ibv_cq).
type CQ interface {
	// Entries gives the capacity, at least what was asked for.
	Entries() int
	// Poll gives entries of the provider, valid until the next Poll. None: empty slice.
	// The entries are taken: they do not count as occupied any more. The error says
	// that the queue is broken (overrun), and comes after the last entry.
	Poll() ([]WC, error)
	// Arm sets the one-shot notification. Completions that are already there need
	// not fire: verbs polls again afterwards (the strict model).
	Arm(solicited bool) error
	Close() error
}

// Moderator is an optional ability of a CQ (ibv_modify_cq).
type Moderator interface {
	Moderate(count int, period time.Duration) error
}

// Resizer is an optional ability of a CQ (ibv_resize_cq).
type Resizer interface {
	Resize(entries int) error
}

// SpinPoller is an optional ability of a CQ whose Poll costs more to call than to do:
// PollFor is Poll that looks again until there is something, or d is over. It holds the
// thread and what Go runs on it meanwhile, so verbs asks for a few microseconds at a time
// and only if other goroutines have a processor. A d of zero or less looks once.
type SpinPoller interface {
	PollFor(d time.Duration) ([]WC, error)
}

// ArmPoller is an optional ability of a CQ whose calls cost more than what they do: ArmPoll is
// Arm for any completion and then Poll. An error of the first is told by armed; then it has
// polled, too.
type ArmPoller interface {
	ArmPoll() (wc []WC, armed, err error)
}

// Sleeper is an optional ability of a CQ whose provider reads the network in Go: a
// goroutine that waits for this queue alone needs no event.
type Sleeper interface {
	// Sleep blocks until Poll may have something or give an error, Rouse is called, or
	// ctx ends. It gives false at once if it cannot; then the queue must be armed and the
	// channel waited for. Returning too early is allowed. One goroutine at a time is in
	// Sleep. It should not allocate.
	Sleep(ctx context.Context) bool

	// Rouse ends a Sleep that has begun.
	Rouse()
}

// WC is one completion (struct ibv_wc). Only ID, Status, QPN and VendorErr are valid if
// Status is not success.
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

// SGE is a piece of local memory (struct ibv_sge).
type SGE struct {
	Addr uint64
	Len  uint32
	LKey ib.LKey
}

// SendSlot is a place of the provider in which verbs writes one request. verbs sets
// ID, Opcode, Flags, SGL and Data always, and of the others those that the operation
// uses; the rest may have any value.
type SendSlot struct {
	ID      uint64
	SGL     []SGE  // len 0, cap = MaxSendSGE of the queue pair
	Data    []byte // inline data: len 0, cap = MaxInline
	Addr    uint64
	Compare uint64
	Swap    uint64
	AH      uint64
	MW, MR  uint64  // of a bind: the window, which gets the key RKey, and the region
	RKey    ib.RKey // of the peer's memory, or to be invalidated
	Len     uint32  // of a bind: so many bytes from Addr on
	Rights  ib.Access
	Imm     uint32
	QPN     ib.QPN
	QKey    ib.QKey
	SRQN    uint32
	Opcode  ib.Opcode
	Flags   ib.SendFlags // with ib.Inline the message is Data, else it is SGL
}

// RecvSlot is a place for one receive request. verbs sets both fields.
type RecvSlot struct {
	ID  uint64
	SGL []SGE
}

// QPConfig describes a queue pair.
type QPConfig struct {
	Handle    uint64
	Type      ib.QPType
	SendCQ    CQ
	RecvCQ    CQ
	SRQ       SRQ // nil: own receive queue
	Cap       Caps
	SignalAll bool
}

// Caps are the sizes of a queue pair (struct ibv_qp_cap).
type Caps struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline int
}

// QP is a queue pair (struct ibv_qp).
//
// In the error state requests that are outstanding complete, flushed, in order: at
// once or soon. verbs waits a limited time for them, completes what is missing itself,
// and hands over no more requests, except one signaled send of no data that tells
// whether the unsignaled ones before it are through.
type QP interface {
	Num() ib.QPN
	// Caps gives the sizes, at least what was asked for.
	Caps() Caps
	// SendSlots gives places that are free and contiguous, at least 1 unless the queue
	// is full. They are valid until CommitSend or Modify; places that verbs has written
	// and not committed are given again.
	SendSlots() []SendSlot
	// CommitSend posts the first n of them in order; a bind always alone. If posted < n, the error is that of
	// the first that was not; ENOMEM means that the queue is full.
	CommitSend(n int) (posted int, err error)
	RecvSlots() []RecvSlot
	CommitRecv(n int) (posted int, err error)
	// Modify changes attributes and state. verbs has compared the mask with the state
	// table. On error nothing has changed.
	Modify(a *QPAttr, m ib.QPAttrMask) error
	// Query gives at least the attributes of the mask.
	Query(m ib.QPAttrMask) (QPAttr, error)
	// Attach and Detach join a multicast group and leave it. verbs leaves them all before Close.
	Attach(g ib.GID, l ib.LID) error
	Detach(g ib.GID, l ib.LID) error
	// Close destroys the queue pair. When it returns the device touches the memory of
	// its requests no more. Its completions may stay in the CQs: verbs drops them.
	Close() error
}

// SRQConfig describes a shared receive queue.
type SRQConfig struct {
	Handle               uint64
	MaxWR, MaxSGE, Limit int
}

// SRQ is a shared receive queue (struct ibv_srq).
type SRQ interface {
	RecvSlots() []RecvSlot
	CommitRecv(n int) (posted int, err error)
	// Modify changes what is not negative.
	Modify(maxWR, limit int) error
	Query() (maxWR, limit int, err error)
	Close() error
}
