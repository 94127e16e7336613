package event

import (
	"cmp"
	"sync/atomic"
	"syscall"
)

// Watch is a registration of a source with a Loop. Its methods may be called from any
// goroutine, and from handlers. Those of a nil or zero Watch give an error that wraps
// syscall.EINVAL, or do nothing.
type Watch struct {
	l   *Loop
	src source
	arm armer     // nil: the descriptor is level-true by itself
	cq  *cqSource // src, if it is one
	e   entry     // of sources with a descriptor of their own
	seq uint64    // in the order of registration

	closed atomic.Bool
	stale  atomic.Bool // its descriptor is closed

	// Of who is in a turn.
	queued bool   // in ready
	got    uint32 // what the descriptor was found ready for
	fault  error  // found before it is served

	// Under l.mu.
	posted  bool // in inbox
	early   bool // to be posted, as soon as it is one of the loop's
	onError func(error)
}

// source is what a Watch watches. All but detach is called in a turn.
type source interface {
	// serve calls the handler at most max times, until the watch is closed. more means
	// that it may have gone on.
	serve(w *Watch, max int) (more bool, err error)
	name() string
	// detach gives back what the source has of the loop and of its owner, once.
	detach(w *Watch)
}

// armer is a source that has to be armed before its descriptor tells of it.
type armer interface {
	prepare() (ready bool, err error)
}

// OnError says what to do when the source fails (device gone, source or descriptor closed):
// f is called by the loop, once, and the watch is closed. Without it Run and Turn end with
// the error. Set it before the first turn, or in a handler: while another goroutine is in Run
// the source may fail between the registration and OnError, so register with Loop.Do then. Nil
// takes it back.
func (w *Watch) OnError(f func(error)) {
	if w == nil || w.l == nil {
		return
	}
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.onError = f
}

// Close ends the watch. After it has returned neither the handler nor the function of
// OnError is called any more. It waits for a call that another goroutine is in, unless
// it is called by a handler: of this watch, of another one, or of another loop. The source
// stays open, and keeps what was not handled yet. Close is idempotent.
func (w *Watch) Close() error {
	if w == nil || w.l == nil {
		return errNil("close watch")
	}
	w.detach()
	l := w.l
	if l.running.Load() != w || inHandler() {
		return nil
	}
	l.closers.Add(1)
	defer l.closers.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.running.Load() == w {
		l.cond.Wait()
	}
	return nil
}

// detach ends the watch, and reports whether it had not ended before.
func (w *Watch) detach() bool {
	if w.closed.Swap(true) {
		return false
	}
	l := w.l
	l.mu.Lock()
	delete(l.watches, w)
	l.mu.Unlock()
	w.src.detach(w)
	return true
}

// enroll makes the watch one of the loop's, and its descriptor one of the set. If it fails
// the watch has ended.
func (w *Watch) enroll() error {
	l := w.l
	l.mu.Lock()
	err := l.add(&w.e)
	if err == nil {
		l.count(w)
	}
	l.mu.Unlock()
	if err != nil {
		w.detach()
		return opError("watch", w.src.name(), err)
	}
	return nil
}

// count makes a watch one of the loop's. mu is held.
func (l *Loop) count(w *Watch) {
	l.seq++
	w.seq = l.seq
	l.watches[w] = struct{}{}
	if w.early {
		w.postLocked()
	}
}

// bySeq compares watches in the order of registration.
func bySeq(a, b *Watch) int { return cmp.Compare(a.seq, b.seq) }

// post has the loop serve a watch soon. It may be called by anybody.
func (w *Watch) post() {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.postLocked()
}

// postLocked is post with l.mu held.
func (w *Watch) postLocked() {
	if w.seq == 0 {
		w.early = true // its source has ended before it was registered
		return
	}
	if w.posted || w.closed.Load() || w.l.closed {
		return
	}
	w.posted = true
	w.l.inbox = append(w.l.inbox, w)
	w.l.note()
}

// add puts a descriptor into the set. mu is held.
func (l *Loop) add(e *entry) error {
	if l.closed {
		return ErrClosed
	}
	dead, err := l.set.add(e)
	if dead != nil {
		// Somebody closed it, and its number was given again.
		if dead.w != nil {
			dead.w.stale.Store(true)
			dead.w.postLocked()
		} else if dead.ch != nil {
			dead.ch.stale.Store(true)
			l.lose(dead.ch)
		}
	}
	if err == nil {
		l.changed()
	}
	return err
}

// drop takes a descriptor out of the set.
func (l *Loop) drop(e *entry) {
	l.set.remove(e)
	l.mu.Lock()
	l.changed()
	l.mu.Unlock()
}

// changed wakes a backend that waits with the set as it was. mu is held.
func (l *Loop) changed() {
	if l.sleeping && l.backend.pinned() {
		l.raise()
	}
}

// errNil is the error of calls on nil and zero values.
func errNil(op string) error { return opError(op, "", syscall.EINVAL) }
