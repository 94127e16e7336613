// Package netio moves UDP datagrams in batches: sendmmsg, recvmmsg, segmentation
// offload in both directions, congestion marks, and the socket options that RoCEv2
// needs. It is the only package that opens sockets.
//
// On Linux everything is used that the kernel has. Elsewhere a Conn moves one datagram
// a call through package net; marks and hop limits are not known there, and the IPv4
// identification is the system's choice, so that only a peer that does not see it (an
// embedded device) accepts what is sent over IPv4. IPv6 has no such limit.
//
// VERBENA_DISABLE_GSO, VERBENA_DISABLE_GRO and VERBENA_DISABLE_ECN in the environment,
// set to anything but 0 or the empty string, turn off trains out, trains in and
// congestion marks of the sockets that are opened afterwards: for networks and drivers
// that get one of them wrong.
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

// Conn is a socket bound to one address. One goroutine reads; any may write. No call
// but Close allocates, whether it succeeds or not.
type Conn interface {
	// Read waits for at least one message and fills ms from the start. Each Buf of ms
	// must have its room as capacity; Read sets its length. Messages may trade their
	// Bufs. A datagram that is larger than its room is dropped and counted. Read parks
	// the goroutine and holds no thread. After Close it gives an error that wraps
	// net.ErrClosed. An empty ms gives 0 at once.
	Read(ms []Message) (n int, err error)

	// TryRead is Read that does not wait; n may be 0. Unlike Read it may be called by
	// any goroutine, also while another is in Read; which of the two gets a datagram is
	// then open. Where the system offers no such thing it always gives 0.
	TryRead(ms []Message) (n int, err error)

	// Write sends messages in order and gives the number sent. It does not keep them.
	// A full socket buffer makes it wait, not fail. On error ms[n] is the message that
	// failed, maybe after some segments of it were sent: the caller may go on behind
	// it. An error of the system is a syscall.Errno; after Close it wraps
	// net.ErrClosed.
	//
	// If the system refuses a train its segments are sent one by one, and the limits
	// say so from then on. On IPv4 each of them then has identification 0 instead of
	// its index.
	Write(ms []Message) (n int, err error)

	LocalAddr() netip.AddrPort

	// Limits of the socket. They can change: see Write.
	Limits() Limits

	// Close wakes Read and Write. A second Close gives an error that wraps
	// net.ErrClosed.
	Close() error
}

// Limits of a Conn.
type Limits struct {
	RecvBuffer  int // bytes of payload that the receive buffer holds, about, in datagrams of 1 KiB or more; a small one takes as much room as 400 bytes
	Segments    int // datagrams of one train; 1: no segmentation offload
	TrainBytes  int // bytes of one train, and the most that one datagram holds
	MTU         int // of the interface, IP header included
	ReceiveSize int // room that each message given to Read should have
}

// Counters of a Conn since it was made.
type Counters struct {
	ReadCalls, WriteCalls uint64 // system calls that moved something
	Received, Sent        uint64 // datagrams, those in trains included
	ReceivedTrains        uint64 // reads that gave more than one datagram at once
	SentTrains            uint64
	Truncated             uint64 // datagrams dropped because they were larger than their room
	Overflow              uint64 // datagrams that the system dropped because the receive buffer was full
	Waits                 uint64 // times that Write waited for room
	Fallbacks             uint64 // trains that the system refused
}

// Listen opens the socket of an address; port 0 takes a free port. An address in use
// gives *InUseError. The socket is exclusive: nobody else can bind the address.
func Listen(a netip.AddrPort) (Conn, error) { return listen(a, optionsFromEnv()) }

// Wrap makes a Conn of a packet connection that may be no socket at all: one datagram
// a call, no marks unless p is a MarkedConn. mtu counts the IP header. A method
// ReceiveBuffer() int of p, if there is one, says what its receive buffer holds;
// otherwise 64 KiB are assumed. TryRead gives 0 unless p has a method
// TryReadFrom([]byte) (int, net.Addr, error), which gives a nil address if nothing is
// there, or, with the traffic class as a MarkedConn has it, TryReadMarked([]byte) (int,
// uint8, net.Addr, error). Read is nothing but p's read, so that it blocks durably under
// testing/synctest if p's does.
func Wrap(p net.PacketConn, mtu int) Conn { return newPacketConn(p, mtu) }

// MarkedConn is a packet connection that carries the traffic class of each datagram.
type MarkedConn interface {
	net.PacketConn
	ReadMarked(b []byte) (n int, tos uint8, from net.Addr, err error)
	WriteMarked(b []byte, tos uint8, to net.Addr) (int, error)
}

// Interface is a network interface with the addresses that a device can have.
type Interface struct {
	Name  string
	Index int
	MTU   int
	Up    bool
	Addrs []netip.Addr // unicast; link-local ones with the interface's name as zone
}
