package rdma

import (
	"errors"
	"fmt"
	"math"
	"net"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// keepAlive gives what Config.KeepAlive means: after so long without a sign of life the
// peer is asked, and given up after three questions in as much time again.
func keepAlive(d time.Duration) stream.KeepAlive {
	if d <= 0 {
		return stream.KeepAlive{}
	}
	return patient(stream.KeepAlive{Idle: d, Interval: d / probeCount, Count: probeCount})
}

// The least times of keep-alive. An answer may lie in a queue for maxGrace on either side,
// where no program is in a call.
const (
	minIdle     = time.Millisecond
	minPatience = 100 * time.Millisecond
)

// patient raises times that would end healthy connections.
func patient(k stream.KeepAlive) stream.KeepAlive {
	if k.Idle > 0 {
		k.Idle, k.Count = max(k.Idle, minIdle), max(k.Count, 1)
		k.Interval = max(k.Interval, minPatience/time.Duration(k.Count))
	}
	return k
}

// option runs f unless the connection is closed.
func (c *Conn) option(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.fail("set", net.ErrClosed)
	}
	return c.fail("set", f())
}

// SetKeepAlive turns keep-alive off, or on with the periods that it had, or the defaults.
func (c *Conn) SetKeepAlive(on bool) error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		return c.tcp.SetKeepAlive(on)
	}
	return c.option(func() error {
		k := c.opts.keepAlive
		if k.Idle == 0 {
			k = keepAlive(defaultKeepAlive)
		}
		c.opts.keepAlive = k
		if !on {
			k = stream.KeepAlive{}
		}
		c.setKeepAlive(k)
		return nil
	})
}

// SetKeepAlivePeriod sets the time without a sign of life after which the peer is asked
// for one; a dead one is found in twice that time, or 100 ms later if that is more. It must
// be positive.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		if d <= 0 {
			return c.tcp.refuse(syscall.EINVAL)
		}
		return c.tcp.SetKeepAliveConfig(tcpKeepAlive(d))
	}
	return c.option(func() error {
		if d <= 0 {
			return &errnoError{errno: syscall.EINVAL}
		}
		c.opts.keepAlive = keepAlive(d)
		c.setKeepAlive(c.opts.keepAlive)
		return nil
	})
}

// SetKeepAliveConfig sets all of it: as with TCP a field of zero means the default (15 s,
// 15 s, 9), and a negative one leaves what there is. A dead peer is found in
// Idle + Interval × Count. As an answer may take 20 ms where nobody is in a call, Interval is
// raised so that Interval × Count is 100 ms, and Idle to 1 ms. Over TCP it is at most 32767 s
// and 127 questions, in whole seconds.
func (c *Conn) SetKeepAliveConfig(k net.KeepAliveConfig) error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		return c.tcp.SetKeepAliveConfig(bounded(k))
	}
	return c.option(func() error {
		have := c.opts.keepAlive
		pick := func(v, def, old time.Duration) time.Duration {
			switch {
			case v == 0:
				return def
			case v < 0:
				return old
			}
			return v
		}
		s := patient(stream.KeepAlive{
			Idle:     pick(k.Idle, defaultKeepAlive, have.Idle),
			Interval: pick(k.Interval, defaultKeepAlive, have.Interval),
			Count:    int(pick(time.Duration(k.Count), 9, time.Duration(have.Count))),
		})
		c.opts.keepAlive = s
		if !k.Enable {
			s = stream.KeepAlive{}
		}
		c.setKeepAlive(s)
		return nil
	})
}

// setKeepAlive tells the machine. mu is held.
func (c *Conn) setKeepAlive(k stream.KeepAlive) {
	if c.over {
		return
	}
	c.e.SetKeepAlive(now(), k)
	c.settle(nil)
}

// SetLinger says what Close does with what was written and not delivered: with sec > 0 it
// waits for so long, with 0 not at all, and the peer sees a reset; with sec < 0 it does
// what Config.Linger says. SetLinger(0) also ends a Close that waits, which nothing else does.
// Over TCP see net.TCPConn.SetLinger, too.
func (c *Conn) SetLinger(sec int) error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		if sec < 0 && c.cfg.Linger < 0 {
			sec = 0
		}
		return c.tcp.SetLinger(min(sec, math.MaxInt32)) // else the system takes the lower half of it
	}
	if sec == 0 && c.cutShort() {
		return nil
	}
	return c.option(func() error {
		switch {
		case sec < 0:
			c.opts.linger = c.cfg.Linger
		case sec == 0:
			c.opts.linger = -1
		default:
			c.opts.linger = time.Duration(min(sec, math.MaxInt32)) * time.Second
		}
		return nil
	})
}

