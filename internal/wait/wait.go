// Package wait is the one way in which verbs and cm wait for a driver.Notifier: a
// completion channel, a device's asynchronous events, a connection manager's channel.
//
// A notifier has one waiter at a time, as a second one could take the wake-up of the
// first. So of the goroutines that wait for a Source one leads: it sleeps on the
// notifier, in the provider's own way (driver.Waiter) or on its descriptor in Go's
// poller, and holds no thread. The others sleep on a Go channel, and one of them
// takes the lead when the leader has what it wanted. No wake-up is lost, because
// whoever leads looks again before sleeping.
package wait

import (
	"context"
	"net"
	"sync"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Source is something to wait for. All methods may be called from any goroutine.
type Source struct {
	n     driver.Notifier
	w     driver.Waiter // nil: n is waited for by its descriptor
	lead  chan struct{} // full while a goroutine leads
	base  context.Context
	close context.CancelFunc

	mu   sync.Mutex
	p    *poller         // made by the first leader that needs it
	nap  context.Context // ends at the next Kick
	wake context.CancelFunc
}

// New makes a Source of n. It opens nothing: a descriptor is asked for by the first
// goroutine that has to sleep, and only if n is no driver.Waiter.
func New(n driver.Notifier) *Source {
	s := &Source{n: n, lead: make(chan struct{}, 1)}
	s.w, _ = n.(driver.Waiter)
	s.base, s.close = context.WithCancel(context.Background())
	s.nap, s.wake = context.WithCancel(s.base)
	return s
}

// Wait calls try until it says that the caller has what it wants: at once, and again
// after each sign that there may be something. try must not block; it may be called
// by this goroutine only, and no lock is held while it runs. A try that says done is
// the last, and Wait then gives nil.
//
// If ctx has ended Wait gives its error, even if there is something: nothing is taken
// then. After Close it gives net.ErrClosed, and driver.ErrDeviceGone if the descriptor
// says that nothing will ever come. It allocates only if it has to sleep with a ctx
// that can end.
func (s *Source) Wait(ctx context.Context, try func() (done bool)) error {
	if err := s.over(ctx); err != nil {
		return err
	}
	if try() {
		return nil
	}
	select {
	case s.lead <- struct{}{}:
	default:
		select {
		case s.lead <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.base.Done():
			return net.ErrClosed
		}
	}
	defer func() { <-s.lead }()
	for {
		nap := s.untilKick()
		// The leader before may have been told of more than it took.
		if try() {
			return nil
		}
		gone, err := s.park(ctx, nap)
		if over := s.over(ctx); over != nil {
			return over
		}
		if nap.Err() != nil {
			continue
		}
		if err != nil {
			return err
		}
		if gone {
			if try() {
				return nil
			}
			return driver.ErrDeviceGone
		}
	}
}

// over gives the error that ends every wait.
func (s *Source) over(ctx context.Context) error {
	if s.base.Err() != nil {
		return net.ErrClosed
	}
	return ctx.Err()
}

// untilKick gives what ends at the next Kick.
func (s *Source) untilKick() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nap
}

// park sleeps until the notifier gives a sign, one of the contexts ends or s is closed. gone:
// the descriptor reports an error and no data, so there will be no sign ever.
func (s *Source) park(ctx, nap context.Context) (gone bool, err error) {
	if s.w == nil {
		p, err := s.poller(nap)
		switch {
		case p == nil && err == nil:
			return false, nil
		case err == nil:
			return p.wait(ctx)
		case scarce(err):
			lean(ctx, nap)
			return false, nil
		}
		return false, err
	}
	if ctx.Done() == nil {
		return false, s.w.Wait(nap)
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(nap, cancel)
	defer stop()
	return false, s.w.Wait(both)
}

// poller gives the poller, opening it first if there is none; nil if a Kick has come.
func (s *Source) poller(nap context.Context) (*poller, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base.Err() != nil {
		return nil, net.ErrClosed
	}
	if nap.Err() != nil {
		return nil, nil
	}
	if s.p == nil {
		fd, err := s.n.FD()
		if err != nil {
			return nil, err
		}
		if s.p, err = newPoller(fd); err != nil {
			return nil, err
		}
	}
	return s.p, nil
}

// Kick has who waits look again, for what try finds without the notifier. It costs the next sleep
// a new poller.
func (s *Source) Kick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake()
	s.nap, s.wake = context.WithCancel(s.base)
	if s.p != nil {
		s.p.close()
		s.p = nil
	}
}

// Close wakes everybody who waits; they and later calls of Wait get net.ErrClosed. It
// is idempotent and closes what New's Source opened, not the notifier. It may be
// called by a try.
func (s *Source) Close() {
	s.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.p != nil {
		s.p.close()
		s.p = nil
	}
}

// Release closes what New's Source opened, and wakes who waits to look again. Nobody
// sleeps on the notifier for long afterwards, as its descriptor is expected to report an
// error.
func (s *Source) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.p != nil {
		s.p.close()
		s.p = nil
	}
}

// OnClose has f called, in a goroutine of its own, after Close. stop ends that; f may be
// running then.
func (s *Source) OnClose(f func()) (stop func()) {
	after := context.AfterFunc(s.base, f)
	return func() { after() }
}
