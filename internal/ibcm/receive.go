package ibcm

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// source is where a message came from, and when.
type source struct {
	now           time.Duration
	local, remote netip.Addr
	tid           uint64
}

// from reports whether a message took the way of the connection.
func (c *Conn) from(s source) bool {
	return plain(s.remote) == plain(c.Remote) && plain(s.local) == plain(c.Local)
}

// find gives the connection that a message names by both ids; nil, and counted, if
// there is none, or if the message does not come from its peer. known says that our id
// exists.
func (a *Agent) find(s source, ours, theirs uint32) (c *Conn, known bool) {
	c = a.local[ours]
	switch {
	case c == nil:
		a.stats.Stray++
		return nil, false
	case !c.from(s):
		a.stats.Forged++
		return nil, true
	case c.Peer.CommID != theirs || c.state == StateReqSent:
		a.stats.Stray++
		return nil, false
	}
	return c, true
}

// Receive takes a management datagram that came to QP1 of local. It does not keep mad.
// Anything may be in it.
func (a *Agent) Receive(now time.Duration, local, remote netip.Addr, mad []byte) {
	m, err := Parse(mad)
	if err != nil {
		a.stats.Malformed++
		return
	}
	h := m.Head()
	s := source{now: now, local: local, remote: remote, tid: h.TID}
	switch m := m.(type) {
	case *REQ:
		a.receiveREQ(s, m)
	case *REP:
		a.receiveREP(s, m)
	case *RTU:
		a.receiveRTU(s, m)
	case *MRA:
		a.receiveMRA(s, m)
	case *REJ:
		a.receiveREJ(s, m)
	case *DREQ:
		a.receiveDREQ(s, m)
	case *DREP:
		a.receiveDREP(s, m)
	case *SIDRREQ:
		// Datagram services are not offered here.
		a.answerStray(s, &SIDRREP{
			RequestID: m.RequestID,
			Status:    SIDRUnsupported,
			ServiceID: m.ServiceID,
		})
	default:
		// Answers to what was never asked, and alternate paths, which RoCE does not have.
		a.stats.Stray++
	}
}

// receiveREQ: somebody wants to connect (IBTA Vol 1 §12.9.7.1).
func (a *Agent) receiveREQ(s source, m *REQ) {
	key := remoteKey{plain(s.remote), m.LocalGUID, m.LocalCommID}
	if c := a.remote[key]; c != nil {
		a.duplicateREQ(s, c)
		return
	}
	if reason := checkREQ(s, m); reason != 0 {
		a.stats.Malformed++
		a.refuse(s, m.LocalCommID, reason, nil)
		return
	}
	qpn := qpnKey{key.addr, m.LocalGUID, m.LocalQPN}
	if c := a.qpns[qpn]; c != nil {
		// The peer uses for something new what we hold for connected (§12.9.8.3.1).
		a.stale(s.now, c)
		a.refuse(s, m.LocalCommID, ib.RejectStaleConn, nil)
		return
	}
	if a.pending >= a.cfg.HalfOpen {
		a.stats.Dropped++
		return
	}
	v := a.cfg.Admit(&Request{
		Local:     s.local,
		Remote:    s.remote,
		ServiceID: m.ServiceID,
		MTU:       m.MTU,
		Private:   m.Private[:],
	})
	switch {
	case v.Take:
	case v.Reason != 0:
		a.refuse(s, m.LocalCommID, v.Reason, v.Info)
		return
	default:
		a.stats.Dropped++
		return
	}
	c := a.newConn()
	c.Owner = v.Owner
	c.Passive = true
	c.state = StateReqRcvd
	c.tid = s.tid
	c.Path = Path{
		Local:      s.local,
		Remote:     s.remote,
		TOS:        m.Primary.TrafficClass,
		HopLimit:   m.Primary.HopLimit,
		FlowLabel:  m.Primary.FlowLabel,
		MTU:        m.MTU,
		AckTimeout: m.Primary.AckTimeout,
	}
	c.ServiceID = m.ServiceID
	c.alternate = m.Alternate.LocalLID != 0
	c.SQPSN = m.StartingPSN
	c.RQPSN = ib.PSN(a.cfg.Rand()) & 0xffffff // the queue pair is readied before Accept
	c.Peer = Peer{
		GUID:               m.LocalGUID,
		CommID:             m.LocalCommID,
		QPN:                m.LocalQPN,
		ResponderResources: m.ResponderResources,
		InitiatorDepth:     m.InitiatorDepth,
		RetryCount:         m.RetryCount,
		RNRRetryCount:      m.RNRRetryCount,
		FlowControl:        m.FlowControl,
		SRQ:                m.SRQ,
		ECE:                ECE{m.VendorID, m.Modifier},
	}
	a.pending++
	a.remote[key], c.inRemote = c, true
	a.qpns[qpn], c.inQPN = c, true
	a.event(Event{Type: EventRequest, Conn: c, Private: append([]byte(nil), m.Private[:]...)})
}

