package netio

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// packetConn is a Conn over any packet connection, one datagram a call.
type packetConn struct {
	p      net.PacketConn
	marked MarkedConn // p, if it is one
	local  netip.AddrPort
	limits Limits
	closed atomic.Bool
	count  counters

	mu    sync.RWMutex // held for look-ups only, never while p works
	peers map[netip.AddrPort]net.Addr
}

const (
	// defaultRecvBuffer is assumed of a peer that says nothing: what Linux gives a
	// socket that asks for nothing.
	defaultRecvBuffer = 64 << 10

	// maxPeers bounds the cache of addresses; a full one is emptied.
	maxPeers = 1024
)

func newPacketConn(p net.PacketConn, mtu int) *packetConn {
	c := &packetConn{
		p:     p,
		local: addrPortOf(p.LocalAddr()),
		limits: Limits{
			RecvBuffer: defaultRecvBuffer,
			Segments:   1,
			TrainBytes: ipv4Payload,
			MTU:        mtu,
			// IP and UDP header are not read: what remains is the largest payload.
			ReceiveSize: max(mtu-28, 0),
		},
		peers: map[netip.AddrPort]net.Addr{},
	}
	c.marked, _ = p.(MarkedConn)
	if b, ok := p.(interface{ ReceiveBuffer() int }); ok {
		c.limits.RecvBuffer = b.ReceiveBuffer()
	}
	return c
}

func (c *packetConn) LocalAddr() netip.AddrPort { return c.local }
func (c *packetConn) Limits() Limits            { return c.limits }
func (c *packetConn) counters() Counters        { return c.count.load() }

func (c *packetConn) Close() error {
	if c.closed.Swap(true) {
		return errClosed
	}
	return c.p.Close()
}

var errClosed = fmt.Errorf("netio: %w", net.ErrClosed)

func (c *packetConn) Read(ms []Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	m := &ms[0]
	b := m.Buf[:cap(m.Buf)]
	var n int
	var tos uint8
	var from net.Addr
	var err error
	if c.marked != nil {
		n, tos, from, err = c.marked.ReadMarked(b)
	} else {
		n, from, err = c.p.ReadFrom(b)
	}
	if err != nil {
		return 0, c.closedError(err)
	}
	c.take(m, n, tos, from)
	return 1, nil
}

func (c *packetConn) TryRead(ms []Message) (int, error) {
	if c.closed.Load() {
		return 0, errClosed
	}
	if len(ms) == 0 {
		return 0, nil
	}
	m := &ms[0]
	b := m.Buf[:cap(m.Buf)]
	var n int
	var tos uint8
	var from net.Addr
	var err error
	switch p := c.p.(type) {
	case interface {
		TryReadMarked([]byte) (int, uint8, net.Addr, error)
	}:
		n, tos, from, err = p.TryReadMarked(b)
	case interface {
		TryReadFrom([]byte) (int, net.Addr, error)
	}:
		n, from, err = p.TryReadFrom(b)
	}
	if err != nil {
		return 0, c.closedError(err)
	}
	if from == nil {
		return 0, nil
	}
	c.take(m, n, tos, from)
	return 1, nil
}

func (c *packetConn) take(m *Message, n int, tos uint8, from net.Addr) {
	m.Buf = m.Buf[:n]
	m.Segment = 0
	m.Addr = addrPortOf(from)
	m.TOS, m.TTL = tos, 0
	c.count.readCalls.Add(1)
	c.count.received.Add(1)
}

// closedError makes the error of a closed connection recognisable, whatever p gives.
func (c *packetConn) closedError(err error) error {
	if c.closed.Load() && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("%w (%w)", errClosed, err)
	}
	return err
}

func (c *packetConn) Write(ms []Message) (int, error) {
	for i := range ms {
		m := &ms[i]
		to := c.peer(m.Addr)
		b := m.Buf
		for {
			piece := b
			if m.Segment > 0 && len(b) > m.Segment {
				piece = b[:m.Segment]
			}
			var err error
			if c.marked != nil {
				_, err = c.marked.WriteMarked(piece, m.TOS, to)
			} else {
				_, err = c.p.WriteTo(piece, to)
			}
			if err != nil {
				return i, c.closedError(err)
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

// peer gives the net.Addr of an address without making it anew each time.
func (c *packetConn) peer(a netip.AddrPort) net.Addr {
	c.mu.RLock()
	p := c.peers[a]
	c.mu.RUnlock()
	if p != nil {
		return p
	}
	p = net.UDPAddrFromAddrPort(a)
	c.mu.Lock()
	if len(c.peers) >= maxPeers {
		clear(c.peers)
	}
	c.peers[a] = p
	c.mu.Unlock()
	return p
}

// addrPortOf gives the address of a net.Addr, or the zero value.
func addrPortOf(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case interface{ AddrPort() netip.AddrPort }:
		ap = a.AddrPort()
	case nil:
	default:
		ap, _ = netip.ParseAddrPort(a.String())
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
