package ib

// NodeType of a device (ibv_node_type).
type NodeType int8

const (
	NodeUnknown NodeType = -1
	NodeCA      NodeType = 0 + iota // channel adapter; every RoCE device is one
	NodeSwitch
	NodeRouter
	NodeRNIC // iWARP
	NodeUSNIC
	NodeUSNICUDP
	NodeUnspecified
)

func (n NodeType) String() string {
	if n == NodeUnknown {
		return "UNKNOWN"
	}
	return name("NodeType", nodeTypeNames, int(n))
}

var nodeTypeNames = []string{
	NodeCA: "CA", NodeSwitch: "SWITCH", NodeRouter: "ROUTER", NodeRNIC: "RNIC", NodeUSNIC: "USNIC",
	NodeUSNICUDP: "USNIC_UDP", NodeUnspecified: "UNSPECIFIED",
}

// Transport of a device (ibv_transport_type).
type Transport int8

const (
	TransportUnknown Transport = -1
	TransportIB      Transport = 0 // InfiniBand and RoCE
	TransportIWARP   Transport = 1
	TransportUSNIC   Transport = 2

	TransportUSNICUDP    Transport = 3
	TransportUnspecified Transport = 4
)

func (t Transport) String() string {
	if t == TransportUnknown {
		return "UNKNOWN"
	}
	return name("Transport", transportNames, int(t))
}

var transportNames = []string{"InfiniBand", "iWARP", "usNIC", "usNIC UDP", "UNSPECIFIED"}

// AtomicCap says with whom a device's atomics are atomic (ibv_atomic_cap).
type AtomicCap uint8

const (
	AtomicNone   AtomicCap = iota // no atomics
	AtomicHCA                     // among the operations of the same device
	AtomicGlobal                  // also with the processors
)

func (a AtomicCap) String() string { return name("AtomicCap", atomicCapNames, int(a)) }

var atomicCapNames = []string{"NONE", "HCA", "GLOB"}

// DeviceCaps of a device (ibv_device_cap_flags and the flags of device_cap_flags_ex).
type DeviceCaps uint64

const (
	CapResizeMaxWR         DeviceCaps = 1 << 0
	CapBadPKeyCounter      DeviceCaps = 1 << 1
	CapBadQKeyCounter      DeviceCaps = 1 << 2
	CapRawMulticast        DeviceCaps = 1 << 3
	CapAutoPathMigration   DeviceCaps = 1 << 4
	CapChangePhyPort       DeviceCaps = 1 << 5
	CapUDAVPortEnforce     DeviceCaps = 1 << 6
	CapCurQPStateMod       DeviceCaps = 1 << 7
	CapShutdownPort        DeviceCaps = 1 << 8
	CapInitType            DeviceCaps = 1 << 9
	CapPortActiveEvent     DeviceCaps = 1 << 10
	CapSysImageGUID        DeviceCaps = 1 << 11
	CapRCRNRNAKGen         DeviceCaps = 1 << 12
	CapSRQResize           DeviceCaps = 1 << 13
	CapNNotifyCQ           DeviceCaps = 1 << 14
	CapMemoryWindow        DeviceCaps = 1 << 17
	CapUDIPChecksum        DeviceCaps = 1 << 18
	CapXRC                 DeviceCaps = 1 << 20
	CapMemMgtExtensions    DeviceCaps = 1 << 21
	CapMW2A                DeviceCaps = 1 << 23
	CapMW2B                DeviceCaps = 1 << 24
	CapRCIPChecksum        DeviceCaps = 1 << 25
	CapRawIPChecksum       DeviceCaps = 1 << 26
	CapManagedFlowSteering DeviceCaps = 1 << 29
	CapRawScatterFCS       DeviceCaps = 1 << 34
	CapPCIWriteEndPadding  DeviceCaps = 1 << 36
	CapFlushGlobal         DeviceCaps = 1 << 38
	CapFlushPersistent     DeviceCaps = 1 << 39
	CapAtomicWrite         DeviceCaps = 1 << 40
	CapCCDMABounce         DeviceCaps = 1 << 41
)

func (c DeviceCaps) String() string { return flagNames(deviceCapNames, uint64(c)) }

var deviceCapNames = []string{
	"RESIZE_MAX_WR", "BAD_PKEY_CNTR", "BAD_QKEY_CNTR", "RAW_MULTI", "AUTO_PATH_MIG", "CHANGE_PHY_PORT",
	"UD_AV_PORT_ENFORCE", "CURR_QP_STATE_MOD", "SHUTDOWN_PORT", "INIT_TYPE", "PORT_ACTIVE_EVENT", "SYS_IMAGE_GUID",
	"RC_RNR_NAK_GEN", "SRQ_RESIZE", "N_NOTIFY_CQ", 17: "MEM_WINDOW", 18: "UD_IP_CSUM", 20: "XRC",
	21: "MEM_MGT_EXTENSIONS", 23: "MEM_WINDOW_TYPE_2A", 24: "MEM_WINDOW_TYPE_2B", 25: "RC_IP_CSUM", 26: "RAW_IP_CSUM",
	29: "MANAGED_FLOW_STEERING", 34: "RAW_SCATTER_FCS", 36: "PCI_WRITE_END_PADDING", 38: "FLUSH_GLOBAL",
	39: "FLUSH_PERSISTENT", 40: "ATOMIC_WRITE", 41: "CC_DMA_BOUNCE",
}

// ODPCaps says which operations of a transport may use memory registered on demand
// (ibv_odp_transport_cap_bits).
type ODPCaps uint32

const (
	ODPSend ODPCaps = 1 << iota
	ODPRecv
	ODPWrite
	ODPRead
	ODPAtomic
	ODPSRQRecv
	ODPFlush
	ODPAtomicWrite
)

func (c ODPCaps) String() string { return flagNames(odpCapNames, uint64(c)) }

var odpCapNames = []string{"SEND", "RECV", "WRITE", "READ", "ATOMIC", "SRQ_RECV", "FLUSH", "ATOMIC_WRITE"}
