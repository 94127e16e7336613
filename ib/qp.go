package ib

// QPType is the transport service of a queue pair (ibv_qp_type).
type QPType uint8

const (
	RC        QPType = 2   // reliable connection
	UC        QPType = 3   // unreliable connection
	UD        QPType = 4   // unreliable datagram
	RawPacket QPType = 8   // Ethernet frames
	XRCSend   QPType = 9   // initiator of an extended reliable connection
	XRCRecv   QPType = 10  // target of an extended reliable connection
	DriverQP  QPType = 255 // a type of one vendor
)

// Connected reports whether a queue pair of this type talks to one peer only.
func (t QPType) Connected() bool { return t == RC || t == UC || t == XRCSend || t == XRCRecv }

func (t QPType) String() string {
	if t == DriverQP {
		return "DRIVER"
	}
	return name("QPType", qpTypeNames, int(t))
}

var qpTypeNames = []string{
	RC: "RC", UC: "UC", UD: "UD", RawPacket: "RAW_PACKET", XRCSend: "XRC_SEND", XRCRecv: "XRC_RECV",
}

// QPState of a queue pair (ibv_qp_state; IBTA Vol 1 §10.3.1).
type QPState uint8

const (
	StateReset QPState = iota // as made: nothing can be posted
	StateInit                 // receives can be posted
	StateRTR                  // ready to receive
	StateRTS                  // ready to send: both ways work
	StateSQD                  // the send queue is drained, or will be
	StateSQE                  // the send queue failed (not RC)
	StateError                // all requests are flushed
)

func (s QPState) String() string { return name("QPState", qpStateNames, int(s)) }

var qpStateNames = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// QPAttrMask names the fields that Modify sets or Query wants (ibv_qp_attr_mask).
type QPAttrMask uint32

const (
	AttrState QPAttrMask = 1 << iota
	AttrCurState
	AttrSQDNotify
	AttrAccess
	AttrPKeyIndex
	AttrPort
	AttrQKey
	AttrAV
	AttrPathMTU
	AttrTimeout
	AttrRetryCount
	AttrRNRRetry
	AttrRQPSN
	AttrMaxRDAtomic
	AttrAltPath
	AttrMinRNRTimer
	AttrSQPSN
	AttrMaxDestRDAtomic
	AttrPathMigState
	AttrCap
	AttrDestQPN
	AttrRateLimit QPAttrMask = 1 << 25
)

func (m QPAttrMask) String() string { return flagNames(qpAttrNames, uint64(m)) }

var qpAttrNames = []string{
	"STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY", "AV",
	"PATH_MTU", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC", "ALT_PATH", "MIN_RNR_TIMER",
	"SQ_PSN", "MAX_DEST_RD_ATOMIC", "PATH_MIG_STATE", "CAP", "DEST_QPN", 25: "RATE_LIMIT",
}

// MigState is the state of automatic path migration (ibv_mig_state).
type MigState uint8

const (
	Migrated MigState = iota
	Rearm
	Armed
)

func (m MigState) String() string { return name("MigState", migStateNames, int(m)) }

var migStateNames = []string{"MIGRATED", "REARM", "ARMED"}

// SRQType of a shared receive queue (ibv_srq_type).
type SRQType uint8

const (
	SRQBasic SRQType = iota
	SRQXRC
)

func (t SRQType) String() string { return name("SRQType", srqTypeNames, int(t)) }

var srqTypeNames = []string{"BASIC", "XRC"}

// Notify says which completions fire an armed completion queue (the argument
// solicited_only of ibv_req_notify_cq).
type Notify bool

const (
	NotifyAny       Notify = false // every completion
	NotifySolicited Notify = true  // solicited receives and errors
)

func (n Notify) String() string {
	if n == NotifySolicited {
		return "SOLICITED"
	}
	return "ANY"
}

// CounterOps says which operations a completion counter counts
// (ibv_qp_attach_comp_cntr_op).
type CounterOps uint32

const (
	CountSend CounterOps = 1 << iota
	CountRecv
	CountRead
	CountRemoteRead
	CountWrite
	CountRemoteWrite
)

func (c CounterOps) String() string { return flagNames(counterOpNames, uint64(c)) }

var counterOpNames = []string{"SEND", "RECV", "RDMA_READ", "REMOTE_RDMA_READ", "RDMA_WRITE", "REMOTE_RDMA_WRITE"}

// CounterType is what a completion counter counts (ibv_comp_cntr_type).
type CounterType uint8

const (
	CounterWRs   CounterType = iota // requests
	CounterBytes                    // their bytes
)

func (c CounterType) String() string { return name("CounterType", counterTypeNames, int(c)) }

var counterTypeNames = []string{"WRS", "BYTES"}
