package softroce

import (
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibcm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Private data that a program has of each message.
const (
	privateConnect = ibcm.MaxPrivateREQ - ibcm.CMAHeaderLen
	privateAccept  = ibcm.MaxPrivateREP
	privateReject  = ibcm.MaxPrivateREJ
)

const maxRetries = 7 // three bits; 7 RNR retries mean no end

// Connect asks the peer for a connection (rdma_connect). p names the queue pair, which
// this call does not touch. The answer comes as an event: CONNECT_RESPONSE, after which
// the caller moves its queue pair to RTS and calls Establish, or REJECTED, or
// UNREACHABLE. After an error of Connect the id is as it was.
func (id *cmID) Connect(p driver.ConnParam) error {
	const op = "connect"
	m := id.core
	m.mu.Lock()
	err := id.need(op, idRouteResolved)
	h := m.host
	local, remote := id.local.Addr(), id.remote.Addr()
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if id.space != ib.PortSpaceTCP {
		return notHere(op, "datagrams")
	}
	if len(p.Private) > privateConnect {
		return cmFail(op, "more than 56 bytes of private data", syscall.EINVAL)
	}
	if p, err = checkParam(op, h, p, maxRDAtomic, maxRDAtomic); err != nil {
		return err
	}
	link := h.limits(local)
	mtu := link.mtu
	if _, own := h.index(remote); own {
		// Both ends are on this host; the peer sees the limit of its own address.
		mtu = min(mtu, h.limits(remote).mtu)
	}
	ask := &ibcm.ConnectParam{
		Path: ibcm.Path{
			Local:      local,
			Remote:     remote,
			MTU:        mtu,
			AckTimeout: ackTimeoutCode(ib.AckTimeout(ackDelay), packetLifetime),
		},
		ServiceID:          ibcm.Service(id.space, id.remote.Port()),
		QPN:                p.QPN,
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		RetryCount:         p.RetryCount,
		RNRRetryCount:      p.RNRRetryCount,
		FlowControl:        p.FlowControl,
		SRQ:                p.SRQ,
		ECE:                eceOf(link.recvBuffer),
		Private:            make([]byte, ibcm.CMAHeaderLen, ibcm.MaxPrivateREQ),
	}
	head := ibcm.CMAHeader{Src: plain(local), Dst: plain(remote), SrcPort: id.local.Port()}
	if err := head.Encode(ask.Private); err != nil {
		return cmFail(op, err.Error(), syscall.EINVAL)
	}
	ask.Private = append(ask.Private, p.Private...)
	// There is no device that could say no for a loopback address that nobody has.
	nobody := remote.IsLoopback() && !h.holds(remote) && h.vacant(remote)

	m.mu.Lock()
	defer m.unlock()
	if err := id.need(op, idRouteResolved); err != nil {
		return err
	}
	if nobody {
		id.ended(driver.CMEvent{
			Type:    ib.CMRejected,
			Status:  int(ib.RejectInvalidServiceID),
			Private: make([]byte, privateReject),
		})
		return nil
	}
	ask.TOS = id.tos
	if id.ackSet {
		ask.AckTimeout = id.ackTimeout
	}
	return id.request(op, ask)
}

// request sends a request. The lock is held.
func (id *cmID) request(op string, ask *ibcm.ConnectParam) error {
	m := id.core
	c, err := m.agent.Connect(m.now(), ask)
	if err != nil {
		return agentFail(op, err)
	}
	c.Owner = id
	id.conn, id.ask = c, ask
	id.params = cmParams{qpn: ask.QPN}
	id.state = idConnecting
	return nil
}

// checkParam checks what connect and accept have in common, without the lock. serve and
// issue are what wholeDepth stands for.
func checkParam(op string, h cmHost, p driver.ConnParam, serve, issue uint8) (driver.ConnParam, error) {
	var ok [2]bool
	p.ResponderResources, ok[0] = depth(p.ResponderResources, serve)
	p.InitiatorDepth, ok[1] = depth(p.InitiatorDepth, issue)
	switch f, known := h.facts(p.QPN); {
	case !ok[0] || !ok[1]:
		return p, cmFail(op, "more than 128 reads at once", syscall.EINVAL)
	case p.RetryCount > maxRetries || p.RNRRetryCount > maxRetries:
		return p, cmFail(op, "more than 7 retries", syscall.EINVAL)
	case p.QPN == 0:
		return p, cmFail(op, "no queue pair", syscall.EINVAL)
	case !known:
		return p, cmFail(op, "this device has no queue pair "+p.QPN.String(), syscall.EINVAL)
	case f.Type != ib.RC:
		return p, cmFail(op, "queue pair is not RC", syscall.EINVAL)
	}
	return p, nil
}

// Accept says yes to a request (rdma_accept). The queue pair must be in RTR at least.
// ESTABLISHED follows when the peer is ready, or REJECTED, or UNREACHABLE. After an
// error of Accept the request is gone: the peer has been rejected.
func (id *cmID) Accept(p driver.ConnParam) error {
	const op = "accept"
	m := id.core
	m.mu.Lock()
	err := id.need(op, idRequest)
	h, c := m.host, id.conn
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if len(p.Private) > privateAccept {
		err = cmFail(op, "more than 196 bytes of private data", syscall.EINVAL)
	} else {
		p, err = checkParam(op, h, p, c.Peer.InitiatorDepth, c.Peer.ResponderResources)
	}
	m.mu.Lock()
	defer m.unlock()
	if err := id.need(op, idRequest); err != nil {
		return err
	}
	if err != nil {
		_ = m.agent.Reject(m.now(), c, ib.RejectConsumer, nil, nil) // what could fail has ended it already
		id.state = idEnded
		return err
	}
	answer := ibcm.AcceptParam{
		QPN:                p.QPN,
		ResponderResources: min(p.ResponderResources, c.Peer.InitiatorDepth),
		InitiatorDepth:     min(p.InitiatorDepth, c.Peer.ResponderResources),
		RNRRetryCount:      p.RNRRetryCount,
		AckDelay:           ib.AckTimeout(ackDelay),
		FlowControl:        p.FlowControl,
		SRQ:                p.SRQ,
		Private:            p.Private,
	}
	// A vendor's id that was not in the request would make librdmacm give up.
	if bytes, ours := eceBuffer(c.Peer.ECE); ours {
		answer.ECE = eceOf(h.limits(c.Local).recvBuffer)
		h.peerBuffer(plain(c.Remote), bytes)
	}
	if err := m.agent.Accept(m.now(), c, &answer); err != nil {
		id.state = idEnded
		return agentFail(op, err)
	}
	id.params.qpn = p.QPN
	id.params.serve = answer.ResponderResources
	id.params.issue = answer.InitiatorDepth
	id.state = idAccepted
	m.byQPN[p.QPN] = id
	return nil
}

// Reject says no (rdma_reject): to a request, or on the active side to the peer's reply.
// The peer gets REJECTED with reason 28 and the private data.
func (id *cmID) Reject(private []byte) error {
	const op = "reject"
	m := id.core
	m.mu.Lock()
	defer m.unlock()
	if err := id.need(op, idRequest, idReplied); err != nil {
		return err
	}
	if len(private) > privateReject {
		return cmFail(op, "more than 148 bytes of private data", syscall.EINVAL)
	}
	err := m.agent.Reject(m.now(), id.conn, ib.RejectConsumer, nil, private)
	id.state = idEnded
	return agentFail(op, err)
}

// Establish tells the peer that the queue pair is ready, after CONNECT_RESPONSE
// (rdma_establish). No event follows.
func (id *cmID) Establish() error {
	const op = "establish"
	m := id.core
	m.mu.Lock()
	defer m.unlock()
	if err := id.need(op, idReplied); err != nil {
		return err
	}
	if err := m.agent.Establish(m.now(), id.conn); err != nil {
		return agentFail(op, err)
	}
	id.state = idConnected
	return nil
}

// Notify says that data have come on an accepted connection (rdma_notify with
// IBV_EVENT_COMM_EST), which makes ESTABLISHED of it. On a connection that is established
// already it gives EISCONN, which is harmless.
func (id *cmID) Notify(e ib.EventType) error {
	const op = "notify"
	m := id.core
	m.mu.Lock()
	defer m.unlock()
	if err := id.need(op, idAccepted, idConnected); err != nil {
		return err
	}
	if e != ib.EventCommEst {
		return cmFail(op, "for COMM_EST only, not "+e.String(), syscall.EINVAL)
	}
	return agentFail(op, m.agent.CommEstablished(m.now(), id.conn))
}

// Disconnect ends a connection (rdma_disconnect), or answers its end by the peer. It
// does not touch the queue pair. DISCONNECTED follows on both sides; on this one when
// the peer's program has answered, or with ETIMEDOUT if it does not. A connection that
// has ended is no error.
func (id *cmID) Disconnect() error {
	const op = "disconnect"
	m := id.core
	m.mu.Lock()
	defer m.unlock()
	if err := id.need(op, idReplied, idAccepted, idConnected, idEnded); err != nil {
		return err
	}
	id.state = idEnded
	m.dropQPN(id)
	if id.conn == nil {
		return nil
	}
	return agentFail(op, m.agent.Disconnect(m.now(), id.conn))
}
