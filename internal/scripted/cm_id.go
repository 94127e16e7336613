package scripted

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// CMID is an id of a CM. Its fields are the manager's, guarded by its lock.
type CMID struct {
	cm  *CM
	one only

	ch      *CMChannel
	handle  uint64
	ps      ib.PortSpace
	typ     ib.QPType
	state   cmState
	info    driver.CMInfo
	parent  *CMID // the listener of a request
	peer    *CMID // the other end; nil: none, or gone
	param   driver.ConnParam
	backlog int
	reuse   bool
	dreq    bool // sent a disconnect request
	dreqIn  bool // got one
	dead    bool
}

type cmState string

const (
	cmIdle      cmState = ""
	cmBound     cmState = "bound"
	cmResolved  cmState = "resolved"
	cmRouted    cmState = "routed"
	cmListening cmState = "listening"
	cmConnect   cmState = "connecting" // sent a request
	cmResponse  cmState = "responded"  // got the answer
	cmRequest   cmState = "request"    // got a request
	cmReply     cmState = "replied"    // sent the answer
	cmUp        cmState = "established"
	cmOver      cmState = "over"
)

// Post queues an event for the id, on the channel that it is on.
func (id *CMID) Post(ev driver.CMEvent) {
	id.cm.mu.Lock()
	defer id.cm.mu.Unlock()
	id.post(ev)
}

// post is Post with cm.mu held.
func (id *CMID) post(ev driver.CMEvent) {
	if id.dead {
		return
	}
	ev.Handle = id.handle
	id.ch.queue = append(id.ch.queue, ev)
	id.ch.level()
}

// Handle gives what events of the id carry.
func (id *CMID) Handle() uint64 {
	id.cm.mu.Lock()
	defer id.cm.mu.Unlock()
	return id.handle
}

// Channel gives the channel that the id is on.
func (id *CMID) Channel() *CMChannel {
	id.cm.mu.Lock()
	defer id.cm.mu.Unlock()
	return id.ch
}

// State gives the state, "" for a new id.
func (id *CMID) State() string {
	id.cm.mu.Lock()
	defer id.cm.mu.Unlock()
	return string(id.state)
}

// accepted reports whether the id may have events: a request has none until it has
// been accepted.
func (id *CMID) accepted() bool { return id.state != cmRequest }

// begin begins a call: done means that the script answered it. If not, cm.mu is held.
func (id *CMID) begin(call CMCall) (done bool, err error) {
	call.ID = id
	id.one.enter(id.cm, "CMID."+call.Name, false)
	if done, err := id.cm.called(call); done {
		id.one.leave()
		return true, err
	}
	id.cm.mu.Lock()
	return false, nil
}

func (id *CMID) end() {
	id.cm.mu.Unlock()
	id.one.leave()
}

// SetHandle sets what events of the id carry.
func (id *CMID) SetHandle(h uint64) {
	id.one.enter(id.cm, "CMID.SetHandle", false)
	id.cm.mu.Lock()
	defer id.end()
	id.handle = h
}

// Info gives the addresses.
func (id *CMID) Info() driver.CMInfo {
	id.one.enter(id.cm, "CMID.Info", false)
	id.cm.mu.Lock()
	defer id.end()
	return id.info
}

// BindAddr binds.
func (id *CMID) BindAddr(a netip.AddrPort) error {
	if done, err := id.begin(CMCall{Name: "BindAddr", Src: a}); done {
		return err
	}
	defer id.end()
	if id.state != cmIdle {
		return syscall.EINVAL
	}
	if err := id.cm.bind(id, a); err != nil {
		return err
	}
	id.state = cmBound
	return nil
}

