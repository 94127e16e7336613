package netio

import (
	"net"
	"net/netip"
)

// plainConn is a UDP socket that moves one datagram a call with package net: for
// systems without better.
type plainConn struct {
	udp    *net.UDPConn
	local  netip.AddrPort
	limits Limits
	count  counters
}

// newPlainConn takes a socket. It asks for large buffers; what the system gives is not
// told, so that the smallest usual size is assumed.
func newPlainConn(udp *net.UDPConn) *plainConn {
	c := &plainConn{udp: udp, local: addrPortOf(udp.LocalAddr())}
	// Systems differ in what they refuse outright: ask for less until one is given.
	for n := plainBuffer; n > defaultRecvBuffer && udp.SetReadBuffer(n) != nil; n /= 2 {
	}
	for n := plainBuffer; n > defaultRecvBuffer && udp.SetWriteBuffer(n) != nil; n /= 2 {
	}
	c.limits = Limits{
		RecvBuffer:  defaultRecvBuffer,
		Segments:    1,
		TrainBytes:  ipv4Payload,
		MTU:         interfaceOf(c.local.Addr()).MTU,
		ReceiveSize: singleSize,
	}
	return c
}

const plainBuffer = 2 << 20

func (c *plainConn) LocalAddr() netip.AddrPort { return c.local }
func (c *plainConn) Limits() Limits            { return c.limits }
func (c *plainConn) counters() Counters        { return c.count.load() }
func (c *plainConn) Close() error              { return c.udp.Close() }

// TryRead gives nothing: package net offers no read that does not wait.
func (c *plainConn) TryRead([]Message) (int, error) { return 0, nil }

func (c *plainConn) Read(ms []Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	m := &ms[0]
	n, from, err := c.udp.ReadFromUDPAddrPort(m.Buf[:cap(m.Buf)])
	if err != nil {
		return 0, err
	}
	m.Buf = m.Buf[:n]
	m.Segment, m.TOS, m.TTL = 0, 0, 0
	m.Addr = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	c.count.readCalls.Add(1)
	c.count.received.Add(1)
	return 1, nil
}

func (c *plainConn) Write(ms []Message) (int, error) {
	for i := range ms {
		m := &ms[i]
		b := m.Buf
		for {
			piece := b
			if m.Segment > 0 && len(b) > m.Segment {
				piece = b[:m.Segment]
			}
			if _, err := c.udp.WriteToUDPAddrPort(piece, m.Addr); err != nil {
				return i, err
			}
			c.count.writeCalls.Add(1)
			c.count.sent.Add(1)
			if b = b[len(piece):]; len(b) == 0 {
				break
			}
		}
	}
	return len(ms), nil
}
