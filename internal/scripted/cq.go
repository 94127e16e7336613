package scripted

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Channel is a completion channel.
type Channel struct {
	object
	sig      signal
	q        []uint64
	glitch   bool
	together bool // see Together
	forget   int  // events that will not be acknowledged
	waiting  bool
}

var _ driver.CompChannel = (*Channel)(nil)

// waitingChannel is a Channel that waits in Go.
type waitingChannel struct{ *Channel }

var _ driver.Waiter = waitingChannel{}

// Wait watches that it is called by one goroutine at a time.
func (w waitingChannel) Wait(ctx context.Context) error {
	ch := w.Channel
	pr := ch.p
	pr.mu.Lock()
	if ch.waiting {
		pr.violateLocked("channel: two goroutines in Wait")
	}
	ch.waiting = true
	pr.mu.Unlock()
	err := ch.sig.wait(ctx)
	pr.mu.Lock()
	ch.waiting = false
	pr.mu.Unlock()
	return err
}

func (ch *Channel) level() {
	if ch.together {
		return
	}
	ch.sig.set(len(ch.q) > 0 || ch.glitch || ch.ctx.dev.gone)
}

// Post queues an event about a handle, whatever was armed. A handle of a CQ that was
// closed, or never was, is allowed.
func (ch *Channel) Post(handle uint64) {
	pr := ch.p
	pr.mu.Lock()
	defer pr.mu.Unlock()
	ch.q = append(ch.q, handle)
	ch.level()
}

// Together has all events that f brings about be behind one edge of the descriptor.
func (ch *Channel) Together(f func()) {
	set := func(on bool) {
		ch.p.mu.Lock()
		defer ch.p.mu.Unlock()
		ch.together = on
		ch.level()
	}
	set(true)
	f()
	set(false)
}

// Glitch makes the channel readable once without an event.
func (ch *Channel) Glitch() {
	pr := ch.p
	pr.mu.Lock()
	defer pr.mu.Unlock()
	ch.glitch = true
	ch.level()
}

// PollError has the descriptor report an error and no data (EPOLLERR), for good, while Next
// finds nothing and says nothing. It needs Config.PollErrors.
func (ch *Channel) PollError() { ch.sig.pollError() }

// ForgetAcks has the next n events be fetched and not acknowledged, as a provider does that
// loses count. The end of their queues is then a violation: the kernel would wait for ever.
func (ch *Channel) ForgetAcks(n int) {
	pr := ch.p
	pr.mu.Lock()
	defer pr.mu.Unlock()
	ch.forget = n
}

// Queued gives the number of events that wait to be fetched.
func (ch *Channel) Queued() int {
	pr := ch.p
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return len(ch.q)
}

// Readable reports whether a waiter would be told to look.
func (ch *Channel) Readable() bool {
	_, on := ch.sig.look()
	return on
}

// Queue gives the handles of the events that wait to be fetched.
func (ch *Channel) Queue() []uint64 {
	pr := ch.p
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return slices.Clone(ch.q)
}

// Next takes an event.
func (ch *Channel) Next() (uint64, bool, error) {
	defer ch.gate("after next event")
	err := ch.begin("next event")
	defer ch.end()
	gone := errors.Is(err, driver.ErrDeviceGone)
	if err != nil && !gone {
		return 0, false, err
	}
	pr := ch.p
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if len(ch.q) == 0 {
		ch.glitch = false
		ch.level()
		return 0, false, err
	}
	h := ch.q[0]
	ch.q = slices.Delete(ch.q, 0, 1)
	ch.level()
	for _, q := range ch.ctx.cqs {
		if q.handle == h && !q.closed {
			q.fetched++
			if ch.forget > 0 {
				ch.forget--
			} else {
				q.acked++
			}
		}
	}
	return h, true, nil
}

// FD gives the descriptor. It may be called beside Wait.
func (ch *Channel) FD() (int, error) {
	pr := ch.p
	if err := pr.call("fd"); err != nil {
		return -1, err
	}
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return ch.sig.descriptor()
}

// Close ends the channel.
func (ch *Channel) Close() error {
	err := ch.close()
	pr := ch.p
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if ch.waiting {
		pr.violateLocked("channel: closed while a goroutine is in Wait")
	}
	ch.sig.stop()
	return err
}

// CQ is a completion queue.
type CQ struct {
	object
	handle  uint64
	size    int
	ch      *Channel
	q       []driver.WC
	given   [pollBatch]driver.WC // by the last Poll
	armed   bool
	looked  bool // and found nothing, since it was armed
	solic   bool
	broken  error
	swallow int
	deaf    int // polls that see nothing
	fired   int // events queued, swallowed ones not counted
	fetched int
	acked   int
	count   int // of Moderate, and what has come of it
	pending int
	period  time.Duration
}

const pollBatch = 16

