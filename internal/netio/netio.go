// Package netio moves UDP datagrams in batches: sendmmsg, recvmmsg, segmentation
// offload in both directions, congestion marks, and the socket options that RoCEv2
// needs. It is the only package that opens sockets.
package netio

import (
	"net"
	"net/netip"
)

// Message is one datagram, or a train of datagrams of one size (the last may be
// shorter) between the same two addresses.
type Message struct {
	Buf     []byte         // the payloads, one behind the other
	Segment int            // size of each; 0: Buf is one datagram
	Addr    netip.AddrPort // the other end
	TOS     uint8          // IPv4 TOS or IPv6 traffic class, with the ECN bits
	TTL     uint8          // received hop limit; 0 if not known
}

// Conn is a socket bound to one address. One goroutine reads; any may write.
type Conn interface {
	// Read waits for at least one message and fills ms from the start. Each Buf of ms
	// must have its room as capacity; Read sets its length. After Close it gives an
	// error that wraps net.ErrClosed.
	Read(ms []Message) (n int, err error)

	// TryRead is Read that does not wait; n may be 0.
	TryRead(ms []Message) (n int, err error)

	// Write sends messages in order and gives the number sent. It does not keep them.
	// A full socket buffer makes it wait, not fail.
	Write(ms []Message) (n int, err error)

	LocalAddr() netip.AddrPort

	// Limits of the socket.
	Limits() Limits

	Close() error
}

// Limits of a Conn.
type Limits struct {
	RecvBuffer  int // bytes of payload that the receive buffer holds, about, in large datagrams
	Segments    int // datagrams of one train; 1: no segmentation offload
	TrainBytes  int // bytes of one train
	MTU         int // of the interface, IP header included
	ReceiveSize int // room that each message given to Read should have
}

// Listen opens the socket of an address. An address in use gives *InUseError.
func Listen(a netip.AddrPort) (Conn, error) { return nil, nil }

// Wrap makes a Conn of a packet connection that may be no socket at all: one datagram
// a call, no marks unless p is a MarkedConn.
func Wrap(p net.PacketConn, mtu int) Conn { return nil }

// MarkedConn is a packet connection that carries the traffic class of each datagram.
type MarkedConn interface {
	net.PacketConn
	ReadMarked(b []byte) (n int, tos uint8, from net.Addr, err error)
	WriteMarked(b []byte, tos uint8, to net.Addr) (int, error)
}

// InUseError says who holds an address.
type InUseError struct {
	Addr   netip.AddrPort
	Holder string // "process 4711 (verbena)", "kernel Soft-RoCE (rdma_rxe)", or "another process"
	Err    error  // syscall.EADDRINUSE
}

func (e *InUseError) Error() string { return "" }
func (e *InUseError) Unwrap() error { return e.Err }

// Interface is a network interface with the addresses that a device can have.
type Interface struct {
	Name  string
	Index int
	MTU   int
	Up    bool
	Addrs []netip.Addr
}

// Interfaces lists the interfaces of this host.
func Interfaces() ([]Interface, error) { return nil, nil }

// PrivateLoopback gives an address of 127.0.0.0/8 that no other process is likely to
// hold, other than 127.0.0.1; the n-th call gives the n-th choice.
func PrivateLoopback(n int) netip.Addr { return netip.Addr{} }
