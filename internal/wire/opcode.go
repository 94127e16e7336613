package wire

import "strconv"

// Opcode is the first byte of the base transport header: the transport service in the
// upper three bits, the operation in the lower five (IBTA Vol 1 §9.2.1, table 38).
type Opcode uint8

// Service is the transport service of an opcode.
type Service uint8

const (
	ServiceRC  Service = 0
	ServiceUC  Service = 1
	ServiceRD  Service = 2 // names only
	ServiceUD  Service = 3
	ServiceCNP Service = 4
	ServiceXRC Service = 5 // names only
)

// Operation is an opcode without its service: the same number means the same in all
// services that have it.
type Operation uint8

const (
	SendFirst     Operation = 0x00
	SendMiddle    Operation = 0x01
	SendLast      Operation = 0x02
	SendLastImm   Operation = 0x03
	SendOnly      Operation = 0x04
	SendOnlyImm   Operation = 0x05
	WriteFirst    Operation = 0x06
	WriteMiddle   Operation = 0x07
	WriteLast     Operation = 0x08
	WriteLastImm  Operation = 0x09
	WriteOnly     Operation = 0x0A
	WriteOnlyImm  Operation = 0x0B
	ReadRequest   Operation = 0x0C
	ReadRespFirst Operation = 0x0D

	ReadRespMiddle Operation = 0x0E
	ReadRespLast   Operation = 0x0F
	ReadRespOnly   Operation = 0x10
	Acknowledge    Operation = 0x11
	AtomicAck      Operation = 0x12
	CompareSwap    Operation = 0x13
	FetchAdd       Operation = 0x14
	Resync         Operation = 0x15
	SendLastInv    Operation = 0x16
	SendOnlyInv    Operation = 0x17
	Flush          Operation = 0x1C
	AtomicWrite    Operation = 0x1D
)

// Opcodes of the reliable connection.
const (
	RCSendFirst      = Opcode(SendFirst)
	RCSendMiddle     = Opcode(SendMiddle)
	RCSendLast       = Opcode(SendLast)
	RCSendLastImm    = Opcode(SendLastImm)
	RCSendOnly       = Opcode(SendOnly)
	RCSendOnlyImm    = Opcode(SendOnlyImm)
	RCWriteFirst     = Opcode(WriteFirst)
	RCWriteMiddle    = Opcode(WriteMiddle)
	RCWriteLast      = Opcode(WriteLast)
	RCWriteLastImm   = Opcode(WriteLastImm)
	RCWriteOnly      = Opcode(WriteOnly)
	RCWriteOnlyImm   = Opcode(WriteOnlyImm)
	RCReadRequest    = Opcode(ReadRequest)
	RCReadRespFirst  = Opcode(ReadRespFirst)
	RCReadRespMiddle = Opcode(ReadRespMiddle)
	RCReadRespLast   = Opcode(ReadRespLast)
	RCReadRespOnly   = Opcode(ReadRespOnly)
	RCAcknowledge    = Opcode(Acknowledge)
	RCAtomicAck      = Opcode(AtomicAck)
	RCCompareSwap    = Opcode(CompareSwap)
	RCFetchAdd       = Opcode(FetchAdd)
	RCSendLastInv    = Opcode(SendLastInv)
	RCSendOnlyInv    = Opcode(SendOnlyInv)
	RCFlush          = Opcode(Flush)       // IBTA 1.5; not supported
	RCAtomicWrite    = Opcode(AtomicWrite) // IBTA 1.5; not supported
)

// Opcodes of the unreliable connection.
const (
	UCSendFirst    Opcode = 0x20 + Opcode(SendFirst)
	UCSendMiddle   Opcode = 0x20 + Opcode(SendMiddle)
	UCSendLast     Opcode = 0x20 + Opcode(SendLast)
	UCSendLastImm  Opcode = 0x20 + Opcode(SendLastImm)
	UCSendOnly     Opcode = 0x20 + Opcode(SendOnly)
	UCSendOnlyImm  Opcode = 0x20 + Opcode(SendOnlyImm)
	UCWriteFirst   Opcode = 0x20 + Opcode(WriteFirst)
	UCWriteMiddle  Opcode = 0x20 + Opcode(WriteMiddle)
	UCWriteLast    Opcode = 0x20 + Opcode(WriteLast)
	UCWriteLastImm Opcode = 0x20 + Opcode(WriteLastImm)
	UCWriteOnly    Opcode = 0x20 + Opcode(WriteOnly)
	UCWriteOnlyImm Opcode = 0x20 + Opcode(WriteOnlyImm)
)

