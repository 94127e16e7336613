// Package mem is the memory of a device: keys, regions, protection domains, bounds
// (IBTA Vol 1 ch. 10.6). It has no lock: look-ups read a snapshot of the table, and a
// region counts its users with an atomic word.
//
// # Keys
//
// A region has one number, which is its L_Key and, if it gives remote rights, its R_Key.
// All 32 bits come from the random source, so that a peer that guesses has one chance
// in 2^32 for each region, and a wrong guess costs it its queue pair. 0 is never a key.
// The last 256 keys that were freed are not used again.
//
// # Invalidation
//
// A region that is registered with ib.MWBind is invalidable: LOCAL_INV and SEND with
// invalidate take its remote rights away, once, as they do with a memory window (IBTA
// Vol 1 §10.6.7.2; see Window); local use of it goes on. Ordinary regions refuse (an L_Key of
// ibv_reg_mr is not in the list of §10.6.5), so that a peer cannot take memory away that
// nobody meant it to.
package mem

import (
	"errors"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
)

// Domain is the number of a protection domain, and of a queue pair in it if there is one: a
// region is for all queue pairs of its domain, a window for one.
type Domain uint64

const (
	allOfDomain = ^Domain(0)
	qpShift     = 32
)

// QP gives the domain as a queue pair has it. d is below 2^32.
func (d Domain) QP(n ib.QPN) Domain { return d | Domain(n)<<qpShift }

// domain is without the queue pair.
func (d Domain) domain() Domain { return d & (1<<qpShift - 1) }

// Why memory cannot be registered.
var (
	ErrEmpty  = errors.New("mem: region of no bytes")
	ErrWrap   = errors.New("mem: region passes the end of the address space")
	ErrAccess = errors.New("mem: RemoteWrite and RemoteAtomic need LocalWrite")
	ErrFlags  = errors.New("mem: access flags that are unknown or not supported")
	ErrAlign  = errors.New("mem: RemoteAtomic needs an iova that is congruent to the address modulo 8")
)

// Access flags: those that mean something here, and those that ask for what cannot be
// had. Bits 20 to 29 are hints, known or not (IBV_ACCESS_OPTIONAL_RANGE).
const (
	known    = ib.LocalWrite | ib.RemoteAny | ib.MWBind | ib.ZeroBased | ib.HugeTLB
	optional = ib.Access(0x3ff) << 20
)

// Region is a piece of registered memory. Its methods may be called from any goroutine.
type Region struct {
	state  atomic.Uint32 // users, and the two flags below
	key    uint32
	domain Domain
	mask   Domain // what of it must fit
	access ib.Access
	iova   uint64
	p      []byte
	parent *Region // of a window that is bound: its users count there
}

// Flags of Region.state; the rest counts users.
const (
	removed uint32 = 1 << 31
	revoked uint32 = 1 << 30 // remote rights are gone
	users   uint32 = revoked - 1
)

// LKey gives the key for local use.
func (r *Region) LKey() ib.LKey { return ib.LKey(r.key) }

// RKey gives the key for peers: 0, which is never a key, if the region gives them no
// right.
func (r *Region) RKey() ib.RKey {
	if r.access&(ib.RemoteAny|ib.MWBind) == 0 {
		return 0
	}
	return ib.RKey(r.key)
}

// Len gives the number of bytes.
func (r *Region) Len() int { return len(r.p) }

// Domain gives the protection domain.
func (r *Region) Domain() Domain { return r.domain }

// Access gives the rights it was registered with.
func (r *Region) Access() ib.Access { return r.access }

// Idle reports whether a removed region is used by none any more: its memory may be
// freed. Once true it stays true. It is false before Table.Remove.
func (r *Region) Idle() bool { return r.state.Load()&^revoked == removed }

// Release ends a use that Acquire began.
func (r *Region) Release() { r.state.Add(^uint32(0)) }

// acquire counts a user, unless the region was removed, or mask names another flag that
// is set. It never counts one, not even for a moment, after removal: so Idle stays true.
func (r *Region) acquire(mask uint32) bool {
	for {
		s := r.state.Load()
		if s&(removed|mask) != 0 || s&users == users {
			return false
		}
		if r.state.CompareAndSwap(s, s+1) {
			return true
		}
	}
}
