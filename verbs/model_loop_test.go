package verbs

import (
	"errors"
	"net"

	"github.com/verbena-rdma/verbena/ib"
)

// habits are what a program with a loop of its own does right or wrong. All false is
// right, in a program that is told of edges: that its descriptor begins to be readable.
type habits struct {
	event   bool   // it sleeps in CompChannel.Event instead
	deaf    []bool // by queue: what Arm says about completions is ignored
	one     bool   // of the events behind an edge it takes one
	unasked bool   // it sleeps before it has armed for the first time
}

var errAll = errors.New("all completions came")

// loops starts a thread with the loop of a program that waits for several queues: arm,
// look again, sleep, take all events, look at the queues that they name.
func (w *world) loops(h habits) {
	i := len(w.errs)
	w.errs = append(w.errs, nil)
	w.s.Go("loop", w.ready(w.cqs...), func() {
		if err := w.loop(h); !errors.Is(err, errAll) {
			w.errs[i] = err
		}
	})
}

func (w *world) loop(h habits) error {
	armed := w.awaits // an event is still to come
	for first := true; ; first = false {
		work := false
		for q, cq := range w.cqs {
			if armed[q] || first && h.unasked {
				continue
			}
			w.s.Gate("call", "")
			ready, err := cq.Arm(ib.NotifyAny)
			if errors.Is(err, net.ErrClosed) && cq.closed() {
				continue // what was closed is looked at no more
			}
			if err != nil {
				return err
			}
			armed[q] = true
			if ready && (h.deaf == nil || !h.deaf[q]) {
				work = true
				if err := w.take(q); err != nil {
					return err
				}
			}
		}
		if work {
			continue
		}
		if err := w.sleep(h, armed); err != nil {
			return err
		}
		for {
			over := w.closedCQ[0].Load()
			w.s.Gate("call", "")
			cq, ok, err := w.ch.TryEvent()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if over && cq == w.cqs[0] {
				w.wrong = append(w.wrong, errors.New("an event of a queue that was closed"))
			}
			armed[w.index(cq)] = false
			if err := w.take(w.index(cq)); err != nil {
				return err
			}
			if h.one {
				break
			}
		}
	}
}

// sleep waits for an edge, or for an event.
func (w *world) sleep(h habits, armed []bool) error {
	if h.event {
		w.s.Gate("call", "")
		w.dozing = true
		cq, err := w.ch.Event(w.ctx)
		w.dozing = false
		if err != nil {
			return err
		}
		armed[w.index(cq)] = false
		return w.take(w.index(cq))
	}
	w.dozing = true
	defer func() { w.dozing = false }()
	select {
	case <-w.edge:
		w.s.Gate("woken", "")
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// take polls a queue to the end.
func (w *world) take(q int) error {
	var dst [1]WC
	for {
		over := w.closedCQ[q].Load()
		w.s.Gate("call", "")
		n, err := w.cqs[q].Poll(dst[:])
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if over {
			w.wrong = append(w.wrong, errors.New("a completion of a queue that was closed"))
		}
		w.got[q] = append(w.got[q], dst[0].ID)
		all := true
		for q, n := range w.cfg.completions {
			all = all && len(w.got[q]) == n
		}
		if all {
			return errAll
		}
	}
}

// consumes starts a thread with the loop of an event loop: it claims the channel, takes all
// events, polls the queues that they name, arms those, and sleeps until an edge of the
// descriptor or news.
func (w *world) consumes(h habits) {
	i := len(w.errs)
	w.errs = append(w.errs, nil)
	w.s.Go("loop", w.ready(w.cqs...), func() {
		if err := w.consume(h); !errors.Is(err, errAll) {
			w.errs[i] = err
		}
	})
}

func (w *world) consume(h habits) error {
	w.news = make(chan struct{}, 1)
	c, err := w.ch.Consume(func(*CQ) {
		select {
		case w.news <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	w.consuming = true
	defer func() {
		w.consuming = false
		c.Close()
	}()
	due := w.awaits // queues to look at, and to arm
	for q := range due {
		due[q] = true
	}
	for {
		for {
			over := w.closedCQ[0].Load()
			w.s.Gate("call", "")
			cq, ok, err := c.TryEvent()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if over && cq == w.cqs[0] {
				w.wrong = append(w.wrong, errors.New("an event of a queue that was closed"))
			}
			due[w.index(cq)] = true
			if h.one {
				break
			}
		}
		work := false
		for q, cq := range w.cqs {
			if !due[q] {
				continue
			}
			if err := w.take(q); err != nil {
				return err
			}
			w.s.Gate("call", "")
			ready, err := c.Arm(cq)
			if errors.Is(err, net.ErrClosed) && cq.closed() {
				due[q] = false
				continue
			}
			if err != nil {
				return err
			}
			due[q] = ready && (h.deaf == nil || !h.deaf[q])
			work = work || due[q]
		}
		if work {
			continue
		}
		if err := w.doze(); err != nil {
			return err
		}
	}
}

// doze sleeps until an edge or news.
func (w *world) doze() error {
	w.dozing = true
	defer func() { w.dozing = false }()
	select {
	case <-w.edge:
	case <-w.news:
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
	w.s.Gate("woken", "")
	return nil
}

// steals starts a thread that polls a queue which others wait for.
func (w *world) steals(q int) {
	w.errs = append(w.errs, nil)
	w.s.Go("thief", w.ready(w.cqs[q]), func() {
		var dst [1]WC
		w.cqs[q].Poll(dst[:])
	})
}
