package stream

import "github.com/verbena-rdma/verbena/ib"

// controlSlots of the send queue are never taken by data, so that a word of the protocol
// can always be sent.
const controlSlots = 4

// slotKind is what a request was for.
type slotKind uint8

const (
	slotControl slotKind = iota
	slotData
	slotMap // a write to the peer's map
)

// slot is a request that was posted.
type slot struct {
	ring     uint32 // bytes of the send buffer that it keeps
	kind     slotKind
	signaled bool
}

// outgoing is the user's data on their way out: the send buffer, and the requests that
// are outstanding. The buffer is a ring; head ≤ next ≤ tail count bytes for ever.
type outgoing struct {
	size uint64
	head uint64 // what is before is free
	next uint64 // what is before was posted
	tail uint64 // what is before was committed

	total uint64 // bytes of the stream that were posted
	write mapWrite

	slots    []slot // by id
	done     uint64 // ids up to here have completed
	last     uint64 // id that was given last
	lastData uint64 // the same, of those with data
	quiet    int    // requests behind the last signaled one
	quietLen uint64 // their bytes
	signaled int    // signaled data requests outstanding
	doubt    bool   // a silent data request was posted, and there is no sign that it arrived
	wanted   bool   // Room or MapRoom gave nothing
	// wantedMap: it was MapRoom, which gives none while data are pending.
	wantedMap bool
}

// mapWrite is a CommitMap that was not posted yet.
type mapWrite struct {
	n    uint32
	addr uint64
	key  ib.RKey
}

// pending gives the bytes of the stream that were not posted.
func (o *outgoing) pending() uint64 {
	return o.tail - o.next - uint64(o.write.n)
}

// room gives the first contiguous free piece.
func (o *outgoing) room() Loc {
	if o.size == 0 || o.write.n > 0 {
		return Loc{Region: SendRegion}
	}
	at := o.tail % o.size
	n := min(o.size-(o.tail-o.head), o.size-at)
	return Loc{SendRegion, uint32(at), uint32(n)}
}

// free gives how many requests can be posted.
func (o *outgoing) free() int { return len(o.slots) - int(o.last-o.done) }

// mayData reports whether there is a place for a request with data.
func (o *outgoing) mayData() bool { return o.free() > controlSlots }

// fill gives op the next n pending bytes.
func (o *outgoing) fill(op *Op, n uint32) {
	at := uint32(o.next % o.size)
	first := min(n, uint32(o.size)-at)
	op.Segs[0], op.N = Loc{SendRegion, at, first}, 1
	if first < n {
		op.Segs[1], op.N = Loc{SendRegion, 0, n - first}, 2
	}
	o.next += uint64(n)
}

// emit makes op, whose contents are set, the next request. must: it has to be signaled.
func (e *Engine) emit(op *Op, kind slotKind, ring uint32, must bool) {
	o := &e.out
	o.last++
	op.ID = o.last
	op.Stage = int(o.last % uint64(len(o.slots)))
	n := op.Len()
	op.Inline = n <= e.cfg.Inline && n > 0
	if op.Inline && ring > 0 && o.next-o.head == uint64(ring) {
		// The post copies it, and nothing before is kept: the ring is free again.
		o.head = o.next
		ring = 0
	}
	must = must || o.quiet+1 >= len(o.slots)/4
	if kind != slotControl {
		o.lastData = o.last
		// What keeps memory is followed by a signaled request, at the end of a burst at the
		// latest; and a message in doubt must not make later ones wait for nothing.
		must = must || ring > 0 && (o.pending() == 0 || o.quietLen+uint64(n) >= o.size/4) ||
			o.doubt && !e.cfg.NoDelay
	}
	op.Signaled = must
	o.slots[op.Stage] = slot{ring, kind, must}
	if must {
		o.quiet, o.quietLen = 0, 0
	} else {
		o.quiet++
		o.quietLen += uint64(n)
	}
	if kind == slotData {
		if must {
			o.signaled++
		}
		o.doubt = !must
	}
	e.checkRoom()
}

