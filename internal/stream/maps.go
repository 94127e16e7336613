package stream

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-rdma/verbena/ib"
)

// Errors of maps.
var (
	ErrNoMap   = errors.New("stream: the peer has no map there")
	ErrMapBusy = errors.New("stream: the map is in use")
	// ErrMapBudget: a compatible peer loses a message credit with each change of a map, and
	// would have too few left.
	ErrMapBudget = errors.New("stream: no more changes of maps on this connection")
)

// localMap is memory of this side that the peer may write.
type localMap struct {
	index int
	m     remoteMap
	state localState
	put   bool   // a message about it is to be sent
	after uint64 // the peer hears of it behind so many bytes of the stream
}

type localState uint8

const (
	mapLive localState = iota
	mapLeaving
	mapGone // waits for TakeUnmapped
)

// maps are the I/O maps of both sides.
type maps struct {
	local  []localMap
	remote []remoteMap // by index
	puts   int         // local with put
	acks   int         // remote with ack
}

// MapLocal tells the peer that it may write n bytes at addr under the offsets from offset
// on (riomap), behind what was committed before. index is below the IOMap of the peer's hello. Errors: *ConfigError,
// ErrMapBusy until TakeUnmapped has given the index, ErrMapBudget.
func (e *Engine) MapLocal(index int, offset, addr uint64, key ib.RKey, n uint32) error {
	switch {
	case index < 0 || index >= e.peer.IOMap:
		return &ConfigError{"MapLocal", fmt.Sprintf("index %d, and the peer has room for %d", index, e.peer.IOMap)}
	case n == 0 || offset+uint64(n) < offset || addr+uint64(n) < addr:
		return &ConfigError{"MapLocal", "the map is empty or wraps"}
	}
	for i := range e.maps.local {
		if e.maps.local[i].index == index {
			return ErrMapBusy
		}
	}
	if err := e.mapBudget(); err != nil {
		return err
	}
	e.maps.local = append(e.maps.local, localMap{index: index, m: remoteMap{offset: offset, sglEntry: sglEntry{addr, key, n}}, put: true,
		after: e.out.total + e.out.pending()})
	e.maps.puts++
	return nil
}

// UnmapLocal takes a map back; that passes data which wait to be sent. Verbena: TakeUnmapped
// gives index when the peer does not write there any more. Compatible: the peer is told, but a peer of C writes on until it
// has read that, and gives no answer; TakeUnmapped gives index at once, and a peer that
// writes to memory that is not registered any more loses the connection.
func (e *Engine) UnmapLocal(index int) error {
	for i := range e.maps.local {
		l := &e.maps.local[i]
		if l.index != index {
			continue
		}
		if l.state != mapLive {
			return ErrMapBusy
		}
		if l.put { // the peer was never told
			l.state, l.put = mapGone, false
			e.maps.puts--
			e.events |= Unmapped
			return nil
		}
		l.state = mapLeaving
		if e.c != nil {
			l.m = remoteMap{}
			l.state = mapGone
			e.events |= Unmapped
			if e.mapBudget() != nil { // it cannot be told
				return nil
			}
		}
		l.put = true
		e.maps.puts++
		return nil
	}
	return &ConfigError{"UnmapLocal", fmt.Sprintf("index %d is not mapped", index)}
}

// TakeUnmapped gives a map that was taken back.
func (e *Engine) TakeUnmapped() (index int, ok bool) {
	for i := range e.maps.local {
		if l := e.maps.local[i]; l.state == mapGone && !l.put {
			e.maps.local = append(e.maps.local[:i], e.maps.local[i+1:]...)
			return l.index, true
		}
	}
	return 0, false
}

// mapBudget reports whether one more change can be told.
func (e *Engine) mapBudget() error {
	if e.c != nil && e.c.leaked+uint32(e.maps.puts)+1 >= max(e.c.most/4, 2) {
		return ErrMapBudget
	}
	return nil
}

// takePut gives a local map that the peer is to be told of now.
func (e *Engine) takePut() *localMap {
	m := &e.maps
	for i := range m.local {
		if l := &m.local[i]; l.put && (l.state != mapLive || l.after <= e.out.total) {
			l.put = false
			m.puts--
			return l
		}
	}
	return nil
}

// sendable gives how many pending bytes may go in one message: the peer hears of a map before
// what is behind it.
func (e *Engine) sendable() uint64 {
	n := e.out.pending()
	if e.maps.puts == 0 {
		return n
	}
	for i := range e.maps.local {
		if l := &e.maps.local[i]; l.put && l.state == mapLive {
			n = min(n, l.after-e.out.total)
		}
	}
	return n
}

// findMap gives the peer's map that has offset.
func (e *Engine) findMap(offset uint64) *remoteMap {
	for i := range e.maps.remote {
		if m := &e.maps.remote[i]; m.n > 0 && !m.ack && offset >= m.offset && offset-m.offset < uint64(m.n) {
			return m
		}
	}
	return nil
}

// MapRoom gives room of the send buffer for a write to the peer's map at offset, at most
// what the map takes from there. An empty Loc without an error: wait for Writable.
// Errors: ErrNoMap, and those of Room.
func (e *Engine) MapRoom(offset uint64) (Loc, error) {
	if err := e.writeErr(); err != nil {
		return Loc{Region: SendRegion}, err
	}
	m := e.findMap(offset)
	if m == nil {
		return Loc{Region: SendRegion}, ErrNoMap
	}
	l := e.out.room()
	if l.Len == 0 || e.out.pending() > 0 {
		e.out.wanted, e.out.wantedMap = true, true
		return Loc{Region: SendRegion}, nil
	}
	l.Len = uint32(min(uint64(l.Len), uint64(m.n)-(offset-m.offset), MaxRecvSize))
	return l, nil
}

