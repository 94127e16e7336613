package wait

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Parker puts one goroutine at a time to sleep until a notifier may have something.
// It is the lower half of a wait that has several reasons to end: a Source takes one
// event for whoever comes first, where the user of a Parker takes all events, hands
// them out, and can be woken by Kick or by a limit of time. It allocates nothing while
// it is used with a context that cannot end.
type Parker struct {
	n     driver.Notifier
	w     driver.Waiter // nil: n is waited for by its descriptor
	try   func() bool
	kick  func()             // Kick, made once: a method value allocates
	check func(uintptr) bool // try, as Go's poller wants it

	mu     Lock
	parked bool
	kicked bool
	hit    bool // the limit was reached
	closed bool
	broken bool      // what interrupts the sleep has been used
	limit  time.Time // of who is parked; zero: none
	timer  *time.Timer
	fires  time.Time // when timer does; zero: it does not run
	p      *poller
	gate   *gate // a new one after each interruption
	again  bool  // the descriptor was looked at in this sleep; of who is parked
	nap    nap
	lean   bool // there was no descriptor for Go's poller; of who is parked, and under mu
}

// Wake says what ended a sleep.
type Wake uint8

const (
	Found   Wake = iota // try said so
	Kicked              // somebody called Kick; now and then nobody did
	Expired             // the limit was reached
)

// NewParker makes a Parker of n. try looks for what n announces and says whether the
// sleeper should return; it must not block. It opens nothing: a descriptor is asked for
// by the first sleep, and only if n is no driver.Waiter.
func NewParker(n driver.Notifier, try func() bool) *Parker {
	p := &Parker{n: n, try: try}
	p.w, _ = n.(driver.Waiter)
	p.kick = p.Kick
	p.check = p.ready
	p.gate = newGate()
	return p
}

// Park calls try, before it sleeps and after each sign of the notifier, until it says
// true. It ends earlier when ctx does (with its error), at Kick, when limit has passed
// (zero: there is none), and at Close (net.ErrClosed). driver.ErrDeviceGone: the
// descriptor began to report an error during the sleep, and try found nothing. (One
// that does before is for the notifier's Next to tell.)
//
// One goroutine may be in Park at a time. A Kick that comes while nobody is parked ends
// the next Park at once.
func (p *Parker) Park(ctx context.Context, limit time.Duration) (Wake, error) {
	if err := ctx.Err(); err != nil {
		return Kicked, err
	}
	if p.w != nil && p.try() { // with a descriptor the sleep begins with a look
		return Found, nil
	}
	if p.nap.slice > 0 && (limit <= 0 || limit > p.nap.most()) {
		if why, done, err := p.doze(ctx); done {
			return why, err
		}
	}
	return p.parkFor(ctx, limit)
}

// parkFor sleeps in Go's poller, or in the notifier's own way.
func (p *Parker) parkFor(ctx context.Context, limit time.Duration) (why Wake, err error) {
	if ok, err := p.begin(limit); !ok {
		return Kicked, err
	}
	if p.nap.slice > 0 && !p.lean {
		start := time.Now()
		defer func() { p.nap.Polled(time.Since(start), why == Found && err == nil) }()
	}
	var stop func() bool
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, p.kick)
	}
	found, err := p.sleep()
	if stop != nil {
		stop()
	}
	kicked, hit, closed := p.end()
	switch {
	case closed:
		return Kicked, net.ErrClosed
	case found:
		return Found, nil
	case ctx.Err() != nil:
		return Kicked, ctx.Err()
	case kicked:
		return Kicked, nil
	case hit:
		return Expired, nil
	case err == nil:
		return Kicked, nil
	}
	if p.try() { // the last events of a device that went away
		return Found, nil
	}
	return Kicked, err
}

// begin prepares a sleep, unless a kick is due.
func (p *Parker) begin(limit time.Duration) (ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok, err := p.may(); !ok {
		return false, err
	}
	if p.w == nil {
		err := p.enter()
		if err != nil && !scarce(err) {
			return false, err
		}
		p.lean = err != nil
	}
	p.parked, p.hit = true, false
	p.limit = time.Time{}
	if limit > 0 {
		p.limit = time.Now().Add(limit)
		// A timer that fires too early looks again, which is cheaper than moving it with
		// every sleep.
		if p.fires.IsZero() || p.limit.Before(p.fires) {
			p.start(limit)
		}
	}
	return true, nil
}

