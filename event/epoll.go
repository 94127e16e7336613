package event

import (
	"context"
	"slices"

	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/internal/wait"
)

// epoller waits in Go's poller on the epoll instance, so that no thread is held, and
// then asks that for what is ready.
type epoller struct {
	set    *set
	park   *wait.Parker
	events []unix.EpollEvent
	n      int
	err    error
}

// notifier is an epoll instance as package wait sees it.
type notifier int

func (n notifier) FD() (int, error) { return int(n), nil }

func newEpoller(s *set) *epoller {
	p := &epoller{set: s, events: make([]unix.EpollEvent, 64)}
	p.park = wait.NewParker(notifier(s.ep), p.try)
	return p
}

func (p *epoller) wait(block bool, hits []hit) ([]hit, error) {
	p.n, p.err = 0, nil
	if !block {
		p.look()
	} else {
		if _, err := p.park.Park(context.Background(), 0); err != nil {
			return hits, err
		}
	}
	if p.err != nil {
		return hits, p.err
	}
	hits = p.found(hits, 0)
	for p.n == len(p.events) {
		// There may be more: a turn sees all that is ready, as with the other backends.
		// What was seen is seen again, as it is level-triggered.
		p.events = make([]unix.EpollEvent, 2*len(p.events))
		if p.look(); p.err != nil {
			return hits, p.err
		}
		hits = p.found(hits, len(hits))
	}
	sortHits(hits)
	return hits, nil
}

// try is called by the parker, before it sleeps and after each wake-up.
func (p *epoller) try() bool {
	p.look()
	return p.n > 0 || p.err != nil
}

func (p *epoller) look() { p.n, p.err = unix.EpollWait(p.set.ep, p.events, 0) }

// found looks the events up. Those of entries that were removed find nothing, and those of
// the first known hits are known.
func (p *epoller) found(hits []hit, known int) []hit {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	for i := range p.events[:p.n] {
		ev := &p.events[i]
		e := p.set.byKey[unix.EpollKey(ev)]
		if e == nil || slices.ContainsFunc(hits[:known], func(h hit) bool { return h.e == e }) {
			continue
		}
		hits = append(hits, hit{e, ev.Events})
	}
	return hits
}

func (p *epoller) pinned() bool { return false }
func (p *epoller) close()       { p.park.Close() }
