package softroce

import (
	"sync"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

func TestQPNumbersAreUniqueAndNotReusedSoon(t *testing.T) {
	t.Parallel()
	for _, base := range []uint32{0, 1, 0xFFFFF0, 0x12FFF0, 0xABCDEF} {
		var r registry
		r.init(base)
		seen := make(map[ib.QPN]bool)
		live := make(map[ib.QPN]*qp)
		for i := range 100_000 {
			q := &qp{}
			if !r.add(q) {
				t.Fatalf("base %#x: no number for queue pair %d", base, i)
			}
			switch {
			case q.num <= 1 || q.num >= 0xFFFFFF:
				t.Fatalf("base %#x: reserved number %#x", base, uint32(q.num))
			case seen[q.num]:
				t.Fatalf("base %#x: number %#x again after %d", base, uint32(q.num), i)
			case r.find(q.num) != q:
				t.Fatalf("base %#x: number %#x is not found", base, uint32(q.num))
			}
			seen[q.num] = true
			live[q.num] = q
			if len(live) > 100 {
				for n, old := range live {
					r.remove(old)
					r.remove(old)
					if r.find(n) != nil {
						t.Fatalf("removed %#x is found", uint32(n))
					}
					delete(live, n)
					break
				}
			}
		}
		if len(r.all()) != len(live) || r.used != len(live) {
			t.Errorf("base %#x: %d in the registry, %d counted, want %d", base, len(r.all()), r.used, len(live))
		}
	}
}

func TestQPNumbersRunOut(t *testing.T) {
	t.Parallel()
	var r registry
	r.init(0x42)
	var last *qp
	for i := range maxQP {
		last = &qp{}
		if !r.add(last) {
			t.Fatalf("no number for queue pair %d of %d", i, maxQP)
		}
	}
	if r.add(&qp{}) {
		t.Error("more numbers than maxQP")
	}
	r.remove(last)
	if !r.add(&qp{}) {
		t.Error("no number after one was freed")
	}
}

func TestQPNumberLookUpOfStrangers(t *testing.T) {
	var r registry
	r.init(0x1000)
	q := &qp{}
	r.add(q)
	if n := testing.AllocsPerRun(10, func() {
		for n := range ib.QPN(1 << 16) {
			if x := n * 255 & 0xFFFFFF; r.find(x) != nil && x != q.num {
				t.Fatalf("%#x found", uint32(x))
			}
		}
	}); n != 0 {
		t.Errorf("look-up allocates %v", n)
	}
}

func TestQPNumberLookUpWhileChanging(t *testing.T) {
	t.Parallel()
	var r registry
	r.init(0xFFFF00)
	stable := &qp{}
	r.add(stable)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5000 {
				q := &qp{}
				r.add(q)
				if r.find(q.num) != q || r.find(stable.num) != stable {
					t.Error("not found")
				}
				r.remove(q)
			}
		})
	}
	wg.Wait()
}
