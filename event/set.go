package event

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// entry is a descriptor of a set, and what is to be done when it is ready.
type entry struct {
	fd      int
	want    uint32 // unix.PollIn, unix.PollOut; none: the entry is asleep
	key     uint64 // never given twice; in the order of registration
	foreign bool   // the descriptor belongs to the user, who may close it at any time
	gone    bool   // removed from the set
	do      kind
	w       *Watch   // of toWatch
	ch      *channel // of toChannel
}

// kind says what an entry is for.
type kind uint8

const (
	toWake kind = iota
	toTimer
	toChannel
	toWatch
)

// hit is an entry that was found ready.
type hit struct {
	e   *entry
	got uint32 // unix.PollIn, PollOut, PollErr, PollHup, PollNul
}

// set is the descriptors of a loop. It is an epoll instance for every backend: poll and
// select need it to be nested (Loop.FD), and because it alone knows whether a number still
// means the file that was registered. Entries have keys that are never used again, so an
// event of what was removed finds nothing.
type set struct {
	ep    int
	limit int // descriptors must be below; 0: any

	// asleep is another one, that nobody waits for; -1: it was not needed yet. It has the
	// entries that are watched for nothing, to know their files as well.
	asleep int

	mu    sync.Mutex
	next  uint64
	byKey map[uint64]*entry
	byFD  map[int]*entry
	user  []*entry // those that are foreign
	dirty bool     // changed since a backend copied it

	// ghosts is how many entries were forgotten that may be in ep still, at most: their
	// number was closed, so they cannot be removed, but their file may live on.
	ghosts int
}

func newSet(limit int) (*set, error) {
	ep, err := unix.EpollCreate()
	if err != nil {
		return nil, err
	}
	return &set{ep: ep, limit: limit, asleep: -1, byKey: map[uint64]*entry{}, byFD: map[int]*entry{}}, nil
}

// flags gives what the kernel is asked for. Foreign descriptors are one-shot: each time one
// is ready it is asked for again, which fails if the number means another file by now. So
// no handler is called for that one, and a file that lives on in a duplicate after its
// number was closed, and can be removed no more, is reported once and not for ever.
func (e *entry) flags() uint32 {
	if e.foreign {
		return e.want | unix.EpollOneshot
	}
	return e.want
}

// add watches a descriptor. dead is what was watched under the same number, if that file
// is closed: it has left the set.
func (s *set) add(e *entry) (dead *entry, err error) {
	if s.limit > 0 && e.fd >= s.limit {
		return nil, &DescriptorLimitError{FD: e.fd, Limit: s.limit}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.byFD[e.fd]; old != nil {
		if s.verify(old) {
			return nil, ErrWatched
		}
		s.forget(old)
		s.ghosts++
		dead = old
	}
	s.next++
	e.key = s.next
	if err := s.enter(e); err != nil {
		return dead, err
	}
	s.byKey[e.key], s.byFD[e.fd] = e, e
	if e.foreign {
		s.user = append(s.user, e)
	}
	s.dirty = true
	return dead, nil
}

// change sets what is watched for.
func (s *set) change(e *entry, want uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.gone || want == e.want {
		return nil
	}
	was := *e
	e.want = want
	var err error
	if s.place(&was) == s.place(e) && want != 0 {
		err = unix.EpollModKey(s.ep, e.fd, e.flags(), e.key)
	} else if !s.verify(&was) {
		err = ErrClosed
	} else if err = s.enter(e); err == nil {
		_ = unix.EpollDel(s.place(&was), e.fd)
	}
	if err != nil {
		e.want = was.want
		if stale(err) {
			err = ErrClosed
		}
		return err
	}
	s.dirty = true
	return nil
}

// place gives the epoll instance that an entry belongs into.
func (s *set) place(e *entry) int {
	if e.want == 0 {
		return s.asleep
	}
	return s.ep
}

// enter puts an entry into its place. s.mu is held.
func (s *set) enter(e *entry) (err error) {
	if s.ep < 0 {
		return ErrClosed
	}
	if e.want == 0 && s.asleep < 0 {
		if s.asleep, err = unix.EpollCreate(); err != nil {
			s.asleep = -1
			return err
		}
	}
	err = unix.EpollAddKey(s.place(e), e.fd, e.flags(), e.key)
	if errors.Is(err, syscall.EEXIST) {
		// The file was watched under this number, which was closed before the watch was,
		// and lives on in a duplicate that has got the number now.
		err = unix.EpollModKey(s.place(e), e.fd, e.flags(), e.key)
	}
	return err
}

// remove ends the watch. The descriptor may be closed, or another one by now: then the
// kernel says so, and that one is left alone.
func (s *set) remove(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.gone || e.key == 0 {
		return
	}
	if unix.EpollDel(s.place(e), e.fd) != nil {
		s.ghosts++
	}
	s.forget(e)
}

// exorcise makes ep forget ghosts that are ready, which it does when it has told of them
// once, as they are one-shot. It is for backends that do not wait for ep.
func (s *set) exorcise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ghosts == 0 {
		return
	}
	var events [32]unix.EpollEvent
	n, _ := unix.EpollWait(s.ep, events[:], 0) // an error comes from the backend, too
	for i := range max(n, 0) {
		if e := s.byKey[unix.EpollKey(&events[i])]; e == nil {
			s.ghosts = max(s.ghosts-1, 0)
		} else if e.foreign {
			s.verify(e) // it was told of only here
		}
	}
}