// Opcodes of the unreliable datagram.
const (
	UDSendOnly    Opcode = 0x60 + Opcode(SendOnly)
	UDSendOnlyImm Opcode = 0x60 + Opcode(SendOnlyImm)
)

// CNP is a congestion notification packet (annex A17.9.3). BECN is set in it, and
// DestQP is the queue pair that shall slow down.
const CNP Opcode = 0x81

// Flags say what an opcode means and which headers follow the BTH.
type Flags uint32

// Headers, in the order in which they stand.
const (
	HasRDETH      Flags = 1 << iota // not decoded
	HasXRCETH                       // not decoded
	HasDETH                         //
	HasFETH                         // not decoded
	HasRETH                         //
	HasAtomic                       // AtomicETH
	HasAETH                         //
	HasAtomicAck                    // AtomicAckETH
	HasImm                          // ImmDt
	HasInv                          // IETH
	HasReserved16                   // the 16 bytes of a CNP, see Packet.Payload
)

// Meaning.
const (
	HasPayload Flags = 1 << (16 + iota) // may be followed by data
	IsFirst                             // first packet of several
	IsMiddle                            //
	IsLast                              //
	IsOnly                              // first and last
	IsRequest                           // travels from requester to responder
	IsResponse                          //
	IsSend                              // SEND with all variants
	IsWrite                             // RDMA WRITE with all variants
	IsReadResp                          //
	IsAtomic                            // COMPARE_SWAP or FETCH_ADD
	Supported                           // Decode and AppendTo know it
)

const (
	// IsStart: a message begins here.
	IsStart = IsFirst | IsOnly
	// IsEnd: a message ends here.
	IsEnd = IsLast | IsOnly
)

// Flags gives all flags of o; 0 for an opcode that the standard does not have.
func (o Opcode) Flags() Flags { return opFlags[o] }

// Has reports whether o has at least one of f.
func (o Opcode) Has(f Flags) bool { return opFlags[o]&f != 0 }

// Known reports whether the standard has o.
func (o Opcode) Known() bool { return opFlags[o] != 0 }

// HeaderLen gives the bytes of BTH and extended headers; 0 for an unknown opcode.
func (o Opcode) HeaderLen() int { return int(opLen[o]) }

// Service gives the upper three bits.
func (o Opcode) Service() Service { return Service(o >> 5) }

// Operation gives the lower five bits; it says nothing in a CNP.
func (o Opcode) Operation() Operation { return Operation(o & 31) }

// With gives the opcode of an operation in a service; Known says whether there is one.
func (s Service) With(op Operation) Opcode { return Opcode(s)<<5 | Opcode(op) }

// String gives service and operation, "RC RDMA_WRITE_ONLY".
func (o Opcode) String() string {
	if !o.Known() {
		return "opcode 0x" + strconv.FormatUint(uint64(o), 16)
	}
	if o == CNP {
		return "CNP"
	}
	return o.Service().String() + " " + o.Operation().String()
}

func (s Service) String() string {
	if int(s) < len(serviceNames) {
		return serviceNames[s]
	}
	return "service " + strconv.Itoa(int(s))
}

var serviceNames = [...]string{"RC", "UC", "RD", "UD", "CNP", "XRC"}

func (o Operation) String() string {
	if int(o) < len(operations) && operations[o].name != "" {
		return operations[o].name
	}
	return "operation 0x" + strconv.FormatUint(uint64(o), 16)
}