// CommitMap writes n bytes, copied to what MapRoom gave, to the peer's map at offset
// (riowrite). What is committed later arrives later. Drained tells when the peer's
// device has them.
func (e *Engine) CommitMap(offset uint64, n int) {
	if n == 0 || e.writeErr() != nil {
		return
	}
	l, err := e.MapRoom(offset)
	if err != nil {
		return // the peer took it back
	}
	if n < 0 || n > int(l.Len) {
		panic("stream: CommitMap of more than MapRoom gave")
	}
	m := e.findMap(offset)
	e.out.write = mapWrite{uint32(n), m.addr + (offset - m.offset), m.key}
	e.out.tail += uint64(n)
}

// mapped takes an update of the I/O map. It costs a credit of the sender, which C's
// receivers do not give back and we do.
func (c *compat) mapped(w word, n uint32) {
	if !c.counted(w) {
		return
	}
	switch i := w.value(); {
	case n != mapLen:
		c.protocolLimit("a map of a strange length", uint32(w), uint64(n), mapLen)
	case int64(i) >= int64(len(c.maps.remote)):
		c.protocolLimit("a map beyond the end of the table", uint32(w), uint64(i), uint64(len(c.maps.remote)))
	default:
		at := sglLen*int(c.local.SGLLen) + mapLen*int(i)
		m := parseMap(c.table[at:at+mapLen], order(&c.local))
		if m.offset+uint64(m.n) < m.offset || m.addr+uint64(m.n) < m.addr {
			c.protocolLimit("a map that wraps", uint32(w), uint64(m.n), maxValue)
			return
		}
		c.maps.remote[i] = m
		c.events |= PeerMapped
	}
}

// sendMap tells the peer of a map. One that was taken back has the length 0.
func (c *compat) sendMap(op *Op) bool {
	if c.maps.puts == 0 || c.end.lastSent != 0 || c.end.peerClosed || c.credit <= c.kept() || !c.out.mayData() {
		return false
	}
	l := c.takePut()
	if l == nil {
		return false
	}
	op.Opcode, op.Imm = ib.OpWriteImm, uint32(makeWord(wordIOMap, uint32(l.index)))
	op.Remote, op.RKey = c.peer.SGLAddr+sglLen*uint64(c.peer.SGLLen)+mapLen*uint64(l.index), c.peer.SGLKey
	l.m.put(op.Data[:], order(&c.peer))
	op.DataN = mapLen
	c.credit--
	c.leaked++
	c.emit(op, slotControl, 0, false)
	if l.state == mapGone {
		c.events |= Unmapped
	}
	return true
}

// Messages of Verbena about maps: the index, and for MAP offset, address, key, length.
const (
	vMapLen   = 4 + mapLen
	vIndexLen = 4
)

// sendMap tells the peer of maps, and answers what it takes back. All writes that were
// posted before the answer arrive before it.
func (v *verbena) sendMap(op *Op) bool {
	m := &v.maps
	if m.puts == 0 && m.acks == 0 || !v.mayData() {
		return false
	}
	if m.acks > 0 && v.out.write.n == 0 {
		for i := range m.remote {
			if r := &m.remote[i]; r.ack {
				*r = remoteMap{}
				m.acks--
				binary.BigEndian.PutUint32(op.Data[:], uint32(i))
				op.DataN = vIndexLen
				v.message(op, vUnmapped, 0)
				v.emit(op, slotControl, 0, false)
				return true
			}
		}
	}
	l := v.takePut()
	if l == nil {
		return false
	}
	binary.BigEndian.PutUint32(op.Data[:], uint32(l.index))
	if l.state == mapLive {
		l.m.put(op.Data[4:], binary.BigEndian)
		op.DataN = vMapLen
		v.message(op, vMap, 0)
	} else {
		op.DataN = vIndexLen
		v.message(op, vUnmap, 0)
	}
	v.emit(op, slotControl, 0, false)
	return true
}

// mapMessage takes MAP, UNMAP and UNMAPPED.
func (v *verbena) mapMessage(w vword, b []byte) {
	want := vIndexLen
	if w.kind() == vMap {
		want = vMapLen
	}
	if len(b) != want {
		v.protocolLimit("a message about a map of a strange length", uint32(w), uint64(len(b)), uint64(want))
		return
	}
	i := int64(binary.BigEndian.Uint32(b))
	if w.kind() == vUnmapped {
		for j := range v.maps.local {
			if l := &v.maps.local[j]; int64(l.index) == i && l.state == mapLeaving && !l.put {
				l.state = mapGone
				v.events |= Unmapped
				return
			}
		}
		v.protocolLimit("an answer about a map that was not asked for", uint32(w), uint64(i), uint64(v.peer.IOMap))
		return
	}
	if i >= int64(len(v.maps.remote)) {
		v.protocolLimit("a map beyond the end of the table", uint32(w), uint64(i), uint64(len(v.maps.remote)))
		return
	}
	r := &v.maps.remote[i]
	if w.kind() == vUnmap {
		if r.n == 0 || r.ack {
			v.protocolLimit("a map is taken back that was not given", uint32(w), uint64(i), uint64(len(v.maps.remote)))
			return
		}
		r.ack = true
		v.maps.acks++
		v.events |= PeerMapped
		return
	}
	m := parseMap(b[4:], binary.BigEndian)
	if r.n != 0 || m.n == 0 || m.offset+uint64(m.n) < m.offset || m.addr+uint64(m.n) < m.addr {
		v.protocolLimit("a map that is in use, empty or wraps", uint32(w), uint64(i), uint64(len(v.maps.remote)))
		return
	}
	*r = m
	v.events |= PeerMapped
}
