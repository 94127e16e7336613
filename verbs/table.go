package verbs

// Table maps request ids to values, with a generation in the id, so that a stale or
// foreign id finds nothing. Its zero value is ready. It is not safe for concurrent
// use. Put and Take do not allocate once the table has grown.
type Table[T any] struct {
	slots []tableSlot[T]
	free  int // index+1 of the first free slot; zero: none
	n     int
}

type tableSlot[T any] struct {
	v    T
	gen  uint32 // odd while the slot is used, so no id is zero
	next int    // of the free list
}

// Put stores v and gives an id for it, which is not zero.
func (t *Table[T]) Put(v T) (id uint64) {
	i := t.free - 1
	if i < 0 {
		i = len(t.slots)
		t.slots = append(t.slots, tableSlot[T]{})
	} else {
		t.free = t.slots[i].next
	}
	s := &t.slots[i]
	s.gen++
	s.v = v
	t.n++
	return uint64(s.gen)<<32 | uint64(i)
}

func (t *Table[T]) slot(id uint64) *tableSlot[T] {
	i := int(uint32(id))
	if i >= len(t.slots) {
		return nil
	}
	if s := &t.slots[i]; s.gen == uint32(id>>32) && s.gen&1 != 0 {
		return s
	}
	return nil
}

// Get gives the value of an id and leaves it there; false: there is none.
func (t *Table[T]) Get(id uint64) (v T, ok bool) {
	s := t.slot(id)
	if s == nil {
		return v, false
	}
	return s.v, true
}

// Take gives the value of an id and removes it; false: there is none.
func (t *Table[T]) Take(id uint64) (v T, ok bool) {
	s := t.slot(id)
	if s == nil {
		return v, false
	}
	v = s.v
	var zero T
	s.v = zero
	s.gen++
	s.next, t.free = t.free, int(uint32(id))+1
	t.n--
	return v, true
}

// Len gives the number of values.
func (t *Table[T]) Len() int { return t.n }
