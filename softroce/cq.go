package softroce

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/timers"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const (
	maxCQE        = 1<<20 - 1
	idlePolls     = 2  // empty polls that do not read the socket
	pollBatch     = 64 // entries that one Poll gives at most
	maxModeration = 1<<16 - 1
	maxPeriod     = (1<<16 - 1) * time.Microsecond
)

// errOverrun is what a completion queue gives when it has lost a completion.
var errOverrun = errors.New("softroce: completion queue overran: it was smaller than what its queue pairs could complete")

// cq is a completion queue: a ring. Entries that Poll gave stay until the next Poll,
// in room of their own, and do not count as occupied.
type cq struct {
	d      *device
	ctx    *deviceContext
	handle uint64
	ch     *compChannel

	ready atomic.Int64 // entries to be polled
	state atomic.Uint32
	from  atomic.Pointer[endpoint] // where the packets come from
	empty atomic.Uint32            // polls that found nothing, one after the other

	mu      sync.Mutex
	ring    []driver.WC // a power of two, entries+pollBatch or more
	entries int
	head    uint64 // next to be given by Poll
	tail    uint64 // next to be filled
	armed   armState
	qps     map[*qp]int

	// Moderation: an armed queue fires after count matching completions, or period
	// after the first.
	count, pending int
	period         time.Duration
	moderate       timers.Timer

	sleeper leader      // see Sleep
	roused  atomic.Bool // Rouse was called since Sleep began

	overran timers.Timer // fails the queue pairs, outside of all locks

	// Of the channel, under its lock.
	fired     int
	nextFired *cq
}

type armState uint8

const (
	unarmed armState = iota
	armedSolicited
	armedAny
)

// States of a cq.
const (
	cqUp uint32 = iota
	cqOverrun
	cqGone
	cqClosed
)

var (
	_ driver.CQ        = (*cq)(nil)
	_ driver.Moderator = (*cq)(nil)
	_ driver.Resizer   = (*cq)(nil)
	_ driver.Sleeper   = (*cq)(nil)

	_ driver.SpinPoller = (*cq)(nil)
)

func newCQ(c *deviceContext, cfg driver.CQConfig, ch *compChannel) *cq {
	q := &cq{
		d:       c.d,
		ctx:     c,
		handle:  cfg.Handle,
		ch:      ch,
		entries: cfg.Entries,
		ring:    newRing(cfg.Entries),
		qps:     make(map[*qp]int),
	}
	q.moderate.F = q.onPeriod
	q.overran.F = q.onOverrun
	return q
}

func newRing(entries int) []driver.WC {
	n := pollBatch
	for n < entries+pollBatch {
		n *= 2
	}
	return make([]driver.WC, n)
}

func (c *cq) Entries() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries
}

// Poll gives up to 64 entries, valid until the next Poll. It never blocks and does not
// allocate. After the last entry of a queue that overran it gives an error.
func (c *cq) Poll() ([]driver.WC, error) {
	if c.ready.Load() == 0 && !c.look() {
		return nil, c.err()
	}
	return c.give(), nil
}

// give gives entries; there are some.
func (c *cq) give() []driver.WC {
	c.empty.Store(0)
	c.mu.Lock()
	i := int(c.head & uint64(len(c.ring)-1))
	n := min(int(c.tail-c.head), pollBatch, len(c.ring)-i)
	c.head += uint64(n)
	c.ready.Add(-int64(n))
	p := c.ring[i : i+n : i+n]
	c.mu.Unlock()
	return p
}

// look is a poll that found nothing. Who waits in the usual way polls twice, and arms;
// who goes on polling reads the socket.
func (c *cq) look() bool {
	if c.empty.Add(1) <= idlePolls {
		return false
	}
	if e := c.from.Load(); e != nil && e.role.conn != nil && c.state.Load() == cqUp {
		e.progress(c, 0)
	}
	return c.level()
}

// PollFor is Poll that looks at the socket for a time. In the role of its reader all the
// while, that is cheaper than to take and give up the role for each look.
func (c *cq) PollFor(d time.Duration) ([]driver.WC, error) {
	if c.ready.Load() == 0 {
		if e := c.from.Load(); e != nil && e.role.conn != nil && c.state.Load() == cqUp {
			e.progress(c, d)
		}
		if !c.level() {
			return nil, c.err()
		}
	}
	return c.give(), nil
}

// level reports whether there is something to be polled.
func (c *cq) level() bool { return c.ready.Load() > 0 }

func (c *cq) err() error {
	switch c.state.Load() {
	case cqUp:
		return nil
	case cqOverrun:
		return errOverrun
	case cqGone:
		return c.ctx.err()
	}
	return net.ErrClosed
}

// push adds a completion and reports whether it fired an event. e is where the packet
// came from that caused it, or nil. Called with the queue pair's lock held.
func (c *cq) push(done *transport.Completion, e *endpoint) (fired bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.state.Load(); s != cqUp {
		return false
	}
	if int(c.tail-c.head) >= c.entries {
		c.state.Store(cqOverrun)
		c.sleeper.interrupt()
		c.d.stats.cqOverruns.Add(1)
		c.d.schedule(&c.overran, 0)
		return c.fire()
	}
	c.ring[c.tail&uint64(len(c.ring)-1)] = done.WC
	c.tail++
	c.ready.Add(1)
	if e != nil && c.from.Load() != e {
		c.from.Store(e)
	}
	c.sleeper.interrupt() // who sleeps and handles this very packet is not there
	if c.armed == unarmed ||
		c.armed == armedSolicited && !done.Solicited && done.Status == ib.StatusSuccess {
		return false
	}
	if c.count > 1 {
		c.pending++
		if c.pending == 1 {
			c.d.schedule(&c.moderate, c.d.now()+c.period)
		}
		if c.pending < c.count {
			return false
		}
	}
	return c.fire()
}

