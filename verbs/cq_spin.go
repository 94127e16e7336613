package verbs

import (
	"context"
	"time"

	"github.com/verbena-rdma/verbena/internal/gosched"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/internal/wait"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const (
	// After spinAlone the processor is offered to other threads every spinTurns looks:
	// whoever is waited for may need it. Earlier that costs more than it gives, as a thread
	// that takes it keeps it for a while.
	spinAlone = wait.DefaultSpin
	spinTurns = 8

	// spinCall is how long a provider may look inside one call at first, and spinCallMost
	// later: while it does it does not go in and out, where it would see nothing.
	spinCall     = 4 * time.Microsecond
	spinCallMost = 4 * spinCall

	// spinLook is less than a look takes: spinning ends where time stands still, too.
	spinLook = 50 * time.Nanosecond
)

// spinFor polls for a time without arming. It lets others run in between, see gosched.Pace.
func (cq *CQ) spinFor(ctx context.Context, d time.Duration, start time.Time, dst []WC) (int, error) {
	processors := gosched.Processors()
	cq.spin.single.Store(processors == 1)
	slow, call := cq.slow(), spinCall
	for i := 1; ; i++ {
		var n int
		var err error
		if slow != nil {
			n, err = cq.pollFor(slow, min(d, call), dst)
			call = min(2*call, spinCallMost)
		} else {
			n, err = cq.Poll(dst)
		}
		if n > 0 || err != nil {
			return n, err
		}
		spun := time.Since(start)
		if cq.nudge.Load() || time.Duration(i)*spinLook > d || spun > d {
			return 0, nil
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		cq.spin.pace.Turn(processors, i, gosched.Now())
		if spun > spinAlone && i%spinTurns == 0 {
			unix.Yield()
		}
	}
}

// first is Poll at the beginning of a wait. Who is going to look for a while in any case does so
// in the first call already.
func (cq *CQ) first(dst []WC) (int, error) {
	if cq != nil && cq.spin.always.Load() {
		if p := cq.slow(); p != nil {
			return cq.pollFor(p, spinCall, dst)
		}
	}
	return cq.Poll(dst)
}

// slow gives the provider's way to look for a while, if it has one and others have a
// processor meanwhile; else nil.
func (cq *CQ) slow() driver.SpinPoller {
	if cq.spin.single.Load() {
		return nil
	}
	return cq.spinner
}

// pollFor is Poll, but the provider looks for a while.
func (cq *CQ) pollFor(p driver.SpinPoller, d time.Duration, dst []WC) (int, error) {
	cq.mu.Lock()
	cq.fetchFor(p, d)
	n, err := 0, error(nil)
	if cq.shut || cq.broken != nil || cq.staged.len() > 0 || len(cq.pending) > 0 {
		n, err = cq.take(dst)
	}
	bad := cq.broken != nil && !cq.failed
	cq.mu.Unlock()
	if bad {
		return cq.follow(dst, n)
	}
	return n, err
}

// fetchFor asks the provider, if nothing is at hand. cq.mu is held.
func (cq *CQ) fetchFor(p driver.SpinPoller, d time.Duration) {
	if cq.shut || cq.broken != nil || cq.staged.len() > 0 || len(cq.pending) > 0 {
		return
	}
	w, err := p.PollFor(d)
	if err != nil {
		cq.broken = err
	}
	cq.pending = w
}

// spun tells the policy what became of a wait that began at start: a spin of a length that
// found something or not, and maybe a sleep. Waits that were given up have found nothing.
func (s *spinState) spun(start time.Time, spun time.Duration, slept, found bool) {
	if !s.learns.Load() {
		return
	}
	took := time.Since(start)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case found && !slept:
		s.s.Hit(took)
	case found:
		s.s.Miss(spun, took)
	default:
		s.s.Miss(spun, 0)
	}
}
