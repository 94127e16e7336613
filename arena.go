package rdma

import (
	"math/bits"
	"sync"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// arena gives registered memory to the connections of a hub, in pages of slabs. The slabs
// have no remote rights: who lets a peer write registers that piece on its own
// (arena.expose), so that a peer is told of no memory but its own. It is not a wall: the key
// of such a piece is good for every queue pair of the domain, so that a peer who guesses it
// reaches it through its own connection (docs/streams.md).
type arena struct {
	pd *verbs.PD

	mu    sync.Mutex
	slabs []*slab
}

// slab is one mapping.
type slab struct {
	mr    *verbs.MR
	b     []byte
	used  []uint64 // bit per page
	pages int
	taken int
	next  int // where to look first
}

// piece is memory of an arena: whole pages.
type piece struct {
	s   *slab
	off int
	b   []byte
}

const (
	arenaPage = 1 << 10
	slabSize  = 1 << 20
)

func (a *arena) init(pd *verbs.PD) { a.pd = pd }

// alloc gives n bytes, rounded up to pages. What is in them is what was left there.
func (a *arena) alloc(n int) (piece, error) {
	pages := (n + arenaPage - 1) / arenaPage
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := len(a.slabs) - 1; i >= 0; i-- {
		if p, ok := a.slabs[i].take(pages); ok {
			return p, nil
		}
	}
	size := max(slabSize, pages*arenaPage)
	mr, err := a.pd.Alloc(size, ib.LocalWrite)
	if err != nil {
		return piece{}, err
	}
	s := &slab{mr: mr, b: mr.Bytes(), pages: size / arenaPage}
	s.used = make([]uint64, (s.pages+63)/64)
	a.slabs = append(a.slabs, s)
	p, _ := s.take(pages)
	return p, nil
}

// take finds a run of free pages.
func (s *slab) take(pages int) (piece, bool) {
	if s.pages-s.taken < pages {
		return piece{}, false
	}
	at, run := 0, 0
	for i := s.next; i < s.pages; {
		if s.used[i/64]>>(i%64) == 0 { // the rest of the word is free
			if run == 0 {
				at = i
			}
			step := min(64-i%64, s.pages-i)
			run += step
			i += step
		} else if s.used[i/64]>>(i%64)&1 != 0 {
			run = 0
			i += max(bits.TrailingZeros64(^(s.used[i/64] >> (i % 64))), 1)
		} else {
			if run == 0 {
				at = i
			}
			step := bits.TrailingZeros64(s.used[i/64] >> (i % 64))
			run += step
			i += step
		}
		if run >= pages {
			s.mark(at, pages)
			s.taken += pages
			if at == s.next {
				s.next = at + pages
			}
			off := at * arenaPage
			end := off + pages*arenaPage
			return piece{s, off, s.b[off:end:end]}, true
		}
	}
	return piece{}, false
}

// mark turns over the bits of a run.
func (s *slab) mark(at, pages int) {
	for i := at; i < at+pages; i++ {
		s.used[i/64] ^= 1 << (i % 64)
	}
}

// free takes a piece back, which no request names any more. A slab of which nothing is in
// use goes, unless it is the last.
func (a *arena) free(p piece) {
	if p.s == nil {
		return
	}
	a.mu.Lock()
	s := p.s
	pages := len(p.b) / arenaPage
	s.mark(p.off/arenaPage, pages)
	s.taken -= pages
	s.next = min(s.next, p.off/arenaPage)
	var gone *verbs.MR
	if s.taken == 0 && len(a.slabs) > 1 {
		for i, x := range a.slabs {
			if x == s {
				a.slabs = append(a.slabs[:i], a.slabs[i+1:]...)
				break
			}
		}
		gone = s.mr
	}
	a.mu.Unlock()
	if gone != nil {
		gone.Close()
	}
}

// expose registers a piece, or a part of it, for writing by a peer.
func (a *arena) expose(b []byte) (*verbs.MR, error) {
	return a.pd.RegisterBytes(b, ib.LocalWrite|ib.RemoteWrite)
}

// close ends the arena.
func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.slabs {
		s.mr.Close()
	}
	a.slabs = nil
}

// sge names a part of a piece for a request.
func (p piece) sge(off, n int) verbs.SGE { return p.s.mr.SGE(p.off+off, n) }
