package event

import "time"

// Pass lets time pass for the timers of a loop that is not in a turn.
func Pass(l *Loop, d time.Duration) { l.start = l.start.Add(-d) }

// Epoll gives the number of descriptors in the set of a loop.
func Watched(l *Loop) int {
	l.set.mu.Lock()
	defer l.set.mu.Unlock()
	return len(l.set.byKey)
}

// Swept reports whether the loop has looked after all descriptors of users lately.
func Swept(l *Loop) bool { return l.now()-l.swept < l.recheck.period }