// SetNoDelay says whether small writes go at once (true, the default) or are gathered
// while an earlier one is on its way.
func (c *Conn) SetNoDelay(on bool) error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		return c.tcp.SetNoDelay(on)
	}
	return c.option(func() error {
		if !c.over {
			c.e.SetNoDelay(on)
			c.settle(nil)
		}
		return nil
	})
}

// SetTOS is there to say that it cannot be: the path of a connected queue pair, with its
// traffic class, does not change. Set Config.TOS. The error wraps errors.ErrUnsupported.
func (c *Conn) SetTOS(tos uint8) error {
	if !c.ok() {
		return errInvalid
	}
	err := fmt.Errorf("the traffic class of a connection does not change, set Config.TOS: %w", errors.ErrUnsupported)
	if c.tcp != nil {
		return c.tcp.refuse(err)
	}
	return c.option(func() error { return err })
}

// SetReadBuffer changes Config.RecvBuf of this connection, for memory that it takes from
// now on. It is rounded as there; what is not in 1 byte to 64 MiB gives syscall.EINVAL.
func (c *Conn) SetReadBuffer(bytes int) error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		return c.tcp.setBuffer(c.tcp.SetReadBuffer, bytes)
	}
	return c.setBuffer(&c.opts.recvBuf, bytes)
}

// SetWriteBuffer changes Config.SendBuf of this connection, as SetReadBuffer does RecvBuf.
// The buffer is exchanged when it is empty.
func (c *Conn) SetWriteBuffer(bytes int) error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		return c.tcp.setBuffer(c.tcp.SetWriteBuffer, bytes)
	}
	return c.setBuffer(&c.opts.sendBuf, bytes)
}

func (c *Conn) setBuffer(v *int, n int) error {
	return c.option(func() error {
		if err := checkBuffer(n); err != nil {
			return err
		}
		*v = bufSize(n)
		return nil
	})
}

func checkBuffer(n int) error {
	if n <= 0 || n > maxBuf {
		return &errnoError{errno: syscall.EINVAL, cause: fmt.Errorf("%d bytes are not in 1..%d", n, maxBuf)}
	}
	return nil
}

// FD gives a descriptor for programs with their own event loop: readable exactly while
// TryRead would not give ErrWouldBlock, writable exactly while TryWrite would not (another
// goroutine in the same call left aside). It is for poll, select and epoll only, and level
// triggered: nothing may be read from it or written to it. The first call makes it, two
// descriptors in all; Close closes it. If TCP carries the connection it is the socket, which
// does not show that a deadline has passed.
// Elsewhere than on Linux the error wraps errors.ErrUnsupported.
//
// While a connection of a device has a descriptor, completions are looked after by a
// goroutine of the library, so that no call is needed for it to tell the truth.
func (c *Conn) FD() (int, error) {
	if !c.ok() {
		return -1, errInvalid
	}
	if c.tcp != nil {
		return c.tcp.fd()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return -1, c.fail("fd", net.ErrClosed)
	}
	was := c.ready.open
	fd, err := c.ready.get(c.readable(), c.writable())
	if err != nil {
		return -1, c.fail("fd", err)
	}
	if !was {
		c.hub.fds.Add(1)
		c.hub.role.recall()
	}
	return fd, nil
}

// Transport says what carries a connection, and why.
type Transport struct {
	Kind   string // "rdma" or "tcp"
	Device string // of RDMA
	Port   int    // of the device
	Peer   string // the protocol: "verbena 1", "rsockets 1"
	Why    string // for TCP: what was missing
}

// Transport says what carries the connection.
func (c *Conn) Transport() Transport {
	if !c.ok() {
		return Transport{}
	}
	if c.tcp != nil {
		return Transport{Kind: "tcp", Why: c.tcp.why}
	}
	return Transport{Kind: "rdma", Device: c.hub.dev.Info().Name, Port: c.port, Peer: c.e.Mode().String()}
}

// Stats counts what a connection has done. Over TCP only the bytes are counted, those of
// ReadFrom and WriteTo when they return.
type Stats struct {
	BytesRead, BytesWritten uint64
	Messages                uint64 // requests posted, those of the protocol included
	CreditStalls            uint64 // writes that had to wait for the peer
	Sleeps, Wakeups         uint64 // of calls that had to wait
}

// Stats gives the counters.
func (c *Conn) Stats() Stats {
	if !c.ok() {
		return Stats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// PD gives the protection domain of the connection, in which memory for Map is
// registered; nil over TCP.
func (c *Conn) PD() *verbs.PD {
	if !c.ok() {
		return nil
	}
	if c.tcp != nil {
		return nil
	}
	return c.hub.pd
}