// checkREQ looks at what must be so in any request; zero: nothing is wrong.
func checkREQ(s source, m *REQ) ib.RejectReason {
	switch {
	case m.Transport != TransportRC:
		return ib.RejectInvalidTransport
	case m.LocalQPN <= 1 || m.LocalQPN > 0xffffff:
		return ib.RejectNoQP
	case m.MTU < ib.MTU256 || m.MTU > ib.MTU4096:
		return ib.RejectInvalidMTU
	case m.Primary.LocalGID != ib.GIDFromAddr(plain(s.remote)) ||
		m.Primary.RemoteGID != ib.GIDFromAddr(plain(s.local)):
		// Its packets would come from, or go, elsewhere.
		return ib.RejectInvalidGID
	}
	return 0
}

// duplicateREQ: the peer has not seen our answer, or it is late itself.
func (a *Agent) duplicateREQ(s source, c *Conn) {
	a.stats.Duplicates++
	if plain(s.local) != plain(c.Local) {
		a.stats.Forged++
		return
	}
	switch c.state {
	case StateReqRcvd:
		// The program takes its time.
		c.tid = s.tid
		a.send(c, a.messageReceived(c, StageREQ))
	case StateRepSent, StateRejected:
		a.send(c, c.message)
	case StateTimeWait:
		a.refuse(s, c.Peer.CommID, ib.RejectStaleConn, nil)
	}
}

// receiveREP: our request was accepted (§12.9.7.2).
func (a *Agent) receiveREP(s source, m *REP) {
	c := a.local[m.RemoteCommID]
	switch {
	case c == nil || c.Passive:
		// We have given up meanwhile. Its sender would wait for long.
		a.stats.Stray++
		a.answerStray(s, &REJ{
			LocalCommID:  m.RemoteCommID,
			RemoteCommID: m.LocalCommID,
			Message:      StageREP,
			Reason:       ib.RejectInvalidCommID,
		})
		return
	case !c.from(s):
		a.stats.Forged++
		return
	case c.state != StateReqSent:
		a.duplicateREP(c, m)
		return
	case m.LocalQPN <= 1 || m.LocalQPN > 0xffffff:
		a.stats.Malformed++
		return
	}
	c.Peer = Peer{
		GUID:               m.LocalGUID,
		CommID:             m.LocalCommID,
		QPN:                m.LocalQPN,
		ResponderResources: m.ResponderResources,
		InitiatorDepth:     m.InitiatorDepth,
		RNRRetryCount:      m.RNRRetryCount,
		AckDelay:           m.AckDelay,
		FlowControl:        m.FlowControl,
		SRQ:                m.SRQ,
		ECE:                ECE{m.VendorID, m.Modifier},
	}
	c.SQPSN = m.StartingPSN
	addr := plain(c.Remote)
	key := remoteKey{addr, m.LocalGUID, m.LocalCommID}
	if a.remote[key] == nil {
		a.remote[key], c.inRemote = c, true
	}
	qpn := qpnKey{addr, m.LocalGUID, m.LocalQPN}
	if old := a.qpns[qpn]; old != nil {
		a.stale(s.now, old)
	}
	a.qpns[qpn], c.inQPN = c, true
	c.message = nil
	c.state = StateRepRcvd
	a.timers.stop(c)
	a.event(Event{Type: EventReply, Conn: c, Private: append([]byte(nil), m.Private[:]...)})
}

// duplicateREP: the peer has not seen our RTU, or the program takes its time.
func (a *Agent) duplicateREP(c *Conn, m *REP) {
	a.stats.Duplicates++
	if c.Peer.CommID != m.LocalCommID {
		a.stats.Forged++
		return
	}
	switch c.state {
	case StateRepRcvd:
		a.send(c, a.messageReceived(c, StageREP))
	case StateEstablished:
		a.send(c, a.readyToUse(c))
	}
}

// receiveRTU: the peer is ready (§12.9.7.3).
func (a *Agent) receiveRTU(s source, m *RTU) {
	c, _ := a.find(s, m.RemoteCommID, m.LocalCommID)
	switch {
	case c == nil:
	case c.state == StateRepSent:
		a.established(c)
	default:
		a.stats.Duplicates++
	}
}

