package verbs

import (
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// TestShadow compares the memory of a queue with a list, over random posts and
// completions in and out of order, and around the wrap of the sequence number.
func TestShadow(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 6))
	type req struct {
		number, id uint64
		cqe, done  bool
	}
	for range 200 {
		recv := rnd.IntN(2) == 0
		size := 1 + rnd.IntN(20)
		first := uint64(rnd.IntN(5))
		if rnd.IntN(2) == 0 {
			first = seqMask - uint64(rnd.IntN(50))
		}
		var s shadow
		s.init(requestID(kindSend, uint32(rnd.IntN(maxIndex))), first, size, recv)
		var list []req
		var old []uint64
		next := uint64(0)
		for range 500 {
			switch rnd.IntN(3) {
			case 0:
				n := rnd.IntN(s.room() + 1)
				seq := s.head.Load()
				for i := range n {
					f := entryFlags(0)
					if recv || rnd.IntN(3) == 0 {
						f = entrySignaled | entryCQE
					}
					s.put(seq+uint64(i), next+uint64(i), ib.WCSend, f)
				}
				s.publish(n)
				took := rnd.IntN(n + 1)
				s.retract(n, took)
				for i := range took {
					e := s.ents[(seq+uint64(i))&s.mask]
					list = append(list, req{s.number(seq + uint64(i)), next + uint64(i), e.f&entryCQE != 0, false})
				}
				next += uint64(took)
			case 1:
				if len(list) == 0 {
					break
				}
				i := 0
				if rnd.IntN(4) == 0 {
					i = rnd.IntN(len(list))
				} else { // the oldest that the device completes
					for i < len(list)-1 && (list[i].done || !list[i].cqe) {
						i++
					}
				}
				e, ok := s.retire(list[i].number)
				if ok == list[i].done {
					t.Fatalf("seed %d: retire gave %v for a request that is done: %v", seed, ok, list[i].done)
				}
				if ok && e.id != list[i].id {
					t.Fatalf("seed %d: entry %d, want %d", seed, e.id, list[i].id)
				}
				list[i].done = true
				if !recv {
					for j := range i {
						if !list[j].cqe {
							list[j].done = true
						}
					}
				}
				for len(list) > 0 && list[0].done {
					old = append(old, list[0].number)
					list = list[1:]
				}
			case 2:
				if len(old) > 0 {
					if _, ok := s.retire(old[rnd.IntN(len(old))]); ok {
						t.Fatalf("seed %d: a request completed twice", seed)
					}
				}
				if _, ok := s.retire(s.number(s.head.Load() + uint64(rnd.IntN(3)))); ok {
					t.Fatalf("seed %d: a request that was not posted completed", seed)
				}
			}
			if n := s.outstanding(); n != len(list) || s.room() != size-n {
				t.Fatalf("seed %d: %d outstanding, want %d; room %d of %d", seed, n, len(list), s.room(), size)
			}
		}
		for s.outstanding() > 0 {
			e := s.pop()
			if e.id != list[0].id || e.done != list[0].done {
				t.Fatalf("seed %d: popped %+v, want %+v", seed, e, list[0])
			}
			list = list[1:]
		}
	}
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	var r registry[int]
	if r.get(5) != nil || r.all() != nil {
		t.Error("an empty registry has something")
	}
	seen := map[uint64]bool{}
	var live []uint32
	for i := range 1000 {
		index, handle, note, ok := r.reserve()
		if !ok || seen[handle] || uint32(handle) != index {
			t.Fatalf("handle %#x of %d, %v", handle, index, ok)
		}
		seen[handle] = true
		if note != 0 && note != uint64(index)+7 {
			t.Errorf("note %d of index %d", note, index)
		}
		if r.get(index) != nil {
			t.Error("found before it was published")
		}
		v := i
		r.publish(index, &v)
		if r.get(index) != &v {
			t.Error("not found")
		}
		live = append(live, index)
		if len(live) > 40 {
			r.release(live[0], uint64(live[0])+7)
			if r.get(live[0]) != nil {
				t.Error("found after it was released")
			}
			live = live[1:]
		}
	}
	if n := len(r.all()); n != 40 || len(r.slots) > 80 {
		t.Errorf("%d objects, %d places", n, len(r.slots))
	}
}

func TestTransitionTables(t *testing.T) {
	t.Parallel()
	for typ, tab := range transitions {
		for from := range qpStates {
			for to := range qpStates {
				row := tab[from][to]
				if !row.ok && row.required|row.optional != 0 {
					t.Errorf("%v %v → %v has attributes and is not allowed", typ, ib.QPState(from), ib.QPState(to))
				}
				if row.required&row.optional != 0 || (row.required|row.optional)&^knownAttrs != 0 {
					t.Errorf("%v %v → %v: %+v", typ, ib.QPState(from), ib.QPState(to), row)
				}
			}
		}
	}
	if err := checkTransition(ib.XRCSend, ib.StateReset, ib.StateInit, ib.AttrState); err == nil {
		t.Error("a type without a table")
	}
}

func TestFormatBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{5: "5 bytes", 65536: "64 KiB", 8 << 20: "8 MiB", 3 << 30: "3 GiB", 1025: "1025 bytes"} {
		if got := formatBytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
