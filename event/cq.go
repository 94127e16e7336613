package event

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/internal/wait"
	"github.com/verbena-rdma/verbena/verbs"
)

// CQ calls f for each completion. Several queues may share a completion channel; the
// loop becomes the consumer of the channel of each queue that it watches, so Wait and Arm
// of the queue, and Event of the channel, give verbs.ErrOneConsumer until the last of the
// channel's watches is closed, and two loops cannot share a channel.
//
// f gets completions one after the other, as verbs.CQ.Poll gives them, and what it closes
// is not given to it any more. Completions that are there already are given in the next turn:
// nothing must be armed. The loop arms for any completion; who wants events for solicited ones
// only uses CompChannel.FD with File, and Arm. The policy of CQ.SetSpin is that of Wait; the
// loop's is Config.Spin.
//
// The error wraps EINVAL (nil cq or f), ErrWatched, ErrClosed, verbs.ErrOneConsumer if
// somebody else consumes the channel, or what CQ.Channel gives.
func (l *Loop) CQ(cq *verbs.CQ, f func(verbs.WC)) (*Watch, error) {
	if l == nil || l.set == nil || cq == nil || f == nil {
		return nil, errNil("watch completion queue")
	}
	ch, err := cq.Channel()
	if err != nil {
		return nil, opError("watch", "completion queue", err)
	}
	s := &cqSource{cq: cq, f: f}
	s.spinner.Set(l.cfg.Spin.Max, l.cfg.Spin.Adaptive)
	w := &Watch{l: l, src: s, arm: s, cq: s}
	s.w = w

	l.addMu.Lock()
	defer l.addMu.Unlock()
	if s.ch, err = l.claim(ch); err != nil {
		return nil, opError("watch", s.name(), err)
	}
	l.mu.Lock()
	switch {
	case l.closed:
		err = ErrClosed
	case l.cqs[cq] != nil:
		err = ErrWatched
	default:
		l.cqs[cq] = w
		l.count(w)
		s.ch.queues[w] = struct{}{}
		// Arm and look at once: it may have completions that no event will tell of.
		w.postLocked()
	}
	l.mu.Unlock()
	if err != nil {
		s.ch.unclaim()
		return nil, opError("watch", s.name(), err)
	}
	return w, nil
}

// cqSource is a completion queue.
type cqSource struct {
	cq  *verbs.CQ
	ch  *channel
	f   func(verbs.WC)
	w   *Watch
	one [1]verbs.WC

	spinner wait.Spinner
	since   int64 // when the wait began that the spinner is to be told of; 0: it is not
	spun    int64 // of that

	look lookAt // for the re-check
}

func (s *cqSource) name() string {
	return fmt.Sprintf("completion queue of %d on %s", s.cq.Cap(), deviceName(s.cq.Device()))
}

func deviceName(d *verbs.Device) string {
	if d == nil {
		return "no device"
	}
	return d.Info().Name
}

// serve takes a completion only when its handler is about to be called, so that nothing is
// lost by a panic, nor given after a queue pair's Close.
func (s *cqSource) serve(w *Watch, most int) (bool, error) {
	for i := range most {
		n, err := s.cq.Poll(s.one[:])
		if n == 0 {
			if err == nil {
				err = s.ch.err
			}
			return false, err
		}
		if i == 0 && s.look.looking {
			w.l.suspect(s)
		}
		w.l.n++
		s.f(s.one[0])
		if w.closed.Load() {
			return false, nil
		}
	}
	return true, nil
}

func (s *cqSource) prepare() (bool, error) {
	ready, err := s.ch.c.Arm(s.cq)
	if !ready && err == nil {
		err = s.ch.err
	}
	return ready, err
}

// idle is called when the queue is armed and was found empty.
func (s *cqSource) idle() {
	l := s.w.l
	if s.spinner.Learns() && s.since == 0 {
		s.since = l.now()
	}
	l.recheck.idle(s, l)
}

// fired is called when its event has come.
func (s *cqSource) fired() {
	s.waited()
	s.w.l.recheck.remove(s)
}

