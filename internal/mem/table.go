package mem

import (
	"sync/atomic"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
)

// Table holds the regions of a device. Register, Remove and what makes, binds and frees
// windows must not run at the same time (the device has a lock for them); all other methods may run at any time, also
// beside them, and neither block nor allocate.
//
// It is a hash table with open addressing. Keys are random, so they are their own
// hash. A removed region leaves a tombstone; when a quarter of the places is not free
// any more the table is built anew, and published in one step.
type Table struct {
	rand  func() uint32
	slots atomic.Pointer[[]atomic.Pointer[Region]] // a power of two of them
	live  int                                      // regions in slots
	used  int                                      // and tombstones

	windows map[uint32]*Window // by family

	freed  [256]uint32 // the last keys that were freed
	nfreed int
}

// tombstone keeps a chain of places together. Its key is never looked for.
var tombstone = &Region{}

const minSlots = 16

// NewTable takes the source of the unpredictable part of keys. It is called by
// Register only.
func NewTable(rand func() uint32) *Table {
	t := &Table{rand: rand}
	s := make([]atomic.Pointer[Region], minSlots)
	t.slots.Store(&s)
	return t
}

// Register makes a region of p whose first byte has the address iova in requests. The
// region refers to p until it is removed and idle; the caller keeps the memory where it
// is until then. With ib.ZeroBased iova is taken as 0. The errors are the variables of
// this package.
func (t *Table) Register(d Domain, p []byte, iova uint64, a ib.Access) (*Region, error) {
	if a&ib.ZeroBased != 0 {
		iova = 0
	}
	switch {
	case len(p) == 0:
		return nil, ErrEmpty
	case iova+uint64(len(p)-1) < iova:
		return nil, ErrWrap
	case a&^(known|optional) != 0:
		return nil, ErrFlags
	case a&(ib.RemoteWrite|ib.RemoteAtomic) != 0 && a&ib.LocalWrite == 0:
		return nil, ErrAccess
	case a&ib.RemoteAtomic != 0 && !congruent(p, iova):
		return nil, ErrAlign
	}
	r := &Region{key: t.newKey(), domain: d.domain(), mask: allOfDomain.domain(), access: a, iova: iova, p: p}
	t.insert(r)
	return r, nil
}

// congruent reports whether multiples of 8 in requests are such in memory.
func congruent(p []byte, iova uint64) bool {
	return (uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p))))^iova)&7 == 0
}

// newKey draws a key. If it is in use, or was a short time ago, the next one is taken:
// so a source that repeats itself does no harm.
func (t *Table) newKey() uint32 {
	k := t.rand()
	for k == 0 || t.find(k) != nil || t.recent(k) || t.windows[k>>8] != nil {
		k++
	}
	return k
}

func (t *Table) recent(k uint32) bool {
	for _, f := range t.freed[:min(t.nfreed, len(t.freed))] {
		if f == k {
			return true
		}
	}
	return false
}

// insert puts r into the first free place of its chain.
func (t *Table) insert(r *Region) {
	s := *t.slots.Load()
	if (t.used+1)*4 > len(s)*3 {
		s = t.rebuild(s)
	}
	place(s, r)
	t.live++
	t.used++
}

// rebuild makes a table without tombstones with room for twice the regions.
func (t *Table) rebuild(old []atomic.Pointer[Region]) []atomic.Pointer[Region] {
	n := minSlots
	for n < 2*(t.live+1) {
		n *= 2
	}
	s := make([]atomic.Pointer[Region], n)
	for i := range old {
		if r := old[i].Load(); r != nil && r != tombstone {
			place(s, r)
		}
	}
	t.used = t.live
	t.slots.Store(&s)
	return s
}

func place(s []atomic.Pointer[Region], r *Region) {
	i := r.key & uint32(len(s)-1)
	for s[i].Load() != nil {
		i = (i + 1) & uint32(len(s)-1)
	}
	s[i].Store(r)
}

// find gives the region with key k, or nil.
func (t *Table) find(k uint32) *Region {
	s := *t.slots.Load()
	m := uint32(len(s) - 1)
	for i := k & m; ; i = (i + 1) & m {
		r := s[i].Load()
		if r == nil {
			return nil
		}
		if r.key == k && r != tombstone {
			return r
		}
	}
}

// Remove takes the region out of the table: uses that start later fail. Those that have
// started go on for the time of one copy; see Region.Idle. Removing twice does nothing.
func (t *Table) Remove(r *Region) {
	if r.state.Or(removed)&removed != 0 {
		return
	}
	s := *t.slots.Load()
	m := uint32(len(s) - 1)
	for i := r.key & m; ; i = (i + 1) & m {
		switch s[i].Load() {
		case nil:
			return
		case r:
			s[i].Store(tombstone)
			t.live--
			t.freed[t.nfreed%len(t.freed)] = r.key
			if t.nfreed++; t.nfreed == 2*len(t.freed) {
				t.nfreed = len(t.freed)
			}
			return
		}
	}
}

// Len gives the number of regions. It belongs to Register and Remove: not at the same
// time.
func (t *Table) Len() int { return t.live }
