package verbs

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/internal/wait"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// CompChannel reports which CQ has news (struct ibv_comp_channel). Most programs
// need none: each CQ has one of its own.
//
// A channel is consumed in one of three ways at a time: by its own methods, with
// CQ.Arm; by CQ.Wait, Next and Completions of its CQs; or by an event loop, see Consume.
// While it is in one way, calls of the others give ErrOneConsumer.
type CompChannel struct {
	object
	d     driver.CompChannel
	park  *wait.Parker
	waits bool          // the provider waits in Go, not on a descriptor
	lead  chan struct{} // full while a goroutine is in Event
	ended chan struct{} // closed by Close

	mu     wait.Lock // one call of d at a time, and:
	events int       // goroutines in Event
	parked int       // goroutines in CQ.Wait
	alone  *CQ       // what one of them sleeps for without an event; nil: none does
	got    *CQ       // what try found for the leader in Event
	fault  error     // what try found instead
	leader *waiter   // parks for all in CQ.Wait; nil: nobody does
	follow *waiter   // list of those that wait for the leader
	free   *waiter   // list of those that nobody uses
	soft   []*CQ     // CQs with events that the library made
	fd     channelFD

	consumer *Consumer // takes the events in place of all others
}

// waiter is a goroutine in CQ.Wait.
type waiter struct {
	cq         *CQ
	c          chan struct{} // cap 1: woken, or to lead
	woken      bool          // its CQ had an event; under ch.mu
	next, prev *waiter       // in the list of followers; next also in that of free ones
	following  bool
	timer      *time.Timer
}

const opChannel = "completion channel"

// CreateCompChannel makes a channel that several CQs may share
// (ibv_create_comp_channel).
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	ch := &CompChannel{lead: make(chan struct{}, 1), ended: make(chan struct{})}
	err := d.child("create completion channel", "", func(c driver.Context) (err error) {
		ch.d, err = c.CreateCompChannel()
		return err
	})
	if err != nil {
		return nil, err
	}
	_, ch.waits = ch.d.(driver.Waiter)
	ch.park = wait.NewParker(ch.d, ch.try)
	ch.park.Nap()
	ch.begin(d, ch.describe, ch.destroy)
	return ch, nil
}

func (ch *CompChannel) describe() string { return opChannel }

func (ch *CompChannel) destroy() error {
	ch.mu.Lock()
	ch.fd.close()
	ch.mu.Unlock()
	return opError("close completion channel", ch.dev, "", ch.d.Close())
}

// Close wakes who waits, with net.ErrClosed. The CQs on the channel stay usable, but
// cannot be waited for any more; the channel goes with the last of them.
func (ch *CompChannel) Close() error {
	if ch == nil || ch.name == nil {
		return opError("close completion channel", nil, "", errNil)
	}
	return ch.close(func() {
		close(ch.ended)
		ch.park.Close()
		ch.mu.Lock()
		defer ch.mu.Unlock()
		for w := ch.follow; w != nil; w = w.next {
			w.signal()
		}
		ch.rouse(nil)
		if c := ch.consumer; c != nil {
			c.news(nil)
		}
	}, nil)
}

// consume begins a call that takes events; n goroutines more are in Event.
func (ch *CompChannel) consume(n int) error {
	if ch == nil {
		return opError(opChannel, nil, "", errNil)
	}
	if err := ch.op(opChannel); err != nil {
		return err
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.parked > 0 || ch.consumer != nil {
		ch.leave()
		return ErrOneConsumer
	}
	ch.events += n
	return nil
}

// Event waits for an event and gives the CQ that fired. The event is acknowledged
// (in batches). An event is a hint: the CQ may be empty. If ctx has ended Event gives
// its error, even if there is an event, which stays. Each event goes to one of the
// goroutines that are here.
func (ch *CompChannel) Event(ctx context.Context) (*CQ, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := ch.consume(1); err != nil {
		return nil, err
	}
	defer func() {
		ch.mu.Lock()
		ch.events--
		ch.mu.Unlock()
		ch.leave()
	}()
	select {
	case ch.lead <- struct{}{}:
	default:
		select {
		case ch.lead <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ch.ended:
			return nil, opError(opChannel, ch.dev, "", ErrClosed)
		}
	}
	defer func() { <-ch.lead }()
	for {
		why, err := ch.park.Park(ctx, 0)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, ch.fail(opChannel, err)
		case why != wait.Found:
			continue
		}
		ch.mu.Lock()
		cq, err := ch.got, ch.fault
		ch.got, ch.fault = nil, nil
		ch.mu.Unlock()
		if err != nil {
			return nil, ch.fail(opChannel, err)
		}
		return cq, nil
	}
}

