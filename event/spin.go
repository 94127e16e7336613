package event

import "github.com/verbena-rdma/verbena/internal/gosched"

// spinOthers is the time between two looks at the other sources at least, in nanoseconds.
const spinOthers = 5000

// spin looks, for a bounded time and before anything is armed, whether the queues that had
// completions last have more, and whether others want something. It leaves the set alone
// meanwhile, but for a glance now and then if it has other sources. It looks at the clock
// after each look, and lets other goroutines run in between as CQ.Wait does.
func (l *Loop) spin(deadline int64) (found bool) {
	if len(l.hot) == 0 || !l.cfg.Spin.Adaptive && l.cfg.Spin.Max <= 0 {
		return false
	}
	var budget int64
	queues := 0
	for _, w := range l.hot {
		if w.cq != nil {
			queues++
			budget = max(budget, int64(w.cq.spinner.Budget()))
		}
	}
	if budget == 0 {
		return false
	}
	start := l.now()
	end := start + budget
	if end < start {
		end = 1<<63 - 1
	}
	if deadline > 0 {
		end = min(end, deadline)
	}
	if at := l.recheck.next(); at > 0 {
		end = min(end, at)
	}
	l.mu.Lock()
	nested := l.nested
	others := len(l.watches) > queues
	if len(l.timers.t) > 0 {
		end = min(end, l.timers.t[0].when)
	}
	if !nested {
		l.spinEnd = end
	}
	l.mu.Unlock()
	if nested {
		return false
	}
	defer l.spun()
	l.stats.spins.Add(1)
	processors := gosched.Processors()
	glance := start + spinOthers
	for i := 1; ; i++ {
		for _, w := range l.hot {
			if w.cq != nil && w.cq.spies(len(l.hot) == 1, end-start) {
				w.cq.spinner.Hit(nanoseconds(l.now() - start))
				w.cq.since, w.cq.spun = 0, 0
				l.enqueue(w)
				found = true
			}
		}
		if found {
			l.stats.spinHits.Add(1)
			return true
		}
		if l.mail.Load() {
			return true
		}
		now := l.now()
		if now >= end {
			break
		}
		if others && now >= glance {
			l.hits, _ = l.backend.wait(false, l.hits) // an error comes again
			if len(l.hits) > 0 {
				l.collect()
				return true
			}
			after := l.now()
			glance = after + max(spinOthers, 4*(after-now))
		}
		l.pace.Turn(processors, i, gosched.Now())
	}
	spun := l.now() - start
	for _, w := range l.hot {
		if w.cq != nil && w.cq.spinner.Learns() && w.cq.spinner.Budget() > 0 {
			w.cq.since, w.cq.spun = start, spun
		}
	}
	return false
}

// spies looks whether the queue has something: for a while if it is the only one.
func (s *cqSource) spies(alone bool, most int64) bool {
	if alone {
		return s.ch.c.LookFor(s.cq, nanoseconds(most))
	}
	return s.ch.c.Look(s.cq)
}

// spun ends a spin.
func (l *Loop) spun() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spinEnd = 0
}
