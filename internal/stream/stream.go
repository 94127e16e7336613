// Package stream is the protocol machine of a stream socket over a reliable connection:
// what package rdma's Conn says to its peer. It has no clock, goroutine, lock, socket or
// queue pair: it takes completions, the user's reads and writes and the time, and gives
// requests to post, receives to post, events, and the time at which it wants to be
// called again.
//
// There are two protocols, chosen by the hello (docs/stream-protocol.md):
//
//   - Compatible: rsockets version 1 (rsocket(7)), for peers that do not show the
//     extension. Data are RDMA WRITEs with immediate into buffers that the receiver
//     advertises in a table of the sender.
//   - Verbena: between two of ours. Data are SENDs with immediate into receives of sizes
//     that the sender knows; nothing is remotely writable.
//
// An Engine is used by one goroutine at a time: its owner has the lock. No method
// blocks; after New only Lend, MapLocal and SetSendBuffer may allocate.
//
// # How to drive it
//
// After every call that may change something (Received, Sent, Commit, Consume, Close…,
// Advance) the owner
//
//  1. posts the receives that NextRecv gives, until there is none,
//  2. posts the requests that Next gives, in order, until there is none,
//  3. takes Events, and looks at Deadline.
//
// Receives come before requests, as a request may promise them to the peer.
//
// # Memory
//
// The engine names memory by Loc, a region of the owner and an offset, and does not
// touch the bytes of the stream. It reads two things itself: the table that a peer of
// Compatible writes, once per entry, and messages of the protocol of Verbena.
package stream

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// Mode is the protocol of a connection.
type Mode uint8

const (
	Compatible Mode = 1 + iota // rsockets version 1
	Verbena                    // docs/stream-protocol.md
)

func (m Mode) String() string {
	switch m {
	case Compatible:
		return "rsockets 1"
	case Verbena:
		return "verbena 1"
	}
	return "no mode"
}

// Region names memory of the owner.
type Region uint8

const (
	SendRegion Region = iota // the send buffer, see SetSendBuffer
	FirstRecv                // Config.Recv; regions that were lent have the numbers behind it
	NoRegion   Region = 255  // no memory
)

// Loc is a piece of a region.
type Loc struct {
	Region   Region
	Off, Len uint32
}

// Op is a request to post on the send queue, in the order in which Next gave them. What
// the opcode does not use, and Data beyond DataN, may have any value.
type Op struct {
	// ID comes back in Sent. Ids count up from 1, without gaps.
	ID     uint64
	Opcode ib.Opcode // OpSendImm, OpWriteImm, OpWrite
	Imm    uint32    // host order, as in verbs.SendWR
	// Remote is the place of a WRITE.
	Remote uint64
	RKey   ib.RKey
	// Segs has the N pieces of local memory that make the message; there are two where it
	// crosses the end of the send buffer.
	Segs [2]Loc
	N    int
	// Data are the bytes of a message of the protocol, at most MaxData, in place of Segs.
	// They are copied by the post: inline, or by way of memory that the owner has for
	// the slot Stage (below Config.SendQueue), which is free again when ID is done.
	Data  [MaxData]byte
	DataN int
	Stage int
	// Signaled: the owner must be told of the completion. Others complete silently, and
	// are done when a later one is.
	Signaled bool
	// Inline: the message fits Config.Inline and should be copied by the post.
	Inline bool
}

// MaxData is the greatest message of the protocol itself.
const MaxData = 40

// Len gives the length of the message.
func (o *Op) Len() int {
	n := o.DataN
	for _, s := range o.Segs[:o.N] {
		n += int(s.Len)
	}
	return n
}

// Recv is a receive to post. Receives complete in the order in which they were given.
type Recv struct {
	ID  uint64 // counts up from 0, those of Config.Posted included
	Loc Loc    // NoRegion: no memory
}

// RecvMemory is memory for data that arrive: Count buffers of Size bytes, one behind
// the other.
type RecvMemory struct {
	Size, Count int
	// Mem is the memory itself. Verbena reads messages of the protocol from it;
	// Compatible does not need it.
	Mem []byte
	// Addr and RKey are how the peer writes there; Compatible only.
	Addr uint64
	RKey ib.RKey
}

// Config of an Engine. Zero values: as each field says.
type Config struct {
	Mode Mode
	// Local and Peer are the hellos that were exchanged.
	Local, Peer *Hello
	// SendQueue is how many requests may be outstanding, at least 16.
	SendQueue int
	// RecvQueue is how many receives the queue pair takes. Compatible: so many are
	// posted, at least Local.Credits. Verbena: at most so many are, up to 511.
	RecvQueue int
	// Posted is how many receives were posted before the hello was sent: those of
	// InitialRecv. Verbena needs all of them, Compatible may have 0.
	Posted int
	// Inline is the greatest message that the queue pair takes inline.
	Inline int
	// Recv is the first receive memory. Compatible: at least 2 buffers, the first of
	// which is that in Local. Verbena: as InitialRecv had it.
	Recv RecvMemory
	// Table is the memory behind Local.SGLAddr, which the peer writes: TableLen bytes.
	// Compatible only.
	Table []byte
	// SendBuffer is the size of the send region; it may be 0 until SetSendBuffer.
	SendBuffer int
	// MaxRecv is the greatest buffer that WantRecv asks for; 0: 64 KiB.
	MaxRecv int
	// Shrink is how long bulk memory stays when it is not needed; 0: 1 s.
	Shrink time.Duration
	KeepAlive
	// Linger is how long Close waits for the peer to take what was written, and in
	// Compatible to close as well; 0: 5 s.
	Linger time.Duration
	// NoDelay sends small writes at once, even while an earlier one is on its way.
	NoDelay bool
	Now     time.Duration // the clock of all other times
}

// KeepAlive says when an idle peer is asked, and when it is given up: after Idle, and
// then Interval × Count without a sign of life. Idle 0: never.
type KeepAlive struct {
	Idle, Interval time.Duration
	Count          int
}

// Events is a set of things that happened since it was last taken. All but the last five
// are levels that the owner can ask for as well; an event is given when the level may have
// changed to true.
type Events uint32

const (
	Readable     Events = 1 << iota // Peek gives data, the end or an error
	Writable                        // Room gives room, or an error
	Drained                         // the peer's device has taken everything that was committed; of a silent request a later completion tells
	Failed                          // Err is not nil: the connection is over; disconnect now
	Finished                        // it ended in order: disconnect now
	WantRecv                        // the peer sends more than fits: Want says how large buffers should be
	RecvReturned                    // TakeReturned gives a region that was lent
	PeerMapped                      // the peer's maps changed
	Unmapped                        // TakeUnmapped gives a map that the peer does not write to any more
)
