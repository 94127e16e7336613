package wait

import (
	"context"
	"net"
	"time"

	"github.com/verbena-rdma/verbena/internal/gosched"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// napFDs are the descriptors of a nap: the notifier's own, and an eventfd that interrupts.
type napFDs struct {
	made bool
	set  [2]unix.PollFD
}

// doze sleeps for a while. done means that the wait has ended, with why and err as those of
// Park; else it goes on in Go's poller.
func (p *Parker) doze(ctx context.Context) (why Wake, done bool, err error) {
	if !p.nap.Wanted() {
		return Kicked, false, nil
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= p.nap.most() || !p.nap.Begin() {
		return Kicked, false, nil
	}
	if ok, err := p.dozeBegin(); !ok {
		p.nap.Cancel()
		return Kicked, !scarce(err), err
	}
	how := p.dozeFor(ctx)
	p.nap.End(how)
	found := how == gosched.NapFound
	kicked, closed := p.dozeEnd()
	switch {
	case closed:
		return Kicked, true, net.ErrClosed
	case found:
		return Found, true, nil
	case ctx.Err() != nil:
		return Kicked, true, ctx.Err()
	case kicked:
		return Kicked, true, nil
	}
	return Kicked, false, nil
}

// dozeBegin prepares a nap, unless a kick is due.
func (p *Parker) dozeBegin() (ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok, err := p.may(); !ok {
		return false, err
	}
	if f := &p.nap; !f.made {
		fd, err := p.n.FD()
		if err != nil {
			return false, err
		}
		ev, err := unix.Eventfd()
		if err != nil {
			return false, err
		}
		f.made = true
		f.set = [2]unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}, {Fd: int32(ev), Events: unix.PollIn}}
	}
	if p.p != nil {
		p.p.leave()
	}
	p.parked, p.nap.in = true, true
	return true, nil
}

// dozeFor sleeps until try says true, somebody interrupts, ctx ends, or the time is up.
func (p *Parker) dozeFor(ctx context.Context) gosched.NapEnd {
	set := &p.nap.set
	for range gosched.NapSlices {
		n, err := unix.Poll(set[:], p.nap.slice)
		switch {
		case err != nil:
			return gosched.NapVain
		case n == 0: // the time is up, or a signal came
		case set[1].Revents != 0:
			return gosched.NapBroken
		case set[0].Revents&unix.PollIn == 0: // an error, which Go's poller tells
			return gosched.NapVain
		case p.try():
			return gosched.NapFound
		}
		if ctx.Err() != nil {
			return gosched.NapBroken
		}
		p.nap.Keep()
	}
	return gosched.NapVain
}

// dozeEnd takes the traces of a nap away.
func (p *Parker) dozeEnd() (kicked, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kicked = p.kicked
	p.parked, p.kicked, p.nap.in = false, false, false
	if p.broken && !p.closed {
		p.broken = false
		unix.EventfdDrain(int(p.nap.set[1].Fd))
	}
	if p.closed {
		p.nap.close()
	}
	return kicked, p.closed
}

// rouse ends a nap, also one that is about to begin. Parker.mu is held.
func (n *napFDs) rouse() { unix.EventfdSignal(int(n.set[1].Fd)) }

// close closes what naps used, if nobody is in one: who is does it at its end. Parker.mu is held.
func (n *nap) close() {
	if n.made && !n.in {
		n.made = false
		unix.Close(int(n.set[1].Fd))
	}
}
