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
			over := w.closedCQ[0]
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
		over := w.closedCQ[q]
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

// steals starts a thread that polls a queue which others wait for.
func (w *world) steals(q int) {
	w.errs = append(w.errs, nil)
	w.s.Go("thief", w.ready(w.cqs[q]), func() {
		var dst [1]WC
		w.cqs[q].Poll(dst[:])
	})
}
