package netio

import "time"

// Interruptible is a Conn whose Read can be woken by another goroutine, so that the one
// that reads may be waiting for something else as well. Sockets of Listen are.
type Interruptible interface {
	Conn

	// Interrupt makes Read give an error that wraps os.ErrDeadlineExceeded, at once and
	// whenever it is called, until Resume. TryRead and Write go on. Both may be called
	// from any goroutine and do not allocate; the error of Read does.
	Interrupt()
	Resume()
}

// past is a time that is over whatever the clock says.
var past = time.Unix(1, 0)

func (c *plainConn) Interrupt() { _ = c.udp.SetReadDeadline(past) } // fails if closed: Read then returns anyway
func (c *plainConn) Resume()    { _ = c.udp.SetReadDeadline(time.Time{}) }