// ResolveAddr finds the device: every address is this host's.
func (id *CMID) ResolveAddr(src, dst netip.AddrPort, limit time.Duration) error {
	if done, err := id.begin(CMCall{Name: "ResolveAddr", Src: src, Dst: dst, Limit: limit}); done {
		return err
	}
	defer id.end()
	if id.state != cmIdle && id.state != cmBound {
		return syscall.EINVAL
	}
	if !src.IsValid() {
		src = netip.AddrPortFrom(dst.Addr(), 0)
	}
	if err := id.cm.bind(id, src); err != nil {
		return err
	}
	id.info.Device, id.info.Port, id.info.Remote = id.cm.Device, 1, dst
	id.state = cmResolved
	id.post(driver.CMEvent{Type: ib.CMAddrResolved})
	return nil
}

// ResolveRoute finds the path.
func (id *CMID) ResolveRoute(limit time.Duration) error {
	if done, err := id.begin(CMCall{Name: "ResolveRoute", Limit: limit}); done {
		return err
	}
	defer id.end()
	if id.state != cmResolved {
		return syscall.EINVAL
	}
	id.state = cmRouted
	id.post(driver.CMEvent{Type: ib.CMRouteResolved})
	return nil
}

// InitQPAttr gives attributes as the kernel does for a reliable connection.
func (id *CMID) InitQPAttr(s ib.QPState) (driver.QPAttr, ib.QPAttrMask, error) {
	if done, err := id.begin(CMCall{Name: "InitQPAttr", State: s}); done {
		return driver.QPAttr{}, 0, err
	}
	defer id.end()
	if id.info.Device == "" {
		return driver.QPAttr{}, 0, syscall.EINVAL
	}
	a := driver.QPAttr{State: s}
	m := ib.AttrState
	if id.typ == ib.UD {
		if s == ib.StateInit {
			a.Port, a.QKey = 1, ib.QKeyCM
			m |= ib.AttrPort | ib.AttrPKeyIndex | ib.AttrQKey
		}
		return a, m, nil
	}
	switch s {
	case ib.StateInit:
		a.Port, a.Access = 1, ib.RemoteWrite
		if id.param.ResponderResources > 0 {
			a.Access |= ib.RemoteRead | ib.RemoteAtomic
		}
		m |= ib.AttrPort | ib.AttrPKeyIndex | ib.AttrAccess
	case ib.StateRTR:
		if id.state != cmRequest && id.state != cmResponse {
			return driver.QPAttr{}, 0, syscall.EINVAL
		}
		a.AH = driver.AHAttr{DGID: ib.GIDFromAddr(id.info.Remote.Addr()), SGIDIndex: 1, Global: true, HopLimit: 64, Port: 1}
		a.PathMTU, a.DestQPN, a.RQPSN = ib.MTU1024, id.param.QPN, 100
		a.MaxDestRDAtomic = or(id.cm.MaxDestRDAtomic, int(id.param.ResponderResources))
		m |= ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRDAtomic | ib.AttrMinRNRTimer
	case ib.StateRTS:
		if id.state != cmRequest && id.state != cmResponse {
			return driver.QPAttr{}, 0, syscall.EINVAL
		}
		a.SQPSN, a.Timeout = 100, 67*time.Millisecond
		a.RetryCount, a.RNRRetry = int(id.param.RetryCount), int(id.param.RNRRetryCount)
		a.MaxRDAtomic = or(id.cm.MaxRDAtomic, int(id.param.InitiatorDepth))
		m |= ib.AttrSQPSN | ib.AttrTimeout | ib.AttrRetryCount | ib.AttrRNRRetry | ib.AttrMaxRDAtomic
	default:
		return driver.QPAttr{}, 0, syscall.EINVAL
	}
	return a, m, nil
}

func or(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}

// Listen listens.
func (id *CMID) Listen(backlog int) error {
	if done, err := id.begin(CMCall{Name: "Listen"}); done {
		return err
	}
	defer id.end()
	if id.state == cmIdle {
		if err := id.cm.bind(id, netip.AddrPortFrom(netip.IPv6Unspecified(), 0)); err != nil {
			return err
		}
	} else if id.state != cmBound {
		return syscall.EINVAL
	}
	id.state, id.backlog = cmListening, backlog
	return nil
}

