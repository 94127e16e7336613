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
	size    uint32 // bytes of the receive that the next message uses
	sizes   sizeRuns
	burn    uint32 // receives before this should be used up …
	burning bool   // … if so
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
	threshold  uint32   // of news that make a CREDIT
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

// change is a change of the size of receives that the peer has not been told of.
type change struct {
	pending bool
	at      uint32 // the first receive of the new size
	size    uint32
	shrink  bool
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
	cfg.RecvQueue = min(cfg.RecvQueue, maxOutstanding)
	v := &verbena{
		Engine: e,
		limit:  uint32(y.Credits),
		size:   y.RecvSize,
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
	v.threshold = uint32(max((v.in.regions[v.in.active].mem.Count-controls)/2, 2))
}

// used gives how many receives are posted.
func (v *verbena) used() int { return int(v.posted - v.taken) }

// nextRecv posts free buffers. A change of their size must be told before the peer may
// use them, and one change must have arrived before the next.
func (v *verbena) nextRecv(r *Recv) bool {
	if v.used() == len(v.fifo) || v.end.peerClosed {
		return false
	}
	region := v.in.active
	size, last := v.in.regions[region].mem.Size, v.in.regions[v.lastRegion].mem.Size
	if size != last {
		switch {
		case len(v.in.regions[region].free) == 0:
			return false
		case v.change.pending || v.open[ctlSize] || v.runs.n == maxRuns:
			region = v.lastRegion
		default:
			v.change = change{true, v.posted, uint32(size), size < last}
			v.runs.push(v.posted, uint32(size))
		}
	}
	b, ok := v.in.take(region)
	if !ok {
		return false
	}
	if old := v.lastRegion; old != region {
		v.lastRegion = region
		v.giveBack(old)
	}
	*r = Recv{ID: v.nextID, Loc: v.in.loc(b, 0, v.in.size(b))}
	v.nextID++
	v.fifo[(v.fifoHead+v.used())%len(v.fifo)] = b
	v.posted++
	return true
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
	v.acked += ack
	v.limit += more
	if d := v.limit - v.acked; d > maxOutstanding {
		v.protocolLimit("more receives than counters can tell", a.Imm, uint64(d), maxOutstanding)
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
	case vCredit, vPing, vPong, vSize, vShrink, vVoid:
		want = 0
	case vFin, vClose:
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
	case vSize, vShrink:
		v.resize(w)
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

// resize takes a change of the size of the peer's receives.
func (v *verbena) resize(w vword) {
	if e := w.value(); e < uint32(log2(MinRecv)) || e > uint32(log2(MaxRecvSize)) {
		v.protocolLimit("receives of a size that is not possible", uint32(w), uint64(e), uint64(log2(MaxRecvSize)))
		return
	}
	if !v.sizes.push(v.limit, 1<<w.value()) {
		v.protocolLimit("too many changes of size ahead", uint32(w), maxRuns+1, maxRuns)
		return
	}
	v.burning = w.kind() == vShrink
	v.burn = v.limit
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
