package mem

import (
	"sync/atomic"
	"unsafe"

	"github.com/verbena-rdma/verbena/ib"
)

// Fault says why memory cannot be used.
type Fault uint8

const (
	OK        Fault = iota
	NoKey           // there is no such key, or the region was removed or invalidated
	NoDomain        // the region belongs to another protection domain
	NoBounds        // the range leaves the region
	NoRight         // the region does not give the right
	NoAtomic        // an atomic operation on an address that is not a multiple of 8
	NoInvalid       // the key is not one that can be invalidated
)

func (f Fault) String() string {
	return [...]string{"ok", "no such key", "wrong protection domain", "out of bounds", "access right missing",
		"misaligned atomic", "key cannot be invalidated"}[f]
}

// Acquire gives the n bytes at addr of the region with key k, if it belongs to d and
// gives all rights in need; remote rights are refused once the region is invalidated. For
// the key of a window, which has remote rights only, it gives the region that it is bound to.
// The caller copies, and then calls Release of the region: until then the memory is not
// freed. n is not negative. It does not allocate.
func (t *Table) Acquire(k uint32, d Domain, addr uint64, n int, need ib.Access) (*Region, []byte, Fault) {
	r := t.find(k)
	if r == nil {
		return nil, nil, NoKey
	}
	if (r.domain^d)&r.mask != 0 {
		return nil, nil, NoDomain
	}
	if r.access&need != need {
		return nil, nil, NoRight
	}
	off := addr - r.iova
	if addr < r.iova || off > uint64(len(r.p)) || uint64(n) > uint64(len(r.p))-off {
		return nil, nil, NoBounds
	}
	var mask uint32
	if need&ib.RemoteAny != 0 {
		mask = revoked
	}
	user := r
	if r.parent != nil { // a window's memory is its region's
		if r.state.Load()&(removed|mask) != 0 {
			return nil, nil, NoKey
		}
		user, mask = r.parent, 0
	}
	if !user.acquire(mask) {
		return nil, nil, NoKey
	}
	return user, r.p[off : off+uint64(n) : off+uint64(n)], OK
}

// Check is Acquire for one moment: whether the range could be used now.
func (t *Table) Check(k uint32, d Domain, addr uint64, n int, need ib.Access) Fault {
	r, _, f := t.Acquire(k, d, addr, n, need)
	if f == OK {
		r.Release()
	}
	return f
}

// CompareSwap replaces the 8 bytes at addr, a number in host order, if they are equal to
// compare, and gives what was there. It is atomic against all operations of this package
// and of sync/atomic (IBTA Vol 1 §9.4.5; AtomicGlobal).
func (t *Table) CompareSwap(k uint32, d Domain, addr, compare, swap uint64) (uint64, Fault) {
	r, w, f := t.word(k, d, addr)
	if f != OK {
		return 0, f
	}
	defer r.Release()
	for {
		old := atomic.LoadUint64(w)
		if old != compare || atomic.CompareAndSwapUint64(w, old, swap) {
			return old, OK
		}
	}
}

// FetchAdd adds to the 8 bytes at addr, modulo 2^64, and gives what was there.
func (t *Table) FetchAdd(k uint32, d Domain, addr, add uint64) (uint64, Fault) {
	r, w, f := t.word(k, d, addr)
	if f != OK {
		return 0, f
	}
	defer r.Release()
	return atomic.AddUint64(w, add) - add, OK
}

// word acquires 8 bytes for an atomic operation. Register has seen to it that the
// address in memory is aligned if addr is.
func (t *Table) word(k uint32, d Domain, addr uint64) (*Region, *uint64, Fault) {
	if addr&7 != 0 {
		return nil, nil, NoAtomic
	}
	r, p, f := t.Acquire(k, d, addr, 8, ib.RemoteAtomic)
	if f != OK {
		return nil, nil, f
	}
	return r, (*uint64)(unsafe.Pointer(unsafe.SliceData(p))), OK
}

// Invalidate takes the remote rights of an invalidable key away (LOCAL_INV, SEND with
// invalidate). It works once for each key. Copies that have started end; the caller need
// not wait for them, as the memory stays registered.
func (t *Table) Invalidate(k ib.RKey, d Domain) Fault {
	r := t.find(uint32(k))
	if r == nil {
		return NoKey
	}
	if (r.domain^d)&r.mask != 0 {
		return NoDomain
	}
	if r.access&ib.MWBind == 0 {
		return NoInvalid
	}
	for {
		s := r.state.Load()
		if s&(removed|revoked) != 0 {
			return NoKey
		}
		if r.state.CompareAndSwap(s, s|revoked) {
			return OK
		}
	}
}