// Connect asks the listener, if there is one.
func (id *CMID) Connect(p driver.ConnParam) error {
	if done, err := id.begin(CMCall{Name: "Connect", Param: p}); done {
		return err
	}
	defer id.end()
	if id.state != cmRouted {
		return syscall.EINVAL
	}
	if len(p.Private) > 56 {
		return syscall.EINVAL
	}
	l := id.cm.listener(id.info.Remote, id.ps)
	if l == nil {
		id.state = cmOver
		id.post(driver.CMEvent{Type: ib.CMRejected, Status: int(ib.RejectInvalidServiceID), Private: make([]byte, 148)})
		return nil
	}
	id.state = cmConnect
	id.param = p
	child := &CMID{cm: id.cm, ch: l.ch, ps: l.ps, typ: l.typ, state: cmRequest, parent: l, peer: id, param: swapped(p)}
	child.info = driver.CMInfo{Device: id.cm.Device, Port: 1, Local: id.info.Remote, Remote: id.info.Local}
	id.peer = child
	id.cm.ids[child] = struct{}{}
	l.post(driver.CMEvent{Type: ib.CMConnectRequest, Child: child, Conn: child.param, Private: pad(p.Private, 56)})
	return nil
}

// swapped is a ConnParam seen from the other side.
func swapped(p driver.ConnParam) driver.ConnParam {
	p.ResponderResources, p.InitiatorDepth = p.InitiatorDepth, p.ResponderResources
	p.Private = nil
	return p
}

func pad(p []byte, n int) []byte {
	b := make([]byte, n)
	copy(b, p)
	return b
}

// Accept answers yes.
func (id *CMID) Accept(p driver.ConnParam) error {
	if done, err := id.begin(CMCall{Name: "Accept", Param: p}); done {
		return err
	}
	defer id.end()
	if id.state != cmRequest || id.peer == nil || len(p.Private) > 196 {
		id.refuse(28, nil)
		return syscall.EINVAL
	}
	id.state = cmReply
	peer := id.peer
	peer.state = cmResponse
	retry := peer.param.RetryCount
	peer.param = swapped(p)
	peer.param.RetryCount = retry
	peer.post(driver.CMEvent{Type: ib.CMConnectResponse, Conn: peer.param, Private: pad(p.Private, 196)})
	return nil
}

// refuse tells the peer no. cm.mu is held.
func (id *CMID) refuse(reason int, private []byte) {
	if peer := id.peer; peer != nil {
		peer.post(driver.CMEvent{Type: ib.CMRejected, Status: reason, Private: pad(private, 148)})
		peer.peer, peer.state = nil, cmOver
	}
	id.peer, id.state = nil, cmOver
}

// Reject answers no.
func (id *CMID) Reject(private []byte) error {
	if done, err := id.begin(CMCall{Name: "Reject", Private: private}); done {
		return err
	}
	defer id.end()
	if id.peer == nil || id.state != cmRequest && id.state != cmResponse || len(private) > 148 {
		return syscall.EINVAL
	}
	id.refuse(int(ib.RejectConsumer), private)
	return nil
}

// Establish ends the handshake.
func (id *CMID) Establish() error {
	if done, err := id.begin(CMCall{Name: "Establish"}); done {
		return err
	}
	defer id.end()
	if id.state != cmResponse || id.peer == nil {
		return syscall.EINVAL
	}
	id.state = cmUp
	id.peer.established()
	return nil
}

func (id *CMID) established() {
	if id.state == cmReply {
		id.state = cmUp
		id.post(driver.CMEvent{Type: ib.CMEstablished, Private: make([]byte, 196)})
	}
}

// Notify takes COMM_EST for the end of the handshake.
func (id *CMID) Notify(ev ib.EventType) error {
	if done, err := id.begin(CMCall{Name: "Notify"}); done {
		return err
	}
	defer id.end()
	switch {
	case ev != ib.EventCommEst:
		return syscall.EINVAL
	case id.state == cmUp:
		return syscall.EISCONN
	case id.state != cmReply:
		return syscall.EINVAL
	}
	id.established()
	return nil
}

