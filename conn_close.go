package rdma

import (
	"net"
	"time"

	"github.com/verbena-rdma/verbena/internal/stream"
)

// Close ends the connection. What was written is delivered first: Close waits until the
// peer's side has taken it and knows of the end, at most Config.Linger (5 s); a peer that
// takes longer sees a reset, of which it is told within one more second, and so does one for
// which SetLinger(0) ends the wait. Calls that block fail with net.ErrClosed at once. A second
// call gives an error, as with TCP.
//
// Unread bytes are thrown away. When Close has returned, the device uses no memory of the
// connection any more, nor that of its maps. The error is nil also if the peer did not take
// everything in time, as with TCP.
func (c *Conn) Close() error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		err := c.tcp.Close()
		c.tell(nil)
		return err
	}
	c.mu.Lock()
	if c.closed {
		defer c.mu.Unlock()
		return c.fail("close", net.ErrClosed)
	}
	c.closed = true
	c.rdl.set(time.Time{}, nil) // a timer that has fired already ends, too
	c.wdl.set(time.Time{}, nil)
	for _, w := range []*waiter{c.rd, c.wr} {
		if w != nil {
			c.hub.wake(w, nil)
		}
	}
	if !c.over {
		c.farewell()
	}
	if c.ready.open {
		c.ready.close()
		c.hub.fds.Add(-1)
	}
	c.mu.Unlock()
	c.teardown()
	// Who reads or writes just now sees that the connection is closed before its memory
	// goes, as both hold mu.
	c.mu.Lock()
	c.mem.free(c.hub)
	c.mu.Unlock()
	c.hub.release(c.room)
	return nil
}

// farewell says good-bye to the peer, and waits for its answer. The machine has the time: if
// that is over it resets the connection, and the last word of that has a time of its own. mu
// is held, and given up meanwhile.
func (c *Conn) farewell() {
	if c.opts.linger < 0 {
		c.e.Abort(now(), stream.Reset)
	} else {
		c.e.SetLinger(c.opts.linger)
		c.e.Close(now())
	}
	c.settle(nil)
	for !c.over {
		c.pause(&c.cl)
	}
}

// cutShort has a Close that waits for the peer wait no longer, if there is one.
func (c *Conn) cutShort() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed || c.over {
		return false
	}
	c.e.Abort(now(), stream.Reset)
	c.settle(nil)
	return true
}

// abort resets a connection that the program has not seen. It does not wait.
func (c *Conn) abort() {
	if c.tcp == nil {
		c.mu.Lock()
		c.opts.linger = -1
		c.mu.Unlock()
	} else {
		c.tcp.SetLinger(0)
	}
	go c.Close()
}

// CloseWrite ends this side's stream: the peer reads what was written, and then io.EOF. It
// does not wait. Write then fails with syscall.EPIPE; Read goes on.
func (c *Conn) CloseWrite() error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		return c.tcp.CloseWrite()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.fail("close", net.ErrClosed)
	}
	if c.over {
		return nil
	}
	c.e.CloseWrite()
	c.settle(nil)
	return nil
}

// CloseRead ends reading: Read gives io.EOF, also one that waits, and what the peer still sends
// is thrown away, so that it is not held up. It does not wait, and the peer is not told.
func (c *Conn) CloseRead() error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		return c.tcp.CloseRead()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.fail("close", net.ErrClosed)
	}
	c.e.CloseRead()
	c.settle(nil)
	if c.rd != nil {
		c.hub.wake(c.rd, nil)
	}
	return nil
}
