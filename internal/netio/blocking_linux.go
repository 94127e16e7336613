package netio

import (
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/verbena-rdma/verbena/internal/unix"
)

var _ Blocking = (*batchConn)(nil)

// bell wakes who sleeps in ReadBlocking: a descriptor that is readable while reads are
// interrupted. It exists from the first such sleep to the next Read.
type bell struct {
	mu     sync.Mutex
	fd     int // the descriptor + 1; 0: none
	on     bool
	closed bool
}

// open gives the descriptor.
func (b *bell) open() (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return -1, net.ErrClosed
	}
	if b.fd == 0 {
		fd, err := unix.Eventfd()
		if err != nil {
			return -1, fmt.Errorf("descriptor to interrupt a read: %w", err)
		}
		b.fd = fd + 1
		if b.on {
			_ = unix.EventfdSignal(fd) // it cannot fail: the counter is 0
		}
	}
	return b.fd - 1, nil
}

// ring and rest set the level; after end it stays on.
func (b *bell) ring() { b.raise(false) }

// end rings for ever: nobody can rest it any more.
func (b *bell) end() { b.raise(true) }

func (b *bell) raise(last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = b.closed || last
	if b.fd != 0 && !b.on {
		_ = unix.EventfdSignal(b.fd - 1)
	}
	b.on = true
}

func (b *bell) rest() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.on {
		return
	}
	if b.fd != 0 {
		_, _ = unix.EventfdDrain(b.fd - 1)
	}
	b.on = false
}

// free closes the descriptor, when nobody sleeps.
func (b *bell) free() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd != 0 {
		unix.Close(b.fd - 1)
		b.fd = 0
	}
}

func (c *batchConn) ReadBlocking(ms []Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	r := &c.read
	r.mu.Lock()
	defer r.mu.Unlock()
	fd, err := c.bell.open()
	if err != nil {
		return 0, err
	}
	r.bell, r.slept = int32(fd), true
	if err = r.begin(ms); err == nil {
		err = r.block()
	}
	return r.end(err)
}

// block sleeps until there is something to read, and reads it.
func (r *receiver) block() error {
	for {
		r.fds = [2]unix.PollFD{{Fd: int32(r.c.fd), Events: unix.PollIn}, {Fd: r.bell, Events: unix.PollIn}}
		if _, err := unix.Poll(r.fds[:], -1); err != nil {
			return err
		}
		if r.fds[1].Revents != 0 {
			if r.c.closed.Load() {
				return net.ErrClosed
			}
			return os.ErrDeadlineExceeded
		}
		if r.attempt() {
			return nil
		}
	}
}

func (c *batchConn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	c.bell.end()
	c.readable.close()
	c.writable.close()
	// They have been woken, and come out.
	for _, mu := range []*sync.Mutex{&c.read.mu, &c.try.mu, &c.write.mu} {
		mu.Lock()
		defer mu.Unlock()
	}
	c.bell.free()
	return unix.Close(c.fd)
}
