package softroce

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibcm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// handle turns an event of the agent into one of the channel. The lock is held.
func (m *cmCore) handle(e ibcm.Event) {
	id, ok := e.Conn.Owner.(*cmID)
	if !ok {
		return
	}
	switch e.Type {
	case ibcm.EventRequest:
		id.requested(e)
	case ibcm.EventReply:
		id.replied(e)
	case ibcm.EventEstablished:
		m.dropQPN(id)
		if id.state == idAccepted {
			id.state = idConnected
			id.post(driver.CMEvent{Type: ib.CMEstablished, Conn: fromPeer(&e.Conn.Peer)})
		}
	case ibcm.EventRejected:
		id.rejected(e)
	case ibcm.EventUnreachable:
		id.ended(driver.CMEvent{Type: ib.CMUnreachable, Status: timeoutStatus})
	case ibcm.EventDisconnected:
		ev := driver.CMEvent{Type: ib.CMDisconnected}
		if e.TimedOut {
			ev.Status = timeoutStatus
		}
		id.ended(ev)
	case ibcm.EventTimeWaitExit:
		id.post(driver.CMEvent{Type: ib.CMTimewaitExit})
	}
}

// fromPeer gives what a peer has said, by the view of this side: the reads that the
// peer issues are those that we serve.
func fromPeer(p *ibcm.Peer) driver.ConnParam {
	return driver.ConnParam{
		ResponderResources: p.InitiatorDepth,
		InitiatorDepth:     p.ResponderResources,
		FlowControl:        p.FlowControl,
		RetryCount:         p.RetryCount,
		RNRRetryCount:      p.RNRRetryCount,
		SRQ:                p.SRQ,
		QPN:                p.QPN,
	}
}

// requested: the id is a new child.
func (id *cmID) requested(e ibcm.Event) {
	l := id.listener
	id.conn = e.Conn
	id.params = askedByPeer(e.Conn)
	if id.ackSet {
		id.params.ackTimeout = id.ackTimeout
	}
	if l.state != idListening || l.ch.closed {
		l.unfetched--
		id.core.end(id)
		return
	}
	private := e.Private[ibcm.CMAHeaderLen:]
	p := fromPeer(&e.Conn.Peer)
	p.Private = private
	l.post(driver.CMEvent{Type: ib.CMConnectRequest, Child: id, Conn: p, Private: private})
}

// replied: the peer has accepted.
func (id *cmID) replied(e ibcm.Event) {
	c, ask := e.Conn, id.ask
	id.state, id.ask = idReplied, nil
	id.params = cmParams{
		qpn: ask.QPN,
		// No more than was asked for, whatever the peer says.
		serve:      min(c.Peer.InitiatorDepth, ask.ResponderResources),
		issue:      min(c.Peer.ResponderResources, ask.InitiatorDepth),
		retry:      ask.RetryCount,
		rnrRetry:   c.Peer.RNRRetryCount,
		ackTimeout: ackTimeoutCode(c.Peer.AckDelay, id.lifetime()),
	}
	if id.ackSet {
		id.params.ackTimeout = id.ackTimeout
	}
	if bytes, ours := eceBuffer(c.Peer.ECE); ours {
		id.core.host.peerBuffer(plain(c.Remote), bytes)
	}
	p := fromPeer(&c.Peer)
	p.Private = e.Private
	id.post(driver.CMEvent{Type: ib.CMConnectResponse, Conn: p, Private: e.Private})
}

// rejected: the peer said no, or gave up.
func (id *cmID) rejected(e ibcm.Event) {
	if id.state == idRequest {
		id.state = idEnded // its end shows when it is accepted
		return
	}
	if ask := id.ask; ask != nil && e.Reason == ib.RejectInvalidMTU && len(e.Info) > 0 {
		// The peer's link is narrower, and it says how narrow.
		if mtu := ib.MTU(e.Info[0]); mtu >= ib.MTU256 && mtu < ask.MTU {
			ask.MTU = mtu
			if id.request("connect", ask) == nil {
				return
			}
		}
	}
	id.ended(driver.CMEvent{Type: ib.CMRejected, Status: int(e.Reason), Private: e.Private})
}

// ended posts the event that ends a connection.
func (id *cmID) ended(ev driver.CMEvent) {
	id.core.dropQPN(id)
	id.state, id.ask = idEnded, nil
	id.post(ev)
}
