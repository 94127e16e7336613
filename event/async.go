package event

import (
	"github.com/verbena-rdma/verbena/verbs"
)

// Async calls f for each asynchronous event of a device. Each event goes to one reader: of
// several loops, or a loop and a goroutine in Event, each gets some. To see all, one loop
// reads and the others Observe.
func (l *Loop) Async(a *verbs.AsyncEvents, f func(verbs.AsyncEvent)) (*Watch, error) {
	if l == nil || l.set == nil || a == nil || f == nil {
		return nil, errNil("watch asynchronous events")
	}
	s := &asyncSource{a: a, f: f}
	w := &Watch{l: l, src: s}
	s.stop = a.OnClose(w.post)
	if err := w.attach(a.FD()); err != nil {
		return nil, err
	}
	return w, nil
}

// asyncSource is the asynchronous events of a device.
type asyncSource struct {
	a    *verbs.AsyncEvents
	f    func(verbs.AsyncEvent)
	stop func()
}

func (s *asyncSource) name() string { return "asynchronous events" }

func (s *asyncSource) serve(w *Watch, most int) (bool, error) {
	for i := range most {
		ev, ok, err := s.a.TryEvent()
		if err != nil {
			return false, err
		}
		if !ok {
			return false, w.nothing(i)
		}
		w.l.n++
		s.f(ev)
		if w.closed.Load() {
			return false, nil
		}
	}
	return true, nil
}

func (s *asyncSource) detach(w *Watch) {
	w.l.drop(&w.e)
	s.stop()
}
