package rdma

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Read reads what is there, at most len(p) bytes, and waits if there is nothing. At the end
// of the peer's stream it gives io.EOF. If the connection ended otherwise it first gives
// what had come before, and then an error that wraps syscall.ECONNRESET (the peer reset
// the connection or died; ErrTruncated if the end of its stream is missing),
// syscall.ETIMEDOUT (it does not answer) or syscall.EPROTO (it broke the protocol).
func (c *Conn) Read(p []byte) (int, error) {
	if !c.ok() {
		return 0, errInvalid
	}
	c.rdMu.Lock()
	defer c.rdMu.Unlock()
	if c.tcp != nil {
		n, err := c.tcp.Read(p)
		return carried(c, &c.stats.BytesRead, n), err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		n, err := c.read(p)
		if err != ErrWouldBlock {
			return n, c.fail("read", err)
		}
		c.pause(&c.rd)
	}
}

// TryRead is Read that does not wait: if there is nothing it gives ErrWouldBlock. While
// another goroutine reads, in Read or WriteTo, it gives that too.
func (c *Conn) TryRead(p []byte) (int, error) {
	if !c.ok() {
		return 0, errInvalid
	}
	if !c.rdMu.TryLock() {
		return 0, ErrWouldBlock
	}
	defer c.rdMu.Unlock()
	if c.tcp != nil {
		n, err := c.tcp.tryRead(p)
		return carried(c, &c.stats.BytesRead, n), err
	}
	c.mu.Lock()
	n, err := c.read(p)
	c.mu.Unlock()
	if err == ErrWouldBlock && c.hub.look() { // it may be in the queue
		c.mu.Lock()
		n, err = c.read(p)
		c.mu.Unlock()
	}
	return n, c.fail("read", err)
}

// errMemory: the machine names memory that it does not have, which must not be. A read that
// went on would never end, and it holds mu.
var errMemory = errors.New("rdma: received data without memory")

// read takes what is there. mu is held.
func (c *Conn) read(p []byte) (n int, err error) {
	if len(p) == 0 && !c.closed {
		return 0, nil // also after a deadline, and at the end
	}
	if err := c.limits(&c.rdl); err != nil {
		return 0, err
	}
	for n < len(p) {
		loc, err := c.e.Peek()
		if loc.Len == 0 {
			if n > 0 {
				break
			}
			if err == nil {
				return 0, ErrWouldBlock
			}
			return 0, ended(err)
		}
		m := copy(p[n:], c.e.Bytes(loc))
		if m == 0 {
			c.e.Fail(errMemory)
			c.settle(nil)
			return n, ended(errMemory)
		}
		c.e.Consume(m)
		n += m
	}
	c.stats.BytesRead += uint64(n)
	if c.e.Due() || c.ready.open {
		c.settle(nil)
	}
	return n, nil
}

// readable reports whether TryRead would not give ErrWouldBlock. mu is held.
func (c *Conn) readable() bool {
	if c.closed || c.rdl.over {
		return true
	}
	loc, err := c.e.Peek()
	return loc.Len > 0 || err != nil
}

// Write writes p. It returns when all of it is in the connection's memory, which may
// involve waiting for the peer to read. If it gives an error, n bytes were taken and will
// arrive, as far as the connection lives. After CloseWrite, or when the peer has closed,
// the error wraps syscall.EPIPE.
func (c *Conn) Write(p []byte) (int, error) {
	if !c.ok() {
		return 0, errInvalid
	}
	c.wrMu.Lock()
	defer c.wrMu.Unlock()
	if c.tcp != nil {
		n, err := c.tcp.Write(p)
		return carried(c, &c.stats.BytesWritten, n), err
	}
	c.hub.glance()
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.write(p)
	return n, c.fail("write", err)
}

// write is Write with the locks held.
func (c *Conn) write(p []byte) (n int, err error) {
	var stall time.Duration
	for {
		m, err := c.push(p[n:])
		n += m
		switch {
		case err == ErrWouldBlock:
			c.waitRoom(&stall)
		case err != nil || n == len(p):
			c.stalled(stall)
			return n, err
		}
	}
}

// waitRoom waits for the peer to read. stall is when the call began to do so.
func (c *Conn) waitRoom(stall *time.Duration) {
	if *stall == 0 {
		c.stats.CreditStalls++
		*stall = now()
	}
	c.pause(&c.wr)
}

// stalled tells that a call had to wait, if it had.
func (c *Conn) stalled(since time.Duration) {
	if t := c.cfg.Trace; since != 0 && t != nil && t.CreditStall != nil {
		c.mu.Unlock()
		t.CreditStall(c, now()-since)
		c.mu.Lock()
	}
}

// push takes what fits of p, and has it sent. mu is held.
func (c *Conn) push(p []byte) (n int, err error) {
	if err := c.limits(&c.wdl); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		_, err := c.e.Room() // nothing cannot be written to what is closed
		return 0, ended(err)
	}
	n, err = c.fill(p)
	if n == 0 {
		return 0, err
	}
	c.stats.BytesWritten += uint64(n)
	c.wrote = now()
	c.settle(nil)
	return n, nil
}

// fill copies what fits of p. mu is held.
func (c *Conn) fill(p []byte) (n int, err error) {
	if err := c.sendRoom(len(p)); err != nil {
		return 0, err
	}
	for n < len(p) {
		loc, err := c.e.Room()
		if err != nil {
			return n, ended(err)
		}
		if loc.Len == 0 {
			return n, ErrWouldBlock
		}
		m := copy(c.mem.send.b[loc.Off:loc.Off+loc.Len], p[n:])
		c.e.Commit(m)
		n += m
	}
	return n, nil
}

