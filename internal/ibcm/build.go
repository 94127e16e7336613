package ibcm

import (
	"encoding/binary"

	"github.com/verbena-rdma/verbena/ib"
)

// What RoCEv2 puts where InfiniBand has numbers of its own.
const (
	defaultPKey    ib.PKey = 0xffff
	permissiveLID  ib.LID  = 0xffff // of a path through routers, as all paths of RoCEv2 may be
	defaultHops            = 64
	failoverAbsent         = 1 // REP: we have no alternate paths
)

func encode(m Message) *[MADLen]byte {
	b := new([MADLen]byte)
	m.Encode(b)
	return b
}

// request makes the REQ of an active connection.
func (a *Agent) request(c *Conn, p *ConnectParam) *[MADLen]byte {
	m := REQ{
		Header:             Header{TID: c.tid, Modifier: p.ECE.Options},
		LocalCommID:        c.id,
		VendorID:           p.ECE.Vendor,
		ServiceID:          p.ServiceID,
		LocalGUID:          a.cfg.GUID,
		LocalQPN:           p.QPN,
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		RemoteTimeout:      ResponseTimeout,
		LocalTimeout:       ResponseTimeout,
		Transport:          TransportRC,
		FlowControl:        p.FlowControl,
		SRQ:                p.SRQ,
		StartingPSN:        c.RQPSN,
		RetryCount:         p.RetryCount,
		RNRRetryCount:      p.RNRRetryCount,
		MaxCMRetries:       peerRetries,
		PKey:               defaultPKey,
		MTU:                p.MTU,
		Primary: PathInfo{
			LocalLID:     permissiveLID,
			RemoteLID:    permissiveLID,
			LocalGID:     ib.GIDFromAddr(plain(p.Local)),
			RemoteGID:    ib.GIDFromAddr(plain(p.Remote)),
			FlowLabel:    p.FlowLabel,
			TrafficClass: p.TOS,
			HopLimit:     c.HopLimit,
			AckTimeout:   p.AckTimeout,
		},
	}
	copy(m.Private[:], p.Private)
	return encode(&m)
}

// reply makes the REP of a passive connection.
func (a *Agent) reply(c *Conn, p *AcceptParam) *[MADLen]byte {
	m := REP{
		Header:             Header{TID: c.tid, Modifier: p.ECE.Options},
		LocalCommID:        c.id,
		RemoteCommID:       c.Peer.CommID,
		VendorID:           p.ECE.Vendor,
		LocalQPN:           p.QPN,
		StartingPSN:        c.RQPSN,
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		AckDelay:           p.AckDelay,
		FlowControl:        p.FlowControl,
		SRQ:                p.SRQ,
		RNRRetryCount:      p.RNRRetryCount,
		LocalGUID:          a.cfg.GUID,
	}
	if c.alternate {
		m.Failover = failoverAbsent
	}
	copy(m.Private[:], p.Private)
	return encode(&m)
}

func (a *Agent) readyToUse(c *Conn) *[MADLen]byte {
	return encode(&RTU{
		Header:       Header{TID: c.tid},
		LocalCommID:  c.id,
		RemoteCommID: c.Peer.CommID,
	})
}

// messageReceived asks the peer for patience.
func (a *Agent) messageReceived(c *Conn, what Stage) *[MADLen]byte {
	return encode(&MRA{
		Header:         Header{TID: c.tid},
		LocalCommID:    c.id,
		RemoteCommID:   c.Peer.CommID,
		Message:        what,
		ServiceTimeout: serviceTimeout,
	})
}

// reject says no to the request or reply of c's peer.
func (a *Agent) reject(c *Conn, reason ib.RejectReason, info, private []byte) *[MADLen]byte {
	m := REJ{
		Header:       Header{TID: c.tid},
		LocalCommID:  c.id,
		RemoteCommID: c.Peer.CommID,
		Message:      StageREQ,
		Reason:       reason,
		ARILen:       uint8(len(info)),
	}
	if c.state == StateRepRcvd {
		m.Message = StageREP
	}
	copy(m.ARI[:], info)
	copy(m.Private[:], private)
	return encode(&m)
}

// timeoutReject says that we wait no longer. The peer may not know us by our id alone,
// so it gets the GUID too (§12.6.7.2).
func (a *Agent) timeoutReject(c *Conn) *[MADLen]byte {
	m := REJ{
		Header:       Header{TID: c.tid},
		LocalCommID:  c.id,
		RemoteCommID: c.Peer.CommID,
		Message:      StageREQ,
		Reason:       ib.RejectTimeout,
		ARILen:       8,
	}
	if c.Passive {
		m.Message = StageOther
	}
	binary.BigEndian.PutUint64(m.ARI[:], uint64(a.cfg.GUID))
	return encode(&m)
}

// ariGUID gives the GUID of a timeoutReject.
func ariGUID(m *REJ) (ib.GUID, bool) {
	return ib.GUID(binary.BigEndian.Uint64(m.ARI[:])), m.ARILen >= 8
}

func (a *Agent) disconnectRequest(c *Conn) *[MADLen]byte {
	return encode(&DREQ{
		Header:       Header{TID: c.tid},
		LocalCommID:  c.id,
		RemoteCommID: c.Peer.CommID,
		RemoteQPN:    c.Peer.QPN,
	})
}

func (a *Agent) disconnectReply(c *Conn) *[MADLen]byte {
	return encode(&DREP{
		Header:       Header{TID: c.tid},
		LocalCommID:  c.id,
		RemoteCommID: c.Peer.CommID,
	})
}

// answerStray sends a message that belongs to no connection to where another came from,
// unless there have been too many.
func (a *Agent) answerStray(s source, m Message) {
	if !a.strays.take(s.now) {
		a.stats.Muted++
		return
	}
	m.Head().TID = s.tid
	p := Packet{Local: s.local, Remote: s.remote}
	m.Encode(&p.MAD)
	a.packets = append(a.packets, p)
}

// refuse rejects a request without remembering anything.
func (a *Agent) refuse(s source, theirs uint32, reason ib.RejectReason, info []byte) {
	a.stats.Rejected++
	m := &REJ{
		RemoteCommID: theirs,
		Message:      StageREQ,
		Reason:       reason,
		ARILen:       uint8(min(len(info), MaxARI)),
	}
	copy(m.ARI[:], info)
	a.answerStray(s, m)
}
