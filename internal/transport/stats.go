package transport

// Stats counts what a queue pair did since it was made.
type Stats struct {
	PacketsSent     uint64
	PacketsReceived uint64

	Retransmits  uint64 // packets that were sent again
	Timeouts     uint64 // the transport timer expired
	Probes       uint64 // packets sent again because the peer was silent for a few round trips
	Recoveries   uint64 // go-backs after a sequence NAK, an implied NAK or a missing response
	NAKsReceived uint64 // sequence NAKs
	RNRsReceived uint64

	NAKsSent      uint64 // all kinds but RNR
	RNRsSent      uint64
	AcksSent      uint64
	Duplicates    uint64 // requests received again
	ReadsRepeated uint64 // READs and atomics answered again

	CNPsSent     uint64
	CNPsReceived uint64
	WindowCuts   uint64

	Drops [DropCauses]uint64 // packets that had no effect
}

// Drop is why a packet had no effect.
type Drop uint8

const (
	DropState      Drop = iota // the queue pair is in no state to receive it
	DropOpcode                 // unknown to the reliable connection
	DropGap                    // a request after a gap, which was already reported
	DropReplay                 // a duplicate READ or atomic that is not remembered
	DropUnsent                 // a response to a packet that was never sent
	DropOld                    // a response to what was already acknowledged
	DropOutOfOrder             // a response after a gap
	DropSyndrome               // a reserved syndrome, or a NAK that changes nothing
	DropCauses     = iota
)

func (d Drop) String() string {
	names := [...]string{"state", "opcode", "gap", "replay", "unsent", "old", "out of order", "syndrome"}
	if int(d) < len(names) {
		return names[d]
	}
	return "unknown"
}

// Stats gives the counters.
func (q *QP) Stats() Stats { return q.stats }

func (q *QP) drop(d Drop) { q.stats.Drops[d]++ }
