package verbs_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

func threads(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestC251_ManyWaitersNoThread: goroutines that wait hold no thread, however many they are. It
// is not parallel, as it counts threads of the process.
func TestC251_ManyWaitersNoThread(t *testing.T) {
	waiters := 10_000
	if verbs.RaceEnabled {
		waiters = 4000 // the race detector has room for 8128 goroutines
	}
	const queues = 200
	r := newRig(t, &scripted.Config{Descriptors: true})
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	var cqs [queues]*verbs.CQ
	for i := range cqs {
		cqs[i], _ = r.cq(4, nil)
	}
	before := threads(t)
	var wg sync.WaitGroup
	var started atomic.Int64
	for i := range waiters {
		wg.Go(func() {
			var dst [1]verbs.WC
			started.Add(1)
			if _, err := cqs[i%queues].Wait(ctx, dst[:]); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for deadline := time.Now().Add(time.Minute); ; {
		n := uint64(0)
		for _, cq := range cqs {
			n += cq.Stats().Sleeps
		}
		if started.Load() == int64(waiters) && n >= uint64(waiters) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d goroutines sleep", n, waiters)
		}
		time.Sleep(time.Millisecond)
	}
	// The runtime makes threads of its own, a few for each processor.
	if n := threads(t) - before; n > 2*runtime.GOMAXPROCS(0)+4 {
		t.Errorf("%d waiting goroutines took %d threads", waiters, n)
	}
	cancel()
	wg.Wait()
}

// TestC250_CompletionsRaceWithContexts: waits that are cancelled, and that run out of
// time, while completions come: each completion is given once, to somebody, no wake-up is
// lost, and nobody needs the re-check.
func TestC250_CompletionsRaceWithContexts(t *testing.T) {
	t.Parallel()
	for _, spin := range []verbs.Spin{verbs.Sleep, verbs.Adaptive, verbs.SpinFor(20 * time.Microsecond)} {
		r := newRig(t, &scripted.Config{Descriptors: true})
		const (
			seed, waiters = 21, 12
			rounds        = 3000
			depth         = 16
		)
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxRecvWR: depth})
		cq.SetSpin(spin)
		for id := range uint64(depth) {
			r.recv(qp, id)
		}
		var given atomic.Int64
		stop, end := context.WithCancel(bg)
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(i)))
				var dst [3]verbs.WC
				for stop.Err() == nil {
					ctx, cancel := stop, func() {}
					switch rnd.IntN(3) {
					case 0:
						ctx, cancel = context.WithTimeout(stop, time.Duration(rnd.IntN(300))*time.Microsecond)
					case 1:
						c, f := context.WithCancel(stop)
						ctx, cancel = c, f
						go f()
					}
					n, err := cq.Wait(ctx, dst[:1+rnd.IntN(len(dst))])
					cancel()
					if err != nil && (n != 0 || !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)) {
						t.Errorf("seed %d: %d, %v", seed, n, err)
					}
					for range n {
						given.Add(1)
						if err := qp.PostRecv(verbs.Recv(1, r.mr.SGE(0, 64))); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		rnd := rand.New(rand.NewPCG(seed, 1000))
		sent := int64(0)
		for range rounds {
			deadline := time.Now().Add(time.Minute) // of a round: all of them may take long on a busy machine
			n := 1 + rnd.IntN(4)
			sqp.CompleteRecv(n, scripted.Received(8), false)
			sent += int64(n)
			for given.Load() < sent { // there is room for all of the next round
				if time.Now().After(deadline) {
					end()
					wg.Wait()
					t.Fatalf("seed %d: %d of %d completions were given", seed, given.Load(), sent)
				}
				runtime.Gosched()
			}
			if rnd.IntN(100) == 0 {
				time.Sleep(time.Duration(rnd.IntN(200)) * time.Microsecond)
			}
		}
		end()
		wg.Wait()
		if s := cq.Stats(); given.Load() != sent || s.Rescued != 0 {
			t.Errorf("seed %d, %+v: %d of %d, %+v", seed, spin, given.Load(), sent, s)
		}
	}
}