var (
	_ driver.CQ        = (*CQ)(nil)
	_ driver.Moderator = (*CQ)(nil)
	_ driver.Resizer   = (*CQ)(nil)
)

// Handle gives the handle that verbs chose.
func (q *CQ) Handle() uint64 { return q.handle }

// Push adds a completion; solicited says whether it counts for a solicited-only arm.
// More than fit break the queue.
func (q *CQ) Push(w driver.WC, solicited bool) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.push(w, solicited)
}

// push is Push with p.mu held.
func (q *CQ) push(w driver.WC, solicited bool) {
	if q.broken != nil || q.closed {
		return
	}
	if len(q.q) >= q.size {
		q.overrun()
		return
	}
	q.q = append(q.q, w)
	if !q.armed || q.solic && !solicited && w.Status == ib.StatusSuccess {
		return
	}
	if q.count > 1 {
		if q.pending++; q.pending < q.count {
			return
		}
	}
	q.fire()
}

func (q *CQ) fire() {
	q.armed, q.pending = false, 0
	if q.swallow > 0 {
		q.swallow--
		return
	}
	q.fired++
	if q.ch != nil {
		q.ch.q = append(q.ch.q, q.handle)
		q.ch.level()
	}
}

// Swallow loses the next n events, as a kernel does that is out of memory: the queue is
// not armed any more, and nobody is told.
func (q *CQ) Swallow(n int) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.swallow += n
}

// Overrun breaks the queue: what is in it can be polled, then Poll fails. An
// ib.EventCQErr is raised.
func (q *CQ) Overrun() {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.overrun()
}

var errOverrun = errors.New("scripted: completion queue overran")

func (q *CQ) overrun() {
	if q.broken != nil {
		return
	}
	q.broken = errOverrun
	q.ctx.async.post(driver.AsyncEvent{Type: ib.EventCQErr, Handle: q.handle, Port: 1})
	if q.armed {
		q.fire()
	}
}

// Deafen has the next n polls see nothing, whatever is there: what happens if a user does
// not poll.
func (q *CQ) Deafen(n int) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.deaf = n
}

// Armed reports whether an event will come with the next completion.
func (q *CQ) Armed() bool {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	return q.armed
}

// Asleep reports whether the queue is armed and was found empty since: nobody looks again
// before an event comes. A test that takes an event away waits for this; after Armed alone,
// the look that follows every arm may still come, and find what the event was about.
func (q *CQ) Asleep() bool {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	return q.armed && q.looked
}

// Events gives the number of events that were queued, and fetched.
func (q *CQ) Events() (fired, fetched int) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	return q.fired, q.fetched
}

// Len gives the number of entries that wait to be polled.
func (q *CQ) Len() int {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	return len(q.q)
}

// Entries gives the size.
func (q *CQ) Entries() int {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	return q.size
}

// Poll gives up to 16 entries, and overwrites those that it gave before.
func (q *CQ) Poll() ([]driver.WC, error) {
	defer q.gate("after poll")
	err := q.begin("poll")
	defer q.end()
	gone := errors.Is(err, driver.ErrDeviceGone)
	if err != nil && !gone {
		return nil, err
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	if q.deaf > 0 {
		q.deaf--
		q.looked = true
		return nil, nil
	}
	n := copy(q.given[:], q.q)
	q.q = append(q.q[:0], q.q[n:]...)
	for i := n; i < len(q.given) && q.given[i].ID != ^uint64(0); i++ {
		q.given[i] = driver.WC{ID: ^uint64(0), Status: 0xEE}
	}
	if n > 0 {
		return q.given[:n], nil
	}
	if q.broken != nil {
		return nil, q.broken
	}
	q.looked = true
	return nil, err
}

// Arm sets the flag.
func (q *CQ) Arm(solicited bool) error {
	defer q.gate("after arm")
	err := q.begin("arm")
	defer q.end()
	if err != nil {
		return err
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.solic = solicited && (!q.armed || q.solic)
	q.armed, q.looked = true, false
	return nil
}

// Moderate delays events by count; the period does not pass.
func (q *CQ) Moderate(count int, period time.Duration) error {
	err := q.begin("moderate")
	defer q.end()
	if err != nil {
		return err
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.count, q.period = count, period
	return nil
}

// Resize changes the size.
func (q *CQ) Resize(n int) error {
	err := q.begin("resize")
	defer q.end()
	if err != nil {
		return err
	}
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.size = n
	return nil
}

// Close purges events that nobody fetched. All that were must be acknowledged.
func (q *CQ) Close() error {
	err := q.close()
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	if q.fetched != q.acked {
		q.p.violateLocked("cq: closed with %d events fetched and %d acknowledged", q.fetched, q.acked)
	}
	if q.ch != nil {
		q.ch.q = slices.DeleteFunc(q.ch.q, func(h uint64) bool { return h == q.handle })
		q.ch.level()
	}
	return err
}
