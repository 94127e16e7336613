package event

import (
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// CM calls f for each event of a connection manager's channel. The loop is the channel's
// only consumer: Event gives verbs.ErrOneConsumer to others. To fetch an event takes
// system calls, and moves queue pairs through their states; it waits for no peer.
//
// An id may be moved to a channel of another loop (cm.ID.Migrate) by a handler or by any
// goroutine: events that the old loop has not fetched go with it.
//
// The error wraps EINVAL (nil ch or f), ErrClosed, or verbs.ErrOneConsumer if a loop, this one
// too, has the channel already.
func (l *Loop) CM(ch *cm.EventChannel, f func(cm.Event)) (*Watch, error) {
	if l == nil || l.set == nil || ch == nil || f == nil {
		return nil, errNil("watch event channel")
	}
	s := &cmSource{ch: ch, try: ch.TryEvent, f: f}
	w := &Watch{l: l, src: s}
	var err error
	if s.release, err = ch.Consume(w.post); err != nil {
		return nil, opError("watch", s.name(), err)
	}
	if err := w.attach(ch.FD()); err != nil {
		return nil, err
	}
	return w, nil
}

// attach takes in a watch of one of the library's descriptors, which a call has given.
func (w *Watch) attach(fd int, err error) error {
	if err != nil {
		w.detach()
		return opError("watch", w.src.name(), err)
	}
	w.e = entry{fd: fd, want: unix.PollIn, do: toWatch, w: w}
	return w.enroll()
}

// cmSource is an event channel.
type cmSource struct {
	ch      *cm.EventChannel
	try     func() (cm.Event, bool, error) // ch.TryEvent: made once, as a method value allocates
	f       func(cm.Event)
	release func()
}

func (s *cmSource) name() string { return "event channel" }

func (s *cmSource) serve(w *Watch, most int) (bool, error) {
	return serveEvents(w, most, s.try, s.f)
}

// nothing is called when a source that had n events has no more. The error is that of a
// descriptor that will never be readable again.
func (w *Watch) nothing(n int) error {
	got := w.got
	w.got = 0
	switch {
	case w.stale.Load():
		return ErrClosed
	case n == 0 && gone(got):
		return errGone
	}
	return nil
}

func (s *cmSource) detach(w *Watch) {
	w.l.drop(&w.e)
	s.release()
}
