package cm

import "sync"

// handles gives ids, and memberships of multicast groups, numbers to travel through a
// provider in their place: the lower half is a place in the table, the upper half
// counts how often the place was given out. A number that outlived its object finds
// nothing, so an event that was on its way when an id was closed is dropped and never
// reaches another id. One table serves the process, as ids move between channels.
type handles struct {
	mu    sync.Mutex
	slots []slot
	free  []uint32
}

type slot struct {
	gen   uint32 // of the holder, or of the next one; never 0, so no handle is 0
	id    *ID
	group *membership // nil: the handle is that of id itself
}

var table handles

// add gives a handle for an id, or for a membership of it.
func (t *handles) add(id *ID, g *membership) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i uint32
	if n := len(t.free); n > 0 {
		i = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		i = uint32(len(t.slots))
		t.slots = append(t.slots, slot{gen: 1})
	}
	s := &t.slots[i]
	s.id, s.group = id, g
	return uint64(s.gen)<<32 | uint64(i)
}

// get gives what a handle stands for, or nil.
func (t *handles) get(h uint64) (*ID, *membership) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.find(h); s != nil {
		return s.id, s.group
	}
	return nil, nil
}

// remove makes a handle mean nothing. A handle that is stale already does no harm.
func (t *handles) remove(h uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.find(h)
	if s == nil {
		return
	}
	s.id, s.group = nil, nil
	if s.gen++; s.gen == 0 {
		s.gen = 1
	}
	t.free = append(t.free, uint32(h))
}

func (t *handles) find(h uint64) *slot {
	i := uint32(h)
	if uint64(i) >= uint64(len(t.slots)) {
		return nil
	}
	s := &t.slots[i]
	if s.id == nil || s.gen != uint32(h>>32) {
		return nil
	}
	return s
}
