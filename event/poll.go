package event

import (
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// poller waits in poll(2), with a copy of the set that is made anew when that has
// changed. It holds the thread while it waits.
type poller struct {
	set     *set
	fds     []unix.PollFD
	entries []*entry // of fds
}

// copySet takes over the set, and reports whether it had changed.
func (p *poller) copySet() bool {
	s := p.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dirty {
		return false
	}
	s.dirty = false
	clear(p.entries)
	p.fds, p.entries = p.fds[:0], p.entries[:0]
	for _, e := range s.byKey {
		if e.want != 0 {
			p.fds = append(p.fds, unix.PollFD{Fd: int32(e.fd), Events: int16(e.want)})
			p.entries = append(p.entries, e)
		}
	}
	return true
}

func (p *poller) wait(block bool, hits []hit) ([]hit, error) {
	p.copySet()
	p.set.exorcise()
	var limit time.Duration
	if block {
		limit = -1
	}
	n, err := unix.Poll(p.fds, limit)
	if err != nil || n == 0 {
		return hits, err
	}
	return p.found(hits), nil
}

func (p *poller) found(hits []hit) []hit {
	for i := range p.fds {
		if got := p.fds[i].Revents; got != 0 {
			hits = append(hits, hit{p.entries[i], uint32(uint16(got))})
		}
	}
	sortHits(hits)
	return hits
}

func (p *poller) pinned() bool { return true }
func (p *poller) close()       {}
