package event

import (
	"fmt"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// Source is something with a descriptor that must be armed before a sleep. What has a
// level-true descriptor of its own (an rdma.Conn, another Loop) needs only File. All
// methods are called by the loop, in a turn, but for the first Prepare and FD, which
// Add calls.
type Source interface {
	// FD gives a descriptor that is readable while Serve would do something, provided that
	// Prepare has said that it is not ready. It is asked for once, and stays open until the
	// watch is closed.
	FD() (int, error)
	// Prepare arms what must be armed, and looks again: ready means that Serve has work
	// now. It is called by Add, and after each Serve before the loop sleeps; not for a
	// source that was armed before and has had nothing since.
	Prepare() (ready bool, err error)
	// Serve does up to max pieces of work without blocking and gives their number. max of
	// them means that there may be more.
	Serve(max int) (int, error)
}

// Add watches a source of another kind. What a turn counts as handler calls are the pieces
// of work of Serve.
func (l *Loop) Add(s Source) (*Watch, error) {
	if l == nil || l.set == nil || s == nil {
		return nil, errNil("watch source")
	}
	u := &userSource{s}
	w := &Watch{l: l, src: u, arm: u}
	fd, err := s.FD()
	var ready bool
	if err == nil {
		ready, err = s.Prepare()
	}
	if err != nil {
		return nil, opError("watch", u.name(), err)
	}
	w.e = entry{fd: fd, want: unix.PollIn, foreign: true, do: toWatch, w: w}
	if err := w.enroll(); err != nil {
		return nil, err
	}
	if ready {
		w.post()
	}
	return w, nil
}

// userSource is a Source.
type userSource struct{ s Source }

func (u *userSource) name() string { return fmt.Sprintf("source %T", u.s) }

func (u *userSource) serve(w *Watch, most int) (bool, error) {
	if w.stale.Load() {
		return false, ErrClosed
	}
	w.got = 0
	n, err := u.s.Serve(most)
	w.l.n += n
	return n >= most, err
}

func (u *userSource) prepare() (bool, error) { return u.s.Prepare() }
func (u *userSource) detach(w *Watch)        { w.l.drop(&w.e) }
