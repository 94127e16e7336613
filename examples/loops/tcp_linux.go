package main

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// tcp is the part that such a program had before: sockets in a loop.
type tcp struct {
	r      registry
	file   *os.File // the listener's
	accept *source
	conns  map[*conn]bool
}

// conn echoes bytes. It reads only when all that it read was written, so a peer that does
// not read costs one buffer.
type conn struct {
	t   *tcp
	src source
	buf [4096]byte
	out []byte // of buf, to be written
}

func newTCP(ln *net.TCPListener, r registry) (*tcp, error) {
	file, err := ln.File() // a duplicate
	if err != nil {
		return nil, err
	}
	t := &tcp{r: r, file: file, conns: make(map[*conn]bool)}
	fd := int(file.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	t.accept = &source{fd: fd, serve: t.serve}
	return t, nil
}

func (t *tcp) serve() (more bool, err error) {
	for range budget {
		fd, _, err := unix.Accept4(t.accept.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
		case unix.EAGAIN:
			return false, nil
		case unix.EINTR, unix.ECONNABORTED:
			continue
		default:
			return false, os.NewSyscallError("accept4", err)
		}
		c := &conn{t: t}
		c.src = source{fd: fd, serve: c.serve}
		if err := t.r.add(&c.src); err != nil {
			unix.Close(fd) // this one alone cannot be served
			continue
		}
		t.conns[c] = true
	}
	return true, nil
}

func (c *conn) serve() (more bool, err error) {
	if !c.t.conns[c] {
		return false, nil // closed earlier in this turn
	}
	for range budget {
		if len(c.out) == 0 {
			n, err := unix.Read(c.src.fd, c.buf[:])
			if err == unix.EAGAIN || err == unix.EINTR {
				return err == unix.EINTR, nil
			}
			if n <= 0 {
				c.close()
				return false, nil
			}
			c.out = c.buf[:n]
		}
		n, err := unix.Write(c.src.fd, c.out)
		if err != nil && err != unix.EAGAIN && err != unix.EINTR {
			c.close()
			return false, nil
		}
		c.out = c.out[max(n, 0):]
		if blocked := len(c.out) > 0; blocked != c.src.write {
			c.src.write = blocked
			if err := c.t.r.change(&c.src); err != nil {
				return false, err
			}
		}
		if err == unix.EAGAIN {
			return false, nil
		}
	}
	return true, nil
}

func (c *conn) close() {
	delete(c.t.conns, c)
	c.t.r.remove(&c.src)
	unix.Close(c.src.fd)
}

func (t *tcp) close() {
	for c := range t.conns {
		c.close()
	}
	t.file.Close()
}
