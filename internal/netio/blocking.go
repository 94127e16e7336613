package netio

import "time"

// Blocking is a Conn whose reader may sleep in the kernel. The sockets of Listen are, on
// Linux.
type Blocking interface {
	Interruptible

	// ReadBlocking is Read that sleeps in the kernel instead of Go's poller: it holds a
	// thread, and comes back whatever the other threads of the process do. Interrupt and
	// Close end it as they end Read; a limit that is not negative ends it with nothing, and
	// so may a signal then. What arrives wakes no other thread (see Hush).
	ReadBlocking(ms []Message, limit time.Duration) (n int, err error)
}
