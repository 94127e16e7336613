package rdma

import (
	"context"
	"sync"

	"github.com/verbena-rdma/verbena/verbs"
)

// watches are the devices whose asynchronous events somebody wants (Trace.Async). An event
// goes to one reader, so there is one for each device, whatever the number of its hubs;
// and none for programs that do not ask, which may want to read themselves.
var watches struct {
	mu sync.Mutex
	m  map[*verbs.Device]*watch
}

// watch is the reader of one device.
type watch struct {
	traces map[*Trace]int // uses: connections, and a listener
	cancel context.CancelFunc
}

// watchAsync has the events of a device told to t. Each call ends with unwatchAsync.
func watchAsync(dev *verbs.Device, t *Trace) {
	if t == nil || t.Async == nil {
		return
	}
	watches.mu.Lock()
	defer watches.mu.Unlock()
	w := watches.m[dev]
	if w == nil {
		ctx, cancel := context.WithCancel(context.Background())
		w = &watch{traces: map[*Trace]int{}, cancel: cancel}
		if watches.m == nil {
			watches.m = map[*verbs.Device]*watch{}
		}
		watches.m[dev] = w
		go readAsync(ctx, dev)
	}
	w.traces[t]++
}

// unwatchAsync ends a use. It does not wait for a call of Trace.Async.
func unwatchAsync(dev *verbs.Device, t *Trace) {
	if t == nil || t.Async == nil {
		return
	}
	watches.mu.Lock()
	defer watches.mu.Unlock()
	w := watches.m[dev]
	if w.traces[t]--; w.traces[t] > 0 {
		return
	}
	if delete(w.traces, t); len(w.traces) == 0 {
		w.cancel()
		delete(watches.m, dev)
	}
}

// readAsync reads until nobody wants it any more, or the device is closed or gone, which
// its connections learn by themselves.
func readAsync(ctx context.Context, dev *verbs.Device) {
	for ev, err := range dev.Async().Events(ctx) {
		if err != nil {
			return
		}
		tellAsync(dev, ev)
	}
}

// tellAsync tells of an event: one of a connection's queue pair to the trace of that
// connection, all others to every trace, once.
func tellAsync(dev *verbs.Device, ev verbs.AsyncEvent) {
	if ev.QP != nil {
		if c, ok := ev.QP.UserData().(*Conn); ok {
			if t := c.cfg.Trace; t != nil && t.Async != nil {
				t.Async(ev)
			}
			return
		}
	}
	watches.mu.Lock()
	var traces []*Trace
	if w := watches.m[dev]; w != nil {
		for t := range w.traces {
			traces = append(traces, t)
		}
	}
	watches.mu.Unlock()
	for _, t := range traces {
		t.Async(ev)
	}
}