// receiveMRA: the peer has our message and needs time (§12.6.6).
func (a *Agent) receiveMRA(s source, m *MRA) {
	c := a.local[m.RemoteCommID]
	switch {
	case c == nil:
		a.stats.Stray++
	case !c.from(s):
		a.stats.Forged++
	case c.state == StateReqSent && m.Message == StageREQ:
		a.extend(s.now, c, m.ServiceTimeout)
	case c.state == StateRepSent && m.Message == StageREP && c.Peer.CommID == m.LocalCommID:
		a.extend(s.now, c, m.ServiceTimeout)
	default:
		a.stats.Duplicates++
	}
}

// receiveREJ: the peer says no, or gives up (§12.6.7).
func (a *Agent) receiveREJ(s source, m *REJ) {
	c := a.rejectedBy(s, m)
	if c == nil {
		return
	}
	e := Event{
		Type:    EventRejected,
		Conn:    c,
		Reason:  m.Reason,
		Info:    append([]byte(nil), m.ARI[:min(int(m.ARILen), len(m.ARI))]...),
		Private: append([]byte(nil), m.Private[:]...),
	}
	switch c.state {
	case StateReqSent, StateReqRcvd, StateRepRcvd:
		a.forget(c)
		a.event(e)
	case StateRepSent:
		a.enterTimeWait(s.now, c)
		a.event(e)
	case StateEstablished, StateDreqSent:
		// It was ready, by what we know, and is not any more.
		a.enterTimeWait(s.now, c)
		a.event(Event{Type: EventDisconnected, Conn: c})
	default:
		a.stats.Duplicates++
	}
}

// rejectedBy finds the connection that a reject means.
func (a *Agent) rejectedBy(s source, m *REJ) *Conn {
	if m.Reason == ib.RejectTimeout {
		if guid, ok := ariGUID(m); ok {
			// Who gave up waiting for our answer may not know our id (§12.6.7.2).
			if c := a.remote[remoteKey{plain(s.remote), guid, m.LocalCommID}]; c != nil && c.from(s) {
				return c
			}
		}
	}
	c := a.local[m.RemoteCommID]
	switch {
	case c == nil:
		a.stats.Stray++
		return nil
	case !c.from(s):
		a.stats.Forged++
		return nil
	case c.state == StateReqSent:
		// Who refuses a request may not have made an id.
		return c
	case c.Peer.CommID != m.LocalCommID:
		a.stats.Stray++
		return nil
	}
	return c
}

// receiveDREQ: the peer disconnects (§12.9.7.4).
func (a *Agent) receiveDREQ(s source, m *DREQ) {
	if c := a.local[m.RemoteCommID]; c != nil && c.state == StateReqSent && c.from(s) && m.RemoteQPN == c.QPN {
		// The peer has accepted and thought better of it, and its reply is lost or late.
		a.answerStray(s, &DREP{LocalCommID: m.RemoteCommID, RemoteCommID: m.LocalCommID})
		a.forget(c)
		a.event(Event{Type: EventRejected, Conn: c, Reason: ib.RejectConsumer, Private: make([]byte, MaxPrivateREJ)})
		return
	}
	c, known := a.find(s, m.RemoteCommID, m.LocalCommID)
	switch {
	case c == nil && known:
		return // forged
	case c == nil:
		// It has lost our answer, and we have forgotten the connection.
		a.answerStray(s, &DREP{LocalCommID: m.RemoteCommID, RemoteCommID: m.LocalCommID})
		return
	case m.RemoteQPN != c.QPN:
		a.stats.Forged++
		return
	}
	switch c.state {
	case StateEstablished, StateRepSent, StateRepRcvd:
		a.leaveHalfOpen(c)
		c.state = StateDreqRcvd
		c.tid = s.tid
		c.message = nil
		a.timers.stop(c)
		a.event(Event{Type: EventDisconnected, Conn: c})
	case StateDreqSent:
		// Both at once: each has the other's word.
		c.tid = s.tid
		a.send(c, a.disconnectReply(c))
		a.enterTimeWait(s.now, c)
		a.event(Event{Type: EventDisconnected, Conn: c})
	case StateTimeWait:
		a.stats.Duplicates++
		c.tid = s.tid
		a.send(c, a.disconnectReply(c))
	default:
		a.stats.Duplicates++
	}
}

// receiveDREP: the peer has our disconnect (§12.9.7.4).
func (a *Agent) receiveDREP(s source, m *DREP) {
	c, _ := a.find(s, m.RemoteCommID, m.LocalCommID)
	switch {
	case c == nil:
	case c.state == StateDreqSent:
		a.enterTimeWait(s.now, c)
		a.event(Event{Type: EventDisconnected, Conn: c})
	default:
		a.stats.Duplicates++
	}
}
