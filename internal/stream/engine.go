package stream

import (
	"io"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// Engine is the protocol machine of one connection.
type Engine struct {
	cfg  Config
	peer Hello

	out    outgoing
	in     incoming
	end    ending
	timers timers
	maps   maps
	events Events

	c *compat  // one of the two
	v *verbena //
}

// New makes the machine of a connection whose hellos have been exchanged. A *ConfigError
// says what in c is not possible. Nothing of c is kept but the receive memory and the
// table.
func New(c Config) (*Engine, error) {
	e := &Engine{cfg: c, peer: *c.Peer}
	return e, nil
}

// Mode gives the protocol that is spoken.
func (e *Engine) Mode() Mode { return e.cfg.Mode }

// Arrival is the completion of a receive.
type Arrival struct {
	Opcode ib.WCOpcode // WCRecv or WCRecvRDMAWithImm
	HasImm bool
	Imm    uint32 // host order, as in verbs.WC
	Len    uint32 // ByteLen
}

// Received takes the oldest receive that completed well.
func (e *Engine) Received(now time.Duration, a Arrival) {}

// Sent says that the request id, and with it all before, has completed well. It may be
// called for signaled requests only.
func (e *Engine) Sent(now time.Duration, id uint64) {}

// Fail says that the queue pair works no more: a completion failed, or the device is
// gone. The connection is over, unless it had ended before. Flushed completions behind
// the first failure need not be passed.
func (e *Engine) Fail(err error) {}

// Disconnected says that the peer ended the connection by way of the connection manager
// (DREQ), and that all completions before have been passed. Without a closing word of
// the peer that is a reset.
func (e *Engine) Disconnected() {}

// Next gives the next request to post. It must be posted, or the connection must be
// ended: the engine counts on it.
func (e *Engine) Next(now time.Duration, op *Op) bool { return false }

// NextRecv gives the next receive to post.
func (e *Engine) NextRecv(r *Recv) bool { return false }

// Events gives what happened since the last call.
func (e *Engine) Events() Events {
	ev := e.events
	e.events = 0
	return ev
}

// Deadline gives the time at which Advance wants to be called. It may move with every
// call; one that moved to a later time need not be set anew, as Advance may be called
// early.
func (e *Engine) Deadline() (time.Duration, bool) { return 0, false }

// Advance lets time pass: keep-alive, linger, shrinking.
func (e *Engine) Advance(now time.Duration) {}

// Peek gives the next bytes of the peer, contiguous, as long as Consume does not take
// them. An empty Loc without an error means that there are none yet. After the last
// byte the error is io.EOF at an orderly end, else that of Err.
func (e *Engine) Peek() (Loc, error) { return Loc{}, io.EOF }

// Bytes gives the memory of a Loc in receive memory that came with Mem.
func (e *Engine) Bytes(l Loc) []byte { return nil }

// Consume takes n bytes, at most those that Peek gave.
func (e *Engine) Consume(n int) {}

// Buffered gives how many bytes Peek and Consume can take now.
func (e *Engine) Buffered() int { return 0 }

// Room gives free, contiguous room of the send buffer for the user's next bytes. An
// empty Loc without an error means that there is none now; Writable will come.
func (e *Engine) Room() (Loc, error) { return Loc{}, nil }

// Commit says that n bytes were copied to the start of what Room gave. They are part of
// the stream now.
func (e *Engine) Commit(n int) {}

// CommitDirect makes n bytes at off of DirectRegion part of the stream, without a copy. It
// gives false if Room would give nothing, or while bytes before have not been posted.
// The memory is busy until DirectDone, and only Abort ends that early. Room gives nothing
// until all of it was posted.
func (e *Engine) CommitDirect(off uint32, n int) bool { return false }

// SetSendBuffer changes the size of the send region. It gives false while the region is
// in use; the owner may free it after it gave true for another size.
func (e *Engine) SetSendBuffer(size int) bool { return false }

// Unsent gives how many committed bytes were not posted yet, and Unacked how many were
// not taken by the peer's device, as far as is known.
func (e *Engine) Unsent() int  { return 0 }
func (e *Engine) Unacked() int { return 0 }

// SetNoDelay changes Config.NoDelay.
func (e *Engine) SetNoDelay(on bool) { e.cfg.NoDelay = on }

// SetKeepAlive changes Config.KeepAlive.
func (e *Engine) SetKeepAlive(now time.Duration, k KeepAlive) {}

// Want gives the size of the buffers that WantRecv asks for.
func (e *Engine) Want() int { return 0 }

// Lend gives the engine more receive memory, usually after WantRecv. It is used in place
// of what was used before. The region comes back by RecvReturned: when it was not needed
// for some time, when something larger was lent, or when the connection is over (then
// at once, without an event, with the queue pair). Decline says no; WantRecv comes again
// later.
func (e *Engine) Lend(now time.Duration, m RecvMemory) (Region, error) { return 0, nil }
func (e *Engine) Decline(now time.Duration)                            {}

// TakeReturned gives a lent region that is free.
func (e *Engine) TakeReturned() (Region, bool) { return 0, false }

// CloseWrite ends this side's data behind what was committed. The peer reads the end.
func (e *Engine) CloseWrite() {}

// CloseRead makes Peek give io.EOF at once. What arrives is thrown away.
func (e *Engine) CloseRead() {}

// Close does both, and ends the connection: Finished comes when the peer has taken
// everything and knows, Failed with ErrLinger when it did not in time.
func (e *Engine) Close(now time.Duration) {}

// Abort ends the connection without waiting: what was not posted is dropped, and one last
// request tells the peer why, if it can be sent. Finished comes when it was, or soon.
func (e *Engine) Abort(now time.Duration, why Reason) {}

// Err gives why the connection is over: nil while it works and after an orderly end.
func (e *Engine) Err() error { return nil }

// MapLocal tells the peer that it may write n bytes at addr under the offsets from offset
// on (riomap). index is below Config.Local.IOMap. MapBusy: it was in use and has not
// come by TakeUnmapped.
func (e *Engine) MapLocal(index int, offset, addr uint64, key ib.RKey, n uint32) error { return nil }

// UnmapLocal takes a map back. Verbena: the memory is free when TakeUnmapped gives index.
// Compatible peers may write until the connection ends: it is given at once, and a peer
// that still writes loses the connection.
func (e *Engine) UnmapLocal(index int) error { return nil }

// TakeUnmapped gives a map that was taken back.
func (e *Engine) TakeUnmapped() (index int, ok bool) { return 0, false }

// MapRoom gives room of the send buffer for a write to the peer's map at offset, at most
// what the map takes from there. ErrNoMap: the peer has no map there. An empty Loc: wait
// for Writable.
func (e *Engine) MapRoom(offset uint64) (Loc, error) { return Loc{}, nil }

// CommitMap writes n bytes, copied to what MapRoom gave, to the peer's map at offset
// (riowrite). What is committed later arrives later. Drained tells when it was taken.
func (e *Engine) CommitMap(offset uint64, n int) {}
