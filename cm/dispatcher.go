package cm

import (
	"context"
	"reflect"
	"sync"

	"github.com/verbena-rdma/verbena/verbs"
)

// dispatcher takes the events of all ids of a provider whose users wait for calls, not
// for events: the upper floor's, and those of NewID. It is one goroutine on one
// channel, however many connections there are; what an event means is worked out while
// it is fetched, so the goroutine has nothing else to do. It lives as long as somebody
// uses it, so that a program that is done has no goroutine and no descriptor left.
type dispatcher struct {
	p       verbs.Provider
	ch      *EventChannel
	users   int // under dispatchers.mu
	stopped chan struct{}
}

var dispatchers struct {
	mu sync.Mutex
	m  map[verbs.Provider]*dispatcher
}

// acquire gives the dispatcher of a provider, starting it if there is none. Each use
// ends with release.
func acquire(p verbs.Provider) (*dispatcher, error) {
	if p == nil {
		return nil, opError(opChannel, wrong("cm: the provider is nil"))
	}
	if !reflect.TypeOf(p).Comparable() {
		return nil, opError(opChannel, wrong("cm: the provider is not comparable: use a pointer"))
	}
	dispatchers.mu.Lock()
	defer dispatchers.mu.Unlock()
	if d := dispatchers.m[p]; d != nil {
		d.users++
		return d, nil
	}
	ch, err := NewEventChannel(p)
	if err != nil {
		return nil, err
	}
	d := &dispatcher{p: p, ch: ch, users: 1, stopped: make(chan struct{})}
	if dispatchers.m == nil {
		dispatchers.m = map[verbs.Provider]*dispatcher{}
	}
	dispatchers.m[p] = d
	go d.run()
	return d, nil
}

// retain adds a use; the caller has one.
func (d *dispatcher) retain() {
	dispatchers.mu.Lock()
	d.users++
	dispatchers.mu.Unlock()
}

// release ends a use. The last one waits until the goroutine has ended.
func (d *dispatcher) release() {
	dispatchers.mu.Lock()
	d.users--
	last := d.users == 0
	if last {
		d.forget()
	}
	dispatchers.mu.Unlock()
	if last {
		d.ch.Close()
		<-d.stopped
	}
}

// forget lets the next acquire start another. dispatchers.mu is held.
func (d *dispatcher) forget() {
	if dispatchers.m[d.p] == d {
		delete(dispatchers.m, d.p)
	}
}

// run fetches events until the channel is closed. If the channel fails, no id on it
// will hear of anything any more: they end with the channel's error.
func (d *dispatcher) run() {
	defer close(d.stopped)
	for {
		_, err := d.ch.Event(context.Background())
		if err == nil {
			continue
		}
		if d.ch.isClosed() {
			return
		}
		dispatchers.mu.Lock()
		d.forget()
		dispatchers.mu.Unlock()
		d.ch.Close() // nothing more is moved here
		for _, id := range d.ch.all() {
			id.lost(err)
		}
		return
	}
}

// lost ends an id whose channel failed.
func (id *ID) lost(err error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.closing {
		return
	}
	id.end(err, err)
	id.signal()
}