// operations describes the numbers in RC; the other services are derived from it.
var operations = [...]struct {
	name  string
	flags Flags
}{
	SendFirst:      {"SEND_FIRST", IsSend | IsRequest | IsFirst | HasPayload},
	SendMiddle:     {"SEND_MIDDLE", IsSend | IsRequest | IsMiddle | HasPayload},
	SendLast:       {"SEND_LAST", IsSend | IsRequest | IsLast | HasPayload},
	SendLastImm:    {"SEND_LAST_WITH_IMMEDIATE", IsSend | IsRequest | IsLast | HasPayload | HasImm},
	SendOnly:       {"SEND_ONLY", IsSend | IsRequest | IsOnly | HasPayload},
	SendOnlyImm:    {"SEND_ONLY_WITH_IMMEDIATE", IsSend | IsRequest | IsOnly | HasPayload | HasImm},
	WriteFirst:     {"RDMA_WRITE_FIRST", IsWrite | IsRequest | IsFirst | HasPayload | HasRETH},
	WriteMiddle:    {"RDMA_WRITE_MIDDLE", IsWrite | IsRequest | IsMiddle | HasPayload},
	WriteLast:      {"RDMA_WRITE_LAST", IsWrite | IsRequest | IsLast | HasPayload},
	WriteLastImm:   {"RDMA_WRITE_LAST_WITH_IMMEDIATE", IsWrite | IsRequest | IsLast | HasPayload | HasImm},
	WriteOnly:      {"RDMA_WRITE_ONLY", IsWrite | IsRequest | IsOnly | HasPayload | HasRETH},
	WriteOnlyImm:   {"RDMA_WRITE_ONLY_WITH_IMMEDIATE", IsWrite | IsRequest | IsOnly | HasPayload | HasRETH | HasImm},
	ReadRequest:    {"RDMA_READ_REQUEST", IsRequest | IsOnly | HasRETH},
	ReadRespFirst:  {"RDMA_READ_RESPONSE_FIRST", IsReadResp | IsResponse | IsFirst | HasPayload | HasAETH},
	ReadRespMiddle: {"RDMA_READ_RESPONSE_MIDDLE", IsReadResp | IsResponse | IsMiddle | HasPayload},
	ReadRespLast:   {"RDMA_READ_RESPONSE_LAST", IsReadResp | IsResponse | IsLast | HasPayload | HasAETH},
	ReadRespOnly:   {"RDMA_READ_RESPONSE_ONLY", IsReadResp | IsResponse | IsOnly | HasPayload | HasAETH},
	Acknowledge:    {"ACKNOWLEDGE", IsResponse | IsOnly | HasAETH},
	AtomicAck:      {"ATOMIC_ACKNOWLEDGE", IsResponse | IsOnly | HasAETH | HasAtomicAck},
	CompareSwap:    {"COMPARE_SWAP", IsAtomic | IsRequest | IsOnly | HasAtomic},
	FetchAdd:       {"FETCH_ADD", IsAtomic | IsRequest | IsOnly | HasAtomic},
	Resync:         {"RESYNC", IsRequest | IsOnly},
	SendLastInv:    {"SEND_LAST_WITH_INVALIDATE", IsSend | IsRequest | IsLast | HasPayload | HasInv},
	SendOnlyInv:    {"SEND_ONLY_WITH_INVALIDATE", IsSend | IsRequest | IsOnly | HasPayload | HasInv},
	Flush:          {"FLUSH", IsRequest | IsOnly | HasFETH | HasRETH},
	AtomicWrite:    {"ATOMIC_WRITE", IsRequest | IsOnly | HasPayload | HasRETH},
}

// headerLens gives the sizes of the headers in the order of their flags.
var headerLens = [...]uint8{4, 4, 8, 4, 16, 28, 4, 8, 4, 4, 16}

var opFlags, opLen = opcodeTable()

func opcodeTable() (flags [256]Flags, lens [256]uint8) {
	for i, op := range operations {
		if op.name == "" {
			continue
		}
		o := Operation(i)
		for _, s := range [...]Service{ServiceRC, ServiceUC, ServiceRD, ServiceUD, ServiceXRC} {
			f := op.flags
			switch s {
			case ServiceRC:
				if o == Resync {
					continue
				}
				if o != Flush && o != AtomicWrite {
					f |= Supported
				}
			case ServiceUC:
				if o > WriteOnlyImm {
					continue
				}
				f |= Supported
			case ServiceRD:
				if o > Resync {
					continue
				}
				f |= HasRDETH
				if f&IsRequest != 0 {
					f |= HasDETH
				}
			case ServiceUD:
				if o != SendOnly && o != SendOnlyImm {
					continue
				}
				f |= HasDETH | Supported
			case ServiceXRC:
				if o == Resync {
					continue
				}
				if f&IsRequest != 0 {
					f |= HasXRCETH
				}
			}
			flags[s.With(o)] = f
		}
	}
	flags[CNP] = HasReserved16 | IsOnly | Supported
	for o, f := range flags {
		if f == 0 {
			continue
		}
		lens[o] = BTHLen
		for i, n := range headerLens {
			if f&(1<<i) != 0 {
				lens[o] += n
			}
		}
	}
	return flags, lens
}
