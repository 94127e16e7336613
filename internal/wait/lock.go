package wait

import "sync"

// Lock is a mutex at which the explorer of schedules can stop (package internal/model), so
// that the code that is explored is the code that runs. It is for locks of slow paths.
type Lock struct {
	sync.Mutex
	Stop func(lock bool) // set by tests, before the lock is used; called before each Lock and after each Unlock
}

func (l *Lock) Lock() {
	if l.Stop != nil {
		l.Stop(true)
	}
	l.Mutex.Lock()
}

func (l *Lock) Unlock() {
	l.Mutex.Unlock()
	if l.Stop != nil {
		l.Stop(false)
	}
}
