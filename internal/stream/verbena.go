package stream

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/verbena-rdma/verbena/ib"
)

// verbena is the machine of docs/stream-protocol.md, part 3. All messages are SENDs with
// immediate; each uses up one receive of the other side. Counters of messages and
// receives begin at 0 and wrap at 2^32.
type verbena struct {
	*Engine

	// Sending.
	seq     uint32 // messages that were sent
	acked   uint32 // of them the peer took
	limit   uint32 // receives that the peer has posted, as far as it has said
	before  uint32 // the same before the message that is being taken
	size    uint32 // bytes of the receive that the next message uses
	sizes   sizeRuns
	burn    uint32 // receives before this should be used up …
	burning bool   // … if so
	newest  uint32 // the size that was told last
	bound   uint32 // the first receive of the newest ones: those before are not posted again
	control [controls]uint32
	open    [controls]bool // control[i] was sent, and its ack is missing

	// Receiving.
	taken      uint32 // messages
	posted     uint32 // receives
	nextID     uint64 // the same, without wrap
	told       uint32 // of them the peer knows
	fifo       []buffer
	fifoHead   int
	lastRegion uint8 // of the receive that was posted last
	change     change
	runs       sizeRuns // changes whose first receive was not used yet
	lastAt     uint32   // the first of the receives of its size
	words      uint32   // control messages that were taken and not acknowledged
	threshold  int32    // of receives to tell of that make a CREDIT
	pong       bool     // is due
	ping       bool     // a change of size needs an ack
}

// Messages that data must leave room for: at most one of each kind is without an ack.
const (
	ctlCredit = iota
	ctlSize
	ctlPing
	ctlPong
	ctlClose
	controls
)

// change is a SIZE that is to be sent.
type change struct {
	pending bool
	same    bool   // the size stays: only burn is told
	at      uint32 // the first receive of the size
	size    uint32
	burn    uint32
}

// sizeRuns says from which receive on a size holds, for changes that lie ahead.
type sizeRuns struct {
	runs [maxRuns]struct{ at, size uint32 }
	n    int
}

// maxRuns changes of size may lie ahead of the message that is sent next.
const maxRuns = 8

func (r *sizeRuns) push(at, size uint32) bool {
	if r.n == maxRuns {
		return false
	}
	r.runs[r.n].at, r.runs[r.n].size = at, size
	r.n++
	return true
}

// pop gives the newest size that holds for receive n.
func (r *sizeRuns) pop(n uint32) (size uint32, ok bool) {
	for r.n > 0 && int32(n-r.runs[0].at) >= 0 {
		size, ok = r.runs[0].size, true
		copy(r.runs[:], r.runs[1:r.n])
		r.n--
	}
	return size, ok
}

func (e *Engine) newVerbena() error {
	cfg := &e.cfg
	if err := e.checkRecv("Recv", &cfg.Recv); err != nil {
		return err
	}
	x, y := &e.local.Ext, &e.peer.Ext
	bad := func(field, format string, a ...any) error { return &ConfigError{field, fmt.Sprintf(format, a...)} }
	switch {
	case x.Version == 0 || y.Version == 0:
		return bad("Mode", "the extension is missing in a hello")
	case y.Credits < MinCredits || y.RecvSize < MinRecv || y.RecvSize > MaxRecvSize:
		return bad("Peer", "%d receives of %d bytes", y.Credits, y.RecvSize)
	case int(x.RecvSize) != cfg.Recv.Size || int(x.Credits) != cfg.Recv.Count:
		return bad("Recv", "%d buffers of %d bytes, and the hello has %d of %d", cfg.Recv.Count, cfg.Recv.Size, x.Credits, x.RecvSize)
	case cfg.Posted != cfg.Recv.Count:
		return bad("Posted", "%d, and the hello promises %d", cfg.Posted, cfg.Recv.Count)
	case cfg.RecvQueue < cfg.Posted:
		return bad("RecvQueue", "%d is below Posted (%d)", cfg.RecvQueue, cfg.Posted)
	}
	cfg.RecvQueue = min(cfg.RecvQueue, MaxOutstanding)
	v := &verbena{
		Engine: e,
		limit:  uint32(y.Credits),
		size:   y.RecvSize,
		newest: y.RecvSize,
		posted: uint32(cfg.Posted),
		nextID: uint64(cfg.Posted),
		told:   uint32(cfg.Posted),
		fifo:   make([]buffer, cfg.RecvQueue),
	}
	e.v = v
	e.in.addRegion(cfg.Recv)
	for i := range cfg.Posted {
		b, _ := e.in.take(0)
		v.fifo[i] = b
	}
	v.target()
	return nil
}

