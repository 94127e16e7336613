package verbs

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// AH is an address handle (struct ibv_ah). Close is allowed at any time: the device
// keeps it until the last send that names it is complete.
type AH struct {
	object
	pd     *PD
	d      driver.AH
	handle uint64
	attr   AHAttr
	self   *AH // kept instead of a request's pointer, so that requests need not be on the heap
}

const opAH = "create ah"

// defaultHopLimit is what a zero HopLimit means.
const defaultHopLimit = 64

// CreateAH makes an address handle for UD (ibv_create_ah). A zero HopLimit means 64.
// EINVAL: a field is wrong; ENODATA: the GID index has no entry. A device that has to
// find out the peer's hardware address may take a second and give ETIMEDOUT.
func (pd *PD) CreateAH(a AHAttr) (*AH, error) {
	if pd == nil || pd.name == nil {
		return nil, opError(opAH, nil, "", errNil)
	}
	port, err := pd.dev.Port(a.Port)
	if err != nil {
		return nil, err
	}
	if err := pd.dev.checkAH(opAH, &a, &port); err != nil {
		return nil, err
	}
	if a.HopLimit == 0 {
		a.HopLimit = defaultHopLimit
	}
	h := &AH{pd: pd, attr: a}
	h.self = h
	err = pd.child(opAH, h.describe(), func(d driver.PD) (err error) {
		h.d, err = d.CreateAH(a)
		return err
	})
	if err != nil {
		return nil, err
	}
	h.handle = h.d.Handle()
	h.begin(pd.dev, h.describe, func() error {
		err := opError("close ah", pd.dev, h.describe(), h.d.Close())
		if e := pd.drop(); err == nil {
			err = e
		}
		return err
	})
	return h, nil
}

func (h *AH) describe() string { return fmt.Sprintf("AH to %v", h.attr.DGID) }

// Close frees the handle (ibv_destroy_ah), as soon as no send uses it.
func (h *AH) Close() error {
	if h == nil || h.name == nil {
		return opError("close ah", nil, "", errNil)
	}
	return h.close(nil, nil)
}

// checkAH checks an address vector against its port, as far as it is known here
// (IBTA Vol 1 §11.2.2.1).
func (d *Device) checkAH(op string, a *AHAttr, port *PortAttr) error {
	object := fmt.Sprintf("address vector to %v", a.DGID)
	switch {
	case !a.Global && (port.Link == ib.LinkEthernet || port.GRHRequired):
		return invalid(op, d, object, "on this port Global must be set: every packet has a GRH (GRHRequired)")
	case !a.Global:
		return nil
	case a.DGID.IsZero():
		return invalid(op, d, object, "the destination GID is zero")
	case a.FlowLabel > 1<<20-1:
		return invalid(op, d, object, "flow label %#x has more than 20 bits", a.FlowLabel)
	}
	g, err := d.gid(a.Port, a.SGIDIndex, port.GIDs)
	if err != nil {
		return err
	}
	if port.Link == ib.LinkEthernet && g.GID.Is4() != a.DGID.Is4() {
		return invalid(op, d, object, "source GID %v is of the other address family", g.GID)
	}
	return nil
}

// CreateAHFromWC makes one that answers the sender of wc; grh is the first 40 bytes
// of the receive buffer if wc has ib.WithGRH (ibv_create_ah_from_wc).
func (pd *PD) CreateAHFromWC(port int, wc *WC, grh []byte) (*AH, error) {
	a, err := AHAttrFromWC(port, wc, grh)
	if err != nil {
		return nil, err
	}
	return pd.CreateAH(a)
}

// grhLen is the size of a global routing header, for which a datagram receive leaves
// room.
const grhLen = 40

// AHAttrFromWC gives the attributes that PD.CreateAHFromWC makes a handle of
// (ibv_init_ah_from_wc). The header is checked, as it comes from a peer.
func AHAttrFromWC(port int, wc *WC, grh []byte) (AHAttr, error) {
	const op = "address of a sender"
	if wc == nil || wc.QP == nil || wc.QP.name == nil {
		return AHAttr{}, opError(op, nil, "", errNil)
	}
	d := wc.QP.dev
	a := AHAttr{DLID: wc.SLID, SL: wc.SL, PathBits: wc.PathBits, Port: port}
	if wc.Flags&ib.WithGRH == 0 {
		return a, nil
	}
	if len(grh) < grhLen {
		return AHAttr{}, invalid(op, d, "", "%d bytes are no GRH, which has %d", len(grh), grhLen)
	}
	from, to, class, flow, err := parseGRH(grh)
	if err != nil {
		return AHAttr{}, opError(op, d, "", err)
	}
	gids, err := d.GIDs()
	if err != nil {
		return AHAttr{}, err
	}
	for _, g := range gids {
		if g.Port == port && g.GID == to && g.Type != ib.GIDTypeRoCEv1 {
			a.Global, a.DGID, a.SGIDIndex = true, from, g.Index
			if g.Type == ib.GIDTypeRoCEv2 {
				a.DLID, a.SL, a.PathBits = 0, 0, 0 // InfiniBand's
			}
			a.TrafficClass, a.FlowLabel, a.HopLimit = class, flow, 255
			return a, nil
		}
	}
	return AHAttr{}, opError(op, d, "", fmt.Errorf("port %d has no GID %v any more: %w", port, to, syscall.ENODATA))
}

// parseGRH reads the network header in front of a datagram. With IPv4 it is in the last
// 20 bytes, and what is before is undefined (IBTA Vol 1 annex A17.4.5.2); where both look
// right, the checksum decides.
func parseGRH(b []byte) (from, to ib.GID, class uint8, flow uint32, err error) {
	v4 := b[20:grhLen]
	six, four := b[0]>>4 == 6, v4[0] == 0x45
	if four && (!six || ipv4Sum(v4) == 0xFFFF) {
		copy(from[:], mapped[:])
		copy(from[12:], v4[12:16])
		copy(to[:], mapped[:])
		copy(to[12:], v4[16:20])
		return from, to, v4[1], 0, nil
	}
	if !six {
		return from, to, 0, 0, fmt.Errorf("neither an IPv6 nor an IPv4 header: %w", syscall.EINVAL)
	}
	w := binary.BigEndian.Uint32(b)
	copy(from[:], b[8:24])
	copy(to[:], b[24:40])
	return from, to, uint8(w >> 20), w & (1<<20 - 1), nil
}

// mapped is the beginning of a GID that is an IPv4 address.
var mapped = [12]byte{10: 0xFF, 11: 0xFF}

// ipv4Sum gives the ones' complement sum of an IPv4 header, 0xFFFF if it is intact
// (RFC 791).
func ipv4Sum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xFFFF {
		sum = sum&0xFFFF + sum>>16
	}
	return uint16(sum)
}
