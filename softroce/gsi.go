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

// cmHost is what the connection manager asks of the device.
//
// Locks are taken in the order endpoint.rx, cmCore.mu, then the device's leaves (the GID
// table, the timers, the table of peers). The device calls the manager with no lock but
// endpoint.rx. The methods of the second half are called without the manager's lock, as
// they may make system calls or take the lock of a queue pair.
type cmHost interface {
	// now is the time since the device was made.
	now() time.Duration

	// wake asks for a call of cmCore.advance at a time. The last call counts; set false:
	// no call is wanted.
	wake(at time.Duration, set bool)

	// index gives the place of a local address in the GID table.
	index(local netip.Addr) (int, bool)

	// limits gives what is known of the link of a local address.
	limits(local netip.Addr) cmLimits

	// peerBuffer tells what the socket of a peer holds.
	peerBuffer(remote netip.Addr, bytes int)

	// addresses gives every address that the device has: those of the host's interfaces
	// that are up, link-local ones with their zone, and the loopback addresses that the
	// process holds. The slice is the caller's.
	addresses() ([]netip.Addr, error)

	// open binds the socket of a local address and starts its reader; an address that
	// is open already is no error. One that another process holds gives an error that
	// wraps *netio.InUseError, one that the host does not have syscall.EADDRNOTAVAIL.
	open(local netip.Addr) error

	// holds reports whether this process has the socket of an address open.
	holds(local netip.Addr) bool

	// loopback gives a loopback address (IPv4) of this process, opened: one that it
	// holds, or else one of its own.
	loopback() (netip.Addr, error)

	// vacant reports that no process has the socket of a loopback address, as far as the
	// system says so.
	vacant(loopback netip.Addr) bool

	// route gives the local address from which the host sends to dst, or an error that
	// wraps syscall.ENETUNREACH or what the system says.
	route(dst netip.Addr) (netip.Addr, error)

	// facts gives what the manager wants to know of a queue pair.
	facts(n ib.QPN) (qpFacts, bool)

	// sendMAD sends a management datagram to queue pair 1 of remote. It does not keep
	// mad. A datagram that cannot be sent is as good as lost.
	sendMAD(local, remote netip.Addr, mad []byte, tos uint8)
}

// cmLimits are the limits of a link.
type cmLimits struct {
	mtu        ib.MTU // the largest path MTU
	recvBuffer int    // bytes that the socket of the address holds
}
