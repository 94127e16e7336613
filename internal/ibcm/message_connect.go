package ibcm

import "github.com/verbena-rdma/verbena/ib"

// PathInfo is how packets go to the peer.
type PathInfo struct {
	LocalLID, RemoteLID ib.LID
	LocalGID, RemoteGID ib.GID
	FlowLabel           uint32 // 20 bits
	Rate                ib.Rate
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // 5-bit code, see ib.AckTimeout
}

// REQ asks for a connection (§12.6.5).
type REQ struct {
	Header
	LocalCommID        uint32
	VendorID           uint32 // 24 bits; whose ECE options are in Header.Modifier
	ServiceID          ServiceID
	LocalGUID          ib.GUID
	LocalQKey          ib.QKey
	LocalQPN           ib.QPN
	ResponderResources uint8 // READs and atomics that the sender can serve
	InitiatorDepth     uint8 // READs and atomics that the sender wants to have open
	LocalEECN          uint32
	RemoteEECN         uint32
	RemoteTimeout      uint8 // 5-bit code: in this time the receiver of the REQ answers
	LocalTimeout       uint8 // 5-bit code: in this time its sender answers
	Transport          uint8 // TransportRC ...
	ExtTransport       uint8 // 3 bits
	FlowControl        bool  // end to end
	SRQ                bool
	RDC                bool
	StartingPSN        ib.PSN // of what the receiver of the REQ sends
	RetryCount         uint8  // 3 bits
	RNRRetryCount      uint8  // 3 bits
	MaxCMRetries       uint8  // 4 bits
	PKey               ib.PKey
	MTU                ib.MTU // 4 bits; may be none of the five
	Primary            PathInfo
	Alternate          PathInfo // there is one if LocalLID is not 0
	AlternateSAP       bool
	Private            [MaxPrivateREQ]byte // with a CMAHeader at the start if ServiceID.IP
}

func (m *REQ) walk(c codec) {
	u32(c, 0, &m.LocalCommID)
	u24(c, 5, &m.VendorID)
	u64(c, 8, &m.ServiceID)
	u64(c, 16, &m.LocalGUID)
	u32(c, 28, &m.LocalQKey)
	u24(c, 32, &m.LocalQPN)
	u8(c, 35, &m.ResponderResources)
	u24(c, 36, &m.LocalEECN)
	u8(c, 39, &m.InitiatorDepth)
	u24(c, 40, &m.RemoteEECN)
	bits(c, 43, 3, 5, &m.RemoteTimeout)
	bits(c, 43, 1, 2, &m.Transport)
	flag(c, 43, 0, &m.FlowControl)
	u24(c, 44, &m.StartingPSN)
	bits(c, 47, 3, 5, &m.LocalTimeout)
	bits(c, 47, 0, 3, &m.RetryCount)
	u16(c, 48, &m.PKey)
	bits(c, 50, 4, 4, &m.MTU)
	flag(c, 50, 3, &m.RDC)
	bits(c, 50, 0, 3, &m.RNRRetryCount)
	bits(c, 51, 4, 4, &m.MaxCMRetries)
	flag(c, 51, 3, &m.SRQ)
	bits(c, 51, 0, 3, &m.ExtTransport)
	m.Primary.walkREQ(c, 52)
	m.Alternate.walkREQ(c, 96)
	flag(c, 139, 2, &m.AlternateSAP)
	raw(c, 140, m.Private[:])
}

func (p *PathInfo) walkREQ(c codec, off int) {
	u16(c, off, &p.LocalLID)
	u16(c, off+2, &p.RemoteLID)
	raw(c, off+4, p.LocalGID[:])
	raw(c, off+20, p.RemoteGID[:])
	flow(c, off+36, &p.FlowLabel)
	bits(c, off+39, 0, 6, &p.Rate)
	u8(c, off+40, &p.TrafficClass)
	u8(c, off+41, &p.HopLimit)
	bits(c, off+42, 4, 4, &p.SL)
	flag(c, off+42, 3, &p.SubnetLocal)
	bits(c, off+43, 3, 5, &p.AckTimeout)
}

// REP accepts a connection (§12.6.8).
type REP struct {
	Header
	LocalCommID        uint32
	RemoteCommID       uint32 // the REQ's LocalCommID
	VendorID           uint32 // 24 bits
	LocalQKey          ib.QKey
	LocalQPN           ib.QPN
	LocalEECN          uint32 // or the QPN of an XRC target
	StartingPSN        ib.PSN // of what the receiver of the REP sends
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // 5-bit code
	Failover           uint8 // 2 bits: 0 accepted, 1 not supported, 2 alternate path rejected
	FlowControl        bool
	SRQ                bool
	RNRRetryCount      uint8 // 3 bits
	LocalGUID          ib.GUID
	Private            [MaxPrivateREP]byte
}

