package rdmatest

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area J, its limit and its sizes.
func areaSRQLimit() []check {
	return []check{
		{"C-164_Sizes", 0, srqSizes},
		{"C-167_LimitOfConfig", 0, srqLimitOfConfig},
		{"C-168_LimitTooLate", 0, srqLimitTooLate},
	}
}

// srqSizes: a queue has at least the size that was asked for, up to the device's limits, and no
// queue can be had beyond them, nor one of nothing.
func srqSizes(t *tb) {
	t.supports(verbs.FeatureSRQ)
	pd := t.pd(t.b)
	limits, err := t.b.Attr()
	t.ok(err, "query device")
	if limits.MaxSRQ < 1 || limits.MaxSRQWR < 1 || limits.MaxSRQSGE < 1 {
		t.Errorf("a device with shared queues has %d, of %d receives with %d pieces", limits.MaxSRQ, limits.MaxSRQWR, limits.MaxSRQSGE)
	}
	for _, c := range []verbs.SRQConfig{
		{MaxWR: 1, MaxSGE: 1},
		{MaxWR: 8, MaxSGE: 1},
		{MaxWR: 8, MaxSGE: limits.MaxSRQSGE},
		{MaxWR: limits.MaxSRQWR, MaxSGE: 1},
	} {
		s, err := pd.CreateSRQ(c)
		t.ok(err, "a queue of %d receives with %d pieces", c.MaxWR, c.MaxSGE)
		n, _, err := s.Query()
		t.ok(err, "query a queue of %d", c.MaxWR)
		if n < c.MaxWR || s.Room() != c.MaxWR {
			t.Errorf("a queue of %d has %d, and room for %d", c.MaxWR, n, s.Room())
		}
		t.closed(s, "shared queue")
	}
	for _, c := range []verbs.SRQConfig{
		{MaxWR: -1},
		{MaxWR: limits.MaxSRQWR + 1},
		{MaxSGE: -1},
		{MaxSGE: limits.MaxSRQSGE + 1},
		{MaxWR: 1 << 30},
		{MaxSGE: 1 << 30},
	} {
		s, err := pd.CreateSRQ(c)
		t.isErr(err, einval, "a queue of %d receives with %d pieces", c.MaxWR, c.MaxSGE)
		if err == nil {
			s.Close()
		}
	}
}

// srqLimitOfConfig: a limit can be given when the queue is made.
func srqLimitOfConfig(t *tb) {
	t.supports(verbs.FeatureSRQ)
	a, b := t.pair(func(l *link) { l.srq = &verbs.SRQConfig{MaxWR: 16, Limit: 3} })
	t.drainAsync(t.b)
	t.srqLimitIs(b, 3, "as made")
	for i := range 4 {
		b.share(uint64(i), i*64, 64)
	}
	t.noAsync(t.b)
	for i := range 4 {
		a.send(verbs.Send(uint64(i), a.sge(0, 8), ib.Signaled))
		a.sent(uint64(i), ib.StatusSuccess)
		b.got(uint64(i), ib.StatusSuccess)
		if i == 1 { // 2 are left
			t.srqLimitEvent(b)
		} else {
			t.noAsync(t.b)
		}
	}
}

// srqLimitTooLate: a limit above what is left has its event at once, without traffic, and once.
func srqLimitTooLate(t *tb) {
	a, b := t.shared(16)
	t.drainAsync(t.b)
	for i := range 2 {
		b.share(uint64(i), i*64, 64)
	}
	t.ok(b.srq.SetLimit(5), "set the limit")
	t.srqLimitEvent(b)
	for i := range 2 {
		t.noAsync(t.b)
		a.send(verbs.Send(uint64(i), a.sge(0, 8), ib.Signaled))
		a.sent(uint64(i), ib.StatusSuccess)
		b.got(uint64(i), ib.StatusSuccess)
	}
	t.noAsync(t.b)

	// The next arm has an event of its own.
	for i := range 3 {
		b.share(uint64(i), i*64, 64)
	}
	t.ok(b.srq.SetLimit(3), "set the limit again")
	t.noAsync(t.b)
	t.srqLimitIs(b, 3, "3 are left")
	a.send(verbs.Send(0, a.sge(0, 8), ib.Signaled))
	a.sent(0, ib.StatusSuccess)
	b.got(0, ib.StatusSuccess)
	t.srqLimitEvent(b)
	t.noAsync(t.b)
}

// srqLimitEvent wants the event of the limit, after which there is none.
func (t *tb) srqLimitEvent(b *end) {
	t.Helper()
	if ev := t.asyncEvent(t.b); ev.Type != ib.EventSRQLimitReached || ev.SRQ != b.srq {
		t.Errorf("event %+v", ev)
	}
	t.srqLimitIs(b, 0, "after its event")
}

func (t *tb) srqLimitIs(b *end, want int, when string) {
	t.Helper()
	_, limit, err := b.srq.Query()
	t.ok(err, "query the shared queue")
	if limit != want {
		t.Errorf("%s: limit %d, want %d", when, limit, want)
	}
}