// target sets what depends on the memory that is used.
func (v *verbena) target() {
	n := min(v.in.regions[v.lastRegion].mem.Count, len(v.fifo))
	v.threshold = int32(max((n-controls)/2, 1))
}

// due reports whether so many buffers are free that their receives should be posted.
func (v *verbena) due() bool {
	r := &v.in.regions[v.in.active]
	return v.in.active != v.lastRegion || int32(len(r.free)) > v.threshold/2
}

// used gives how many receives are posted.
func (v *verbena) used() int { return int(v.posted - v.taken) }

// nextRecv posts free buffers.
func (v *verbena) nextRecv(r *Recv) bool {
	if v.used() == len(v.fifo) || v.end.peerClosed {
		return false
	}
	region := v.in.active
	if region != v.lastRegion && !v.switchTo(region) {
		region = v.lastRegion
	}
	b, ok := v.in.take(region)
	if !ok {
		return false
	}
	*r = Recv{ID: v.nextID, Loc: v.in.loc(b, 0, v.in.size(b))}
	v.nextID++
	v.fifo[(v.fifoHead+v.used())%len(v.fifo)] = b
	v.posted++
	return true
}

// switchTo makes a region the one that receives are posted from, and reports whether that
// is possible now. A change of their size must be told before the peer may use them; one
// change must have arrived before the next; and so many of the new receives must be
// told at once that the peer's control messages always find receives, though the old
// ones are not posted again.
func (v *verbena) switchTo(region uint8) bool {
	r := &v.in.regions[region]
	old := v.lastRegion
	if len(r.free) < MinCredits || len(v.fifo)-v.used() < MinCredits || v.change.pending || v.open[ctlSize] || v.runs.n == maxRuns {
		return false
	}
	v.change = change{pending: true, at: v.posted, size: uint32(r.mem.Size), burn: v.taken}
	if r.mem.Size < v.in.regions[old].mem.Size {
		v.change.burn = v.posted
	}
	v.runs.push(v.posted, uint32(r.mem.Size))
	v.lastAt = v.posted
	v.lastRegion = region
	v.target()
	v.giveBack(old)
	return true
}

// burnOld asks the peer to use up receives whose memory is not wanted any more.
func (v *verbena) burnOld() {
	switch {
	case v.change.pending:
	case v.open[ctlSize]:
		v.ping = true // it must have taken the last SIZE
	case int32(v.lastAt-v.taken) > 0:
		v.change = change{pending: true, same: true, size: uint32(v.in.regions[v.lastRegion].mem.Size), burn: v.lastAt}
	}
}

// mayReturn reports whether a region is not needed for receives of an unchanged size.
func (v *verbena) mayReturn(region uint8) bool { return region != v.lastRegion }

// received takes a message.
func (v *verbena) received(a Arrival) {
	if v.used() == 0 {
		v.die(&ProtocolError{Mode: Verbena, What: "a message without a receive"}, BadProtocol)
		return
	}
	b := v.fifo[v.fifoHead]
	v.fifoHead++
	if v.fifoHead == len(v.fifo) {
		v.fifoHead = 0
	}
	v.taken++
	v.runs.pop(v.taken)
	w := vword(a.Imm)
	if isControl(w.kind()) {
		v.words++
	}
	if v.end.err == nil && v.checked(w, a, b) {
		if w.kind() == vData {
			v.data(w, a.Len, b)
			return
		}
		v.other(w, v.in.bytes(v.in.loc(b, 0, a.Len)))
	}
	v.release(b)
}

// checked takes what every message has: counters.
func (v *verbena) checked(w vword, a Arrival, b buffer) bool {
	switch {
	case !a.HasImm || a.Opcode != ib.WCRecv:
		v.die(&ProtocolError{Mode: Verbena, What: "a message that is no SEND with immediate"}, BadProtocol)
		return false
	case a.Len > v.in.size(b):
		v.protocolLimit("a message larger than its receive", a.Imm, uint64(a.Len), uint64(v.in.size(b)))
		return false
	case int32(v.taken-v.told) > 0:
		v.protocolError("more messages than receives that it was told of", a.Imm)
		return false
	case v.end.peerClosed:
		v.protocolError("a message after CLOSE", a.Imm)
		return false
	}
	ack, ok := advance(w.ack(), v.acked)
	if !ok || ack > v.seq-v.acked {
		v.protocolLimit("an acknowledgement of what was not sent", a.Imm, uint64(w.ack()), uint64(v.seq%counterMod))
		return false
	}
	more, ok := advance(w.credit(), v.limit)
	if !ok {
		v.protocolLimit("credit ran backwards", a.Imm, uint64(w.credit()), uint64(v.limit%counterMod))
		return false
	}
	v.before = v.limit
	v.acked += ack
	v.limit += more
	if d := v.limit - v.acked; d > MaxOutstanding {
		v.protocolLimit("more receives than counters can tell", a.Imm, uint64(d), MaxOutstanding)
		return false
	}
	if v.acked == v.seq {
		v.out.doubt = false
	}
	for i := range v.open {
		if v.open[i] && int32(v.acked-v.control[i]) > 0 {
			v.open[i] = false
		}
	}
	return true
}

