package verbs

import (
	"sync"
	"sync/atomic"
)

// registry gives numbers to objects and finds them again without a lock: an event or a
// completion that a provider hands out names its object by a handle, an index with a
// generation, so that one that comes late finds nothing.
type registry[T any] struct {
	tab atomic.Pointer[[]atomic.Pointer[T]]

	mu    sync.Mutex
	slots []regSlot
	free  []uint32 // a queue: the number that was given back first is used first
}

type regSlot struct {
	gen  uint32
	note uint64 // what the last user left for the next
}

// maxIndex is the number of objects of a kind that a device can have.
const maxIndex = 1 << 22

// reserve gives an index that nobody uses, with its handle and what the last user left.
// false: there are too many.
func (r *registry[T]) reserve() (index uint32, handle, note uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Waiting until a number of indexes are free keeps each unused for a while.
	if n := len(r.free); n > 16 || n > 0 && len(r.slots) >= maxIndex {
		index = r.free[0]
		r.free = append(r.free[:0], r.free[1:]...)
	} else {
		if len(r.slots) >= maxIndex {
			return 0, 0, 0, false
		}
		index = uint32(len(r.slots))
		r.slots = append(r.slots, regSlot{})
		r.grow()
	}
	s := &r.slots[index]
	s.gen++
	return index, uint64(s.gen)<<32 | uint64(index), s.note, true
}

// grow makes the table as long as the slots need it. r.mu is held.
func (r *registry[T]) grow() {
	var old []atomic.Pointer[T]
	if p := r.tab.Load(); p != nil {
		old = *p
	}
	if len(r.slots) <= len(old) {
		return
	}
	tab := make([]atomic.Pointer[T], max(16, 2*len(old)))
	for i := range old {
		tab[i].Store(old[i].Load())
	}
	r.tab.Store(&tab)
}

// publish lets get find v.
func (r *registry[T]) publish(index uint32, v *T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	(*r.tab.Load())[index].Store(v)
}

// release ends the use of an index.
func (r *registry[T]) release(index uint32, note uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	(*r.tab.Load())[index].Store(nil)
	r.slots[index].note = note
	r.free = append(r.free, index)
}

// get gives the object of an index, or nil. It does not check the generation.
func (r *registry[T]) get(index uint32) *T {
	p := r.tab.Load()
	if p == nil || int(index) >= len(*p) {
		return nil
	}
	return (*p)[index].Load()
}

// all gives the objects that are there.
func (r *registry[T]) all() []*T {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.tab.Load()
	if p == nil {
		return nil
	}
	var vs []*T
	for i := range *p {
		if v := (*p)[i].Load(); v != nil {
			vs = append(vs, v)
		}
	}
	return vs
}
