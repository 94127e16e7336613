package cm

import (
	"fmt"
	"slices"
	"sync"

	"github.com/verbena-rdma/verbena/verbs"
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
// rest. What is before the first colon is the name of an object, which no other ever has;
// what is behind changes with its state.
func Objects() []string { return objects(func(verbs.Provider) bool { return true }) }

// ObjectsOf lists those of one provider.
func ObjectsOf(p verbs.Provider) []string {
	return objects(func(of verbs.Provider) bool { return of == p })
}

func objects(of func(verbs.Provider) bool) []string {
	var names []string
	for _, id := range table.ids() {
		if !of(id.p) {
			continue
		}
		id.mu.Lock()
		names = append(names, fmt.Sprintf("cm id %#x: %v, %v, %v->%v", id.handle, id.ps, id.state, id.info.Local, id.info.Remote))
		id.mu.Unlock()
	}
	channels.mu.Lock()
	for ch := range channels.m {
		if of(ch.p) {
			names = append(names, fmt.Sprintf("event channel %d: of provider %s", ch.seq, ch.p.Name()))
		}
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