func (m *REP) walk(c codec) {
	u32(c, 0, &m.LocalCommID)
	u32(c, 4, &m.RemoteCommID)
	u32(c, 8, &m.LocalQKey)
	u24(c, 12, &m.LocalQPN)
	u24(c, 16, &m.LocalEECN)
	u24(c, 20, &m.StartingPSN)
	// The vendor's id is spread over what was reserved once.
	hi, mid, lo := uint8(m.VendorID>>16), uint8(m.VendorID>>8), uint8(m.VendorID)
	u8(c, 15, &hi)
	u8(c, 19, &mid)
	u8(c, 23, &lo)
	m.VendorID = uint32(hi)<<16 | uint32(mid)<<8 | uint32(lo)
	u8(c, 24, &m.ResponderResources)
	u8(c, 25, &m.InitiatorDepth)
	bits(c, 26, 3, 5, &m.AckDelay)
	bits(c, 26, 1, 2, &m.Failover)
	flag(c, 26, 0, &m.FlowControl)
	bits(c, 27, 5, 3, &m.RNRRetryCount)
	flag(c, 27, 4, &m.SRQ)
	u64(c, 28, &m.LocalGUID)
	raw(c, 36, m.Private[:])
}

// RTU says that the connection may be used (§12.6.9).
type RTU struct {
	Header
	LocalCommID, RemoteCommID uint32
	Private                   [MaxPrivateRTU]byte
}

func (m *RTU) walk(c codec) {
	u32(c, 0, &m.LocalCommID)
	u32(c, 4, &m.RemoteCommID)
	raw(c, 8, m.Private[:])
}

// MRA says that the answer will take longer (§12.6.6).
type MRA struct {
	Header
	LocalCommID, RemoteCommID uint32
	Message                   Stage // 2 bits
	ServiceTimeout            uint8 // 5-bit code
	Private                   [MaxPrivateMRA]byte
}

func (m *MRA) walk(c codec) {
	u32(c, 0, &m.LocalCommID)
	u32(c, 4, &m.RemoteCommID)
	bits(c, 8, 6, 2, &m.Message)
	bits(c, 9, 3, 5, &m.ServiceTimeout)
	raw(c, 10, m.Private[:])
}

// REJ ends an attempt at a connection (§12.6.7).
type REJ struct {
	Header
	LocalCommID  uint32 // 0 if its sender never chose one
	RemoteCommID uint32
	Message      Stage // 2 bits
	Reason       ib.RejectReason
	ARILen       uint8        // bytes of ARI that count, at most MaxARI
	ARI          [MaxARI]byte // what is acceptable, by reason; for a time-out the CA GUID of its sender
	Private      [MaxPrivateREJ]byte
}

func (m *REJ) walk(c codec) {
	u32(c, 0, &m.LocalCommID)
	u32(c, 4, &m.RemoteCommID)
	bits(c, 8, 6, 2, &m.Message)
	bits(c, 9, 1, 7, &m.ARILen)
	u16(c, 10, &m.Reason)
	raw(c, 12, m.ARI[:])
	raw(c, 84, m.Private[:])
}

func (m *REQ) Attr() Attr { return AttrREQ }
func (m *REP) Attr() Attr { return AttrREP }
func (m *RTU) Attr() Attr { return AttrRTU }
func (m *MRA) Attr() Attr { return AttrMRA }
func (m *REJ) Attr() Attr { return AttrREJ }

func (m *REQ) Encode(b *[MADLen]byte) { m.walk(m.encode(b, AttrREQ)) }
func (m *REP) Encode(b *[MADLen]byte) { m.walk(m.encode(b, AttrREP)) }
func (m *RTU) Encode(b *[MADLen]byte) { m.walk(m.encode(b, AttrRTU)) }
func (m *MRA) Encode(b *[MADLen]byte) { m.walk(m.encode(b, AttrMRA)) }
func (m *REJ) Encode(b *[MADLen]byte) { m.walk(m.encode(b, AttrREJ)) }

func (m *REQ) Decode(b []byte) error { return decode(m, b) }
func (m *REP) Decode(b []byte) error { return decode(m, b) }
func (m *RTU) Decode(b []byte) error { return decode(m, b) }
func (m *MRA) Decode(b []byte) error { return decode(m, b) }

func (m *REJ) Decode(b []byte) error {
	if err := decode(m, b); err != nil {
		return err
	}
	return checkInfo(m.ARILen)
}

type walker interface {
	Message
	walk(codec)
}

// decode reads the header and the fields of m.
func decode(m walker, b []byte) error {
	c, err := m.Head().decode(b, m.Attr())
	if err != nil {
		return err
	}
	m.walk(c)
	return nil
}

func checkInfo(n uint8) error {
	if n > MaxARI {
		return ErrInfoLen
	}
	return nil
}
