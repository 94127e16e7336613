package verbs_test

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestSizes(t *testing.T) {
	t.Parallel()
	if n := unsafe.Sizeof(verbs.WC{}); n != 48 {
		t.Errorf("a WC has %d bytes, want 48", n)
	}
	if n := unsafe.Sizeof(verbs.SGE{}); n != 24 {
		t.Errorf("an SGE has %d bytes, want 24", n)
	}
}

// TestTable compares with a map.
func TestTable(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 5))
	var tab verbs.Table[string]
	if _, ok := tab.Get(0); ok {
		t.Error("an empty table has 0")
	}
	live := map[uint64]string{}
	var dead []uint64
	for i := range 20000 {
		switch {
		case rnd.IntN(3) > 0 && len(live) < 100:
			v := string(rune('a' + i%26))
			id := tab.Put(v)
			if _, ok := live[id]; ok || id == 0 {
				t.Fatalf("id %#x is in use", id)
			}
			live[id] = v
		default:
			for id, v := range live {
				if got, ok := tab.Get(id); !ok || got != v {
					t.Fatalf("Get(%#x) gave %q, %v", id, got, ok)
				}
				if got, ok := tab.Take(id); !ok || got != v {
					t.Fatalf("Take(%#x) gave %q, %v", id, got, ok)
				}
				delete(live, id)
				dead = append(dead, id)
				break
			}
		}
		if len(dead) > 0 {
			id := dead[rnd.IntN(len(dead))]
			if v, ok := tab.Take(id); ok {
				t.Fatalf("stale id %#x gave %q", id, v)
			}
			if v, ok := tab.Get(rnd.Uint64()); ok {
				t.Fatalf("a random id gave %q", v)
			}
		}
		if tab.Len() != len(live) {
			t.Fatalf("Len %d, want %d", tab.Len(), len(live))
		}
	}
}

func TestTableAllocs(t *testing.T) {
	var tab verbs.Table[[2]string]
	ids := make([]uint64, 64)
	for i := range ids {
		ids[i] = tab.Put([2]string{})
	}
	if n := testing.AllocsPerRun(100, func() {
		for i, id := range ids {
			tab.Take(id)
			tab.Take(id)
			ids[i] = tab.Put([2]string{"a", "b"})
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
