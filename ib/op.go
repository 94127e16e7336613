package ib

// SendFlags of a send request (ibv_send_flags).
type SendFlags uint8

const (
	Fence      SendFlags = 1 << iota // wait for the READs and atomics before it
	Signaled                         // completes even if it succeeds
	Solicited                        // the peer's completion is a solicited event
	Inline                           // the data is taken at posting
	IPChecksum                       // the device fills in checksums
)

func (f SendFlags) String() string { return flagNames(sendFlagNames, uint64(f)) }

var sendFlagNames = []string{"FENCE", "SIGNALED", "SOLICITED", "INLINE", "IP_CSUM"}

// Opcode of a send request (ibv_wr_opcode).
type Opcode uint8

const (
	OpWrite Opcode = iota
	OpWriteImm
	OpSend
	OpSendImm
	OpRead
	OpCompareSwap
	OpFetchAdd
	OpLocalInv
	OpBindMW
	OpSendInv
	OpTSO
	OpFlush       Opcode = 14
	OpAtomicWrite Opcode = 15
)

func (o Opcode) String() string { return name("Opcode", opcodeNames, int(o)) }

var opcodeNames = []string{
	"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ", "ATOMIC_CMP_AND_SWP",
	"ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW", "SEND_WITH_INV", "TSO", "DRIVER1",
	OpFlush: "FLUSH", OpAtomicWrite: "ATOMIC_WRITE",
}

// WCOpcode is what a completed request did (ibv_wc_opcode). In C it is valid only if the
// request succeeded; in a verbs.WC it always is.
type WCOpcode uint8

const (
	WCSend WCOpcode = iota
	WCWrite
	WCRead
	WCCompareSwap
	WCFetchAdd
	WCBindMW
	WCLocalInv
	WCTSO
	WCFlush
	WCAtomicWrite
	WCRecv WCOpcode = 128 + iota - 10
	WCRecvWriteImm
)

// IsRecv reports whether the completion belongs to a receive request.
func (o WCOpcode) IsRecv() bool { return o&128 != 0 }

func (o WCOpcode) String() string {
	switch o {
	case WCRecv:
		return "RECV"
	case WCRecvWriteImm:
		return "RECV_RDMA_WITH_IMM"
	}
	return name("WCOpcode", wcOpcodeNames, int(o))
}

var wcOpcodeNames = []string{
	"SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV", "TSO", "FLUSH", "ATOMIC_WRITE",
}

// WCFlags of a completion (ibv_wc_flags).
type WCFlags uint8

const (
	WithGRH      WCFlags = 1 << iota // the buffer begins with 40 bytes of GRH (UD)
	WithImm                          // immediate data came with it
	IPChecksumOK                     // the device has verified checksums
	WithInv                          // a key was invalidated
)

func (f WCFlags) String() string { return flagNames(wcFlagNames, uint64(f)) }

var wcFlagNames = []string{"GRH", "WITH_IMM", "IP_CSUM_OK", "WITH_INV"}

// FlushPlace is where a flushed write must have arrived (ibv_placement_type).
type FlushPlace uint8

const (
	PlaceGlobal     FlushPlace = 1 << iota // visible to all of the peer
	PlacePersistent                        // in persistent memory
)

func (p FlushPlace) String() string { return flagNames(flushPlaceNames, uint64(p)) }

var flushPlaceNames = []string{"GLOBAL", "PERSISTENT"}

// FlushLevel says what is flushed (ibv_selectivity_level).
type FlushLevel uint8

const (
	LevelRange FlushLevel = iota // the bytes named
	LevelMR                      // all of the region
)

func (l FlushLevel) String() string { return name("FlushLevel", flushLevelNames, int(l)) }

var flushLevelNames = []string{"RANGE", "MR"}
