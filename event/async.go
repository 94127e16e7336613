package event

import (
	"github.com/verbena-rdma/verbena/verbs"
)

// Async calls f for each asynchronous event of a device. Each event goes to one reader: of
// several loops, or a loop and a goroutine in Event, each gets some. To see all, one loop
// reads and the others Observe. The error wraps EINVAL (nil a or f), ErrClosed, or what
// AsyncEvents.FD gives.
func (l *Loop) Async(a *verbs.AsyncEvents, f func(verbs.AsyncEvent)) (*Watch, error) {
	if l == nil || l.set == nil || a == nil || f == nil {
		return nil, errNil("watch asynchronous events")
	}
	s := &asyncSource{a: a, try: a.TryEvent, f: f}
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
	try  func() (verbs.AsyncEvent, bool, error) // a.TryEvent: made once, as a method value allocates
	f    func(verbs.AsyncEvent)
	stop func()
}

func (s *asyncSource) name() string { return "asynchronous events" }

func (s *asyncSource) serve(w *Watch, most int) (bool, error) {
	return serveEvents(w, most, s.try, s.f)
}

func (s *asyncSource) detach(w *Watch) {
	w.l.drop(&w.e)
	s.stop()
}
