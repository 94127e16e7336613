package ib

// Access says who may do what with memory (ibv_access_flags). Zero: this side may
// read it, as the source of sends.
type Access uint32

const (
	LocalWrite      Access = 1 << iota // receives, READs and atomics may land there
	RemoteWrite                        // needs LocalWrite
	RemoteRead                         //
	RemoteAtomic                       // needs LocalWrite
	MWBind                             // memory windows may be bound to it
	ZeroBased                          // addresses count from 0
	OnDemand                           // pages come when they are needed
	HugeTLB                            // the memory is of huge pages
	FlushGlobal                        //
	FlushPersistent                    //
	RelaxedOrdering Access = 1 << 20   // writes may become visible in any order
)

// RemoteAny has the three rights that a peer may have.
const RemoteAny = RemoteWrite | RemoteRead | RemoteAtomic

func (a Access) String() string { return flagNames(accessNames, uint64(a)) }

var accessNames = []string{
	"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND", "ZERO_BASED", "ON_DEMAND", "HUGETLB",
	"FLUSH_GLOBAL", "FLUSH_PERSISTENT", 20: "RELAXED_ORDERING",
}

// MWType of a memory window (ibv_mw_type).
type MWType uint8

const (
	MWType1 MWType = 1 + iota // bound by a call
	MWType2                   // bound by a request
)

func (t MWType) String() string { return name("MWType", mwTypeNames, int(t)) }

var mwTypeNames = []string{MWType1: "TYPE_1", MWType2: "TYPE_2"}

// MRAdvice is a hint about memory that is registered on demand
// (ib_uverbs_advise_mr_advice).
type MRAdvice uint8

const (
	AdvicePrefetch        MRAdvice = iota // for reading
	AdvicePrefetchWrite                   // for writing
	AdvicePrefetchNoFault                 // only what is resident
)

func (a MRAdvice) String() string { return name("MRAdvice", mrAdviceNames, int(a)) }

var mrAdviceNames = []string{"PREFETCH", "PREFETCH_WRITE", "PREFETCH_NO_FAULT"}
