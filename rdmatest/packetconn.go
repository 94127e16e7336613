package rdmatest

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// queueLen bounds the datagrams that wait in a socket: 4 MiB of the largest ones.
const queueLen = 1024

// headerLen gives the bytes of IP and UDP header in front of a payload.
func headerLen(a netip.Addr) int {
	if a.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

const (
	errInUse     = syscall.EADDRINUSE
	errNoAddress = syscall.EADDRNOTAVAIL
	errTooLong   = syscall.EMSGSIZE
)

func opError(op string, a netip.AddrPort, err error) error {
	return &net.OpError{Op: op, Net: "fabric", Addr: net.UDPAddrFromAddrPort(a), Err: err}
}

// packetConn is a socket of a fabric. Reading blocks on channels only, which a
// testing/synctest bubble understands.
type packetConn struct {
	f      *Fabric
	local  netip.AddrPort
	addr   *net.UDPAddr
	device bool // of a host, not of a test
	mtu    int
	in     chan *datagram
	done   chan struct{}
	once   sync.Once
	read   deadline
}

var _ net.PacketConn = (*packetConn)(nil)

func newPacketConn(f *Fabric, a netip.AddrPort, device bool) *packetConn {
	return &packetConn{
		device: device,
		f:      f,
		local:  a,
		addr:   net.UDPAddrFromAddrPort(a),
		mtu:    f.mtu,
		in:     make(chan *datagram, queueLen),
		done:   make(chan struct{}),
		read:   deadline{passed: make(chan struct{})},
	}
}

// ReceiveBuffer gives the bytes of payload that surely fit the queue: packets of the
// smallest path MTU fill it with the fewest.
func (c *packetConn) ReceiveBuffer() int { return queueLen * 256 }

// TryReadMarked is ReadMarked that does not wait: from is nil if nothing is there.
func (c *packetConn) TryReadMarked(b []byte) (n int, tos uint8, from net.Addr, err error) {
	select {
	case <-c.done:
		return 0, 0, nil, opError("read", c.local, net.ErrClosed)
	default:
	}
	select {
	case d := <-c.in:
		n, tos, from = d.take(b)
		return n, tos, from, nil
	default:
		return 0, 0, nil, nil
	}
}

// TryReadFrom is ReadFrom that does not wait: from is nil if nothing is there.
func (c *packetConn) TryReadFrom(b []byte) (n int, from net.Addr, err error) {
	n, _, from, err = c.TryReadMarked(b)
	return n, from, err
}

// next waits for a datagram.
func (c *packetConn) next() (*datagram, error) {
	passed := c.read.wait()
	select {
	case <-c.done:
		return nil, opError("read", c.local, net.ErrClosed)
	case <-passed:
		return nil, opError("read", c.local, os.ErrDeadlineExceeded)
	default:
	}
	select {
	case d := <-c.in:
		return d, nil
	case <-c.done:
		return nil, opError("read", c.local, net.ErrClosed)
	case <-passed:
		return nil, opError("read", c.local, os.ErrDeadlineExceeded)
	}
}

// ReadMarked reads a datagram and its traffic class.
func (c *packetConn) ReadMarked(b []byte) (n int, tos uint8, from net.Addr, err error) {
	d, err := c.next()
	if err != nil {
		return 0, 0, nil, err
	}
	n, tos, from = d.take(b)
	return n, tos, from, nil
}

// ReadFrom reads a datagram.
func (c *packetConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, _, from, err := c.ReadMarked(b)
	return n, from, err
}

// ReadFromUDPAddrPort is ReadFrom without the allocation of an address.
func (c *packetConn) ReadFromUDPAddrPort(b []byte) (n int, from netip.AddrPort, err error) {
	d, err := c.next()
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	n, from = copy(b, d.b), d.from
	d.free()
	return n, from, nil
}

// WriteMarked sends a datagram with a traffic class.
func (c *packetConn) WriteMarked(b []byte, tos uint8, to net.Addr) (int, error) {
	u, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, opError("write", c.local, syscall.EINVAL)
	}
	return c.write(b, tos, u.AddrPort())
}

// WriteTo sends a datagram.
func (c *packetConn) WriteTo(b []byte, to net.Addr) (int, error) {
	return c.WriteMarked(b, 0, to)
}

// WriteToUDPAddrPort sends a datagram.
func (c *packetConn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	return c.write(b, 0, to)
}

func (c *packetConn) write(b []byte, tos uint8, to netip.AddrPort) (int, error) {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	select {
	case <-c.done:
		return 0, opError("write", c.local, net.ErrClosed)
	default:
	}
	if len(b)+headerLen(to.Addr()) > c.mtu {
		return 0, opError("write", to, errTooLong)
	}
	d := newDatagram(c.local, to, b, tos)
	d.source, d.device = c.addr, c.device
	c.f.send(d)
	return len(b), nil
}

// LocalAddr gives the address.
func (c *packetConn) LocalAddr() net.Addr { return c.addr }

// Close wakes readers with an error that wraps net.ErrClosed.
func (c *packetConn) Close() error {
	c.once.Do(func() {
		close(c.done)
		c.read.set(time.Time{})
		c.f.forget(c)
	})
	return nil
}

// SetDeadline sets the time at which reads give up.
func (c *packetConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline sets the time at which reads give up.
func (c *packetConn) SetReadDeadline(t time.Time) error {
	select {
	case <-c.done:
		return opError("set", c.local, net.ErrClosed)
	default:
	}
	c.read.set(t)
	return nil
}

// SetWriteDeadline does nothing: writes never block.
func (c *packetConn) SetWriteDeadline(time.Time) error { return nil }

// deadline is a channel that is closed when a time has passed. Setting it anew gives
// a new channel, except that a reader which waits keeps seeing the old one until it
// passes: so a change to an open channel reuses it.
type deadline struct {
	mu     sync.Mutex
	timer  *time.Timer
	gen    uint64
	passed chan struct{}
}

func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gen++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	open := true
	select {
	case <-d.passed:
		open = false
	default:
	}
	if t.IsZero() || time.Until(t) > 0 {
		if !open {
			d.passed = make(chan struct{})
		}
		if !t.IsZero() {
			gen, ch := d.gen, d.passed
			d.timer = time.AfterFunc(time.Until(t), func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				if d.gen == gen {
					close(ch)
				}
			})
		}
		return
	}
	if open {
		close(d.passed)
	}
}
