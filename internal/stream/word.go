package stream

import (
	"encoding/binary"
	"strconv"

	"github.com/verbena-rdma/verbena/ib"
)

// word is the immediate of rsockets version 1: 3 bits of operation, 29 bits of value.
type word uint32

// Operations of a word. 1, 3 and 5 are reserved, 2 is never sent.
const (
	wordData    = 0 // value bytes were written to the current buffer
	wordCredit  = 4 // new limit of messages, with or without a table entry
	wordIOMap   = 6 // an entry of the I/O map, at index value
	wordControl = 7
)

// Values of wordControl. Peers ignore others.
const (
	controlDisconnect = 0
	controlKeepAlive  = 1 // not sent
	controlShutdown   = 2
)

// maxValue is the greatest value of a word.
const maxValue = 1<<29 - 1

func makeWord(op, value uint32) word { return word(op<<29 | value&maxValue) }
func (w word) op() uint32            { return uint32(w) >> 29 }
func (w word) value() uint32         { return uint32(w) & maxValue }

func (w word) String() string {
	v := strconv.Itoa(int(w.value()))
	switch w.op() {
	case wordData:
		return "DATA " + v
	case wordCredit:
		return "CREDIT " + v
	case wordIOMap:
		return "IOMAP " + v
	case wordControl:
		switch w.value() {
		case controlDisconnect:
			return "DISCONNECT"
		case controlKeepAlive:
			return "KEEPALIVE"
		case controlShutdown:
			return "SHUTDOWN"
		}
		return "CONTROL " + v
	}
	return "OP" + strconv.Itoa(int(w.op())) + " " + v
}

// sglLen and mapLen are the sizes of the entries of a table.
const (
	sglLen = 16
	mapLen = 24
)

// sglEntry describes a buffer.
type sglEntry struct {
	addr uint64
	key  ib.RKey
	n    uint32
}

// order is the byte order of a table, which is its owner's.
func order(h *Hello) binary.ByteOrder {
	if h.Flags&FlagNet != 0 {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

func (s sglEntry) put(b []byte, o binary.ByteOrder) {
	o.PutUint64(b, s.addr)
	o.PutUint32(b[8:], uint32(s.key))
	o.PutUint32(b[12:], s.n)
}

func parseSGL(b []byte, o binary.ByteOrder) sglEntry {
	return sglEntry{o.Uint64(b), ib.RKey(o.Uint32(b[8:])), o.Uint32(b[12:])}
}

// remoteMap is memory of the peer that this side may write, under the offsets from
// offset on. n 0: none.
type remoteMap struct {
	offset uint64
	sglEntry
	ack bool // Verbena: the peer takes it back and waits for an answer
}

func (m remoteMap) put(b []byte, o binary.ByteOrder) {
	o.PutUint64(b, m.offset)
	m.sglEntry.put(b[8:], o)
}

func parseMap(b []byte, o binary.ByteOrder) remoteMap {
	return remoteMap{offset: o.Uint64(b), sglEntry: parseSGL(b[8:], o)}
}
