package softroce

import (
	"context"
	"net"
	"sync"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// asyncLimit bounds the events of device and port that wait for a reader; the oldest
// go first. Events of objects are few: each is raised once in the life of its object.
const asyncLimit = 4096

// asyncQueue is the stream of asynchronous events of an opening.
type asyncQueue struct {
	notifier notifier

	mu   sync.Mutex
	q    []driver.AsyncEvent
	head int   // of q, the next to be given
	last error // follows the last event
}

var (
	_ driver.AsyncQueue = (*asyncQueue)(nil)
	_ driver.Waiter     = (*asyncQueue)(nil)
)

// post adds an event.
func (a *asyncQueue) post(e driver.AsyncEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last != nil {
		return
	}
	if len(a.q)-a.head >= asyncLimit {
		a.head++
	}
	if a.head > 0 && len(a.q) == cap(a.q) {
		a.q = a.q[:copy(a.q, a.q[a.head:])]
		a.head = 0
	}
	a.q = append(a.q, e)
	a.notifier.set()
}

// forget drops the events of an object that is being closed.
func (a *asyncQueue) forget(about func(driver.AsyncEvent) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := a.q[:a.head]
	for _, e := range a.q[a.head:] {
		if !about(e) {
			kept = append(kept, e)
		}
	}
	a.q = kept
	a.settle()
}

// settle lowers the level if nothing is left.
func (a *asyncQueue) settle() {
	if a.head < len(a.q) {
		return
	}
	a.q, a.head = a.q[:0], 0
	if a.last == nil {
		a.notifier.clear()
	}
}

// end lets err follow the last event, and wakes the reader.
func (a *asyncQueue) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = err
		a.notifier.set()
	}
}

func (a *asyncQueue) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.q, a.head, a.last = nil, 0, net.ErrClosed
	a.notifier.close()
}

// Next takes one event. It never blocks.
func (a *asyncQueue) Next() (driver.AsyncEvent, bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.head == len(a.q) {
		return driver.AsyncEvent{}, false, a.last
	}
	e := a.q[a.head]
	a.head++
	a.settle()
	return e, true, nil
}

// FD gives a descriptor that is readable exactly while Next has an event or an error.
func (a *asyncQueue) FD() (int, error) { return a.notifier.descriptor() }

// Wait waits until Next has an event or an error, or ctx ends.
func (a *asyncQueue) Wait(ctx context.Context) error { return a.notifier.wait(ctx) }
