package verbs_test

import (
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestConsumer: the claim of a loop excludes the other ways, arms only what is not armed,
// and is told what the descriptor does not show.
func TestConsumer(t *testing.T) {
	t.Parallel()
	for _, only := range []bool{false, true} {
		r := newRig(t, &scripted.Config{Descriptors: only})
		ch, _ := r.channel()
		a, sa := r.cq(8, &verbs.CQConfig{Channel: ch})
		b, sb := r.cq(8, &verbs.CQConfig{Channel: ch})
		var news []*verbs.CQ
		c, err := ch.Consume(func(cq *verbs.CQ) { news = append(news, cq) })
		r.ok(err)
		if c.Lossless() == only {
			t.Errorf("lossless: %v", c.Lossless())
		}

		_, err = ch.Consume(nil)
		r.is(err, verbs.ErrOneConsumer, "second Consume")
		_, err = ch.Event(bg)
		r.is(err, verbs.ErrOneConsumer, "Event")
		_, _, err = ch.TryEvent()
		r.is(err, verbs.ErrOneConsumer, "TryEvent")
		_, err = a.Arm(ib.NotifyAny)
		r.is(err, verbs.ErrOneConsumer, "Arm")
		_, err = a.Next(bg)
		r.is(err, verbs.ErrOneConsumer, "Next")

		fd, err := c.FD()
		r.ok(err)
		arms := r.p.Count("arm")
		for range 3 { // the second and third ask nobody
			for _, cq := range []*verbs.CQ{a, b} {
				if ready, err := c.Arm(cq); ready || err != nil {
					t.Error(ready, err)
				}
			}
		}
		if n := r.p.Count("arm") - arms; n != 2 {
			t.Errorf("%d arms of two queues", n)
		}
		if waitReadable(fd, 0) == nil {
			t.Error("readable without an event")
		}
		sb.Push(driver.WC{}, false)
		if err := waitReadable(fd, 0); err != nil {
			t.Error(err)
		}
		if cq, ok, err := c.TryEvent(); cq != b || !ok || err != nil {
			t.Error(cq, ok, err)
		}
		if cq, ok, err := c.TryEvent(); ok || err != nil {
			t.Error(cq, ok, err)
		}
		// Completions that are there are said, armed or not.
		for range 2 {
			if ready, err := c.Arm(b); !ready || err != nil {
				t.Error(ready, err)
			}
		}
		r.poll(b)

		// A lost event: looked for in vain, counted once, and armed again.
		if c.Grace(a) <= 0 {
			t.Error("no grace")
		}
		sa.Swallow(1)
		sa.Push(driver.WC{}, false)
		r.poll(a)
		if !c.Lost(a) || c.Lost(a) || a.Stats().Rescued != 1 {
			t.Errorf("a lost event: %+v", a.Stats())
		}
		if ready, err := c.Arm(a); ready || err != nil || !sa.Armed() {
			t.Error(ready, err, sa.Armed())
		}

		if len(news) != 0 {
			t.Errorf("news of %d", len(news))
		}
		r.ok(a.Close())
		_, err = c.Arm(a)
		r.is(err, net.ErrClosed, "Arm of a closed queue")
		r.ok(ch.Close())
		_, _, err = c.TryEvent()
		r.is(err, net.ErrClosed, "TryEvent of a closed channel")
		_, err = c.FD()
		r.is(err, net.ErrClosed, "FD of a closed channel")
		if !slices.Contains(news, a) || news[len(news)-1] != nil {
			t.Errorf("news: %v", news)
		}
		c.Close()
		c.Close()
		_, err = ch.Consume(nil)
		r.is(err, net.ErrClosed, "Consume of a closed channel")
		_, err = (*verbs.CompChannel)(nil).Consume(nil)
		r.is(err, syscall.EINVAL, "Consume of nil")
	}
}

// TestConsumerBeside: there is no claim while another waits, and none left after Close.
func TestConsumerBeside(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ch, _ := r.channel()
	cq, scq := r.cq(8, &verbs.CQConfig{Channel: ch})
	c, err := ch.Consume(func(*verbs.CQ) {})
	r.ok(err)
	_, err = c.Arm(cq)
	r.ok(err)
	c.Close()
	scq.Push(driver.WC{}, false) // the event of the claim that has ended
	r.fires(ch, cq, "event of an earlier claim")
}

// TestConsumerPending: the queues to which completions must come.
func TestConsumerPending(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
	ch, err := cq.Channel()
	r.ok(err)
	c, err := ch.Consume(func(*verbs.CQ) {})
	r.ok(err)
	defer c.Close()
	pending := func() (n int) {
		c.Pending(func(q *verbs.CQ) {
			if q == cq {
				n++
			}
		})
		return n
	}
	if n := pending(); n != 0 {
		t.Errorf("%d pending", n)
	}
	r.ok(qp.PostSend(verbs.Send(1, r.mr.SGE(0, 8), ib.Signaled)))
	if n := pending(); n != 1 {
		t.Errorf("%d pending, want 1", n)
	}
	sqp.CompleteSend(1, ib.StatusSuccess)
	r.poll(cq)
	if n := pending(); n != 0 {
		t.Errorf("%d pending at the end", n)
	}
}

// TestConsumerZero: nil and zero consumers and queues give EINVAL, or nothing.
func TestConsumerZero(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	cq, _ := r.cq(8, nil)
	ch, err := cq.Channel()
	r.ok(err)
	real, err := ch.Consume(func(*verbs.CQ) {})
	r.ok(err)
	defer real.Close()
	for _, c := range []*verbs.Consumer{nil, {}} {
		_, err := c.FD()
		r.is(err, syscall.EINVAL, "FD")
		_, _, err = c.TryEvent()
		r.is(err, syscall.EINVAL, "TryEvent")
		_, err = c.Arm(cq)
		r.is(err, syscall.EINVAL, "Arm")
		c.Pending(func(*verbs.CQ) { t.Error("Pending") })
		if c.Lossless() {
			t.Error("Lossless")
		}
		c.Close()
	}
	for _, q := range []*verbs.CQ{nil, {}} {
		_, err := real.Arm(q)
		r.is(err, syscall.EINVAL, "Arm of no queue")
		if real.Look(q) || real.LookFor(q, time.Second) || real.Lost(q) || real.Grace(q) != 0 {
			t.Error("no queue has something")
		}
	}
}

func TestAsyncOnClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	stop := r.dev.Async().OnClose(func() { t.Error("called") })
	stop()
	(*verbs.AsyncEvents)(nil).OnClose(nil)()
}
