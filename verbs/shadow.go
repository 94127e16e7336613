package verbs

import (
	"math/bits"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
)

// The number that a provider gets for a request, and gives back with its completion,
// says which queue it is in and where:
//
//	bits 62–63  kind: send, receive, receive of an SRQ
//	bits 40–61  index of the queue pair, or of the SRQ, in its registry
//	bits  0–39  sequence number of the request, or place and generation in an SRQ
//
// Sequence numbers of an index run on from one queue pair to the next, so a completion
// that comes late names a request that is not there any more, and is dropped.
const (
	kindSend uint64 = iota
	kindRecv
	kindSRQ

	kindShift  = 62
	indexShift = 40
	seqMask    = 1<<indexShift - 1
)

func requestID(kind uint64, index uint32) uint64 {
	return kind<<kindShift | uint64(index)<<indexShift
}

// entry is what is remembered of a request.
type entry struct {
	id   uint64 // the caller's
	op   ib.WCOpcode
	f    entryFlags // as posted
	done bool       // completed, but not all before it; of who completes
}

type entryFlags uint8

const (
	entrySignaled entryFlags = 1 << iota // the caller wants a completion of success
	entryCQE                             // the device was asked for one
	entryLocal                           // posted in the error state, the device does not know it
	entryBeacon                          // the library's own
)

// shadow is the memory of one queue of a queue pair. Posts, which come one at a time
// under the queue pair's lock, write entries and head; who completes, under the lock of
// the queue's CQ, reads them and writes tail. So neither waits for the other.
type shadow struct {
	base uint64  // of request numbers
	ents []entry // a power of two, max or more
	ahs  []*AH   // of datagrams, parallel to ents
	mask uint64
	max  uint64 // requests that may be outstanding
	recv bool   // each request completes by itself; else success of one covers those before

	head  atomic.Uint64 // sequence number of the next request
	tail  atomic.Uint64 // of the oldest that is not complete
	upto  uint64        // the request before it is the latest that has completed; as tail
	plain uint64        // requests since the last that the device completes for sure; as head

	// detours counts what a completion has to look at beside its own entry: entries with
	// entryLocal, and one if QP.OnRecv waits.
	detours atomic.Int32
}

func (s *shadow) init(base, first uint64, n int, recv bool) {
	s.base, s.max, s.recv = base, uint64(n), recv
	size := 1
	if n > 1 {
		size = 1 << bits.Len(uint(n-1))
	}
	s.ents = make([]entry, size)
	s.mask = uint64(size - 1)
	s.head.Store(first)
	s.tail.Store(first)
	s.upto = first
}

// room gives the number of requests that fit.
func (s *shadow) room() int {
	if n := s.head.Load() - s.tail.Load(); n < s.max {
		return int(s.max - n)
	}
	return 0
}

// outstanding gives the number of requests that are not complete.
func (s *shadow) outstanding() int {
	t := s.tail.Load()
	return int(s.head.Load() - t)
}

// number gives what the provider gets for the request with a sequence number.
func (s *shadow) number(seq uint64) uint64 { return s.base | seq&seqMask }

// retire takes the entry of a completed request out; ok is false if there is none: the
// completion is stale, or double. The CQ's lock is held.
func (s *shadow) retire(number uint64) (e entry, ok bool) {
	tail, head := s.tail.Load(), s.head.Load()
	off := (number - tail) & seqMask
	if off >= head-tail {
		return entry{}, false
	}
	seq := tail + off
	p := &s.ents[seq&s.mask]
	if p.done || s.implied(p, seq) {
		return entry{}, false
	}
	e = *p
	if off == 0 && s.ahs == nil {
		tail++
		s.tail.Store(tail)
		if s.upto > tail { // something behind it came first
			s.advance()
		} else {
			s.upto = tail
		}
		return e, true
	}
	p.done = true
	if seq >= s.upto {
		s.upto = seq + 1
	}
	s.advance()
	return e, true
}

// implied reports whether a request is complete because a later one is.
func (s *shadow) implied(e *entry, seq uint64) bool {
	return !s.recv && e.f&entryCQE == 0 && e.f&entryLocal == 0 && seq < s.upto
}

// advance moves tail over what is complete. The CQ's lock is held.
func (s *shadow) advance() {
	tail, head := s.tail.Load(), s.head.Load()
	for ; tail != head; tail++ {
		if e := &s.ents[tail&s.mask]; !e.done && !s.implied(e, tail) {
			break
		}
		s.unhold(tail)
	}
	s.tail.Store(tail)
}

// unhold lets the address handle of a request go.
func (s *shadow) unhold(seq uint64) {
	if s.ahs == nil {
		return
	}
	if p := &s.ahs[seq&s.mask]; *p != nil {
		(*p).drop()
		*p = nil
	}
}

// localNext reports whether the oldest request was posted in the error state, so that
// it is the library's turn to complete it. The CQ's lock is held.
func (s *shadow) localNext() bool {
	if s.detours.Load() == 0 {
		return false
	}
	t := s.tail.Load()
	return t != s.head.Load() && s.ents[t&s.mask].f&entryLocal != 0
}

// pop takes the oldest entry out. The CQ's lock is held.
func (s *shadow) pop() entry {
	t := s.tail.Load()
	e := s.ents[t&s.mask]
	e.done = e.done || s.implied(&e, t)
	if e.f&entryLocal != 0 {
		s.detours.Add(-1)
	}
	s.unhold(t)
	s.tail.Store(t + 1)
	if s.upto <= t {
		s.upto = t + 1
	}
	return e
}

// wanted gives the number of outstanding requests that the device must complete: signaled
// sends, or receives. trailing is the number of requests behind the last one that the
// device completes, which leave no trace if they succeed. The locks of the queue pair and
// of the CQ are held.
func (s *shadow) wanted() (must, trailing int) {
	for seq := s.tail.Load(); seq != s.head.Load(); seq++ {
		switch e := &s.ents[seq&s.mask]; {
		case e.done || e.f&entryLocal != 0 || s.implied(e, seq):
		case s.recv || e.f&entryCQE != 0:
			must++
			trailing = 0
		default:
			trailing++
		}
	}
	return must, trailing
}

// put writes the entry of the next request; publish makes n of them visible to who
// completes, and retract takes all but the first n away again. The queue pair's lock is
// held.
func (s *shadow) put(seq, id uint64, op ib.WCOpcode, f entryFlags) {
	s.ents[seq&s.mask] = entry{id: id, op: op, f: f}
}

func (s *shadow) publish(n int) { s.head.Add(uint64(n)) }

func (s *shadow) retract(n, posted int) {
	head := s.head.Load()
	first := head - uint64(n)
	for seq := first + uint64(posted); seq != head; seq++ {
		s.unhold(seq)
	}
	s.head.Store(first + uint64(posted))
}
