package ibcm

import "github.com/verbena-rdma/verbena/ib"

// DREQ ends a connection (§12.6.10).
type DREQ struct {
	Header
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 ib.QPN // the receiver's queue pair
	Private                   [MaxPrivateDREQ]byte
}

func (m *DREQ) walk(c codec) {
	u32(c, 0, &m.LocalCommID)
	u32(c, 4, &m.RemoteCommID)
	u24(c, 8, &m.RemoteQPN)
	raw(c, 12, m.Private[:])
}

// DREP answers a DREQ (§12.6.11).
type DREP struct {
	Header
	LocalCommID, RemoteCommID uint32
	Private                   [MaxPrivateDREP]byte
}

func (m *DREP) walk(c codec) {
	u32(c, 0, &m.LocalCommID)
	u32(c, 4, &m.RemoteCommID)
	raw(c, 8, m.Private[:])
}

// SIDRREQ asks for the queue pair of a datagram service (§12.11.1).
type SIDRREQ struct {
	Header
	RequestID uint32
	PKey      ib.PKey
	ServiceID ServiceID
	Private   [MaxPrivateSIDRREQ]byte // with a CMAHeader at the start if ServiceID.IP
}

func (m *SIDRREQ) walk(c codec) {
	u32(c, 0, &m.RequestID)
	u16(c, 4, &m.PKey)
	u64(c, 8, &m.ServiceID)
	raw(c, 16, m.Private[:])
}

// SIDRStatus is the answer in a SIDRREP.
type SIDRStatus uint8

const (
	SIDRValid              SIDRStatus = 0 // QPN and QKey are valid
	SIDRUnsupported        SIDRStatus = 1 // nobody offers the service
	SIDRRejected           SIDRStatus = 2
	SIDRNoQP               SIDRStatus = 3
	SIDRRedirect           SIDRStatus = 4
	SIDRUnsupportedVersion SIDRStatus = 5
)

// SIDRREP answers a SIDRREQ (§12.11.2).
type SIDRREP struct {
	Header
	RequestID uint32
	Status    SIDRStatus
	InfoLen   uint8  // bytes of Info that count, at most MaxARI
	VendorID  uint32 // 24 bits
	QPN       ib.QPN
	ServiceID ServiceID
	QKey      ib.QKey
	Info      [MaxARI]byte
	Private   [MaxPrivateSIDRREP]byte
}

func (m *SIDRREP) walk(c codec) {
	u32(c, 0, &m.RequestID)
	u8(c, 4, &m.Status)
	u8(c, 5, &m.InfoLen)
	hi, lo := uint16(m.VendorID>>8), uint8(m.VendorID)
	u16(c, 6, &hi)
	u8(c, 11, &lo)
	m.VendorID = uint32(hi)<<8 | uint32(lo)
	u24(c, 8, &m.QPN)
	u64(c, 12, &m.ServiceID)
	u32(c, 20, &m.QKey)
	raw(c, 24, m.Info[:])
	raw(c, 96, m.Private[:])
}

// LAP offers an alternate path (§12.8.1). RoCE has none.
type LAP struct {
	Header
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 ib.QPN
	RemoteTimeout             uint8 // 5-bit code
	Alternate                 PathInfo
	Private                   [MaxPrivateLAP]byte
}

func (m *LAP) walk(c codec) {
	u32(c, 0, &m.LocalCommID)
	u32(c, 4, &m.RemoteCommID)
	u24(c, 12, &m.RemoteQPN)
	bits(c, 15, 3, 5, &m.RemoteTimeout)
	p := &m.Alternate
	u16(c, 20, &p.LocalLID)
	u16(c, 22, &p.RemoteLID)
	raw(c, 24, p.LocalGID[:])
	raw(c, 40, p.RemoteGID[:])
	flow(c, 56, &p.FlowLabel)
	u8(c, 59, &p.TrafficClass)
	u8(c, 60, &p.HopLimit)
	bits(c, 61, 0, 6, &p.Rate)
	bits(c, 62, 4, 4, &p.SL)
	flag(c, 62, 3, &p.SubnetLocal)
	bits(c, 63, 3, 5, &p.AckTimeout)
	raw(c, 64, m.Private[:])
}

// APRStatus is the answer in an APR.
type APRStatus uint8

// APRUnsupported is the answer of a CM without alternate paths.
const APRUnsupported APRStatus = 1

// APR answers a LAP (§12.8.2).
type APR struct {
	Header
	LocalCommID, RemoteCommID uint32
	InfoLen                   uint8 // bytes of Info that count, at most MaxARI
	Status                    APRStatus
	Info                      [MaxARI]byte
	Private                   [MaxPrivateAPR]byte
}

func (m *APR) walk(c codec) {
	u32(c, 0, &m.LocalCommID)
	u32(c, 4, &m.RemoteCommID)
	u8(c, 8, &m.InfoLen)
	u8(c, 9, &m.Status)
	raw(c, 12, m.Info[:])
	raw(c, 84, m.Private[:])
}

func (m *DREQ) Attr() Attr    { return AttrDREQ }
func (m *DREP) Attr() Attr    { return AttrDREP }
func (m *SIDRREQ) Attr() Attr { return AttrSIDRREQ }
func (m *SIDRREP) Attr() Attr { return AttrSIDRREP }
func (m *LAP) Attr() Attr     { return AttrLAP }
func (m *APR) Attr() Attr     { return AttrAPR }

func (m *DREQ) Encode(b *[MADLen]byte)    { m.walk(m.encode(b, AttrDREQ)) }
func (m *DREP) Encode(b *[MADLen]byte)    { m.walk(m.encode(b, AttrDREP)) }
func (m *SIDRREQ) Encode(b *[MADLen]byte) { m.walk(m.encode(b, AttrSIDRREQ)) }
func (m *SIDRREP) Encode(b *[MADLen]byte) { m.walk(m.encode(b, AttrSIDRREP)) }
func (m *LAP) Encode(b *[MADLen]byte)     { m.walk(m.encode(b, AttrLAP)) }
func (m *APR) Encode(b *[MADLen]byte)     { m.walk(m.encode(b, AttrAPR)) }

func (m *DREQ) Decode(b []byte) error    { return decode(m, b) }
func (m *DREP) Decode(b []byte) error    { return decode(m, b) }
func (m *SIDRREQ) Decode(b []byte) error { return decode(m, b) }
func (m *LAP) Decode(b []byte) error     { return decode(m, b) }

func (m *SIDRREP) Decode(b []byte) error {
	if err := decode(m, b); err != nil {
		return err
	}
	return checkInfo(m.InfoLen)
}

func (m *APR) Decode(b []byte) error {
	if err := decode(m, b); err != nil {
		return err
	}
	return checkInfo(m.InfoLen)
}