// waited tells the spinner how long a wait took that did not end with a spin.
func (s *cqSource) waited() {
	if s.since != 0 {
		s.spinner.Miss(nanoseconds(s.spun), nanoseconds(s.w.l.now()-s.since))
		s.since, s.spun = 0, 0
	}
}

func (s *cqSource) detach(w *Watch) {
	l := w.l
	l.addMu.Lock()
	defer l.addMu.Unlock()
	l.mu.Lock()
	delete(l.cqs, s.cq)
	delete(s.ch.queues, w)
	l.mu.Unlock()
	s.ch.unclaim()
}

// channel is a completion channel that the loop consumes.
type channel struct {
	l      *Loop
	ch     *verbs.CompChannel
	c      *verbs.Consumer
	e      entry
	stale  atomic.Bool         // its descriptor is closed
	refs   int                 // watches; under l.addMu
	queues map[*Watch]struct{} // under l.mu

	err error // of a channel that gives no more events; of who is in a turn
}

// claim gives the channel, counting its users. addMu is held.
func (l *Loop) claim(vc *verbs.CompChannel) (*channel, error) {
	l.mu.Lock()
	ch := l.channels[vc]
	l.mu.Unlock()
	if ch != nil {
		ch.refs++
		return ch, nil
	}
	ch = &channel{l: l, ch: vc, refs: 1, queues: map[*Watch]struct{}{}}
	var err error
	if ch.c, err = vc.Consume(ch.news); err != nil {
		return nil, err
	}
	ch.e = entry{want: unix.PollIn, do: toChannel, ch: ch}
	if ch.e.fd, err = ch.c.FD(); err == nil {
		l.mu.Lock()
		if err = l.add(&ch.e); err == nil {
			l.channels[vc] = ch
		}
		l.mu.Unlock()
	}
	if err != nil {
		ch.c.Close()
		return nil, err
	}
	return ch, nil
}

// unclaim ends the claim with its last user. addMu is held.
func (ch *channel) unclaim() {
	if ch.refs--; ch.refs > 0 {
		return
	}
	l := ch.l
	l.mu.Lock()
	delete(l.channels, ch.ch)
	l.mu.Unlock()
	l.drop(&ch.e)
	ch.c.Close()
}

// news is called by package verbs, see verbs.CompChannel.Consume.
func (ch *channel) news(cq *verbs.CQ) {
	l := ch.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if cq == nil {
		l.lose(ch)
	} else if w := l.cqs[cq]; w != nil {
		w.postLocked()
	}
}

// lose has the loop look at a channel that was closed. mu is held.
func (l *Loop) lose(ch *channel) {
	if !l.closed {
		l.lost = append(l.lost, ch)
		l.note()
	}
}

// ready is called when the descriptor is.
func (ch *channel) ready(got uint32) {
	if !ch.drain() && gone(got) {
		ch.fail(errGone)
	}
}

// drainMost bounds the events that are taken in one turn.
const drainMost = 1 << 12

// drain takes all events and has the queues that they name served. It reports whether
// there were any, or an error.
func (ch *channel) drain() (any bool) {
	l := ch.l
	for range drainMost {
		cq, ok, err := ch.c.TryEvent()
		if err != nil {
			ch.fail(err)
			return true
		}
		if !ok {
			break
		}
		any = true
		l.mu.Lock()
		w := l.cqs[cq]
		l.mu.Unlock()
		if w != nil && !w.closed.Load() {
			w.cq.fired()
			l.enqueue(w)
		}
	}
	if ch.stale.Load() {
		ch.fail(ErrClosed)
		return true
	}
	return any
}

// fail ends a channel: its queues are served once more, and then have its error.
func (ch *channel) fail(err error) {
	if ch.err != nil {
		return
	}
	ch.err = err
	l := ch.l
	l.drop(&ch.e)
	l.mu.Lock()
	all := slices.SortedFunc(maps.Keys(ch.queues), bySeq)
	l.mu.Unlock()
	for _, w := range all {
		l.enqueue(w)
	}
}