// TryEvent gives an event that is there, or ok == false. It never blocks.
func (ch *CompChannel) TryEvent() (cq *CQ, ok bool, err error) {
	if err := ch.consume(0); err != nil {
		return nil, false, err
	}
	defer ch.leave()
	ch.mu.Lock()
	if ch.parked > 0 || ch.consumer != nil { // since a moment
		ch.mu.Unlock()
		return nil, false, ErrOneConsumer
	}
	cq, err = ch.one()
	ch.mu.Unlock()
	if err != nil {
		return nil, false, ch.fail(opChannel, err)
	}
	return cq, cq != nil, nil
}

// Events waits for one event after the other. The last pair carries the error that
// ended it; breaking out is allowed at any time and loses nothing.
func (ch *CompChannel) Events(ctx context.Context) iter.Seq2[*CQ, error] {
	return func(yield func(*CQ, error) bool) { ch.each(ctx, yield) }
}

func (ch *CompChannel) each(ctx context.Context, yield func(*CQ, error) bool) {
	for {
		cq, err := ch.Event(ctx)
		if !yield(cq, err) || err != nil {
			return
		}
	}
}

// FD is readable exactly while TryEvent would give an event: after Arm, and after a
// completion that came later. See AsyncEvents.FD.
func (ch *CompChannel) FD() (int, error) {
	if ch == nil {
		return -1, opError(opChannel, nil, "", errNil)
	}
	if err := ch.op(opChannel); err != nil {
		return -1, err
	}
	defer ch.leave()
	ch.mu.Lock()
	fd, err := ch.fd.open(ch.d, len(ch.soft) > 0)
	ch.mu.Unlock()
	if err != nil {
		return -1, ch.fail(opChannel, err)
	}
	return fd, nil
}

// one takes one event, of the library or of the device; nil: there is none. ch.mu is
// held.
func (ch *CompChannel) one() (*CQ, error) {
	if len(ch.soft) > 0 {
		cq := ch.soft[0]
		ch.soft = slices.Delete(ch.soft, 0, 1)
		if len(ch.soft) == 0 {
			ch.fd.lower()
		}
		cq.soft, cq.byUser = false, false
		return cq, nil
	}
	cq, err := ch.device()
	if cq != nil {
		cq.byUser = false
	}
	return cq, err
}

// forget drops the library's event of a CQ that is being closed.
func (ch *CompChannel) forget(cq *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if !cq.soft {
		return
	}
	cq.soft = false
	ch.soft = slices.DeleteFunc(ch.soft, func(c *CQ) bool { return c == cq })
	if len(ch.soft) == 0 {
		ch.fd.lower()
	}
}

// device takes one event of the device. Those of closed CQs are dropped. ch.mu is held.
func (ch *CompChannel) device() (*CQ, error) {
	for {
		h, ok, err := ch.d.Next()
		if err != nil || !ok {
			return nil, err
		}
		if cq := ch.dev.cqByHandle(h); cq != nil {
			cq.armed.Store(unarmed)
			return cq, nil
		}
	}
}

// try is called by the parker: in Event it takes one event; in CQ.Wait it takes all and
// wakes whom they concern. It says whether the goroutine that is parked should return.
func (ch *CompChannel) try() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if w := ch.leader; w != nil {
		ch.deliver()
		return w.woken || ch.fault != nil
	}
	if ch.got == nil && ch.fault == nil {
		ch.got, ch.fault = ch.one()
	}
	return ch.got != nil || ch.fault != nil
}

// deliver takes events and wakes whom they concern: all events, or, if there are no followers
// that could be concerned, those up to the leader's: what is left is found by who sleeps next.
// ch.mu is held.
func (ch *CompChannel) deliver() {
	for ch.leader == nil || !ch.leader.woken || ch.follow != nil {
		cq, err := ch.device()
		if err != nil {
			if !errors.Is(ch.fault, err) {
				ch.fault = err
			}
			return
		}
		if cq == nil {
			return
		}
		ch.wakeAll(cq)
	}
}

// drain is deliver for one that is not parked.
func (ch *CompChannel) drain() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.events == 0 {
		ch.deliver()
	}
}

