package softroce

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Modify changes attributes and state. Package verbs has compared the mask with the
// state table; values that concern the port and the path are checked here, the others
// by the protocol machine. On error nothing has changed.
//
// A new address vector may open a socket; everything else does not sleep.
func (q *qp) Modify(a *driver.QPAttr, m ib.QPAttrMask) error {
	if m&ib.AttrPort != 0 {
		if err := checkPort(a.Port); err != nil {
			return err
		}
	}
	if m&ib.AttrPKeyIndex != 0 && a.PKeyIndex != 0 {
		return fmt.Errorf("softroce: P_Key index %d, the table has index 0 only: %w", a.PKeyIndex, syscall.EINVAL)
	}
	if m&ib.AttrPathMTU != 0 && (a.PathMTU < ib.MTU256 || a.PathMTU > ib.MTU4096) {
		return fmt.Errorf("softroce: path MTU code %d is not in 1..5: %w", a.PathMTU, syscall.EINVAL)
	}
	if m&ib.AttrAltPath != 0 {
		return fmt.Errorf("softroce: alternate path: %w", syscall.EINVAL)
	}
	var p *peer
	if m&ib.AttrAV != 0 {
		var err error
		if p, err = q.d.newPeer(a, m); err != nil {
			return err
		}
	}
	q.mu.Lock()
	if err := q.err(); err != nil {
		q.mu.Unlock()
		return err
	}
	now := q.d.now()
	if err := q.eng.Modify(now, a, m); err != nil {
		q.mu.Unlock()
		return fmt.Errorf("softroce: modify queue pair %#x: %w (%w)", uint32(q.num), err, syscall.EINVAL)
	}
	if p != nil {
		q.setPeer(p)
	}
	reset := q.eng.State() == ib.StateReset
	q.flush(now)
	if reset {
		q.setPeer(nil)
	}
	q.unlock()
	return nil
}

// newPeer makes the way to the peer of an address vector.
func (d *device) newPeer(a *driver.QPAttr, m ib.QPAttrMask) (*peer, error) {
	v := &a.AH
	if !v.Global {
		return nil, fmt.Errorf("softroce: address vector without GRH: RoCE has no other: %w", syscall.EINVAL)
	}
	if v.Port != 0 { // zero: not said
		if err := checkPort(v.Port); err != nil {
			return nil, err
		}
	}
	g, err := d.port.entry(v.SGIDIndex)
	if err != nil {
		return nil, err
	}
	remote := v.DGID.Addr()
	if err := checkAddr(remote); err != nil {
		return nil, fmt.Errorf("softroce: destination GID: %w", err)
	}
	if remote.Is4() != g.addr.Is4() {
		return nil, fmt.Errorf("softroce: no way from %v to %v: %w", g.addr, remote, syscall.EINVAL)
	}
	if mtu := pathMTU(g.mtu); m&ib.AttrPathMTU != 0 && a.PathMTU > mtu {
		return nil, fmt.Errorf("softroce: path MTU %d, the link of %v has room for %d: %w", a.PathMTU.Bytes(), g.addr, mtu.Bytes(), syscall.EINVAL)
	}
	e, err := d.endpoint(g.addr)
	if err != nil {
		return nil, err
	}
	to := netip.AddrPortFrom(withZoneOf(remote, g.addr), wire.Port)
	tos := v.TrafficClass
	if tos&ecnMask == 0 {
		tos |= ecnCapable
	}
	p := &peer{
		e:      e,
		remote: plain(remote),
		to:     to,
		tos:    tos,
		flow:   wire.NewFlow(e.local, to),
	}
	p.segments.Store(int32(e.limit.Segments))
	return p, nil
}

// setPeer changes the way to the peer. q.mu is held.
func (q *qp) setPeer(p *peer) {
	if old := q.peer.Load(); old != nil {
		if q.active {
			old.buffer.active.Add(-1)
		}
		q.d.window.put(old.remote)
	}
	q.active = false
	if p != nil {
		p.buffer = q.d.window.get(p.remote)
		q.window = 0
	}
	q.peer.Store(p)
}
