package rdma

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// tcpConn is a connection that TCP carries, as RDMA could not be had.
type tcpConn struct {
	*net.TCPConn
	why string
	// Calls of WriteTo and ReadFrom in progress. Package net holds the lock of the direction
	// while they wait, so the Try calls keep away from it.
	reading, writing atomic.Int32
}

func newTCPConn(t *net.TCPConn, cfg *Config, why string) *Conn {
	c := &tcpConn{TCPConn: t, why: why}
	// A socket that does not take one of these carries the stream all the same.
	t.SetKeepAliveConfig(tcpKeepAlive(cfg.KeepAlive))
	if cfg.Linger < 0 {
		t.SetLinger(0)
	}
	if cfg.SendBuf > 0 {
		t.SetWriteBuffer(cfg.SendBuf)
	}
	if cfg.RecvBuf > 0 {
		t.SetReadBuffer(cfg.RecvBuf)
	}
	if cfg.TOS != 0 {
		c.setTOS(cfg.TOS)
	}
	return &Conn{tcp: c, cfg: cfg}
}

// setTOS sets the type of service of IPv4 or the traffic class of IPv6.
func (t *tcpConn) setTOS(tos uint8) error {
	rc, err := t.SyscallConn()
	if err != nil {
		return err
	}
	to, _ := t.RemoteAddr().(*net.TCPAddr)
	v6 := to != nil && to.IP.To4() == nil // a socket of IPv6 may carry IPv4
	if cerr := rc.Control(func(fd uintptr) { err = unix.SetTrafficClass(int(fd), v6, int(tos)) }); cerr != nil {
		return cerr
	}
	return err
}

// tcpKeepAlive is what Config.KeepAlive means to TCP: dead peers are found in about twice
// that time.
func tcpKeepAlive(d time.Duration) net.KeepAliveConfig {
	if d < 0 {
		return net.KeepAliveConfig{Enable: false}
	}
	return bounded(net.KeepAliveConfig{Enable: true, Idle: d, Interval: max(d/probeCount, time.Second), Count: probeCount})
}

// What Linux takes; for more it gives an error, and keeps what there was.
const (
	maxTCPKeepAlive = 32767 * time.Second
	maxTCPProbes    = 127
)

// bounded gives the longest times and the most probes where a program asks for more.
func bounded(k net.KeepAliveConfig) net.KeepAliveConfig {
	k.Idle, k.Interval, k.Count = min(k.Idle, maxTCPKeepAlive), min(k.Interval, maxTCPKeepAlive), min(k.Count, maxTCPProbes)
	return k
}

// setBuffer sets the size of a buffer within the limits of RDMA; the system would take a
// negative one for the largest.
func (t *tcpConn) setBuffer(set func(int) error, n int) error {
	if err := checkBuffer(n); err != nil {
		return t.refuse(err)
	}
	return set(n)
}

// refuse gives the error of an option whose value cannot be.
func (t *tcpConn) refuse(err error) error {
	return &net.OpError{Op: "set", Net: "tcp", Source: t.LocalAddr(), Addr: t.RemoteAddr(), Err: err}
}

// try runs a system call on the socket that does not block.
func (t *tcpConn) try(write bool, f func(fd uintptr) (int, error)) (n int, err error) {
	rc, err := t.SyscallConn()
	if err != nil {
		return 0, err
	}
	call := rc.Read
	if write {
		call = rc.Write
	}
	cerr := call(func(fd uintptr) bool {
		for {
			if n, err = f(fd); err != syscall.EINTR {
				return true
			}
		}
	})
	if cerr != nil {
		return 0, cerr // a deadline, or Close
	}
	return max(n, 0), err
}

// tryRead is called with rdMu, tryWrite with wrMu.
func (t *tcpConn) tryRead(p []byte) (int, error) {
	if t.reading.Load() > 0 {
		return 0, ErrWouldBlock
	}
	n, err := t.try(false, func(fd uintptr) (int, error) { return sysRead(fd, p) })
	if n == 0 && err == nil && len(p) > 0 {
		err = io.EOF
	}
	return n, t.fail("read", err)
}

func (t *tcpConn) tryWrite(p []byte) (int, error) {
	if t.writing.Load() > 0 {
		return 0, ErrWouldBlock
	}
	n, err := t.try(true, func(fd uintptr) (int, error) { return sysWrite(fd, p) })
	return n, t.fail("write", err)
}

// fail wraps the error of a system call as package net does. io.EOF and ErrWouldBlock stay
// what they are, and so does what package net has wrapped.
func (t *tcpConn) fail(op string, err error) error {
	var have *net.OpError
	if err == nil || err == io.EOF || err == ErrWouldBlock || errors.As(err, &have) {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: t.LocalAddr(), Addr: t.RemoteAddr(), Err: os.NewSyscallError(op, err)}
}

// fd gives the number of the socket, which stays the connection's.
func (t *tcpConn) fd() (fd int, err error) {
	rc, err := t.SyscallConn()
	if err != nil {
		return -1, err
	}
	if err := rc.Control(func(f uintptr) { fd = int(f) }); err != nil {
		return -1, err
	}
	return fd, nil
}

// carried counts what a call has moved over TCP.
func carried[N int | int64](c *Conn, counter *uint64, n N) N {
	if n > 0 {
		c.mu.Lock()
		*counter += uint64(n)
		c.mu.Unlock()
	}
	return n
}
