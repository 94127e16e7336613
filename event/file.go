package event

import (
	"fmt"
	"strings"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// Mask is what a descriptor is ready for.
type Mask uint8

const (
	Readable Mask = 1 << iota // there are data, a connection, or the end of the file
	Writable                  // there is room
	HangUp                    // the other end is closed
	Failed                    // there is an error, see SO_ERROR
)

// String gives names like "Readable|HangUp".
func (m Mask) String() string {
	var names []string
	for i, s := range []string{"Readable", "Writable", "HangUp", "Failed"} {
		if m&(1<<i) != 0 {
			names = append(names, s)
		}
	}
	if rest := m &^ (Readable | Writable | HangUp | Failed); rest != 0 || m == 0 {
		names = append(names, fmt.Sprint(uint8(rest)))
	}
	return strings.Join(names, "|")
}

// File calls f while the descriptor is ready for one of m: once a turn, until f has done
// what makes it unready (level, not edge). m has Readable, Writable, or both, or is zero for
// a watch that sleeps until SetMask. HangUp and Failed are told unasked, but not to one that
// sleeps; select tells them only together with one of the others.
//
// The descriptor is a socket, pipe, eventfd, another loop's FD, or whatever else epoll
// takes, and should be non-blocking. It stays the caller's, who closes the watch before the
// descriptor. One descriptor has one watch in a loop (ErrWatched). Do not give it a
// descriptor that Go's runtime uses (os.File.Fd, net.Conn's): use a duplicate, or
// syscall.RawConn.
func (l *Loop) File(fd int, m Mask, f func(Mask)) (*Watch, error) {
	if l == nil || l.set == nil || f == nil {
		return nil, errNil("watch descriptor")
	}
	s := &fileSource{fd: fd, f: f}
	want, err := m.want()
	if err != nil {
		return nil, opError("watch", s.name(), err)
	}
	w := &Watch{l: l, src: s}
	w.e = entry{fd: fd, want: want, foreign: true, do: toWatch, w: w}
	if err := w.enroll(); err != nil {
		return nil, err
	}
	return w, nil
}

// want gives the conditions that the system is asked for.
func (m Mask) want() (uint32, error) {
	var want uint32
	if m&Readable != 0 {
		want |= unix.PollIn
	}
	if m&Writable != 0 {
		want |= unix.PollOut
	}
	if m != 0 && want == 0 || m > Readable|Writable|HangUp|Failed {
		return 0, invalid("mask", "", "%v has neither Readable nor Writable, or what is no mask", m)
	}
	return want, nil
}

func maskOf(got uint32) (m Mask) {
	if got&unix.PollIn != 0 {
		m |= Readable
	}
	if got&unix.PollOut != 0 {
		m |= Writable
	}
	if got&unix.PollHup != 0 {
		m |= HangUp
	}
	if got&unix.PollErr != 0 {
		m |= Failed
	}
	return m
}

// SetMask changes what a watch of File waits for; zero has it sleep. The error is that of a
// watch of another kind, or ErrClosed of a watch that is closed, or of a descriptor that is
// (which is noticed if the mask changes).
func (w *Watch) SetMask(m Mask) error {
	if w == nil || w.l == nil {
		return errNil("set mask")
	}
	s, ok := w.src.(*fileSource)
	if !ok {
		return invalid("set mask", w.src.name(), "only a watch of File has a mask")
	}
	want, err := m.want()
	switch {
	case err != nil:
		return opError("set mask", s.name(), err)
	case w.closed.Load():
		return opError("set mask", s.name(), ErrClosed)
	}
	if err := w.l.set.change(&w.e, want); err != nil {
		return opError("set mask", s.name(), err)
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.l.changed()
	return nil
}

// fileSource is a descriptor.
type fileSource struct {
	fd int
	f  func(Mask)
}

func (s *fileSource) name() string { return fmt.Sprintf("descriptor %d", s.fd) }

func (s *fileSource) serve(w *Watch, _ int) (bool, error) {
	if w.stale.Load() {
		return false, ErrClosed
	}
	m := maskOf(w.got)
	w.got = 0
	want, asked := w.l.set.wants(&w.e)
	if m &= maskOf(want) | HangUp | Failed; m == 0 || !asked {
		return false, nil // the mask was changed since it was found ready
	}
	w.l.n++
	s.f(m)
	return false, nil
}

func (s *fileSource) detach(w *Watch) { w.l.drop(&w.e) }
