package netio

import "time"

func (c *batchConn) Interrupt() { _ = c.udp.SetReadDeadline(past) } // fails if closed: Read then returns anyway
func (c *batchConn) Resume()    { _ = c.udp.SetReadDeadline(time.Time{}) }

var _ Interruptible = (*batchConn)(nil)
