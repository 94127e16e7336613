package softroce

import (
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// ecnCapable is the ECN code point ECT(0): the network may mark instead of drop.
const (
	ecnMask    = 3
	ecnCapable = 2
	ecnMarked  = 3
)

// send sends the packets of s to a peer: it makes trains of packets of one size, the
// last of which may be shorter, and fills in the ICRCs. What a socket refuses is lost,
// as on any network, and counted.
func (e *endpoint) send(s *sender, to netip.AddrPort, flow *wire.Flow, tos uint8, segments int) {
	buf, ends := s.out.Buf, s.out.Ends
	msgs := s.msgs[:0]
	start := 0
	for i := 0; i < len(ends); {
		size, end := ends[i]-start, ends[i]
		flow.Put(buf[start:end], 0)
		n := 1
		for i++; i < len(ends) && n < segments && ends[i]-start <= e.limit.TrainBytes; i++ {
			l := ends[i] - end
			if l > size {
				break
			}
			// The system numbers the packets that it cuts off a train.
			flow.Put(buf[end:ends[i]], uint16(n))
			end = ends[i]
			n++
			if l < size {
				i++
				break
			}
		}
		m := netio.Message{Buf: buf[start:end], Addr: to, TOS: tos}
		if n > 1 {
			m.Segment = size
		}
		msgs = append(msgs, m)
		start = end
	}
	c := &e.d.stats
	c.packetsOut.Add(uint64(len(ends)))
	c.bytesOut.Add(uint64(start))
	e.write(msgs)
	clear(msgs) // keep no buffer alive
	s.msgs = msgs[:0]
}

// write gives messages to the socket.
func (e *endpoint) write(msgs []netio.Message) {
	c := &e.d.stats
	if !e.link.Load() {
		c.sendErrors.Add(uint64(len(msgs)))
		return
	}
	for len(msgs) > 0 {
		n, err := e.conn.Write(msgs)
		c.sendCalls.Add(1)
		if err == nil {
			return
		}
		c.sendErrors.Add(1)
		msgs = msgs[min(n+1, len(msgs)):]
	}
}

// sendMAD sends a management datagram of 256 bytes from QP1 of a local address to that
// of a remote one. It opens the local address if need be, and does not keep mad.
func (d *device) sendMAD(local, remote netip.Addr, mad []byte, tos uint8) error {
	if err := d.err(); err != nil {
		return err
	}
	if err := checkAddr(remote); err != nil {
		return fmt.Errorf("softroce: management datagram to nobody: %w", err)
	}
	e, err := d.endpoint(local)
	if err != nil {
		return err
	}
	s := e.takeSender()
	defer e.giveSender(s)
	b := appendMAD(s.out.Buf[:0], ibPSN(e.psn.Add(1)), mad)
	b = append(b, 0, 0, 0, 0)
	to := netip.AddrPortFrom(withZoneOf(remote.Unmap(), e.addr), wire.Port)
	flow := wire.NewFlow(e.local, to)
	flow.Put(b, 0)
	if !e.link.Load() {
		d.stats.sendErrors.Add(1)
		return nil // lost
	}
	d.stats.packetsOut.Add(1)
	d.stats.bytesOut.Add(uint64(len(b)))
	msgs := append(s.msgs[:0], netio.Message{Buf: b, Addr: to, TOS: tos})
	_, err = e.conn.Write(msgs)
	clear(msgs)
	d.stats.sendCalls.Add(1)
	if err != nil {
		d.stats.sendErrors.Add(1)
	}
	return err
}

// withZoneOf gives a link-local peer the zone of the local address: no other link
// leads to it.
func withZoneOf(remote, local netip.Addr) netip.Addr {
	if remote.Is6() && remote.IsLinkLocalUnicast() && remote.Zone() == "" {
		return remote.WithZone(local.Zone())
	}
	return remote
}
