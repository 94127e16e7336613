package softroce

import "sync/atomic"

// Stats counts what a device has seen since it was made. The Drop counters say why a
// received datagram was ignored; each datagram counts in one of them at most.
type Stats struct {
	PacketsIn, PacketsOut uint64 // packets; a segmented send counts each of its own
	BytesIn, BytesOut     uint64 // UDP payload
	ReadCalls, SendCalls  uint64 // batches taken from and given to the sockets

	DropLength      uint64 // shorter than its headers, or longer than any packet
	DropOpcode      uint64 // opcode not known
	DropVersion     uint64 // transport version is not 0
	DropNoQP        uint64 // no such queue pair
	DropService     uint64 // opcode of another service than that of the queue pair
	DropAddress     uint64 // not from, or not to, the address of the queue pair
	DropPKey        uint64 // P_Key does not match
	DropICRC        uint64 // invariant CRC is wrong
	DropMalformed   uint64 // headers contradict each other
	DropState       uint64 // queue pair takes no packets in its state
	DropManagement  uint64 // on QP1, and not a MAD with the right Q_Key
	DropLink        uint64 // the link is down (Provider.SetLink)
	DropNoManager   uint64 // on QP1, and nobody has opened the connection manager
	MarksIn         uint64 // packets with a congestion mark
	SendErrors      uint64 // messages that a socket refused; treated as lost
	ReadErrors      uint64 // failed reads of a socket
	Rescues         uint64 // timers that found their answer waiting in the socket
	CQOverruns      uint64 // completion queues that overflowed
	AcksDelayed     uint64 // acknowledgements that waited for data to travel with
	AcksPiggybacked uint64 // and found it
}

// counters are the live form of Stats.
type counters struct {
	packetsIn, packetsOut     atomic.Uint64
	bytesIn, bytesOut         atomic.Uint64
	readCalls, sendCalls      atomic.Uint64
	drops                     [dropCauses]atomic.Uint64
	marksIn                   atomic.Uint64
	sendErrors, readErrors    atomic.Uint64
	rescues                   atomic.Uint64
	cqOverruns                atomic.Uint64
	acksDelayed, acksWithData atomic.Uint64
}

// drop is why a received packet is ignored.
type drop uint8

const (
	accepted drop = iota
	dropLength
	dropOpcode
	dropVersion
	dropNoQP
	dropService
	dropAddress
	dropPKey
	dropICRC
	dropMalformed
	dropState
	dropManagement
	dropNoManager
	dropLink
	dropCauses
)

// snapshot reads all counters, one after the other.
func (c *counters) snapshot() Stats {
	return Stats{
		PacketsIn:       c.packetsIn.Load(),
		PacketsOut:      c.packetsOut.Load(),
		BytesIn:         c.bytesIn.Load(),
		BytesOut:        c.bytesOut.Load(),
		ReadCalls:       c.readCalls.Load(),
		SendCalls:       c.sendCalls.Load(),
		DropLength:      c.drops[dropLength].Load(),
		DropOpcode:      c.drops[dropOpcode].Load(),
		DropVersion:     c.drops[dropVersion].Load(),
		DropNoQP:        c.drops[dropNoQP].Load(),
		DropService:     c.drops[dropService].Load(),
		DropAddress:     c.drops[dropAddress].Load(),
		DropPKey:        c.drops[dropPKey].Load(),
		DropICRC:        c.drops[dropICRC].Load(),
		DropMalformed:   c.drops[dropMalformed].Load(),
		DropState:       c.drops[dropState].Load(),
		DropManagement:  c.drops[dropManagement].Load(),
		DropNoManager:   c.drops[dropNoManager].Load(),
		DropLink:        c.drops[dropLink].Load(),
		MarksIn:         c.marksIn.Load(),
		SendErrors:      c.sendErrors.Load(),
		ReadErrors:      c.readErrors.Load(),
		Rescues:         c.rescues.Load(),
		CQOverruns:      c.cqOverruns.Load(),
		AcksDelayed:     c.acksDelayed.Load(),
		AcksPiggybacked: c.acksWithData.Load(),
	}
}
