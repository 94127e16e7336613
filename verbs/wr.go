package verbs

import (
	"github.com/verbena-rdma/verbena/ib"
)

// SendWR is a request for the send queue (struct ibv_send_wr). Fill in the fields,
// or use the functions below, which set exactly those that the operation has.
type SendWR struct {
	ID      uint64
	Local   SGE    // the only, or first, piece of local memory
	More    []SGE  // further pieces; read by the post, not kept
	Data    []byte // ib.Inline without an MR: bytes to copy, before the pieces; read by the post, not kept
	Remote  ib.Remote
	Compare uint64
	Swap    uint64 // or the number to add
	AH      *AH
	QPN     ib.QPN
	QKey    ib.QKey
	Imm     uint32 // host order
	InvRKey ib.RKey
	MW      *MW       // of a bind; Local is what it is bound to
	Rights  ib.Access // of a bind
	SRQN    uint32
	Opcode  ib.Opcode
	Flags   ib.SendFlags
}

// RecvWR is a request for a receive queue.
type RecvWR struct {
	ID    uint64
	Local SGE
	More  []SGE // read by the post, not kept
}

// Recv receives a message into l, or takes an immediate if l is zero.
func Recv(id uint64, l SGE) RecvWR { return RecvWR{ID: id, Local: l} }

// Send sends a message to the peer's next receive.
func Send(id uint64, l SGE, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpSend, Local: l, Flags: f}
}

// SendImm is Send with 32 bits that the receive's completion carries.
func SendImm(id uint64, imm uint32, l SGE, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpSendImm, Imm: imm, Local: l, Flags: f}
}

// SendInv is Send that takes a key of the peer's away.
func SendInv(id uint64, k ib.RKey, l SGE, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpSendInv, InvRKey: k, Local: l, Flags: f}
}

// SendTo sends a datagram.
func SendTo(id uint64, ah *AH, q ib.QPN, k ib.QKey, l SGE, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpSend, AH: ah, QPN: q, QKey: k, Local: l, Flags: f}
}

// Write writes l to the beginning of the peer's memory to.
func Write(id uint64, to ib.Remote, l SGE, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpWrite, Remote: to, Local: l, Flags: f}
}

// WriteImm is Write that consumes a receive of the peer's, whose completion carries 32
// bits.
func WriteImm(id uint64, to ib.Remote, imm uint32, l SGE, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpWriteImm, Remote: to, Imm: imm, Local: l, Flags: f}
}

// Read fills l from the beginning of the peer's memory from.
func Read(id uint64, from ib.Remote, l SGE, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpRead, Remote: from, Local: l, Flags: f}
}

// CompareSwap and FetchAdd work on the 8 bytes at at; l, 8 bytes, gets what was there.
func CompareSwap(id uint64, at ib.Remote, compare, swap uint64, l SGE, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpCompareSwap, Remote: at, Compare: compare, Swap: swap, Local: l, Flags: f}
}

// FetchAdd: see CompareSwap. The sum wraps.
func FetchAdd(id uint64, at ib.Remote, add uint64, l SGE, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpFetchAdd, Remote: at, Swap: add, Local: l, Flags: f}
}

// LocalInv takes a key of this side's away.
func LocalInv(id uint64, k ib.RKey, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpLocalInv, InvRKey: k, Flags: f}
}

// BindMW binds the window w of type 2 to the n bytes from off on of m, which must be
// registered with ib.MWBind: the peer of this queue pair, and nobody else, gets the rights a
// to them, with a new key, which w.RKey and w.Remote give as soon as the post has returned.
// The key is good when the bind is complete; requests that are posted behind it, such as the
// SEND that tells the peer, come after it. A bound window must be invalidated, by LocalInv or
// the peer's SendInv, before it is bound again. It panics like MR.SGE.
//
// A device may check less than was bound: Linux's Soft-RoCE lets the peer reach all of the
// region.
func BindMW(id uint64, w *MW, m *MR, off, n int, a ib.Access, f ib.SendFlags) SendWR {
	return SendWR{ID: id, Opcode: ib.OpBindMW, MW: w, Local: m.SGE(off, n), Rights: a, Flags: f}
}

// opInfo is what the post of an operation has to look at.
type opInfo struct {
	wc    ib.WCOpcode
	types uint8 // bit per ib.QPType
	f     opFlags
}

type opFlags uint8

const (
	opRemote  opFlags = 1 << iota // names memory of the peer
	opReads                       // fills local memory with what was there
	opAtomic                      // 8 bytes
	opNoLocal                     // has no local memory
	opBind                        // binds a window to local memory
)

const (
	onRC        = 1 << ib.RC
	onConnected = onRC | 1<<ib.UC
	onAll       = onConnected | 1<<ib.UD
)

// ops is the table of ibv_post_send(3). What is missing no queue pair of this library
// takes.
var ops = [16]opInfo{
	ib.OpWrite:       {ib.WCWrite, onConnected, opRemote},
	ib.OpWriteImm:    {ib.WCWrite, onConnected, opRemote},
	ib.OpSend:        {ib.WCSend, onAll, 0},
	ib.OpSendImm:     {ib.WCSend, onAll, 0},
	ib.OpRead:        {ib.WCRead, onRC, opRemote | opReads},
	ib.OpCompareSwap: {ib.WCCompareSwap, onRC, opRemote | opReads | opAtomic},
	ib.OpFetchAdd:    {ib.WCFetchAdd, onRC, opRemote | opReads | opAtomic},
	ib.OpLocalInv:    {ib.WCLocalInv, onConnected, opNoLocal},
	ib.OpSendInv:     {ib.WCSend, onConnected, 0},
	ib.OpBindMW:      {ib.WCBindMW, onConnected, opBind},
}
