package netio

import "time"

// past is a time that is over whatever the clock says.
var past = time.Unix(1, 0)

func (c *batchConn) Interrupt() {
	c.readable.interrupt()
	c.bell.ring()
}

func (c *batchConn) Resume() {
	c.bell.rest()
	c.readable.resume()
}

// Hush takes the socket out of the set that Go's poller knows. The thread that sleeps in the
// poller for all would wake for each datagram, find that it is gone, and sleep again, on a
// processor that the two ends may need.
func (c *batchConn) Hush() {
	r := &c.read
	if r.hushed.Load() || !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	if !c.closed.Load() && c.readable.ask(c.fd, 0) == nil {
		r.hushed.Store(true)
	}
}

var _ Interruptible = (*batchConn)(nil)
