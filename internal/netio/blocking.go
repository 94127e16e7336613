package netio

// Blocking is a Conn whose reader may sleep in the kernel. The sockets of Listen are, on
// Linux.
type Blocking interface {
	Interruptible

	// ReadBlocking is Read that sleeps in the kernel instead of Go's poller: it holds a
	// thread, and comes back whatever the other threads of the process do. Interrupt and
	// Close end it as they end Read.
	ReadBlocking(ms []Message) (n int, err error)
}