// fire sends the event of an armed queue. c.mu is held.
func (c *cq) fire() bool {
	if c.armed == unarmed {
		return false
	}
	if c.pending > 0 {
		c.pending = 0
		c.d.cancel(&c.moderate)
	}
	c.armed = unarmed
	if c.ch == nil {
		return false
	}
	if e := c.from.Load(); c.ch.leader.from.Load() != e {
		c.ch.leader.from.Store(e)
	}
	c.ch.post(c)
	return true
}

// onPeriod is the end of the moderation period.
func (c *cq) onPeriod(time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending > 0 {
		c.fire()
	}
}

// onOverrun follows an overflow: one event, and the queue pairs fail, as a lost
// completion cannot be made good (IBTA Vol 1 §11.6.3.1).
func (c *cq) onOverrun(time.Duration) {
	c.ctx.async.post(driver.AsyncEvent{Type: ib.EventCQErr, Handle: c.handle, Port: portNumber})
	for _, q := range c.attached() {
		q.fail()
	}
}

func (c *cq) attached() []*qp {
	c.mu.Lock()
	defer c.mu.Unlock()
	qs := make([]*qp, 0, len(c.qps))
	for q := range c.qps {
		qs = append(qs, q)
	}
	return qs
}

// attach and detach say which queue pairs complete here. Detach takes what is left of
// q out of the ring, so that a later queue pair of its number never sees it.
func (c *cq) attach(q *qp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil {
		return err
	}
	c.qps[q]++
	return nil
}

func (c *cq) detach(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.qps[q]--; c.qps[q] <= 0 {
		delete(c.qps, q)
	}
	to := c.head
	mask := uint64(len(c.ring) - 1)
	for i := c.head; i != c.tail; i++ {
		if e := c.ring[i&mask]; e.QPN != q.num {
			c.ring[to&mask] = e
			to++
		}
	}
	c.ready.Add(int64(to) - int64(c.tail))
	c.tail = to
}

// Arm asks for one event at the next completion; completions that are there already do
// not fire. Armed for any completion, it stays so.
func (c *cq) Arm(solicited bool) error {
	c.empty.Store(0)
	if e := c.from.Load(); e != nil {
		e.resign()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil {
		return err
	}
	if solicited && c.armed == unarmed {
		c.armed = armedSolicited
	} else if !solicited {
		c.armed = armedAny
	}
	return nil
}

// Moderate delays events until count completions have come, or period has passed since
// the first. A count of 0 or 1 ends that.
func (c *cq) Moderate(count int, period time.Duration) error {
	switch {
	case count < 0 || count > maxModeration:
		return fmt.Errorf("softroce: moderation count %d is not in 0..%d: %w", count, maxModeration, syscall.EINVAL)
	case period < 0 || period > maxPeriod:
		return fmt.Errorf("softroce: moderation period %v is not in 0..%v: %w", period, maxPeriod, syscall.EINVAL)
	case count > 1 && period == 0:
		return fmt.Errorf("softroce: moderation count %d without a period could wait for ever: %w", count, syscall.EINVAL)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil {
		return err
	}
	c.count, c.period = count, period
	if c.pending > 0 && c.pending >= count {
		c.fire()
	}
	return nil
}

// Resize changes the number of entries. Those that wait stay, in order; a size below
// their number is refused.
func (c *cq) Resize(entries int) error {
	if err := checkEntries(entries); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil {
		return err
	}
	n := int(c.tail - c.head)
	if entries < n {
		return fmt.Errorf("softroce: completion queue holds %d entries, %d are too few: %w", n, entries, syscall.EINVAL)
	}
	ring := newRing(entries)
	for i := range n {
		ring[i] = c.ring[(c.head+uint64(i))&uint64(len(c.ring)-1)]
	}
	c.ring, c.entries, c.head, c.tail = ring, entries, 0, uint64(n)
	return nil
}

func checkEntries(n int) error {
	if n < 1 || n > maxCQE {
		return fmt.Errorf("softroce: completion queue of %d entries, 1..%d are possible: %w", n, maxCQE, syscall.EINVAL)
	}
	return nil
}

// terminate is the end of the device: what is in the queue can still be polled.
func (c *cq) terminate(error) {
	c.state.CompareAndSwap(cqUp, cqGone)
	c.sleeper.interrupt()
	c.mu.Lock()
	c.fire()
	c.mu.Unlock()
}

// Close ends the queue; its queue pairs complete into nothing.
func (c *cq) Close() error {
	c.mu.Lock()
	if c.state.Swap(cqClosed) == cqClosed {
		c.mu.Unlock()
		return nil
	}
	c.tail = c.head
	c.ready.Store(0)
	c.armed = unarmed
	c.pending = 0
	c.mu.Unlock()
	c.sleeper.interrupt()
	c.sleeper.mu.Lock()
	c.sleeper.unwatch()
	c.sleeper.mu.Unlock()
	c.d.cancel(&c.moderate)
	c.d.cancel(&c.overran)
	if c.ch != nil {
		c.ch.forget(c)
	}
	c.ctx.async.forget(func(e driver.AsyncEvent) bool { return e.Type == ib.EventCQErr && e.Handle == c.handle })
	c.ctx.drop(c)
	c.d.release(kindCQ)
	return nil
}
