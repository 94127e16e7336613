package verbs

import "sync"

// lock is a mutex before which the explorer of schedules can stop (package model), so that
// the code which is explored is the code that runs. It is for locks of slow paths.
type lock struct {
	sync.Mutex
	stop func() // set by tests, before the lock is used
}

func (l *lock) Lock() {
	if l.stop != nil {
		l.stop()
	}
	l.Mutex.Lock()
}
