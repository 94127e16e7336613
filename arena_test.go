package rdma

import (
	"math/rand/v2"
	"testing"
)

// Pieces never overlap, and what is given back is found again.
func TestSlab(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const pages = 200
	s := &slab{pages: pages, b: make([]byte, pages*arenaPage), used: make([]uint64, (pages+63)/64)}
	var have []piece
	owner := make([]bool, pages)
	set := func(p piece, v bool) {
		for i := p.off / arenaPage; i < (p.off+len(p.b))/arenaPage; i++ {
			if owner[i] == v {
				t.Fatalf("page %d is %v already", i, v)
			}
			owner[i] = v
		}
	}
	for range 20000 {
		if n := 1 + rnd.IntN(40); rnd.IntN(2) == 0 {
			if p, ok := s.take(n); ok {
				set(p, true)
				have = append(have, p)
			} else if free := longest(owner); free >= n {
				t.Fatalf("no run of %d pages, there is one of %d", n, free)
			}
		} else if len(have) > 0 {
			i := rnd.IntN(len(have))
			p := have[i]
			have[i] = have[len(have)-1]
			have = have[:len(have)-1]
			set(p, false)
			a := arena{slabs: []*slab{s}}
			a.free(p)
		}
	}
}

func longest(owner []bool) (best int) {
	run := 0
	for _, used := range owner {
		if run++; used {
			run = 0
		}
		best = max(best, run)
	}
	return best
}