// forget takes an entry out of the tables. s.mu is held.
func (s *set) forget(e *entry) {
	e.gone = true
	delete(s.byKey, e.key)
	if s.byFD[e.fd] == e {
		delete(s.byFD, e.fd)
	}
	if i := slices.Index(s.user, e); e.foreign && i >= 0 {
		last := len(s.user) - 1
		s.user[i] = s.user[last]
		s.user[last] = nil
		s.user = s.user[:last]
	}
	s.dirty = true
}

// verify reports whether the descriptor is still the file that was registered, and lets a
// one-shot one be reported again. s.mu is held.
func (s *set) verify(e *entry) bool {
	return unix.EpollModKey(s.place(e), e.fd, e.flags(), e.key) == nil
}

// renew is verify for an entry whose handler is about to be called, or that is looked after
// now and then. One that was removed is not stale.
func (s *set) renew(e *entry) (stale bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !e.gone && !s.verify(e)
}

// stale reports whether an error of epoll means that a file is closed: its number is free
// or belongs to another file.
func stale(err error) bool {
	return errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.ENOENT)
}

// some gives foreign entries in turns, at most len(dst), from position i; next is where to
// go on, 0 if these were the last.
func (s *set) some(dst []*entry, i int) (n, next int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i = min(i, len(s.user))
	n = copy(dst, s.user[i:])
	if next = i + n; next == len(s.user) {
		next = 0
	}
	return n, next
}

// foreigners gives the number of descriptors that belong to the user.
func (s *set) foreigners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.user)
}

// close ends the set. Watches that are closed later leave the numbers alone, which may mean
// the set of another loop by then.
func (s *set) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	unix.Close(s.ep)
	if s.asleep >= 0 {
		unix.Close(s.asleep)
	}
	s.ep, s.asleep = -1, -1
}

// sortHits brings what was found into the order of registration, so that it does not
// depend on the backend.
func sortHits(hits []hit) {
	if len(hits) > 1 {
		slices.SortFunc(hits, func(a, b hit) int { return cmp.Compare(a.e.key, b.e.key) })
	}
}

// backend finds out which entries of a set are ready.
type backend interface {
	// wait adds those that are to hits, whether they are still registered or not. With block
	// it waits for one; it may give none.
	wait(block bool, hits []hit) ([]hit, error)
	// pinned reports whether wait goes on with the set that it began with, and keeps its
	// files open. Then it has to be woken when the set changes.
	pinned() bool
	close()
}

func newBackend(b Backend, s *set) backend {
	switch b {
	case Poll:
		return &poller{set: s}
	case Select:
		return &selector{poller: poller{set: s}}
	case Epoll:
	}
	return newEpoller(s)
}

// wants gives what an entry is watched for; none: it is not at the moment.
func (s *set) wants(e *entry) (want uint32, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.want, e.want != 0 && !e.gone
}
