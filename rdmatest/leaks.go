package rdmatest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// leakWait bounds how long CheckLeaks lets things come to rest. Its own test shortens it.
var leakWait = 2 * time.Second

// threadSlack is the number of OS threads that the Go runtime may have started for
// itself meanwhile.
const threadSlack = 12

var (
	leakID     atomic.Uint64
	leakMu     sync.Mutex
	leakActive int    // CheckLeaks at work
	leakEpoch  uint64 // counts overlaps
)

// CheckLeaks fails the test if it leaves something behind: goroutines that the test has
// started, directly or through others; and, if no other checked test ran at the same
// time, objects of verbs (with the place where they were made) and of cm that are open,
// descriptors and OS threads. Call it first, and not in tests that run in parallel with others.
//
// Goroutines that serve the whole process (the readers of the shared embedded device,
// the dispatchers of cm) are not counted. In a testing/synctest bubble use a Fabric,
// which checks by itself: the bubble counts goroutines, whoever started them.
func CheckLeaks(t testing.TB) {
	t.Helper()
	objects, ids := verbs.Objects(), cm.Objects()
	label := fmt.Sprint(leakID.Add(1))
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(leakLabel, label)))

	leakMu.Lock()
	leakActive++
	verbs.TraceObjects(true)
	if leakActive > 1 {
		leakEpoch++
	}
	epoch := leakEpoch
	alone := leakActive == 1
	leakMu.Unlock()
	if r, w, err := os.Pipe(); err == nil { // Go's poller has descriptors, from the first file on
		r.Close()
		w.Close()
	}
	descriptors, threads := openDescriptors(), osThreads()

	t.Cleanup(func() {
		t.Helper()
		leakMu.Lock()
		if leakActive--; leakActive == 0 {
			verbs.TraceObjects(false)
		}
		alone = alone && epoch == leakEpoch
		leakMu.Unlock()
		var left []string
		for end := time.Now().Add(leakWait); ; time.Sleep(5 * time.Millisecond) {
			left = leftGoroutines(label)
			if alone {
				left = append(left, newObjects(objects)...)
				left = append(left, newIDs(ids)...)
				open := newDescriptors(descriptors)
				if slices.ContainsFunc(open, isPipe) {
					// Package internal/poll keeps the pipes of splice(2) in a pool, from which only the
					// garbage collector takes them. It takes lost files as well: those stay in the list.
					runtime.GC()
					open = append(slices.DeleteFunc(open, isPipe), slices.DeleteFunc(newDescriptors(descriptors), isNoPipe)...)
				}
				left = append(left, open...)
				if n := osThreads(); n > threads+threadSlack {
					left = append(left, fmt.Sprintf("%d OS threads, %d at the start", n, threads))
				}
			}
			if len(left) == 0 || time.Now().After(end) {
				break
			}
		}
		pprof.SetGoroutineLabels(context.Background())
		for _, l := range left {
			t.Errorf("leak: %s", l)
		}
	})
}

func isPipe(descriptor string) bool   { return strings.Contains(descriptor, "pipe:") }
func isNoPipe(descriptor string) bool { return !isPipe(descriptor) }

const leakLabel = "verbena-leaks"

// Goroutines whose first function is one of these serve the process.
var serviceGoroutine = regexp.MustCompile(`/verbena/(softroce|cm|internal/[a-z]+)\.[^\n]*\n?$`)

// leftGoroutines gives the stacks of goroutines with our label, except the caller's.
func leftGoroutines(label string) []string {
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return []string{fmt.Sprintf("goroutines cannot be listed: %v", err)}
	}
	want := fmt.Sprintf("%q:%q", leakLabel, label)
	var left []string
	for g := range strings.SplitSeq(b.String(), "\n\n") {
		if !strings.Contains(g, want) || strings.Contains(g, "rdmatest.leftGoroutines") || isService(g) {
			continue
		}
		left = append(left, "goroutine: "+g)
	}
	return left
}

// isService looks at the outermost function of a stack.
func isService(stack string) bool {
	lines := strings.Split(strings.TrimSpace(stack), "\n")
	last := ""
	for _, l := range lines {
		if strings.HasPrefix(l, "#\t") {
			last = l
		}
	}
	fields := strings.Fields(last)
	if len(fields) < 3 {
		return false
	}
	return serviceGoroutine.MatchString(fields[2])
}

// newObjects compares with an earlier list.
func newObjects(before []string) []string {
	had := map[string]int{}
	for _, o := range before {
		had[o]++
	}
	var left []string
	for _, o := range verbs.Objects() {
		if had[o]--; had[o] < 0 {
			left = append(left, "object: "+o)
		}
	}
	return left
}

// newIDs compares with an earlier list what belongs to the connection manager, by its name
// alone: its state may have changed.
func newIDs(before []string) []string {
	name := func(o string) string { n, _, _ := strings.Cut(o, ":"); return n }
	had := map[string]bool{}
	for _, o := range before {
		had[name(o)] = true
	}
	var left []string
	for _, o := range cm.Objects() {
		if !had[name(o)] {
			left = append(left, "object: "+o)
		}
	}
	return left
}

// newDescriptors compares with an earlier list.
func newDescriptors(before map[string]string) []string {
	var left []string
	for fd, what := range openDescriptors() {
		if before[fd] != what && !strings.HasPrefix(what, "socket:") {
			left = append(left, "descriptor "+fd+": "+what)
		}
	}
	return left
}
