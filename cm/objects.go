package cm

import (
	"fmt"
	"slices"
	"sync"
)

// channels are the event channels that are open.
var channels struct {
	mu sync.Mutex
	m  map[*EventChannel]struct{}
}

func (ch *EventChannel) enlist() {
	channels.mu.Lock()
	defer channels.mu.Unlock()
	if channels.m == nil {
		channels.m = map[*EventChannel]struct{}{}
	}
	channels.m[ch] = struct{}{}
}

func (ch *EventChannel) delist() {
	channels.mu.Lock()
	defer channels.mu.Unlock()
	delete(channels.m, ch)
}

// Objects lists the event channels and ids that are open in the process, those of the
// upper floor included. It is for tests that look for leaks; verbs.Objects lists the
// rest.
func Objects() []string {
	var names []string
	for _, id := range table.ids() {
		id.mu.Lock()
		names = append(names, fmt.Sprintf("cm id %#x: %v, %v, %v->%v", id.handle, id.ps, id.state, id.info.Local, id.info.Remote))
		id.mu.Unlock()
	}
	channels.mu.Lock()
	for ch := range channels.m {
		names = append(names, fmt.Sprintf("event channel %d of provider %s", ch.seq, ch.p.Name()))
	}
	channels.mu.Unlock()
	slices.Sort(names)
	return names
}

// ids gives the ids that have a handle.
func (t *handles) ids() []*ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ids []*ID
	for _, s := range t.slots {
		if s.id != nil && s.group == nil {
			ids = append(ids, s.id)
		}
	}
	return ids
}
