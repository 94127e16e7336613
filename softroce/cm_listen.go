package softroce

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibcm"
)

// maxBacklog is the largest backlog, and the default (net.rdma_ucm.max_backlog).
const maxBacklog = 1024

// Listen waits for requests (rdma_listen). An id that is not bound is bound to the IPv4
// wildcard and a free port. backlog is the number of requests that may wait in the
// channel; a request beyond it is dropped without an answer, and its client comes back
// after a second at most. Out of range: the limit.
//
// The wildcard means every address of this host that no other process has, and the
// loopback. Listen fails if there is none.
func (id *cmID) Listen(backlog int) error {
	const op = "listen"
	m := id.core
	m.mu.Lock()
	err := id.need(op, idIdle, idBound)
	h := m.host
	if err == nil && h == nil {
		err = cmGone(op)
	}
	if err == nil && id.state == idIdle {
		err = id.bind(op, anyIPv4, 0)
	}
	if err == nil && id.reuse {
		if errno := m.ports.listenable(id); errno != 0 {
			err = portFail(op, id.space, id.local, errno)
		}
		id.reuse = err != nil
	}
	addr, family := id.local.Addr(), id.family()
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if addr.IsUnspecified() {
		if n, err := openAll(h, family); n == 0 {
			return cmWrap(op, errors.Join(err, syscall.EADDRNOTAVAIL))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := id.need(op, idBound); err != nil {
		return err
	}
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	id.backlog = backlog
	id.state = idListening
	return nil
}

// families is a set of address families.
type families struct{ v4, v6 bool }

func (f families) has(a netip.Addr) bool { return a.Is4() && f.v4 || !a.Is4() && f.v6 }

// family gives the families that a listener on the wildcard takes.
func (id *cmID) family() families {
	if id.local.Addr().Is4() {
		return families{v4: true}
	}
	return families{v4: !id.afOnly, v6: true}
}

// wildcards gives the families that listeners on the wildcard take. The lock is held.
func (m *cmCore) wildcards() (f families) {
	for id := range m.ids {
		if id.state == idListening && id.local.Addr().IsUnspecified() {
			g := id.family()
			f.v4, f.v6 = f.v4 || g.v4, f.v6 || g.v6
		}
	}
	return f
}

// openAll opens every address of the families, and the loopback. It gives how many
// could be, and the first error.
func openAll(h cmHost, f families) (n int, first error) {
	if f == (families{}) {
		return 0, nil
	}
	all, err := h.addresses()
	try := func(a netip.Addr) {
		if err := h.open(a); err == nil {
			n++
		} else if first == nil {
			first = err
		}
	}
	for _, a := range all {
		if f.has(a) && !a.IsLoopback() {
			try(a)
		}
	}
	if f.v6 {
		try(loopbackIPv6)
	}
	if f.v4 {
		if h.open(loopbackIPv4) == nil {
			n++
		} else if _, err := h.loopback(); err == nil {
			n++ // 127.0.0.1 is another process's
		} else if first == nil {
			first = err
		}
	}
	return n, errors.Join(err, first)
}

// admit says what becomes of a request before anything is remembered of it: the
// agent's Admit, with the lock held. The reasons are those of the kernel: 8 if nobody
// listens on the port, 28 if who listens has nothing to do with it.
func (m *cmCore) admit(r *ibcm.Request) ibcm.Verdict {
	no := func(reason ib.RejectReason) ibcm.Verdict { return ibcm.Verdict{Reason: reason} }
	if !r.ServiceID.IP() {
		return no(ib.RejectInvalidServiceID)
	}
	space := r.ServiceID.PortSpace()
	l, listens := m.ports.listener(space, r.ServiceID.Port(), r.Local)
	if !listens {
		return no(ib.RejectInvalidServiceID)
	}
	var head ibcm.CMAHeader
	if l == nil || space != ib.PortSpaceTCP || l.ch.closed || head.Decode(r.Private) != nil ||
		head.Src != plain(r.Remote) || head.Dst != plain(r.Local) {
		return no(ib.RejectConsumer)
	}
	if mtu := m.host.limits(r.Local).mtu; r.MTU > mtu {
		return ibcm.Verdict{Reason: ib.RejectInvalidMTU, Info: []byte{uint8(mtu)}}
	}
	if l.unfetched >= l.backlog {
		return ibcm.Verdict{} // it comes again
	}
	l.unfetched++
	id := m.newID(l.ch)
	id.space = space
	id.state = idRequest
	id.attached = true
	id.listener = l
	id.tos, id.tosSet = l.tos, l.tosSet
	id.ackTimeout, id.ackSet = l.ackTimeout, l.ackSet
	id.local = netip.AddrPortFrom(r.Local, r.ServiceID.Port())
	id.remote = netip.AddrPortFrom(r.Remote, head.SrcPort)
	return ibcm.Verdict{Take: true, Owner: id}
}
