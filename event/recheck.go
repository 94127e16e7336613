package event

import (
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// recheck looks at queues that are armed and silent, as a kernel that is short of memory
// drops an event, and then the queue would sleep for ever. It counts what it finds, as that
// should never be anything (Stats.Rescued).
//
// Nothing ticks for queues that need it not. One to which completions must come, as sends
// are outstanding, is looked at in each period. One that waits for its peer is looked at
// once, and then after ever longer times; but not again if its events cannot be lost.
// Queues that fell silent at about the same time are looked at together.
type recheck struct {
	period   int64 // 0: off
	round    uint64
	levels   [recheckLevels]lookList // by the number of looks in vain, oldest first
	suspects lookList                // had completions without an event; that may be late
	devs     []*verbs.Device         // of the round
}

// recheckLevels bounds the time between two looks: 64 periods.
const recheckLevels = 7

// recheckMost bounds the period, so that no time overflows: a year.
const recheckMost = 1 << 55

// lookAt is what recheck knows of a queue.
type lookAt struct {
	in         *lookList // nil: it is not looked at
	prev, next *cqSource
	at         int64  // when it came into the list; of a suspect, when it is convicted
	level      int    // of the list that it was in last
	looking    bool   // it is served because its time was up
	must       uint64 // the last round in which sends were outstanding
}

// idle enters a queue that is armed and was found empty.
func (r *recheck) idle(s *cqSource, l *Loop) {
	look := &s.look
	if r.period == 0 || look.in == &r.suspects {
		return
	}
	level := 0
	if look.looking {
		look.looking = false
		switch {
		case look.must == r.round:
		case s.ch.c.Lossless():
			return
		default:
			level = min(look.level+1, recheckLevels-1)
		}
	}
	r.remove(s)
	look.level, look.at = level, l.now()
	r.levels[level].push(s)
}

// remove takes a queue out, as its event has come or it was closed.
func (r *recheck) remove(s *cqSource) {
	s.look.looking = false
	if s.look.in != nil {
		s.look.in.remove(s)
	}
}

func (r *recheck) interval(level int) int64 { return r.period << level }

// next gives the time of the next look; 0: there is none.
func (r *recheck) next() int64 {
	var at int64
	if s := r.suspects.first; s != nil {
		at = s.look.at
	}
	for i := range r.levels {
		if s := r.levels[i].first; s != nil {
			if t := s.look.at + r.interval(i); at == 0 || t < at {
				at = t
			}
		}
	}
	return at
}

// any reports whether there is something to look at.
func (r *recheck) any() bool { return r.period > 0 && r.next() > 0 }

// due reports whether a time has come.
func (r *recheck) due(now int64) bool {
	at := r.next()
	return at > 0 && at <= now
}

// suspect is called when a queue that was looked at had completions. Their event may be on
// its way.
func (l *Loop) suspect(s *cqSource) {
	s.look.looking = false
	s.look.at = l.now() + int64(s.ch.c.Grace(s.cq))
	l.recheck.suspects.push(s)
}

// tick looks at what is due, and after the descriptors of users.
func (l *Loop) tick() {
	r := &l.recheck
	if r.period == 0 {
		return
	}
	at := r.next()
	user := l.set.foreigners() > 0
	if at == 0 && !user {
		return
	}
	now := l.now()
	if user && now-l.swept >= r.period {
		l.sweep(now)
	}
	if at == 0 || now < at {
		return
	}
	for s := r.suspects.first; s != nil && s.look.at <= now; s = r.suspects.first {
		if s.ch.drain(); s.look.in != &r.suspects {
			continue // the event has come
		}
		r.remove(s)
		if s.w.closed.Load() {
			continue
		}
		if s.ch.c.Lost(s.cq) {
			l.stats.rescued.Add(1)
		}
		l.enqueue(s.w) // to be armed again
	}
	r.round++
	r.devs = r.devs[:0]
	for i := range r.levels {
		list := &r.levels[i]
		if list.first == nil || list.first.look.at+r.interval(i) > now {
			continue
		}
		// Those whose time is half over come along, so that one wake-up does for all.
		for s := list.first; s != nil && s.look.at+r.interval(i)/2 <= now; s = list.first {
			list.remove(s)
			if s.w.closed.Load() {
				continue
			}
			l.pendingOf(s)
			s.look.looking = true
			l.enqueue(s.w)
		}
	}
}

// pendingOf marks the queues of a device that must get completions, once in a round.
func (l *Loop) pendingOf(s *cqSource) {
	r := &l.recheck
	if slices.Contains(r.devs, s.cq.Device()) {
		return
	}
	r.devs = append(r.devs, s.cq.Device())
	s.ch.c.Pending(func(cq *verbs.CQ) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if w := l.cqs[cq]; w != nil {
			w.cq.look.must = r.round
		}
	})
}

// sweep looks whether descriptors of users were closed, a part of them in each turn.
func (l *Loop) sweep(now int64) {
	n, next := l.set.some(l.some[:], l.sweepAt)
	for _, e := range l.some[:n] {
		if l.set.renew(e) {
			e.w.fault = ErrClosed
			l.enqueue(e.w)
		}
	}
	clear(l.some[:n])
	if l.sweepAt = next; next == 0 {
		l.swept = now
	}
}

// lookList is a list of queues, oldest first.
type lookList struct{ first, last *cqSource }

func (q *lookList) push(s *cqSource) {
	s.look.in, s.look.prev, s.look.next = q, q.last, nil
	if q.last != nil {
		q.last.look.next = s
	} else {
		q.first = s
	}
	q.last = s
}

func (q *lookList) remove(s *cqSource) {
	if s.look.prev != nil {
		s.look.prev.look.next = s.look.next
	} else {
		q.first = s.look.next
	}
	if s.look.next != nil {
		s.look.next.look.prev = s.look.prev
	} else {
		q.last = s.look.prev
	}
	s.look.in, s.look.prev, s.look.next = nil, nil, nil
}

func nanoseconds(n int64) time.Duration { return time.Duration(n) }
