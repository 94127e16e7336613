package stream

import (
	"io"
	"time"
)

// maxRegions bounds the receive regions of a connection.
const maxRegions = 6

// buffer names a buffer of a receive region.
type buffer struct {
	region uint8 // FirstRecv + region
	index  uint16
}

// recvRegion is receive memory: the first is Config.Recv, the others are lent.
type recvRegion struct {
	mem      RecvMemory
	used     bool
	retiring bool
	free     []uint16 // buffers that are not out
	returned bool     // waits for TakeReturned
}

// span is a piece of arrived data.
type span struct {
	buf    buffer
	off, n uint32
	last   bool // nothing more comes in this buffer: it is free when the span was consumed
}

// incoming is the peer's data on their way in.
type incoming struct {
	regions []recvRegion
	active  uint8 // region whose buffers are used now

	spans  []span // ring
	first  int    // the oldest
	count  int
	queued uint64 // bytes in them
	total  uint64 // bytes of the stream that arrived
	eaten  uint64 // bytes that the user took

	want       int           // what WantRecv asks for
	pressure   int           // signs that the buffers are too small …
	pressureAt time.Duration // … the oldest of them
	calm       time.Duration // no WantRecv before
	busyAt     time.Duration // when lent memory was needed last
}

// Limits of what WantRecv reacts to.
const (
	enoughPressure = 4
	defaultMaxRecv = 64 << 10
)

// addRegion makes m usable and gives its number.
func (in *incoming) addRegion(m RecvMemory) int {
	at := -1
	buffers := m.Count
	for i := range in.regions {
		if r := &in.regions[i]; !r.used && !r.returned {
			at = i
		} else {
			buffers += r.mem.Count
		}
	}
	if at < 0 {
		in.regions = append(in.regions, recvRegion{})
		at = len(in.regions) - 1
	}
	r := &in.regions[at]
	if cap(r.free) < m.Count {
		r.free = make([]uint16, 0, m.Count)
	}
	*r = recvRegion{mem: m, used: true, free: r.free[:0]}
	for i := m.Count - 1; i >= 0; i-- {
		r.free = append(r.free, uint16(i))
	}
	if buffers+1 > len(in.spans) {
		spans := make([]span, buffers+1)
		for i := range in.count {
			spans[i] = *in.span(i)
		}
		in.spans, in.first = spans, 0
	}
	return at
}

// span gives the i-th span.
func (in *incoming) span(i int) *span {
	at := in.first + i
	if at >= len(in.spans) {
		at -= len(in.spans)
	}
	return &in.spans[at]
}

// take gives a free buffer of a region.
func (in *incoming) take(region uint8) (buffer, bool) {
	r := &in.regions[region]
	n := len(r.free)
	if n == 0 {
		return buffer{}, false
	}
	b := buffer{region, r.free[n-1]}
	r.free = r.free[:n-1]
	return b, true
}

// size gives the bytes of b.
func (in *incoming) size(b buffer) uint32 { return uint32(in.regions[b.region].mem.Size) }

// loc gives n bytes at off of b.
func (in *incoming) loc(b buffer, off, n uint32) Loc {
	return Loc{FirstRecv + Region(b.region), uint32(b.index)*in.size(b) + off, n}
}

// bytes gives the memory of l, and nil if it did not come with the region.
func (in *incoming) bytes(l Loc) []byte {
	i := int(l.Region) - int(FirstRecv)
	if i < 0 || i >= len(in.regions) {
		return nil
	}
	m := in.regions[i].mem.Mem
	if end := uint64(l.Off) + uint64(l.Len); end <= uint64(len(m)) {
		return m[l.Off:end:end]
	}
	return nil
}

// release makes b free.
func (e *Engine) release(b buffer) {
	r := &e.in.regions[b.region]
	r.free = append(r.free, b.index)
	e.giveBack(b.region)
}

// giveBack returns a region that is retiring and not in use any more.
func (e *Engine) giveBack(region uint8) {
	r := &e.in.regions[region]
	if region == 0 || !r.used || !r.retiring || e.v != nil && !e.v.mayReturn(region) {
		return
	}
	if len(r.free) == r.mem.Count {
		r.used, r.returned = false, true
		e.events |= RecvReturned
	}
}

// arrived queues n bytes at off of b.
func (e *Engine) arrived(b buffer, off, n uint32, last bool) {
	in := &e.in
	in.total += uint64(n)
	if e.end.readClosed || e.end.peerFin {
		in.eaten += uint64(n)
		if !last {
			return
		}
		if in.count > 0 {
			if s := in.span(in.count - 1); s.buf == b {
				s.last = true // unread data from before the end lie there as well
				return
			}
		}
		e.release(b)
		return
	}
	if in.count > 0 {
		if s := in.span(in.count - 1); s.buf == b && s.off+s.n == off && !s.last {
			s.n, s.last = s.n+n, last
			in.queued += uint64(n)
			e.events |= Readable
			return
		}
	}
	*in.span(in.count) = span{b, off, n, last}
	in.count++
	in.queued += uint64(n)
	e.events |= Readable
}

// Buffered gives how many bytes Peek and Consume can take now.
func (e *Engine) Buffered() int { return int(e.in.queued) }

// Peek gives the next bytes of the peer, contiguous; they stay until Consume takes them.
// An empty Loc without an error means that there are none yet. After the last byte the
// error is io.EOF at an orderly end, else that of Err.
func (e *Engine) Peek() (Loc, error) {
	in := &e.in
	if in.count > 0 {
		s := in.span(0)
		return in.loc(s.buf, s.off, s.n), nil
	}
	switch end := &e.end; {
	case end.readClosed, end.peerFin:
		return Loc{Region: NoRegion}, io.EOF
	case end.err != nil:
		return Loc{Region: NoRegion}, end.err
	}
	return Loc{Region: NoRegion}, nil
}

