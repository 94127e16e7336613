package ib

import "strconv"

// PortState is the logical state of a port (ibv_port_state).
type PortState uint8

const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

func (p PortState) String() string { return name("PortState", portStateNames, int(p)) }

var portStateNames = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}

// PhysState is the physical state of a port, 1 to 7 (IBTA Vol 1 §14.2.5.6).
type PhysState uint8

const (
	PhysSleep PhysState = 1 + iota
	PhysPolling
	PhysDisabled
	PhysTraining
	PhysLinkUp
	PhysErrorRecovery
	PhysTest
)

func (p PhysState) String() string { return name("PhysState", physStateNames, int(p)) }

var physStateNames = []string{
	PhysSleep: "SLEEP", PhysPolling: "POLLING", PhysDisabled: "DISABLED", PhysTraining: "PORT_CONFIGURATION_TRAINING",
	PhysLinkUp: "LINK_UP", PhysErrorRecovery: "LINK_ERROR_RECOVERY", PhysTest: "PHY_TEST",
}

// LinkLayer below the transport (IBV_LINK_LAYER_*).
type LinkLayer uint8

const (
	LinkUnspecified LinkLayer = iota // InfiniBand, from old devices
	LinkInfiniBand
	LinkEthernet
)

func (l LinkLayer) String() string { return name("LinkLayer", linkLayerNames, int(l)) }

var linkLayerNames = []string{"Unspecified", "InfiniBand", "Ethernet"}

// GIDType of an entry in a GID table (ibv_gid_type).
type GIDType uint8

const (
	GIDTypeIB GIDType = iota
	GIDTypeRoCEv1
	GIDTypeRoCEv2
)

func (t GIDType) String() string { return name("GIDType", gidTypeNames, int(t)) }

var gidTypeNames = []string{"IB", "RoCE v1", "RoCE v2"}

// MTU is a path MTU: payload bytes of a packet as a code from 1 to 5 (ibv_mtu).
type MTU uint8