// wakeAll wakes the goroutines in Wait for a CQ. All of them, as each may take only a
// part of what is there. ch.mu is held.
func (ch *CompChannel) wakeAll(cq *CQ) {
	ch.rouse(cq)
	for _, w := range cq.waiters {
		w.woken = true
		if w != ch.leader {
			w.signal()
		}
	}
}

func (w *waiter) signal() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// wake says that a CQ has something that no event of the device tells of: completions that
// the library made, or its end. It must be called without the CQ's lock.
func (cq *CQ) wake() {
	ch := cq.ch
	ch.mu.Lock()
	ch.wakeAll(cq)
	kick := ch.leader != nil && ch.leader.woken
	if c := ch.consumer; c != nil {
		c.news(cq)
	} else if cq.byUser && !cq.soft && !cq.closed() {
		cq.soft = true
		ch.soft = append(ch.soft, cq)
		if len(ch.soft) == 1 {
			ch.fd.raise()
		}
		kick = kick || ch.events > 0
	}
	ch.mu.Unlock()
	if kick {
		ch.park.Kick()
	}
}

// claim says that the user armed a CQ.
func (ch *CompChannel) claim(cq *CQ) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.parked > 0 || ch.consumer != nil {
		return ErrOneConsumer
	}
	cq.byUser = true
	return nil
}

// enlist prepares a goroutine to wait for a CQ.
func (ch *CompChannel) enlist(cq *CQ) (*waiter, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.events > 0 || ch.consumer != nil {
		return nil, ErrOneConsumer
	}
	w := ch.free
	if w != nil {
		ch.free, w.next = w.next, nil
	} else {
		w = &waiter{c: make(chan struct{}, 1)}
	}
	w.cq, w.woken = cq, false
	cq.waiters = append(cq.waiters, w)
	ch.parked++
	return w, nil
}

// delist ends that. Somebody else leads then.
func (ch *CompChannel) delist(w *waiter) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	all := w.cq.waiters
	for i := range all {
		if all[i] == w {
			all[i] = all[len(all)-1]
			all[len(all)-1] = nil
			w.cq.waiters = all[:len(all)-1]
			break
		}
	}
	ch.parked--
	ch.elect()
	select {
	case <-w.c:
	default:
	}
	w.cq = nil
	w.next, ch.free = ch.free, w
}

// elect has a follower lead if nobody does. ch.mu is held.
func (ch *CompChannel) elect() {
	if ch.leader == nil && ch.follow != nil {
		ch.follow.signal()
	}
}

// sleep waits until w's CQ has an event (Found), limit has passed (Expired; zero: there
// is none), ctx ends, or something else makes it worth to look (Kicked). No lock is held
// while it waits.
func (ch *CompChannel) sleep(ctx context.Context, w *waiter, limit time.Duration) (wait.Wake, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if w.woken {
		w.woken = false
		return wait.Found, nil
	}
	var why wait.Wake
	var err error
	if ch.leader == nil {
		ch.leader = w
		ch.mu.Unlock()
		why, err = ch.park.Park(ctx, limit)
		ch.mu.Lock()
		ch.leader = nil
		if err == nil {
			err = ch.fault
		}
		ch.fault = nil
		ch.elect()
	} else {
		ch.push(w)
		ch.mu.Unlock()
		why = w.wait(ctx, ch.ended, limit)
		ch.mu.Lock()
		ch.pull(w)
		if ch.closed() {
			err = ErrClosed
		}
	}
	if w.woken {
		w.woken, why = false, wait.Found
	}
	return why, err
}

// wait is the sleep of a follower.
func (w *waiter) wait(ctx context.Context, ended <-chan struct{}, limit time.Duration) wait.Wake {
	var after <-chan time.Time
	if limit > 0 {
		if w.timer == nil {
			w.timer = time.NewTimer(limit)
		} else {
			w.timer.Reset(limit)
		}
		defer w.timer.Stop()
		after = w.timer.C
	}
	select {
	case <-w.c:
	case <-ctx.Done():
	case <-ended:
	case <-after:
		return wait.Expired
	}
	return wait.Kicked
}

// push and pull keep the list of followers. ch.mu is held.
func (ch *CompChannel) push(w *waiter) {
	w.prev, w.next = nil, ch.follow
	if ch.follow != nil {
		ch.follow.prev = w
	}
	ch.follow = w
	w.following = true
}

func (ch *CompChannel) pull(w *waiter) {
	if !w.following {
		return
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		ch.follow = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	w.next, w.prev, w.following = nil, nil, false
}
