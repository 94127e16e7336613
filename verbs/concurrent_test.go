package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestC089_ConcurrentPosting: order inside each goroutine, each request one result, also
// when the queue pair is failed in the middle.
func TestC089_ConcurrentPosting(t *testing.T) {
	t.Parallel()
	for _, fail := range []bool{false, true} {
		t.Run(fmt.Sprint("fail ", fail), func(t *testing.T) {
			t.Parallel()
			const each = 10000
			r := newRig(t, nil)
			qp, sqp, cq, _ := r.ready(verbs.QPConfig{MaxSendWR: 32})
			sqp.Auto()
			var wg sync.WaitGroup
			var posted [2]uint64
			for g := range 2 {
				wg.Go(func() {
					for i := uint64(0); i < each; {
						f := ib.Signaled
						if i%3 == 0 && !fail {
							f = 0
						}
						switch err := qp.PostSend(verbs.Send(uint64(g)<<32|i, r.mr.SGE(0, 8), f)); err {
						case nil:
							i++
							posted[g]++
						case verbs.ErrQueueFull:
							runtime.Gosched()
						default:
							t.Error(err)
							return
						}
						if fail && g == 0 && i == each/2 {
							if err := qp.Fail(); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			var next, got [2]uint64
			take := func() {
				for _, wc := range r.poll(cq) {
					g, i := wc.ID>>32, wc.ID&(1<<32-1)
					if i < next[g] || !fail && i != next[g] && !(i == next[g]+1 && next[g]%3 == 0) {
						t.Fatalf("goroutine %d: %d after %d", g, i, next[g])
					}
					next[g] = i + 1
					got[g]++
				}
			}
			for over := false; !over; {
				select {
				case <-done:
					over = true
				default:
				}
				take()
				runtime.Gosched()
			}
			take()
			for g := range 2 {
				want := posted[g]
				if !fail {
					want -= (each + 2) / 3
				}
				if got[g] != want {
					t.Errorf("goroutine %d: %d completions, want %d", g, got[g], want)
				}
			}
		})
	}
}

// TestC255_Acknowledged: random runs with errors, cancels and closes. Every event that was
// queued is fetched or purged with its queue, none twice; the scripted device sees to the
// rest of the contract.
func TestC255_Acknowledged(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 4))
	r := newRig(t, nil)
	for range 100 {
		ch, sch := r.channel()
		var cqs []*verbs.CQ
		var scqs []*scripted.CQ
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(bg)
		manual := rnd.IntN(2) == 0
		for range 1 + rnd.IntN(4) {
			cq, scq := r.cq(1000, &verbs.CQConfig{Channel: ch})
			cqs, scqs = append(cqs, cq), append(scqs, scq)
			if !manual {
				wg.Go(func() {
					for range cq.Completions(ctx) {
					}
				})
			}
		}
		if manual {
			wg.Go(func() {
				for _, err := range ch.Events(ctx) {
					if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, net.ErrClosed) {
						t.Error(err)
					}
				}
			})
		}
		for range 50 {
			i := rnd.IntN(len(cqs))
			scqs[i].Push(driver.WC{ID: 1}, false)
			if manual && rnd.IntN(2) == 0 {
				cqs[i].Arm(ib.NotifyAny)
			}
			if rnd.IntN(10) == 0 {
				sch.Glitch()
			}
			if rnd.IntN(60) == 0 {
				r.ok(cqs[i].Close())
			}
		}
		if rnd.IntN(2) == 0 {
			r.ok(ch.Close())
		}
		cancel()
		wg.Wait()
		for _, cq := range cqs {
			r.ok(cq.Close())
		}
		r.ok(ch.Close())
		for _, s := range scqs {
			if fired, fetched := s.Events(); fetched > fired {
				t.Errorf("%d events, %d fetched", fired, fetched)
			}
		}
		if n := sch.Queued(); n != 0 {
			t.Errorf("%d events left", n)
		}
	}
}
