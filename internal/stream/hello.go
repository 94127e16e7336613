package stream

import (
	"encoding/binary"
	"strconv"

	"github.com/verbena-rdma/verbena/ib"
)

// Sizes of the hello and of what follows it in the private data.
const (
	HelloLen     = 40
	ExtensionLen = 16
	MaxHelloLen  = HelloLen + ExtensionLen
)

// Parameters of the connection manager that both sides should give (rsockets version 1
// gives RetryCount 7, which some devices take as "for ever").
const (
	RetryCount    = 6
	RNRRetryCount = 7
	FlowControl   = true
)

// SpareRecvs is how many receives more than credits are posted in Compatible: control
// words take none of the credits.
const SpareRecvs = 8

// Flags of a hello.
const (
	FlagNet   = 1 << 0 // the sender reads its table in big-endian order
	FlagIOMap = 1 << 1 // IOMap is valid
)

// Hello is the private data of rsockets version 1 in the REQ and the REP, and the
// extension behind it.
type Hello struct {
	Flags   uint8  // FlagNet, FlagIOMap; others are ignored
	Credits uint16 // messages that the receiver of the hello may send at first
	IOMap   int    // entries of the sender's map, 0 to MaxIOMap; above 128 a multiple of 256
	SGLAddr uint64 // the table in which the receiver of the hello advertises its buffers
	SGLKey  ib.RKey
	SGLLen  uint32 // entries
	BufAddr uint64 // the first buffer
	BufKey  ib.RKey
	BufLen  uint32
	// Ext is the extension; its zero value means that there is none.
	Ext Extension
}

// MaxIOMap is the greatest I/O map that a hello can tell.
const MaxIOMap = 127 * 256

// maxTable bounds the table of a peer.
const maxTable = 1 << 16

// Extension is what Verbenas put behind the hello.
type Extension struct {
	Version  uint8 // ExtensionVersion; 0: no extension
	Flags    uint8
	Credits  uint8  // receives that are posted
	RecvSize uint32 // bytes of each, a power of two, MinRecv to MaxRecvSize
	Instance uint64 // random, of the process
}

// ExtensionVersion is the one version of the extension yet.
const ExtensionVersion = 1

// magic is "VRB1".
const magic = 0x56524231

// Limits of Verbena.
const (
	MinRecv     = 64      // bytes of a receive: every message of the protocol fits
	MaxRecvSize = 1 << 21 //
	MinCredits  = 8       // reserve and a few for data
)

// Append appends the wire form: HelloLen bytes, or MaxHelloLen with an extension.
func (h *Hello) Append(b []byte) []byte {
	b = append(b, 1, h.Flags)
	b = binary.BigEndian.AppendUint16(b, h.Credits)
	b = append(b, 0, 0, 0, encodeIOMap(h.IOMap))
	b = binary.BigEndian.AppendUint64(b, h.SGLAddr)
	b = binary.BigEndian.AppendUint32(b, uint32(h.SGLKey))
	b = binary.BigEndian.AppendUint32(b, h.SGLLen)
	b = binary.BigEndian.AppendUint64(b, h.BufAddr)
	b = binary.BigEndian.AppendUint32(b, uint32(h.BufKey))
	b = binary.BigEndian.AppendUint32(b, h.BufLen)
	if x := &h.Ext; x.Version != 0 {
		b = binary.BigEndian.AppendUint32(b, magic)
		b = append(b, x.Version, x.Flags, x.Credits, log2(x.RecvSize))
		b = binary.BigEndian.AppendUint64(b, x.Instance)
	}
	return b
}

// Side says from which message a hello comes.
type Side uint8

const (
	Request Side = iota // from the active side
	Reply               // from the passive side
)