// Bytes gives the memory of a Loc in receive memory that came with Mem, and otherwise nil.
func (e *Engine) Bytes(l Loc) []byte { return e.in.bytes(l) }

// Consume takes n bytes, at most those that Peek gave.
func (e *Engine) Consume(n int) {
	in := &e.in
	if n == 0 {
		return
	}
	if in.count == 0 || n < 0 || n > int(in.span(0).n) {
		panic("stream: Consume of more than Peek gave")
	}
	s := in.span(0)
	s.off += uint32(n)
	s.n -= uint32(n)
	in.queued -= uint64(n)
	in.eaten += uint64(n)
	if s.n == 0 {
		b, last := s.buf, s.last
		in.first++
		if in.first == len(in.spans) {
			in.first = 0
		}
		in.count--
		if last {
			e.release(b)
		}
	}
}

// discard consumes everything.
func (e *Engine) discard() {
	for e.in.count > 0 {
		e.Consume(int(e.in.span(0).n))
	}
}

// press notes a sign that buffers of size want would be better, and asks for them when
// there are enough signs in a short time.
func (e *Engine) press(want, signs int) {
	in := &e.in
	now := e.now
	want = min(want, e.cfg.MaxRecv)
	if want <= in.regions[in.active].mem.Size || now < in.calm || in.want != 0 || e.mayLend(nil) != nil {
		return
	}
	if now-in.pressureAt > time.Second {
		in.pressure, in.pressureAt = 0, now
	}
	in.pressure += signs
	if in.pressure >= enoughPressure {
		in.want = want
		e.events |= WantRecv
	}
}

// spare reports whether a number of a region is free.
func (in *incoming) spare() bool {
	for i := range in.regions {
		if r := &in.regions[i]; !r.used && !r.returned {
			return true
		}
	}
	return false
}

// Want gives the size of the buffers that WantRecv asks for, a power of two; 0: for none. The
// wish stays until Lend or Decline answers it.
func (e *Engine) Want() int { return e.in.want }

// RecvSize gives the size of the buffers that are used now.
func (e *Engine) RecvSize() int { return e.in.regions[e.in.active].mem.Size }

// Lend gives the engine more receive memory, usually after WantRecv. It is used in place
// of what was used before. The region comes back by RecvReturned: when it was not needed
// for some time, or when something larger was lent. When the connection is over, the
// region is free with the queue pair. Verbena wants sizes that are powers of two, and at
// least MinCredits buffers. Errors are *ConfigError.
func (e *Engine) Lend(now time.Duration, m RecvMemory) (Region, error) {
	e.now = now
	in := &e.in
	if err := e.checkRecv("Lend", &m); err != nil {
		return NoRegion, err
	}
	if err := e.mayLend(&m); err != nil {
		return NoRegion, err
	}
	at := uint8(in.addRegion(m))
	in.want, in.pressure = 0, 0
	in.busyAt = now
	e.activate(at)
	return FirstRecv + Region(at), nil
}

// mayLend reports whether more receive memory, and m of it if not nil, can be used.
func (e *Engine) mayLend(m *RecvMemory) error {
	in := &e.in
	switch {
	case len(in.regions) >= maxRegions && !in.spare():
		return errRegions
	case e.v != nil && (len(e.v.fifo)-e.cfg.Recv.Count < MinCredits || m != nil && len(e.v.fifo)-m.Count < MinCredits):
		return errQueue
	}
	return nil
}

var (
	errRegions = &ConfigError{"Lend", "too many regions are lent"}
	errQueue   = &ConfigError{"Lend", "RecvQueue is not 8 above the number of buffers, so that sizes could not change"}
)

// activate makes a region the one whose buffers are used.
func (e *Engine) activate(region uint8) {
	in := &e.in
	old := in.active
	if old == region {
		return
	}
	in.active = region
	if old != 0 {
		in.regions[old].retiring = true
		e.giveBack(old)
	}
}

// Decline answers WantRecv with no. It comes again some time later, if it is still true.
func (e *Engine) Decline(now time.Duration) {
	e.in.want, e.in.pressure = 0, 0
	e.in.calm = now + e.cfg.Shrink
}

// TakeReturned gives a lent region that is free.
func (e *Engine) TakeReturned() (Region, bool) {
	for i := range e.in.regions {
		if r := &e.in.regions[i]; r.returned {
			r.returned = false
			r.mem = RecvMemory{}
			return FirstRecv + Region(i), true
		}
	}
	return NoRegion, false
}

// shrinkAt gives when lent memory that is not needed goes back, or is asked for again.
func (e *Engine) shrinkAt() (time.Duration, bool) {
	in := &e.in
	if e.end.gone || e.end.peerClosed {
		return 0, false // it goes back with the queue pair
	}
	lent := in.active != 0
	for i := range in.regions {
		lent = lent || i > 0 && in.regions[i].used && e.v != nil
	}
	return in.busyAt + e.cfg.Shrink, lent
}

// shrink goes back to the first region when nothing large has come for some time.
func (e *Engine) shrink(now time.Duration) {
	at, ok := e.shrinkAt()
	if !ok || now < at {
		return
	}
	if e.in.active != 0 {
		e.activate(0)
	}
	e.in.busyAt = now
	if e.v != nil {
		e.v.burnOld()
	}
}
