package wait

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// scant is an eventfd that cannot be waited for until there are descriptors.
type scant struct {
	eventfd
	lacks atomic.Bool
}

func (s *scant) FD() (int, error) {
	if s.lacks.Load() {
		return -1, syscall.EMFILE
	}
	return s.eventfd.FD()
}

// TestC312_WithoutDescriptors: who waits when there are no descriptors for it is woken all the
// same, by all that ends a wait, and waits as usual once there are.
func TestC312_WithoutDescriptors(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*Parker){"Poller": func(*Parker) {}, "Naps": (*Parker).Nap} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &scant{eventfd: newEventfd(t)}
			e.lacks.Store(true)
			p := NewParker(e, e.take)
			set(p)
			bg := context.Background()
			var wg sync.WaitGroup
			found := func() {
				t.Helper()
				wg.Go(func() { unix.EventfdSignal(int(e.eventfd)) })
				for {
					why, err := p.Park(bg, 0)
					if err != nil {
						t.Fatal(err)
					}
					if why == Found {
						break
					}
				}
				wg.Wait()
			}
			for range 20 {
				found()
				parkWant(t, p, bg, time.Microsecond, Expired, nil)
				p.Kick()
				parkWant(t, p, bg, 0, Kicked, nil)
			}
			ctx, cancel := context.WithCancel(bg)
			cancel()
			parkWant(t, p, ctx, 0, Kicked, context.Canceled)
			if p.p != nil {
				t.Error("there is a poller")
			}
			e.lacks.Store(false)
			found()
			if p.p == nil || p.lean {
				t.Error("who waits does not use Go's poller")
			}
			p.Close()
			parkWant(t, p, bg, 0, Kicked, net.ErrClosed)
		})
	}
	t.Run("Source", func(t *testing.T) {
		t.Parallel()
		e := &scant{eventfd: newEventfd(t)}
		e.lacks.Store(true)
		s := New(e)
		defer s.Close()
		for i := range 20 {
			if i == 10 {
				e.lacks.Store(false)
			}
			got := make(chan error)
			go func() { got <- s.Wait(t.Context(), e.take) }()
			unix.EventfdSignal(int(e.eventfd))
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		}
		e.lacks.Store(true)
		s.Release()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		if err := s.Wait(ctx, e.take); err != context.Canceled {
			t.Error(err)
		}
	})
}
