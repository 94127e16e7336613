package event

import (
	"errors"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// selector waits in select(2). What that says is asked of poll(2) once more, without
// waiting, for the descriptors that it names, as select cannot tell readable from hung up.
type selector struct {
	poller
	r, w   unix.FDSet // to watch
	rr, ww unix.FDSet // found
	nfd    int
	named  []unix.PollFD
	at     []int // of named, in entries
}

func (p *selector) wait(block bool, hits []hit) ([]hit, error) {
	if p.copySet() {
		p.r.Zero()
		p.w.Zero()
		p.nfd = 0
		for i := range p.fds {
			// They are below the limit, or would not be in the set.
			fd := int(p.fds[i].Fd)
			if p.fds[i].Events&unix.PollIn != 0 {
				p.r.Set(fd)
			}
			if p.fds[i].Events&unix.PollOut != 0 {
				p.w.Set(fd)
			}
			p.nfd = max(p.nfd, fd+1)
		}
	}
	p.set.exorcise()
	p.rr, p.ww = p.r, p.w
	n, err := unix.Select(p.nfd, &p.rr, &p.ww, block)
	switch {
	case errors.Is(err, syscall.EBADF):
		// One is closed; poll says which.
		return p.poller.wait(false, hits)
	case err != nil || n == 0:
		return hits, err
	}
	p.named, p.at = p.named[:0], p.at[:0]
	for i := range p.fds {
		if fd := int(p.fds[i].Fd); p.rr.IsSet(fd) || p.ww.IsSet(fd) {
			p.named = append(p.named, p.fds[i])
			p.at = append(p.at, i)
		}
	}
	if _, err := unix.Poll(p.named, 0); err != nil {
		return hits, err
	}
	for i := range p.named {
		if got := p.named[i].Revents; got != 0 {
			hits = append(hits, hit{p.entries[p.at[i]], uint32(uint16(got))})
		}
	}
	sortHits(hits)
	return hits, nil
}
