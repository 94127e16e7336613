package softroce

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

func newNotifier() *notifier {
	n := new(notifier)
	n.init(nil)
	return n
}

func TestC250_NotifierWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNotifier()
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if err := n.wait(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("nothing there and ctx ended: %v", err)
		}
		n.set()
		for range 3 {
			if err := n.wait(ended); err != nil {
				t.Errorf("something there and ctx ended: %v", err)
			}
		}
		n.clear()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		if err := n.wait(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("deadline: %v after %v", err, time.Since(start))
		}
		got := make(chan error)
		go func() { got <- n.wait(context.Background()) }()
		synctest.Wait() // durably blocked, or this would not return
		n.set()
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

// Whoever waits is woken as long as the level is set, whatever another one took.
func TestC252_NotifierWakesAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNotifier()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := n.wait(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		n.set()
		wg.Wait()
		n.clear()
		for range 10 {
			wg.Go(func() {
				if err := n.wait(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		n.close()
		wg.Wait()
	})
}

// A queue with one producer and several consumers, each of which takes one: nobody
// sleeps while there is something.
func TestC239_NotifierLosesNothing(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	const events, consumers = 20_000, 3
	var wg sync.WaitGroup
	taken := make([]int, consumers)
	for i := range consumers {
		wg.Go(func() {
			for {
				if err := ctx.async.Wait(context.Background()); err != nil {
					t.Error(err)
					return
				}
				_, ok, err := ctx.async.Next()
				if err != nil {
					return
				}
				if ok {
					taken[i]++
				}
			}
		})
	}
	sent := 0
	for sent < events {
		for range 100 {
			ctx.async.post(driver.AsyncEvent{Port: 1})
			sent++
		}
		for {
			ctx.async.mu.Lock()
			n := len(ctx.async.q) - ctx.async.head
			ctx.async.mu.Unlock()
			if n < asyncLimit/2 {
				break
			}
			runtime.Gosched()
		}
	}
	ctx.async.end(driver.ErrDeviceGone)
	wg.Wait()
	sum := 0
	for _, n := range taken {
		sum += n
	}
	if sum != sent {
		t.Errorf("%d of %d events were taken", sum, sent)
	}
}

func TestNotifierWaitDoesNotAllocate(t *testing.T) {
	n := newNotifier()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if a := testing.AllocsPerRun(1000, func() {
		n.set()
		n.wait(ctx)
		n.clear()
		n.set()
		n.set()
		n.clear()
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
	cancel()
	if a := testing.AllocsPerRun(1000, func() { n.wait(ctx) }); a != 0 {
		t.Errorf("%v allocations when ctx has ended", a)
	}
}

func TestC187_AsyncQueue(t *testing.T) {
	t.Parallel()
	ctx := open(t, newProvider(t, nil))
	a := &ctx.async
	next := uint64(0)
	take := func(n int) {
		t.Helper()
		for range n {
			e, ok, err := a.Next()
			if !ok || err != nil || e.Handle != next {
				t.Fatalf("event %d: %+v, %v, %v", next, e, ok, err)
			}
			next++
		}
	}
	sent := uint64(0)
	post := func(n int) {
		for range n {
			a.post(driver.AsyncEvent{Handle: sent})
			sent++
		}
	}
	for _, n := range []int{1, 200, 3, 1000, 17} {
		post(n)
		take(n / 2)
		post(n)
		take(n)
	}
	// Nobody reads: the oldest go, and memory is bounded.
	post(10 * asyncLimit)
	next = sent - asyncLimit
	a.forget(func(e driver.AsyncEvent) bool { return e.Handle == next })
	next++
	take(asyncLimit - 1)
	if _, ok, err := a.Next(); ok || err != nil {
		t.Errorf("one more: %v, %v", ok, err)
	}
	if cap(a.q) > 4*asyncLimit {
		t.Errorf("room for %d events is kept", cap(a.q))
	}
	post(1)
	a.forget(func(driver.AsyncEvent) bool { return true })
	if a.notifier.level() {
		t.Error("the level is set without an event")
	}
}