// TryWrite writes what fits now; if that is nothing it gives ErrWouldBlock. While another
// goroutine writes, in Write, WriteBuffers, MapWrite or ReadFrom, it gives that too.
func (c *Conn) TryWrite(p []byte) (int, error) {
	if !c.ok() {
		return 0, errInvalid
	}
	if !c.wrMu.TryLock() {
		return 0, ErrWouldBlock
	}
	defer c.wrMu.Unlock()
	if c.tcp != nil {
		n, err := c.tcp.tryWrite(p)
		return carried(c, &c.stats.BytesWritten, n), err
	}
	c.hub.glance()
	c.mu.Lock()
	n, err := c.push(p)
	c.mu.Unlock()
	if err == ErrWouldBlock && c.hub.look() {
		c.mu.Lock()
		n, err = c.push(p)
		c.mu.Unlock()
	}
	return n, c.fail("write", err)
}

// writable reports whether TryWrite would not give ErrWouldBlock. mu is held.
func (c *Conn) writable() bool {
	if c.closed || c.wdl.over || c.mem.send.s == nil {
		return true
	}
	loc, err := c.e.Room()
	return loc.Len > 0 || err != nil
}

// WriteBuffers writes the buffers as if they were one, and takes what it has written off
// v. (net.Buffers.WriteTo does so for connections of package net only, and writes one after
// the other here.)
func (c *Conn) WriteBuffers(v *net.Buffers) (int64, error) {
	if !c.ok() {
		return 0, errInvalid
	}
	c.wrMu.Lock()
	defer c.wrMu.Unlock()
	if c.tcp != nil {
		n, err := v.WriteTo(c.tcp.TCPConn)
		return carried(c, &c.stats.BytesWritten, n), err
	}
	c.hub.glance()
	c.mu.Lock()
	defer c.mu.Unlock()
	var total int64
	var stall time.Duration
	for {
		n, err := c.gather(v)
		total += n
		if err == ErrWouldBlock {
			c.waitRoom(&stall)
			continue
		}
		if err != nil || len(*v) == 0 {
			c.stalled(stall)
			return total, c.fail("writev", err)
		}
	}
}

// gather takes what fits of several buffers before it has anything sent. mu is held.
func (c *Conn) gather(v *net.Buffers) (total int64, err error) {
	if err := c.limits(&c.wdl); err != nil {
		return 0, err
	}
	for len(*v) > 0 && err == nil {
		b := (*v)[0]
		if len(b) > 0 {
			var n int
			n, err = c.fill(b)
			total += int64(n)
			b = b[n:]
			(*v)[0] = b
		}
		if len(b) == 0 {
			(*v)[0] = nil
			*v = (*v)[1:]
		}
	}
	if total > 0 {
		c.stats.BytesWritten += uint64(total)
		c.wrote = now()
		c.settle(nil)
		if err == ErrWouldBlock {
			err = nil // look again: some may have gone
		}
	}
	return total, err
}

// copyBufs are for ReadFrom and WriteTo.
var copyBufs = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// ReadFrom writes what r gives until its end; io.Copy uses it.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	if !c.ok() {
		return 0, errInvalid
	}
	if c.tcp != nil {
		c.wrMu.Lock() // no TryWrite has looked already
		c.tcp.writing.Add(1)
		c.wrMu.Unlock()
		defer c.tcp.writing.Add(-1)
		n, err := c.tcp.ReadFrom(r)
		return carried(c, &c.stats.BytesWritten, n), err
	}
	n, err := c.readFrom(r)
	return n, c.fail("readfrom", err)
}

func (c *Conn) readFrom(r io.Reader) (int64, error) {
	bp := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(bp)
	var total int64
	for {
		n, rerr := r.Read(*bp)
		if n > 0 {
			m, err := c.Write((*bp)[:n])
			total += int64(m)
			if err != nil {
				return total, err
			}
		}
		if rerr == io.EOF {
			return total, nil
		}
		if rerr != nil {
			return total, rerr
		}
	}
}

// WriteTo reads until the end of the stream and writes it to w; io.Copy uses it.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	if !c.ok() {
		return 0, errInvalid
	}
	if c.tcp != nil {
		c.rdMu.Lock() // no TryRead has looked already
		c.tcp.reading.Add(1)
		c.rdMu.Unlock()
		defer c.tcp.reading.Add(-1)
		n, err := c.tcp.WriteTo(w)
		return carried(c, &c.stats.BytesRead, n), err
	}
	n, err := c.writeTo(w)
	return n, c.fail("writeto", err)
}

func (c *Conn) writeTo(w io.Writer) (int64, error) {
	bp := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(bp)
	var total int64
	for {
		n, rerr := c.Read(*bp)
		if n > 0 {
			m, err := w.Write((*bp)[:n])
			total += int64(m)
			if err == nil && m < n {
				err = io.ErrShortWrite
			}
			if err != nil {
				return total, err
			}
		}
		if rerr == io.EOF {
			return total, nil
		}
		if rerr != nil {
			return total, rerr
		}
	}
}

var (
	_ io.ReaderFrom = (*Conn)(nil)
	_ io.WriterTo   = (*Conn)(nil)
)
