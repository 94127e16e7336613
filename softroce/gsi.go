package softroce

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// The general services interface is queue pair 1 of every address: datagrams that
// carry management datagrams of 256 bytes (IBTA Vol 1 §13.4, annex A17). Its only
// user here is the connection manager.

const (
	gsiQPN  ib.QPN      = 1
	gsiQKey ib.QKey     = 0x80010000
	gsiOp   wire.Opcode = 0x64 // UD SEND_ONLY
	madLen              = 256
)

// gsiPacketLen is the length of a GSI datagram without its ICRC.
const gsiPacketLen = wire.BTHLen + 8 + madLen

// appendMAD appends the packet that carries mad to queue pair 1 of a peer, from BTH to
// the end of mad, without ICRC. mad has madLen bytes. The PSN is any counter of the
// sender: nobody checks it.
func appendMAD(b []byte, psn ib.PSN, mad []byte) []byte {
	p := wire.Packet{
		Opcode:  gsiOp,
		MigReq:  true,
		PKey:    0xffff,
		DestQP:  gsiQPN,
		PSN:     psn & 0xffffff,
		DETH:    wire.DETH{QKey: gsiQKey, SrcQP: gsiQPN},
		Payload: mad,
	}
	return p.AppendTo(b)
}

// madOf gives the management datagram of a decoded packet whose DestQP is 1; false if
// the packet may not reach queue pair 1 (C9-…: opcode, Q_Key, source queue pair) or is
// no management datagram. The result refers to the packet.
func madOf(p *wire.Packet) ([]byte, bool) {
	if p.Opcode != gsiOp || p.DestQP != gsiQPN || p.DETH.QKey != gsiQKey ||
		p.DETH.SrcQP != gsiQPN || len(p.Payload) != madLen {
		return nil, false
	}
	return p.Payload, true
}

// cmHost is what the connection manager asks of the device. The manager calls now,
// wake, addresses, index, limits, route, privateLoopback and queuePair with its lock
// held: they must not wait, and must not call back. open and sendMAD are called
// without it.
//
// The order of locks is: manager, then device. The device never calls the manager
// with a lock of a queue pair, of a socket or of its timers held.
type cmHost interface {
	// now is the time since the device was made.
	now() time.Duration

	// wake asks for a call of cmCore.advance at a time, from any goroutine. The last
	// call counts; set false: no call is wanted.
	wake(at time.Duration, set bool)

	// addresses gives every address that the device can have: those of the host's
	// interfaces that are up (link-local ones with their zone) and the loopback
	// addresses that the process holds. The slice is the caller's.
	addresses() []cmAddr

	// open binds the socket of a local address and starts its reader; an address that
	// is open already is no error. One that another process holds gives
	// *netio.InUseError, one that the host has not syscall.EADDRNOTAVAIL.
	open(local netip.Addr) error

	// index gives the place of a local address in the GID table.
	index(local netip.Addr) (int, bool)

	// limits gives what is known of the socket of an address, and of the device.
	limits(local netip.Addr) cmLimits

	// route gives the local address from which the host would send to dst, or
	// syscall.ENETUNREACH.
	route(dst netip.Addr) (netip.Addr, error)

	// privateLoopback gives the n-th choice of a loopback address of the process's own.
	privateLoopback(n int) netip.Addr

	// queuePair gives what the manager wants to know of a queue pair.
	queuePair(n ib.QPN) (cmQueuePair, bool)

	// peerBuffer tells what the socket of the peer of a queue pair can hold.
	peerBuffer(n ib.QPN, bytes int)

	// sendMAD sends a management datagram to queue pair 1 of remote. It does not keep mad.
	sendMAD(local, remote netip.Addr, mad []byte, tos uint8) error
}

// cmAddr is an address of the host.
type cmAddr struct {
	addr  netip.Addr // with zone if it is link-local
	zone  string     // name of the interface
	index int        // of the interface
	open  bool       // the process holds it
}

// cmLimits are numbers that go into requests and replies.
type cmLimits struct {
	mtu        ib.MTU // of the interface
	recvBuffer int    // bytes that the socket holds
	rdAtomic   int    // reads and atomics served at once
	initDepth  int    // reads and atomics issued at once
}

// cmQueuePair are facts of a queue pair.
type cmQueuePair struct {
	typ   ib.QPType
	state ib.QPState
	srq   bool
}