// may says that a sleep can begin: no kick is due, and nobody has closed p. p.mu is held.
func (p *Parker) may() (ok bool, err error) {
	if p.closed {
		return false, net.ErrClosed
	}
	if p.kicked {
		p.kicked = false
		return false, nil
	}
	return true, nil
}

// enter has Go's poller look at the descriptor. p.mu is held.
func (p *Parker) enter() error {
	if p.p == nil {
		fd, err := p.n.FD()
		if err != nil {
			return err
		}
		if p.nap.slice > 0 {
			p.p, err = newGated(fd)
		} else {
			p.p, err = newPoller(fd)
		}
		if err != nil {
			p.p = nil
			return err
		}
	}
	return p.p.enter()
}

// end takes the traces of a sleep away.
func (p *Parker) end() (kicked, hit, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kicked, hit = p.kicked, p.hit
	p.parked, p.kicked, p.hit = false, false, false
	p.limit = time.Time{}
	if p.broken && !p.closed {
		p.broken = false
		if p.w != nil || p.lean {
			p.gate = newGate()
		} else {
			p.p.resume()
		}
	}
	return kicked, hit, p.closed
}

func (p *Parker) sleep() (found bool, err error) {
	if p.lean { // a short one: the next may be in Go's poller again
		if !p.try() {
			lean(p.gate, p.gate)
			return p.try(), nil
		}
		return true, nil
	}
	if p.w == nil {
		p.again = false
		return p.p.sleep(p.check)
	}
	for {
		err := p.w.Wait(p.gate)
		if p.try() {
			return true, nil
		}
		if p.gate.Err() != nil {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// ready is called by Go's poller before it sleeps and after each edge. Only an edge
// without anything to take is worth asking what it is about.
func (p *Parker) ready(fd uintptr) bool {
	if p.try() {
		return true
	}
	if !p.again {
		p.again = true
		return false
	}
	return p.p.failed(fd)
}

// start has the timer fire after d. p.mu is held.
func (p *Parker) start(d time.Duration) {
	p.fires = time.Now().Add(d)
	if p.timer == nil {
		p.timer = time.AfterFunc(d, p.tick)
		return
	}
	p.timer.Reset(d)
}

func (p *Parker) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fires = time.Time{}
	if !p.parked || p.limit.IsZero() {
		return
	}
	if d := time.Until(p.limit); d > 0 {
		p.start(d)
		return
	}
	p.hit = true
	p.interrupt()
}

// interrupt ends a sleep. p.mu is held.
func (p *Parker) interrupt() {
	if p.broken || !p.parked {
		return
	}
	p.broken = true
	switch {
	case p.nap.in:
		p.nap.rouse()
	case p.w != nil || p.lean:
		p.gate.open()
	default:
		p.p.interrupt()
	}
}

// Kick wakes who is parked, or the next who parks. It may be called by anyone and does
// not block.
func (p *Parker) Kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kicked = true
	p.interrupt()
}

// Close wakes who is parked; that and later calls of Park give net.ErrClosed. It is
// idempotent, does not wait, and leaves the notifier alone.
func (p *Parker) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.interrupt()
	p.nap.close()
	if p.p != nil {
		p.p.close()
	}
}

// SetStop sets where tests stop, see Lock.
func (p *Parker) SetStop(f func(lock bool)) { p.mu.Stop = f }

// State describes p to tests that compare states.
func (p *Parker) State() string {
	p.mu.Mutex.Lock()
	defer p.mu.Mutex.Unlock()
	return fmt.Sprint(p.parked, p.kicked, p.hit, p.closed, p.broken)
}

// gate is a context that ends when it is opened, and then stays so, as others may have
// tied something to its end (context.AfterFunc). One lasts for all sleeps that nobody
// interrupts, where a context of package context would be made for each.
type gate struct {
	mu sync.Mutex
	c  chan struct{}
	on bool
}

func newGate() *gate { return &gate{c: make(chan struct{})} }

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.on {
		g.on = true
		close(g.c)
	}
}

func (g *gate) Done() <-chan struct{} { return g.c }

func (g *gate) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.on {
		return context.Canceled
	}
	return nil
}

func (g *gate) Deadline() (time.Time, bool) { return time.Time{}, false }
func (g *gate) Value(any) any               { return nil }
