package netio

// Interruptible is a Conn whose Read can be woken by another goroutine, so that the one
// that reads may be waiting for something else as well, and whose TryRead works. The
// sockets of Listen are, on Linux.
type Interruptible interface {
	Conn

	// Interrupt makes Read give an error that wraps os.ErrDeadlineExceeded, at once and
	// whenever it is called, until Resume. TryRead and Write go on. Both may be called
	// from any goroutine and do not allocate; the error of Read does.
	Interrupt()
	Resume()

	// Hush says that nobody waits for what arrives: until the next Read it wakes no thread
	// of the process. It is for who looks with TryRead again and again, and does nothing
	// while somebody is in Read.
	Hush()
}
