package wait

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// napSystem is what a nap needs of the system.
type napSystem struct {
	fds napFDs
}

// napping counts goroutines in a nap.
var napping atomic.Int32

// napFDs are the descriptors of a nap: the notifier's own, and an eventfd that interrupts.
type napFDs struct {
	made bool
	set  [2]unix.PollFD
}

// napTaken says whether a nap may begin; then napEnd must be called.
func napTaken() bool {
	if napping.Add(1) <= napPlaces.Load() {
		return true
	}
	napping.Add(-1)
	return false
}

func napEnd() { napping.Add(-1) }

// doze sleeps for a while. done means that the wait has ended, with why and err as those of
// Park; else it goes on in Go's poller.
func (p *Parker) doze(ctx context.Context) (why Wake, done bool, err error) {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= p.nap.most || !napTaken() {
		return Kicked, false, nil
	}
	defer napEnd()
	if ok, err := p.dozeBegin(); !ok {
		return Kicked, !scarce(err), err
	}
	p.nap.pace.Keep()
	var start int64
	if p.nap.measured() {
		start = Now()
	}
	found, near := p.dozeFor(ctx)
	switch {
	case !near:
		p.nap.tired()
	case !found:
	case start != 0:
		p.nap.napped(time.Duration(Now() - start))
	default:
		p.nap.napped(0)
	}
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
	if f := &p.nap.fds; !f.made {
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
	p.nap.begun()
	return true, nil
}

// dozeFor sleeps until try says true, somebody interrupts, ctx ends, or the time is up. near: it
// was not.
func (p *Parker) dozeFor(ctx context.Context) (found, near bool) {
	set := &p.nap.fds.set
	for range p.nap.most / p.nap.slice {
		n, err := unix.Poll(set[:], p.nap.slice)
		switch {
		case err != nil:
			return false, false
		case n == 0: // the time is up, or a signal came
		case set[1].Revents != 0:
			return false, true
		case set[0].Revents&unix.PollIn == 0: // an error, which Go's poller tells
			return false, false
		case p.try():
			return true, true
		}
		if ctx.Err() != nil {
			return false, true
		}
	}
	return false, false
}

// dozeEnd takes the traces of a nap away.
func (p *Parker) dozeEnd() (kicked, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kicked = p.kicked
	p.parked, p.kicked, p.nap.in = false, false, false
	if p.broken && !p.closed {
		p.broken = false
		unix.EventfdDrain(int(p.nap.fds.set[1].Fd))
	}
	if p.closed {
		p.nap.close()
	}
	return kicked, p.closed
}

// rouse ends a nap, also one that is about to begin. Parker.mu is held.
func (n *nap) rouse() { unix.EventfdSignal(int(n.fds.set[1].Fd)) }

// close closes what naps used, if nobody is in one: who is does it at its end. Parker.mu is held.
func (n *nap) close() {
	if n.fds.made && !n.in {
		n.fds.made = false
		unix.Close(int(n.fds.set[1].Fd))
	}
}

// begun is called when a nap begins. A thread that was woken in Go's poller may have been the one
// that sleeps there for the whole process, and it is about to sleep elsewhere. A goroutine more,
// which does nothing, has Go wake another thread, and that goes to sleep in the poller.
func (n *nap) begun() {
	if n.polled {
		n.polled = false
		go func() {}()
	}
}
