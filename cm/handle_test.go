package cm

import "testing"

func TestHandles(t *testing.T) {
	t.Parallel()
	var tab handles
	a, b := new(ID), new(ID)
	ha, hb := tab.add(a, nil), tab.add(b, nil)
	if ha == 0 || hb == 0 || ha == hb {
		t.Fatalf("handles %#x %#x", ha, hb)
	}
	if id, _ := tab.get(ha); id != a {
		t.Error("not found")
	}
	tab.remove(ha)
	tab.remove(ha) // does no harm
	if id, _ := tab.get(ha); id != nil {
		t.Error("a stale handle finds something")
	}
	g := new(membership)
	hg := tab.add(b, g) // the same place
	if uint32(hg) != uint32(ha) || hg == ha {
		t.Errorf("the place was not reused with another number: %#x, %#x", ha, hg)
	}
	if id, got := tab.get(hg); id != b || got != g {
		t.Error("the membership is not found")
	}
	if id, _ := tab.get(ha); id != nil {
		t.Error("a stale handle finds its successor")
	}
	tab.remove(ha)
	if id, _ := tab.get(hg); id == nil {
		t.Error("a stale handle removed its successor")
	}
	for _, h := range []uint64{0, 7, 1 << 32, ^uint64(0)} {
		if id, _ := tab.get(h); id != nil && h != hb {
			t.Errorf("%#x finds something", h)
		}
	}
	if got := tab.ids(); len(got) != 1 || got[0] != b {
		t.Errorf("ids: %v", got)
	}
}

// TestHandleGeneration: the number of a place skips 0 when it wraps, as no handle is 0.
func TestHandleGeneration(t *testing.T) {
	t.Parallel()
	var tab handles
	h := tab.add(new(ID), nil)
	tab.slots[0].gen = ^uint32(0)
	h = uint64(tab.slots[0].gen)<<32 | uint64(uint32(h))
	tab.remove(h)
	if h = tab.add(new(ID), nil); h != 1<<32 {
		t.Errorf("after the wrap: %#x", h)
	}
}
