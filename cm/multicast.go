package cm

import (
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// membership of a multicast group.
type membership struct {
	handle   uint64
	addr     netip.Addr
	joined   bool
	attached bool // the queue pair is
	gid      ib.GID
	lid      ib.LID
	err      error
}

// JoinMulticast → MulticastJoin or MulticastError; the queue pair is attached
// (rdma_join_multicast_ex). The id is one of ib.PortSpaceUDP whose address is resolved.
func (id *ID) JoinMulticast(group netip.Addr, f ib.JoinFlags) error {
	g, err := id.join(group, f)
	if err != nil {
		return err
	}
	return id.answerJoin(g)
}

func (id *ID) join(group netip.Addr, f ib.JoinFlags) (*membership, error) {
	ok := one(stateBound, stateAddrResolved, stateRouteQuery, stateRouteResolved, stateConnected)
	if err := id.enter(opJoin, "a group is joined when the device is known", func(s state) bool { return ok(s) && id.dev != nil }); err != nil {
		return nil, err
	}
	defer id.mu.Unlock()
	group = group.Unmap()
	var err error
	switch {
	case !datagram(id.ps):
		err = wrong("cm: only datagram services have groups, not port space " + id.ps.String())
	case !group.IsMulticast():
		err = wrong("cm: " + group.String() + " is no multicast address")
	case id.member(group) != nil:
		err = wrong("cm: the id is in group " + group.String() + " already")
	}
	if err != nil {
		return nil, id.errorf(opJoin, err)
	}
	g := &membership{addr: group}
	g.handle = table.add(id, g)
	if err := id.drv.Join(group, f, g.handle); err != nil {
		table.remove(g.handle)
		return nil, id.errorf(opJoin, err)
	}
	id.groups = append(id.groups, g)
	return g, nil
}

// LeaveMulticast leaves a group and detaches the queue pair (rdma_leave_multicast). At
// once, no event.
func (id *ID) LeaveMulticast(group netip.Addr) error {
	if err := id.enter(opLeave, "", anyState); err != nil {
		return err
	}
	defer id.mu.Unlock()
	g := id.member(group.Unmap())
	if g == nil {
		return id.errorf(opLeave, wrong("cm: the id is not in group "+group.String()))
	}
	id.forget(g)
	var err error
	if g.attached {
		err = id.qp.DetachMulticast(g.gid, g.lid)
	}
	if lerr := id.drv.Leave(g.addr); lerr != nil {
		err = lerr
	}
	id.signal()
	return id.errorf(opLeave, err)
}

func (id *ID) member(a netip.Addr) *membership {
	for _, g := range id.groups {
		if g.addr == a {
			return g
		}
	}
	return nil
}

// forget ends a membership on this side. mu is held.
func (id *ID) forget(g *membership) {
	table.remove(g.handle)
	for i, have := range id.groups {
		if have == g {
			id.groups = append(id.groups[:i], id.groups[i+1:]...)
			return
		}
	}
}

// joined attaches the queue pair when a group is joined.
func (id *ID) joined(ev *Event, raw *driver.CMEvent, g *membership) bool {
	if g == nil {
		id.unexpected(ev)
		return true
	}
	ev.Group = g.addr
	ev.UD = UDParam(raw.UD)
	if ev.Type == MulticastJoin && ev.Err == nil && id.qp != nil && !g.attached {
		g.gid, g.lid = raw.UD.AH.DGID, raw.UD.AH.DLID
		ev.Err = id.qp.AttachMulticast(g.gid, g.lid)
		g.attached = ev.Err == nil
	}
	if ev.Type == MulticastError && ev.Err == nil {
		ev.Err = errFailed
	}
	if ev.Err != nil {
		ev.Type = MulticastError
		g.err = ev.Err
		if g.attached {
			id.qp.DetachMulticast(g.gid, g.lid)
		}
		id.forget(g)
		return true
	}
	g.joined = true
	return true
}