// Disconnect ends a connection. The side that began hears of it when the other side
// answers.
func (id *CMID) Disconnect() error {
	if done, err := id.begin(CMCall{Name: "Disconnect"}); done {
		return err
	}
	defer id.end()
	return id.disconnect()
}

func (id *CMID) disconnect() error {
	if id.state != cmUp && id.state != cmReply {
		return syscall.EINVAL
	}
	if id.dreq {
		return nil
	}
	id.dreq = true
	peer := id.peer
	switch {
	case id.dreqIn: // the answer
		id.state = cmOver
		if peer != nil {
			peer.state = cmOver
			peer.post(driver.CMEvent{Type: ib.CMDisconnected})
		}
	case peer == nil:
		id.state = cmOver
		id.post(driver.CMEvent{Type: ib.CMDisconnected})
	default:
		peer.dreqIn = true
		if peer.state == cmResponse {
			peer.state = cmUp
		}
		peer.post(driver.CMEvent{Type: ib.CMDisconnected})
	}
	return nil
}

// Migrate moves the id and its events.
func (id *CMID) Migrate(to driver.CMChannel) error {
	if done, err := id.begin(CMCall{Name: "Migrate"}); done {
		return err
	}
	defer id.end()
	ch := unwrapCM(to)
	if ch.closed {
		id.cm.fault("Migrate to a closed channel")
	}
	from := id.ch
	keep := from.queue[:0:0]
	for _, ev := range from.queue {
		if ev.Handle != id.handle {
			keep = append(keep, ev)
			continue
		}
		if c, ok := ev.Child.(*CMID); ok {
			c.ch = ch
		}
		ch.queue = append(ch.queue, ev)
	}
	from.queue, id.ch = keep, ch
	from.level()
	ch.level()
	return nil
}

// SetOption notes an option.
func (id *CMID) SetOption(level, name int, value []byte) error {
	if done, err := id.begin(CMCall{Name: "SetOption", Option: name, Value: value}); done {
		return err
	}
	defer id.end()
	if level != 0 || name > 3 {
		return syscall.ENOSYS
	}
	if name == 1 {
		id.reuse = binary.NativeEndian.Uint32(value) != 0
	}
	return nil
}

// Join joins a group.
func (id *CMID) Join(group netip.Addr, f ib.JoinFlags, handle uint64) error {
	if done, err := id.begin(CMCall{Name: "Join", Group: group, Handle: handle}); done {
		return err
	}
	defer id.end()
	id.ch.queue = append(id.ch.queue, driver.CMEvent{
		Type: ib.CMMulticastJoin, Handle: handle,
		UD: driver.UDParam{AH: driver.AHAttr{DGID: ib.GIDFromAddr(group), Global: true}, QPN: 0xffffff, QKey: ib.QKeyCM},
	})
	id.ch.level()
	return nil
}

// Leave leaves a group.
func (id *CMID) Leave(group netip.Addr) error {
	if done, err := id.begin(CMCall{Name: "Leave", Group: group}); done {
		return err
	}
	defer id.end()
	return nil
}

// Close destroys the id: a connection is ended, a request refused, events are dropped.
func (id *CMID) Close() error {
	id.one.enter(id.cm, "CMID.Close", true)
	id.cm.mu.Lock()
	defer id.end()
	id.destroy()
	return nil
}

func (id *CMID) destroy() {
	switch id.state {
	case cmRequest, cmResponse:
		id.refuse(int(ib.RejectConsumer), nil)
	case cmUp, cmReply:
		id.disconnect()
	}
	if id.peer != nil {
		id.peer.peer = nil
	}
	keep := id.ch.queue[:0:0]
	var children []*CMID
	for _, ev := range id.ch.queue {
		if ev.Handle != id.handle {
			keep = append(keep, ev)
		} else if c, ok := ev.Child.(*CMID); ok {
			children = append(children, c)
		}
	}
	id.ch.queue = keep
	for _, c := range children {
		c.destroy()
	}
	id.ch.level()
	id.dead = true
	delete(id.cm.ids, id)
}
