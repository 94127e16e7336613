package softroce

import (
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibcm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// idState is where an id is on its way.
type idState uint8

const (
	idIdle          idState = iota
	idBound                 // has an address and a port
	idAddrResolved          // active: knows its peer and its device
	idRouteResolved         // active: may connect
	idConnecting            // active: waits for the peer's answer
	idReplied               // active: the peer said yes, Establish is next
	idRequest               // passive: Accept or Reject is next
	idAccepted              // passive: waits for the peer to be ready
	idConnected             // both
	idEnded                 // both: rejected, unreachable, disconnecting or disconnected
	idListening
	idRemoved // the device is gone
	idClosed
)

var idStateNames = [...]string{
	idIdle:          "idle",
	idBound:         "bound, and no more",
	idAddrResolved:  "resolved, without a route",
	idRouteResolved: "resolved, and not connected",
	idConnecting:    "connecting",
	idReplied:       "about to be established",
	idRequest:       "a request without an answer",
	idAccepted:      "accepted, and not established",
	idConnected:     "connected",
	idEnded:         "at its end",
	idListening:     "listening",
	idRemoved:       "on a device that was removed",
	idClosed:        "closed",
}

func (s idState) String() string { return idStateNames[s] }

// cmID is a communication identifier (struct rdma_cm_id). All its fields are under the
// lock of the core.
type cmID struct {
	core   *cmCore
	ch     *cmChannel
	handle uint64
	space  ib.PortSpace
	state  idState

	local, remote netip.AddrPort
	hasPort       bool // of the port space
	attached      bool // bound to the device

	// Options.
	tos        uint8
	tosSet     bool
	reuse      bool
	afOnly     bool
	ackTimeout uint8
	ackSet     bool

	// Listeners.
	backlog   int
	unfetched int // requests in the channel

	// Children.
	listener *cmID
	fetched  bool

	conn   *ibcm.Conn
	ask    *ibcm.ConnectParam // active: the request, until it is answered
	params cmParams
	queued int // events in the channel
}

var _ driver.CMID = (*cmID)(nil)

func (m *cmCore) newID(ch *cmChannel) *cmID {
	id := &cmID{core: m, ch: ch}
	m.ids[id] = struct{}{}
	return id
}

// SetHandle says what events of the id carry from now on.
func (id *cmID) SetHandle(h uint64) {
	id.core.mu.Lock()
	id.handle = h
	id.core.mu.Unlock()
}

// Info gives addresses, and the device once the id is bound to it.
func (id *cmID) Info() driver.CMInfo {
	id.core.mu.Lock()
	defer id.core.mu.Unlock()
	i := driver.CMInfo{Local: id.local, Remote: id.remote}
	if id.attached {
		i.Device, i.Port = DeviceName, portNumber
	}
	return i
}

// post queues an event; on a closed channel it is lost.
func (id *cmID) post(ev driver.CMEvent) {
	if !id.ch.closed {
		id.ch.post(id, ev)
	}
}

// check gives the error of an id that can do nothing any more. The lock is held.
func (id *cmID) check(op string) error {
	switch id.state {
	case idClosed:
		return cmFail(op, "id is closed", net.ErrClosed)
	case idRemoved:
		return cmGone(op)
	}
	return nil
}

// need is check, and that the id is in one of some states.
func (id *cmID) need(op string, states ...idState) error {
	if err := id.check(op); err != nil {
		return err
	}
	for _, s := range states {
		if id.state == s {
			return nil
		}
	}
	return stateFail(op, id.state)
}

// removed is the removal of the device. The lock is held.
func (id *cmID) removed() {
	if id.conn != nil {
		id.conn.Owner = nil
		id.conn = nil
	}
	if !id.attached {
		return
	}
	// Nobody has accepted a request yet: its end shows when somebody tries to.
	quiet := id.state == idRequest || id.listener != nil && !id.fetched
	id.state = idRemoved
	if !quiet {
		id.post(driver.CMEvent{Type: ib.CMDeviceRemoval})
	}
}

// SetOption sets an option (rdma_set_option): level 0, numbers as in librdmacm. One
// byte for TOS and ACK_TIMEOUT, four bytes for REUSEADDR and AFONLY.
func (id *cmID) SetOption(level, name int, value []byte) error {
	const op = "set option"
	id.core.mu.Lock()
	defer id.core.mu.Unlock()
	if err := id.check(op); err != nil {
		return err
	}
	if level != 0 {
		return notHere(op, "level of the option")
	}
	switch name {
	case optionTOS:
		if len(value) != 1 {
			return cmFail(op, "TOS is one byte", syscall.EINVAL)
		}
		id.tos, id.tosSet = value[0], true
	case optionReuseAddr:
		on, err := flag(op, value)
		if err != nil {
			return err
		}
		if id.state != idIdle && (!on || id.state == idListening) {
			return stateFail(op+" REUSEADDR", id.state)
		}
		id.reuse = on
	case optionAFOnly:
		on, err := flag(op, value)
		if err != nil {
			return err
		}
		if id.state != idIdle && id.state != idBound {
			return stateFail(op+" AFONLY", id.state)
		}
		id.afOnly = on
	case optionAckTimeout:
		if len(value) != 1 || value[0] > 31 {
			return cmFail(op, "ACK_TIMEOUT is one byte below 32", syscall.EINVAL)
		}
		if id.space != ib.PortSpaceTCP {
			return cmFail(op, "ACK_TIMEOUT is for reliable connections", syscall.EINVAL)
		}
		id.ackTimeout, id.ackSet = value[0], true
	default:
		return notHere(op, "option")
	}
	return nil
}

// Options of level 0 (RDMA_OPTION_ID).
const (
	optionTOS = iota
	optionReuseAddr
	optionAFOnly
	optionAckTimeout
)

func flag(op string, value []byte) (on bool, err error) {
	if len(value) != 4 {
		return false, cmFail(op, "a switch is four bytes", syscall.EINVAL)
	}
	return value[0]|value[1]|value[2]|value[3] != 0, nil
}

// Migrate moves the id and its pending events to another channel of the same manager.
func (id *cmID) Migrate(to driver.CMChannel) error {
	const op = "migrate"
	ch, ok := to.(*cmChannel)
	if !ok || ch == nil || ch.core != id.core {
		return cmFail(op, "channel of another device", syscall.EINVAL)
	}
	m := id.core
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.state == idClosed {
		return cmFail(op, "id is closed", net.ErrClosed)
	}
	if ch.closed {
		return cmFail(op, "channel is closed", net.ErrClosed)
	}
	if ch == id.ch {
		return nil
	}
	var events []cmQueued
	if !id.ch.closed {
		events = id.ch.take(id)
	}
	id.ch = ch
	for _, q := range events {
		if q.ev.Type == ib.CMConnectRequest {
			q.ev.Child.(*cmID).ch = ch
		}
		ch.post(id, q.ev)
	}
	return nil
}

// Join and Leave are for datagram groups, which this device does not have yet.
func (id *cmID) Join(group netip.Addr, _ ib.JoinFlags, _ uint64) error {
	const op = "join"
	id.core.mu.Lock()
	defer id.core.mu.Unlock()
	if err := id.need(op, idBound, idAddrResolved, idRouteResolved, idConnected); err != nil {
		return err
	}
	if !group.IsMulticast() {
		return cmFail(op, group.String()+" is no multicast address", syscall.EINVAL)
	}
	return notHere(op, "multicast")
}

func (id *cmID) Leave(group netip.Addr) error {
	const op = "leave"
	id.core.mu.Lock()
	defer id.core.mu.Unlock()
	if err := id.check(op); err != nil {
		return err
	}
	return cmFail(op, "not a member of "+group.String(), syscall.EADDRNOTAVAIL)
}

// Close ends the id: what is connected is disconnected, what waits for an answer is
// rejected, and what nobody fetched goes. No event of it is given any more. It waits
// for nobody.
func (id *cmID) Close() error {
	m := id.core
	m.mu.Lock()
	m.end(id)
	m.unlock()
	return nil
}

// end is Close with the lock held.
func (m *cmCore) end(id *cmID) {
	if id.state == idClosed {
		return
	}
	id.state = idClosed
	if id.conn != nil {
		m.dropQPN(id)
		if m.agent != nil {
			m.agent.Close(m.now(), id.conn)
		}
		id.conn = nil
	}
	if id.hasPort {
		m.ports.release(id)
		id.hasPort = false
	}
	delete(m.ids, id)
	if id.ch.closed {
		return
	}
	for _, q := range id.ch.take(id) {
		m.unseen(q)
	}
}

// dropQPN forgets that an id waits for the first data of its queue pair.
func (m *cmCore) dropQPN(id *cmID) {
	if q := id.params.qpn; m.byQPN[q] == id {
		delete(m.byQPN, q)
	}
}

// timeoutStatus is the status of events after a time-out.
const timeoutStatus = -int(syscall.ETIMEDOUT)

// errConnected is Notify's harmless answer.
func errConnected(op string) error { return cmFail(op, "", syscall.EISCONN) }

// agentFail turns an error of the agent into one of the call: the states of id and
// connection may differ if the peer was quicker.
func agentFail(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ibcm.ErrState):
		return cmFail(op, "the peer has given up, or the connection has ended", syscall.EINVAL)
	case errors.Is(err, ibcm.ErrConnected):
		return errConnected(op)
	}
	return cmFail(op, err.Error(), syscall.EINVAL)
}