const (
	MTU256 MTU = 1 + iota
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Valid reports whether m is one of the five.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes gives 256..4096, and 0 for a code that is not valid.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// String gives the bytes: 1024.
func (m MTU) String() string {
	if !m.Valid() {
		return name("MTU", nil, int(m))
	}
	return strconv.Itoa(m.Bytes())
}

// MTUFromBytes gives the greatest MTU of at most n bytes, and 0 if n is below 256.
func MTUFromBytes(n int) MTU {
	m := MTU(0)
	for m < MTU4096 && (m+1).Bytes() <= n {
		m++
	}
	return m
}

// roceOverhead is what Linux takes off the MTU of an interface for the headers of a
// RoCEv2 packet over IPv6.
const roceOverhead = 96

// MTUFromLink gives the greatest MTU whose packets fit an interface of n bytes: 1024
// for 1500, 4096 from 4192 on, 0 if none fits.
func MTUFromLink(n int) MTU { return MTUFromBytes(n - roceOverhead) }

// Rate is a static rate limit as a code (ibv_rate). Zero is RateMax: none.
type Rate uint8

// RateMax means as fast as the port can.
const RateMax Rate = 0

// Mbps gives the rate in Mbit/s (ibv_rate_to_mbps); 0 for RateMax and unknown codes.
func (r Rate) Mbps() int {
	if int(r) < len(rateMbps) {
		return rateMbps[r]
	}
	return 0
}

// RateFromMbps gives the code of exactly n Mbit/s, RateMax if there is none
// (mbps_to_ibv_rate).
func RateFromMbps(n int) Rate {
	for i, v := range rateMbps {
		if v == n && n > 0 {
			return Rate(i)
		}
	}
	return RateMax
}

func (r Rate) String() string {
	if r == RateMax {
		return "MAX"
	}
	if n := r.Mbps(); n != 0 {
		return strconv.Itoa(n) + " Mbit/s"
	}
	return name("Rate", nil, int(r))
}

// rateMbps: lanes × lane speed, with the speeds of SDR 2500, DDR 5000, QDR 10000,
// FDR 14062.5, EDR 25781.25, HDR 53125, NDR 106250 Mbit/s.
var rateMbps = []int{
	2: 2500, 3: 10000, 4: 30000, 5: 5000, 6: 20000, 7: 40000, 8: 60000, 9: 80000, 10: 120000, 11: 14062, 12: 56250,
	13: 112500, 14: 168750, 15: 25781, 16: 103125, 17: 206250, 18: 309375, 19: 28125, 20: 53125, 21: 425000,
	22: 637500, 23: 850000, 24: 1275000,
}

// PortCaps of a port (ibv_port_cap_flags; IBTA Vol 1 §14.2.5.6).
type PortCaps uint32

const (
	PortCapSM                    PortCaps = 1 << 1
	PortCapNotice                PortCaps = 1 << 2
	PortCapTrap                  PortCaps = 1 << 3
	PortCapOptIPD                PortCaps = 1 << 4
	PortCapAutoMigr              PortCaps = 1 << 5
	PortCapSLMap                 PortCaps = 1 << 6
	PortCapMKeyNVRAM             PortCaps = 1 << 7
	PortCapPKeyNVRAM             PortCaps = 1 << 8
	PortCapLEDInfo               PortCaps = 1 << 9
	PortCapSysImageGUID          PortCaps = 1 << 11
	PortCapPKeySwitchExtPortTrap PortCaps = 1 << 12
	PortCapExtendedSpeeds        PortCaps = 1 << 14
	PortCapMask2                 PortCaps = 1 << 15
	PortCapCM                    PortCaps = 1 << 16
	PortCapSNMPTunnel            PortCaps = 1 << 17
	PortCapReinit                PortCaps = 1 << 18
	PortCapDeviceMgmt            PortCaps = 1 << 19
	PortCapVendorClass           PortCaps = 1 << 20
	PortCapDRNotice              PortCaps = 1 << 21
	PortCapCapMaskNotice         PortCaps = 1 << 22
	PortCapBootMgmt              PortCaps = 1 << 23
	PortCapLinkLatency           PortCaps = 1 << 24
	PortCapClientReg             PortCaps = 1 << 25
	PortCapIPBasedGIDs           PortCaps = 1 << 26
)

func (c PortCaps) String() string { return flagNames(portCapNames, uint64(c)) }

var portCapNames = []string{
	1: "SM", 2: "NOTICE", 3: "TRAP", 4: "OPT_IPD", 5: "AUTO_MIGR", 6: "SL_MAP", 7: "MKEY_NVRAM", 8: "PKEY_NVRAM",
	9: "LED_INFO", 11: "SYS_IMAGE_GUID", 12: "PKEY_SW_EXT_PORT_TRAP", 14: "EXTENDED_SPEEDS", 15: "CAP_MASK2", 16: "CM",
	17: "SNMP_TUNNEL", 18: "REINIT", 19: "DEVICE_MGMT", 20: "VENDOR_CLASS", 21: "DR_NOTICE", 22: "CAP_MASK_NOTICE",
	23: "BOOT_MGMT", 24: "LINK_LATENCY", 25: "CLIENT_REG", 26: "IP_BASED_GIDS",
}

// PortCaps2 of a port (ibv_port_cap_flags2).
type PortCaps2 uint16

const (
	PortCap2SetNodeDesc          PortCaps2 = 1 << 0
	PortCap2InfoExt              PortCaps2 = 1 << 1
	PortCap2Virt                 PortCaps2 = 1 << 2
	PortCap2SwitchPortStateTable PortCaps2 = 1 << 3
	PortCap2LinkWidth2X          PortCaps2 = 1 << 4
	PortCap2LinkSpeedHDR         PortCaps2 = 1 << 5
	PortCap2LinkSpeedNDR         PortCaps2 = 1 << 10
)

func (c PortCaps2) String() string { return flagNames(portCap2Names, uint64(c)) }

var portCap2Names = []string{
	"SET_NODE_DESC", "INFO_EXT", "VIRT", "SWITCH_PORT_STATE_TABLE", "LINK_WIDTH_2X", "LINK_SPEED_HDR",
	10: "LINK_SPEED_NDR",
}
