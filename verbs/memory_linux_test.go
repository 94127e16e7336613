package verbs_test

import (
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/verbs"
)

// faults checks that memory cannot be touched.
func faults(t *testing.T, p []byte) {
	t.Helper()
	if !faulting(p, 0) {
		t.Error("memory of a closed buffer can be read")
	}
}

// faulting reports whether reading a byte faults.
func faulting(p []byte, i int) (yes bool) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() { yes = recover() != nil }()
	return p[i] == 99
}

// TestLateUse: a buffer that is closed stays inaccessible while others come and go.
func TestLateUse(t *testing.T) {
	b, err := verbs.AllocBuffer(1<<16, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := b.Bytes()
	b.Close()
	for range 200 {
		o, err := verbs.AllocBuffer(1<<16, nil)
		if err != nil {
			t.Fatal(err)
		}
		o.Bytes()[0] = 1
		faults(t, p)
		o.Close()
	}
	// After many more the addresses are free again: the number of mappings is bounded.
	for range 2000 {
		o, err := verbs.AllocBuffer(4096, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(maps), "\n"); n > 2000 {
		t.Errorf("%d mappings", n)
	}
}

func TestGuard(t *testing.T) {
	b, err := verbs.AllocBuffer(5000, &verbs.BufferOptions{Guard: true, DontFork: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p := b.Bytes()
	if len(p) != 5000 || cap(p) != 5000 {
		t.Errorf("len %d, cap %d", len(p), cap(p))
	}
	p[4999] = 1
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), " dc ") {
		t.Error("no mapping is kept from forks")
	}
	if !guarded(p) {
		t.Error("there is no guard")
	}
}

func TestHugePages(t *testing.T) {
	b, err := verbs.AllocBuffer(100, &verbs.BufferOptions{HugePages: true})
	if err != nil {
		if !strings.Contains(err.Error(), "nr_hugepages") {
			t.Errorf("%v", err)
		}
		return // this system has none to spare, and says how to change that
	}
	b.Bytes()[99] = 1
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// guarded looks at the mappings before and behind a buffer.
func guarded(p []byte) bool {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return false
	}
	first := uint64(reflect.ValueOf(p).Pointer())
	last := first + uint64(len(p)+4095)&^4095
	before, behind := false, false
	for line := range strings.Lines(string(text)) {
		var from, to uint64
		var prot string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &prot); n != 3 || !strings.HasPrefix(prot, "---") {
			continue
		}
		before = before || to == first
		behind = behind || from == last
	}
	return before && behind
}
