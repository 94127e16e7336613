package netio

import "time"

// past is a time that is over whatever the clock says.
var past = time.Unix(1, 0)

func (c *batchConn) Interrupt() {
	_ = c.udp.SetReadDeadline(past) // fails if closed: Read then returns anyway
	c.bell.ring()
}

func (c *batchConn) Resume() {
	c.bell.rest()
	_ = c.udp.SetReadDeadline(time.Time{})
}

var _ Interruptible = (*batchConn)(nil)