// data takes n bytes of the stream in b.
func (v *verbena) data(w vword, n uint32, b buffer) {
	switch {
	case n == 0:
		v.protocolError("DATA of no bytes", uint32(w))
	case v.end.peerFin:
		v.protocolError("DATA after FIN", uint32(w))
	default:
		size := v.in.size(b)
		if back := w.value(); n == size && back > 0 {
			// It would have sent more at once. The backlog is below 2^back.
			signs := 1
			if back > 14 { // 16 KiB and more
				signs = enoughPressure
			}
			v.press(1<<min(max(back, uint32(bits.Len32(n))), 30), signs)
		}
		if b.region != 0 && int(n) > v.in.regions[0].mem.Size {
			v.in.busyAt = v.now
		}
		v.arrived(b, 0, n, true)
		return
	}
	v.release(b)
}

// other takes the messages that are no data.
func (v *verbena) other(w vword, body []byte) {
	want := -1
	switch w.kind() {
	case vCredit, vPing, vPong, vVoid:
		want = 0
	case vSize, vFin, vClose:
		want = 8
	case vMap, vUnmap, vUnmapped:
		v.mapMessage(w, body)
		return
	}
	switch {
	case want < 0:
		v.protocolError("a message of unknown kind", uint32(w))
		return
	case len(body) != want:
		v.protocolLimit("a message of a strange length", uint32(w), uint64(len(body)), uint64(want))
		return
	}
	switch w.kind() {
	case vPing:
		v.pong = true
	case vSize:
		v.resize(w, binary.BigEndian.Uint32(body), binary.BigEndian.Uint32(body[4:]))
	case vFin:
		n := binary.BigEndian.Uint64(body)
		switch {
		case v.end.peerFin:
			v.protocolError("a second FIN", uint32(w))
		case n != v.in.total:
			v.protocolLimit("FIN with another number of bytes than came", uint32(w), n, v.in.total)
		default:
			v.end.peerFin = true
			v.events |= Readable
		}
	case vClose:
		v.closed(w, binary.BigEndian.Uint64(body))
	}
}

// resize takes a SIZE: receives from number at on have another size, or at least those
// before number burn should be used up.
func (v *verbena) resize(w vword, at, burn uint32) {
	e := w.value()
	if e < uint32(log2(MinRecv)) || e > uint32(log2(MaxRecvSize)) {
		v.protocolLimit("receives of a size that is not possible", uint32(w), uint64(e), uint64(log2(MaxRecvSize)))
		return
	}
	if size := uint32(1) << e; size != v.newest || at != v.limit {
		switch {
		case int32(at-v.before) < 0 || int32(v.limit-at) < MinCredits:
			v.protocolLimit("a change of size that comes too late, or with too few receives", uint32(w), uint64(v.limit-at), uint64(v.limit-v.before))
			return
		case !v.sizes.push(at, size):
			v.protocolLimit("too many changes of size ahead", uint32(w), maxRuns+1, maxRuns)
			return
		}
		v.newest, v.bound = size, at
	}
	if int32(v.limit-burn) < 0 {
		v.protocolLimit("receives to be used up that were not told", uint32(w), uint64(burn), uint64(v.limit))
		return
	}
	v.burn, v.burning = burn, true
}

// isControl reports whether a kind of message may use the receives that are kept for it.
func isControl(kind uint32) bool {
	switch kind {
	case vCredit, vSize, vPing, vPong, vClose:
		return true
	}
	return false
}

// closed takes the last word of the peer, which had taken n bytes.
func (v *verbena) closed(w vword, n uint64) {
	end := &v.end
	why := Reason(w.value())
	switch {
	case n > v.out.total:
		v.protocolLimit("CLOSE took more than was sent", uint32(w), n, v.out.total)
		return
	case why == Normal && !end.peerFin:
		v.protocolError("CLOSE without FIN", uint32(w))
		return
	}
	end.peerClosed, end.peerWhy = true, why
	v.drop()
	v.events |= Readable | Writable
	switch {
	case end.closing:
		v.over(Finished)
	case why != Normal:
		// Nothing more can be said to it; what has arrived can be read.
		end.err = &PeerError{why}
		v.over(Failed)
	}
}
