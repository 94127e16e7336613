package netio

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// batchConn is a UDP socket that moves batches, and sleeps in Go's poller by its gates.
//
// Each of its three users (Read, TryRead, Write) has a lock, and uses the descriptor with
// that lock alone. Close wakes who sleeps, takes them all, and then closes the descriptor.
type batchConn struct {
	fd       int
	closed   atomic.Bool
	readable gate
	writable gate // of who found the buffer full
	local    netip.AddrPort
	v4       bool
	scope    uint32 // of a link-local address, else 0
	ecn      bool
	limits   Limits
	gso      atomic.Bool
	count    counters
	bell     bell
	read     receiver
	try      receiver
	write    sender
}

// What is asked for; the system gives less without privilege. A receive buffer costs
// nothing while it is empty. It is not larger so that a peer that fills it does not
// push everything else out of the caches.
const (
	recvBuffer = 8 << 20
	sendBuffer = 2 << 20
)

const (
	ecnBits     = 3     // of the traffic class: RFC 3168 §5
	trainSize   = 65536 // the room for a train
	maxSegments = 64    // of a train: what every kernel with segmentation offload takes
)

func listen(a netip.AddrPort, o options) (Conn, error) {
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	if !a.IsValid() {
		return nil, &net.AddrError{Err: "no valid address to listen on", Addr: a.String()}
	}
	c := &batchConn{v4: a.Addr().Is4(), ecn: o.ecn}
	network := "udp6"
	if c.v4 {
		network = "udp4"
	}
	var s socketLimits
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { s, err = setUp(int(fd), c.v4, o) }); e != nil {
			return e
		}
		return err
	}}
	p, err := lc.ListenPacket(context.Background(), network, a.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &InUseError{Addr: a, Holder: holder("/", a), Err: syscall.EADDRINUSE}
	}
	if err != nil {
		return nil, err
	}
	c.local = addrPortOf(p.LocalAddr())
	if err := c.adopt(p.(*net.UDPConn)); err != nil {
		return nil, fmt.Errorf("socket of %v: %w", a, err)
	}
	ifi := interfaceOf(c.local.Addr())
	if c.local.Addr().Zone() != "" {
		c.scope = uint32(ifi.Index)
	}
	c.limits = Limits{
		RecvBuffer:  s.recvBuffer / 32 * payloadShare,
		Segments:    1,
		TrainBytes:  ipv4Payload,
		MTU:         ifi.MTU,
		ReceiveSize: singleSize,
	}
	if s.gro {
		c.limits.ReceiveSize = trainSize
	}
	c.gso.Store(s.gso)
	c.read.init(c)
	c.try.init(c)
	c.write.init(c)
	return c, nil
}

// adopt takes the socket out of package net, and so out of Go's poller: see gate.
func (c *batchConn) adopt(p *net.UDPConn) error {
	defer p.Close()
	raw, err := p.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { c.fd, err = unix.Dup(int(fd)) }); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	if err = c.readable.open(c.fd, unix.PollIn); err == nil {
		if err = c.writable.open(c.fd, 0); err == nil {
			return nil
		}
		c.readable.close()
	}
	unix.Close(c.fd)
	return err
}

// payloadShare, of 32: the kernel counts the memory of a datagram, not its payload. A
// datagram of 1 or 4 KiB takes a bit more than twice its payload on loopback (92 of 1088
// bytes or 25 of 4160 bytes fill 212992 bytes), a train about its payload, and one of
// less than 256 bytes still takes 832 bytes.
const payloadShare = 15

type socketLimits struct {
	recvBuffer int
	gso, gro   bool
}

// setUp sets the options of a new socket.
func setUp(fd int, v4 bool, o options) (s socketLimits, err error) {
	set := func(what string, level, opt, value int) {
		if err != nil {
			return
		}
		if e := unix.SetsockoptInt(fd, level, opt, value); e != nil {
			err = fmt.Errorf("socket option %s: %w", what, e)
		}
	}
	if v4 {
		// An unconnected socket that forbids fragments sends IP identification 0, which
		// the ICRC covers. PROBE and not DO, so that a forged "fragmentation needed"
		// cannot make the path too small for the queue pairs that use it.
		set("IP_MTU_DISCOVER", unix.IPProtoIP, unix.IPMTUDiscover, unix.PMTUDiscProbe)
		set("IP_RECVTOS", unix.IPProtoIP, unix.IPRecvTOS, 1)
		set("IP_RECVTTL", unix.IPProtoIP, unix.IPRecvTTL, 1)
	} else {
		set("IPV6_MTU_DISCOVER", unix.IPProtoIPv6, unix.IPv6MTUDiscover, unix.PMTUDiscProbe)
		set("IPV6_RECVTCLASS", unix.IPProtoIPv6, unix.IPv6RecvTClass, 1)
		set("IPV6_RECVHOPLIMIT", unix.IPProtoIPv6, unix.IPv6RecvHopLimit, 1)
		// NICs and Soft-RoCE send checksum 0, which IPv6 drops unless asked not to.
		set("UDP_NO_CHECK6_RX", unix.IPProtoUDP, unix.UDPNoCheck6Rx, 1)
	}
	if err != nil {
		return s, err
	}
	// The rest is wished for, and looked at afterwards.
	_ = unix.SetsockoptInt(fd, unix.SolSocket, unix.SoRxqOvfl, 1)
	setBuffer(fd, unix.SoRcvbufForce, unix.SoRcvbuf, recvBuffer)
	setBuffer(fd, unix.SoSndbufForce, unix.SoSndbuf, sendBuffer)
	if s.recvBuffer, err = unix.GetsockoptInt(fd, unix.SolSocket, unix.SoRcvbuf); err != nil {
		return s, fmt.Errorf("socket option SO_RCVBUF: %w", err)
	}
	if o.gro {
		s.gro = unix.SetsockoptInt(fd, unix.IPProtoUDP, unix.UDPGRO, 1) == nil
	}
	if o.gso {
		_, e := unix.GetsockoptInt(fd, unix.IPProtoUDP, unix.UDPSegment)
		s.gso = e == nil
	}
	return s, nil
}

// setBuffer asks for a buffer beyond the system's limit, which takes privilege, and
// else for as much as is allowed.
func setBuffer(fd, force, opt, n int) {
	if unix.SetsockoptInt(fd, unix.SolSocket, force, n) != nil {
		_ = unix.SetsockoptInt(fd, unix.SolSocket, opt, n)
	}
}

func (c *batchConn) LocalAddr() netip.AddrPort { return c.local }
func (c *batchConn) counters() Counters        { return c.count.load() }

func (c *batchConn) Limits() Limits {
	l := c.limits
	if c.gso.Load() {
		l.Segments = maxSegments
	}
	return l
}