// checkRoom tells a writer that found no room that there is some. While acknowledgements
// are still to come it does so when half of the buffer is free, so that who waits is not
// woken for each message. MapRoom gives none while data are pending, so that counts too.
func (e *Engine) checkRoom() {
	o := &e.out
	worth := o.next == o.head || 2*(o.tail-o.head) <= o.size
	if o.wanted && worth && o.room().Len > 0 && (!o.wantedMap || o.pending() == 0) {
		o.wanted, o.wantedMap = false, false
		e.events |= Writable
	}
}

// complete takes the completion of id and of all before; it reports whether it was
// outstanding.
func (o *outgoing) complete(id uint64) bool {
	if id <= o.done || id > o.last {
		return false
	}
	for o.done < id {
		o.done++
		s := o.slots[o.done%uint64(len(o.slots))]
		o.head += uint64(s.ring)
		if s.signaled && s.kind == slotData {
			o.signaled--
		}
	}
	if o.done == o.last {
		o.doubt = false
	}
	return true
}

// held reports whether small data wait for the completion of an earlier message, so that
// they travel together.
func (e *Engine) held(enough uint64) bool {
	return e.out.signaled > 0 && !e.cfg.NoDelay && e.end.write == writeOpen && e.out.pending() < enough
}

// drop forgets what was not posted.
func (e *Engine) drop() {
	o := &e.out
	o.tail = o.next
	o.write.n = 0
}

// Room gives free, contiguous room of the send buffer for the user's next bytes. An
// empty Loc without an error means that there is none now; Writable will come. Errors:
// ErrShutdown, ErrPeerClosed, or that of Err.
func (e *Engine) Room() (Loc, error) {
	if err := e.writeErr(); err != nil {
		return Loc{Region: SendRegion}, err
	}
	l := e.out.room()
	if l.Len == 0 {
		e.out.wanted, e.out.wantedMap = true, false
	}
	return l, nil
}

// Commit says that n bytes were copied to the start of what Room gave. They are part of
// the stream now.
func (e *Engine) Commit(n int) {
	if e.writeErr() != nil {
		return
	}
	if n < 0 || n > int(e.out.room().Len) {
		panic("stream: Commit of more than Room gave")
	}
	e.out.tail += uint64(n)
}

// SetSendBuffer changes the size of the send region. It gives false while the region is
// in use; if true, the region is the owner's to exchange.
func (e *Engine) SetSendBuffer(size int) bool {
	o := &e.out
	if o.head != o.tail || size < 0 || int64(size) > 1<<31 {
		return false
	}
	o.head, o.next, o.tail, o.size = 0, 0, 0, uint64(size)
	e.checkRoom()
	return true
}

// Unsent gives how many committed bytes of the stream were not posted yet.
func (e *Engine) Unsent() int { return int(e.out.pending()) }

// Unacked gives how many bytes of the send buffer are in use: they were not posted, or
// there is no completion behind them yet.
func (e *Engine) Unacked() int { return int(e.out.tail - e.out.head) }

// SetNoDelay changes Config.NoDelay.
func (e *Engine) SetNoDelay(on bool) { e.cfg.NoDelay = on }

// sent takes a completion.
func (e *Engine) sent(id uint64) {
	o := &e.out
	before := o.done
	if !o.complete(id) {
		return
	}
	e.checkRoom()
	if before < o.lastData && e.delivered() {
		e.events |= Drained
	}
	if l := e.end.lastSent; l != 0 && o.done >= l {
		e.lastAcked()
	}
}

// takeMapWrite makes op the next piece of a committed write to the peer's map.
func (e *Engine) takeMapWrite(op *Op) {
	o := &e.out
	n := o.write.n
	op.Opcode, op.Remote, op.RKey = ib.OpWrite, o.write.addr, o.write.key
	o.write.n = 0
	o.fill(op, n)
	e.emit(op, slotMap, n, true)
}
