package softroce

import (
	"context"
	"sync"
)

// notifier says whether a queue has something: to goroutines through a channel, to
// select, poll and epoll through a descriptor that is made when it is first asked for.
// Both are level-true: they follow set and clear, which the queue calls under its lock
// when it stops and starts being empty.
type notifier struct {
	token     chan struct{} // cap 1: full while the queue has something
	interrupt func()        // wakes who waits elsewhere for the level; nil: nobody does

	foreign *foreign // is told of the descriptor; may be nil

	mu     sync.Mutex
	on     bool
	closed bool
	fd     eventFD // zero: not made
}

func (n *notifier) init(f *foreign) {
	n.token = make(chan struct{}, 1)
	n.foreign = f
}

// set and clear change the level; both are idempotent. They do not block.
func (n *notifier) set() {
	n.mu.Lock()
	rise := !n.on && !n.closed
	if rise {
		n.on = true
		n.fd.raise()
	}
	n.mu.Unlock()
	n.put()
	if rise && n.interrupt != nil {
		n.interrupt()
	}
}

func (n *notifier) clear() {
	n.mu.Lock()
	if n.on {
		n.on = false
		n.fd.lower()
	}
	n.mu.Unlock()
	select {
	case <-n.token:
	default:
	}
	// Who set the level in between has put a token that must stay.
	if n.level() {
		n.put()
	}
}

func (n *notifier) put() {
	select {
	case n.token <- struct{}{}:
	default:
	}
}

func (n *notifier) level() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.on || n.closed
}

// wait blocks until the level is set, or the notifier closed, or ctx ends; the level
// wins over ctx. It waits on a channel only, so that it is durably blocked in the
// sense of testing/synctest. It does not allocate.
func (n *notifier) wait(ctx context.Context) error {
	done := ctx.Done()
	for {
		if n.level() {
			return nil
		}
		select {
		case <-n.token:
			// For the next one who waits; clear takes it away.
			if n.level() {
				n.put()
				return nil
			}
		case <-done:
			if n.level() {
				return nil
			}
			return ctx.Err()
		}
	}
}

// descriptor gives the descriptor, which stays the notifier's.
func (n *notifier) descriptor() (int, error) {
	n.mu.Lock()
	was := n.fd.there()
	fd, err := n.fd.open(n.on || n.closed)
	is := n.fd.there()
	n.mu.Unlock()
	if is && !was {
		n.foreign.use(1)
	}
	return fd, err
}

// close leaves the level set for ever, and closes the descriptor.
func (n *notifier) close() {
	n.mu.Lock()
	n.closed = true
	was := n.fd.there()
	n.fd.close()
	n.mu.Unlock()
	if was {
		n.foreign.use(-1)
	}
	n.put()
	if n.interrupt != nil {
		n.interrupt()
	}
}
