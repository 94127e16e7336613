package softroce_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestC251_ManyWaitersNoThread: goroutines that wait for completions of the embedded device
// hold no thread, however many they are. It is not parallel, as it counts threads of the
// process.
func TestC251_ManyWaitersNoThread(t *testing.T) {
	const waiters, queues = 7500, 500 // the race detector has room for 8128 goroutines
	p, err := softroce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dev, err := verbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	threads := func() int {
		list, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := threads()
	var wg sync.WaitGroup
	var started atomic.Int64
	var cqs []*verbs.CQ
	for range queues {
		cq, err := dev.CreateCQ(4, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer cq.Close()
		cqs = append(cqs, cq)
		for range waiters / queues {
			wg.Go(func() {
				started.Add(1)
				if _, err := cq.Next(ctx); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	}
	for deadline := time.Now().Add(time.Minute); ; {
		n := uint64(0)
		for _, cq := range cqs {
			n += cq.Stats().Sleeps
		}
		if started.Load() == waiters && n >= waiters {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d goroutines sleep", n, waiters)
		}
		time.Sleep(time.Millisecond)
	}
	// The runtime makes threads of its own, a few for each processor.
	if n := threads() - before; n > 2*runtime.GOMAXPROCS(0)+4 {
		t.Errorf("%d waiting goroutines took %d threads", waiters, n)
	}
	cancel()
	wg.Wait()
}
