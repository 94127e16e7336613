package verbs

import (
	"sync/atomic"
)

// life is the part of an object that says whether it may still be used. One word has a
// closed bit, the number of calls in progress, and the number of what keeps the object:
// its children and, until Close, the caller's handle.
//
// Close says that the caller is done. It sets the bit, so that no call and no child
// comes any more, waits for the calls, and lets go of the handle. What keeps the object
// last, lets it go: then end is called, once.
type life struct {
	word atomic.Uint64
	quit atomic.Pointer[quit]
	end  func() error // destroys; set before the object is published
}

// quit exists from the first Close on.
type quit struct {
	idle chan struct{} // closed when the last call has left
	done chan struct{} // closed when the first Close has finished
}

const (
	lifeClosed uint64 = 1 << 63
	lifeChild  uint64 = 1 << 32
	lifeCalls  uint64 = lifeChild - 1
)

// born is called once, before the object can be seen.
func (l *life) born(end func() error) {
	l.end = end
	l.word.Store(lifeChild)
}

// enter begins a call; false: the object is closed.
func (l *life) enter() bool {
	for {
		w := l.word.Load()
		if w&lifeClosed != 0 {
			return false
		}
		if l.word.CompareAndSwap(w, w+1) {
			return true
		}
	}
}

// leave ends a call.
func (l *life) leave() {
	if w := l.word.Add(^uint64(0)); w&lifeClosed != 0 && w&lifeCalls == 0 {
		close(l.quit.Load().idle)
	}
}

// adopt adds a child; false: the object is closed.
func (l *life) adopt() bool {
	for {
		w := l.word.Load()
		if w&lifeClosed != 0 {
			return false
		}
		if l.word.CompareAndSwap(w, w+lifeChild) {
			return true
		}
	}
}

// drop lets a child go. If it was what kept the object last, the object is destroyed
// and the error of that is given.
func (l *life) drop() error {
	w := l.word.Add(^(lifeChild - 1))
	if w&lifeClosed != 0 && w&^lifeClosed < lifeChild {
		return l.end()
	}
	return nil
}

// closed reports whether Close has begun.
func (l *life) closed() bool { return l.word.Load()&lifeClosed != 0 }

// close closes, once: shut is called when no call can begin any more, to wake those that
// wait; rest when none is in progress. Then the handle is dropped. The second and
// later callers wait for the first.
func (l *life) close(shut func(), rest func() error) error {
	q := &quit{idle: make(chan struct{}), done: make(chan struct{})}
	if !l.quit.CompareAndSwap(nil, q) {
		<-l.quit.Load().done
		return nil
	}
	defer close(q.done)
	if w := l.word.Or(lifeClosed); w&lifeCalls == 0 {
		close(q.idle)
	}
	if shut != nil {
		shut()
	}
	<-q.idle
	var err error
	if rest != nil {
		err = rest()
	}
	if e := l.drop(); err == nil {
		err = e
	}
	return err
}
