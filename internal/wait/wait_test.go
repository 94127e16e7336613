package wait

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// queue is a notifier that waits without a descriptor, as the embedded device's.
type queue struct {
	mu      sync.Mutex
	n       int
	ready   chan struct{} // closed while n > 0
	err     error         // of Wait
	waiters atomic.Int32
	most    atomic.Int32
}

func newQueue() *queue { return &queue{ready: make(chan struct{})} }

func (q *queue) FD() (int, error) { return -1, errors.ErrUnsupported }

func (q *queue) Wait(ctx context.Context) error {
	if n := q.waiters.Add(1); n > q.most.Load() {
		q.most.Store(n)
	}
	defer q.waiters.Add(-1)
	q.mu.Lock()
	ready, err := q.ready, q.err
	q.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *queue) put(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 && n > 0 {
		close(q.ready)
	}
	q.n += n
}

func (q *queue) take() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 {
		return false
	}
	if q.n--; q.n == 0 {
		q.ready = make(chan struct{})
	}
	return true
}

func TestC252_TwoWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		s := New(q)
		const waiters, events = 5, 3
		got := make(chan error, waiters)
		for range waiters {
			go func() { got <- s.Wait(context.Background(), q.take) }()
		}
		synctest.Wait()
		q.put(events)
		for range events {
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		select {
		case err := <-got:
			t.Fatalf("a waiter returned without an event: %v", err)
		default:
		}
		if n := q.most.Load(); n != 1 {
			t.Errorf("%d goroutines waited on the notifier at once, want 1", n)
		}
		s.Close()
		for range waiters - events {
			if err := <-got; !errors.Is(err, net.ErrClosed) {
				t.Errorf("after Close: %v, want net.ErrClosed", err)
			}
		}
	})
}

func TestC250_CancelAndClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		s := New(q)
		past, cancel := context.WithTimeout(t.Context(), -time.Second)
		defer cancel()
		q.put(1)
		if err := s.Wait(past, q.take); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deadline in the past: %v", err)
		}
		if err := s.Wait(t.Context(), q.take); err != nil {
			t.Errorf("the event was lost: %v", err)
		}

		// A follower and the leader are both cancelled at once, and only they.
		start := time.Now()
		short, cancel2 := context.WithTimeout(t.Context(), time.Minute)
		defer cancel2()
		stays := make(chan error)
		go func() { stays <- s.Wait(context.Background(), q.take) }()
		synctest.Wait()
		if err := s.Wait(short, q.take); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("follower: %v", err)
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("cancelled after %v", d)
		}
		q.put(1)
		if err := <-stays; err != nil {
			t.Errorf("the leader: %v", err)
		}

		ctx, cancel3 := context.WithCancel(t.Context())
		go func() { stays <- s.Wait(ctx, q.take) }()
		synctest.Wait()
		cancel3()
		if err := <-stays; !errors.Is(err, context.Canceled) {
			t.Errorf("leader: %v", err)
		}
		s.Close()
		s.Close()
		if err := s.Wait(t.Context(), q.take); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestLeaderGoes: a follower takes over from a leader that is cancelled.
func TestLeaderGoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		s := New(q)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error), make(chan error)
		go func() { first <- s.Wait(ctx, q.take) }()
		synctest.Wait()
		go func() { second <- s.Wait(t.Context(), q.take) }()
		synctest.Wait()
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		q.put(1)
		if err := <-second; err != nil {
			t.Fatal(err)
		}
	})
}

func TestWaiterError(t *testing.T) {
	t.Parallel()
	q := newQueue()
	q.err = driver.ErrDeviceGone
	s := New(q)
	defer s.Close()
	if err := s.Wait(t.Context(), q.take); !errors.Is(err, driver.ErrDeviceGone) {
		t.Errorf("got %v", err)
	}
}

func TestWaitAllocs(t *testing.T) {
	q := newQueue()
	s := New(q)
	defer s.Close()
	ctx := context.Background()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	take := q.take
	if n := testing.AllocsPerRun(100, func() {
		q.n = 1 // not through put: its channel would count
		if err := s.Wait(ctx, take); err != nil {
			t.Fatal(err)
		}
		if err := s.Wait(ended, take); err == nil {
			t.Fatal("no error")
		}
	}); n > 1 { // the channel that take makes
		t.Errorf("%v allocations", n)
	}
}

// TestKick: who waits looks again, for what the notifier does not tell of, and sleeps on the
// notifier as before.
func TestKick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		s := New(q)
		defer s.Close()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for _, c := range []context.Context{context.Background(), ctx} {
			var soft atomic.Int32
			got := make(chan error)
			looks := 0
			wait := func() {
				got <- s.Wait(c, func() bool { looks++; return soft.Load() > 0 || q.take() })
			}
			go wait()
			synctest.Wait()
			before := looks
			s.Kick() // for nothing
			synctest.Wait()
			if looks != before+1 {
				t.Errorf("%d looks after a kick", looks-before)
			}
			soft.Store(1)
			s.Kick()
			if err := <-got; err != nil {
				t.Error(err)
			}
			soft.Store(0)
			go wait()
			synctest.Wait()
			q.put(1)
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
	})
}