// ParseHello reads private data: the hello, the extension if its magic is there, and
// padding. An error is a *HelloError; the answer to a bad request is a plain rejection
// (reason 28). Addresses and keys are names that mean something to the peer only, so all
// values are allowed, but ranges must not wrap. In a Reply with the extension the fields
// of the table and the buffer are not looked at: Verbena has neither.
func ParseHello(b []byte, from Side) (h Hello, err error) {
	if len(b) < HelloLen {
		return h, &HelloError{"length", 0, uint64(len(b)), "at least 40"}
	}
	if b[0] != 1 {
		return h, &HelloError{"version", 0, uint64(b[0]), "1"}
	}
	h.Flags = b[1]
	h.Credits = binary.BigEndian.Uint16(b[2:])
	if h.Flags&FlagIOMap != 0 {
		h.IOMap = decodeIOMap(b[7])
	}
	h.SGLAddr = binary.BigEndian.Uint64(b[8:])
	h.SGLKey = ib.RKey(binary.BigEndian.Uint32(b[16:]))
	h.SGLLen = binary.BigEndian.Uint32(b[20:])
	h.BufAddr = binary.BigEndian.Uint64(b[24:])
	h.BufKey = ib.RKey(binary.BigEndian.Uint32(b[32:]))
	h.BufLen = binary.BigEndian.Uint32(b[36:])
	if err := h.Ext.parse(b[HelloLen:]); err != nil {
		return h, err
	}
	if h.Ext.Version != 0 && from == Reply {
		return h, nil
	}
	switch {
	case h.Credits == 0:
		return h, &HelloError{"credits", 2, 0, "at least 1"}
	case h.SGLLen == 0 || h.SGLLen > maxTable:
		return h, &HelloError{"SGL length", 20, uint64(h.SGLLen), "1 to " + strconv.Itoa(maxTable)}
	case h.SGLAddr+uint64(TableLen(int(h.SGLLen), h.IOMap)) < h.SGLAddr:
		return h, &HelloError{"SGL address", 8, h.SGLAddr, "such that the table does not wrap"}
	case h.BufLen == 0:
		return h, &HelloError{"buffer length", 36, 0, "at least 1"}
	case h.BufAddr+uint64(h.BufLen) < h.BufAddr:
		return h, &HelloError{"buffer address", 24, h.BufAddr, "such that the buffer does not wrap"}
	}
	return h, nil
}

// parse reads the extension; without the magic there is none.
func (x *Extension) parse(b []byte) error {
	if len(b) < ExtensionLen || binary.BigEndian.Uint32(b) != magic {
		return nil
	}
	if b[4] == 0 {
		return &HelloError{"extension version", HelloLen + 4, 0, "at least 1"}
	}
	if b[6] < MinCredits {
		return &HelloError{"extension credits", HelloLen + 6, uint64(b[6]), "at least 8"}
	}
	if b[7] < log2(MinRecv) || b[7] > log2(MaxRecvSize) {
		return &HelloError{"receive size", HelloLen + 7, uint64(b[7]), "6 to 21, a power of two"}
	}
	*x = Extension{Version: b[4], Flags: b[5], Credits: b[6], RecvSize: 1 << b[7], Instance: binary.BigEndian.Uint64(b[8:])}
	return nil
}

// Negotiate gives the mode of a connection. The passive side calls it before it makes its
// reply: only if the mode is Verbena does the reply have an extension, of
// ExtensionVersion. The active side calls it with the reply. It gives a *HelloError if a
// reply has an extension that was not offered.
func Negotiate(request, reply *Hello) (Mode, error) {
	switch {
	case request.Ext.Version == 0 && reply.Ext.Version == 0:
		return Compatible, nil
	case reply.Ext.Version == 0:
		return Compatible, nil
	case request.Ext.Version == 0:
		return 0, &HelloError{"extension version", HelloLen + 4, uint64(reply.Ext.Version), "absent, as it was not offered"}
	case reply.Ext.Version > request.Ext.Version || reply.Ext.Version != ExtensionVersion:
		return 0, &HelloError{"extension version", HelloLen + 4, uint64(reply.Ext.Version), "1, which was offered"}
	}
	return Verbena, nil
}

// encodeIOMap gives the byte for a map of n entries, rounded down to what it can say.
func encodeIOMap(n int) uint8 {
	switch {
	case n <= 0:
		return 0
	case n < 256:
		return uint8(min(n, 0x80))
	}
	return 0x80 | uint8(min(n/256, 127))
}

// decodeIOMap gives the number of entries that a byte means.
func decodeIOMap(b uint8) int {
	if b <= 0x80 {
		return int(b)
	}
	return int(b&0x7F) * 256
}

// log2 gives the exponent of a power of two, and of the next smaller one otherwise.
func log2(n uint32) uint8 {
	e := uint8(0)
	for ; n > 1; n >>= 1 {
		e++
	}
	return e
}

// TableLen gives the bytes of a table of sgl entries with a map of iomap entries behind.
func TableLen(sgl, iomap int) int { return 16*sgl + 24*iomap }

// InitialRecv gives the n-th of the receives that are posted before a hello is sent, and
// false if there are no more. Of an active side with the extension, and of a passive side
// in Verbena, those are the buffers of m, Ext.Credits in number.
func InitialRecv(h *Hello, m *RecvMemory, n int) (Recv, bool) {
	if n >= int(h.Ext.Credits) || h.Ext.Version == 0 {
		return Recv{}, false
	}
	return Recv{ID: uint64(n), Loc: Loc{FirstRecv, uint32(n * m.Size), uint32(m.Size)}}, true
}
