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

var _ Interruptible = (*batchConn)(nil)
