package ib

import (
	"fmt"
	"strings"
	"testing"
)

// Numbers and names of the C headers, written down apart from the code: the constants
// of verbs.h, ib_user_ioctl_verbs.h and rdma_cma.h without their prefix.
func TestValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from  int
		names string
		of    func(int) string
	}{
		{2, "RC UC UD", func(n int) string { return QPType(n).String() }},
		{8, "RAW_PACKET XRC_SEND XRC_RECV", func(n int) string { return QPType(n).String() }},
		{255, "DRIVER", func(n int) string { return QPType(n).String() }},
		{0, "RESET INIT RTR RTS SQD SQE ERR", func(n int) string { return QPState(n).String() }},
		{0, "MIGRATED REARM ARMED", func(n int) string { return MigState(n).String() }},
		{0, "RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP ATOMIC_FETCH_AND_ADD " +
			"LOCAL_INV BIND_MW SEND_WITH_INV TSO DRIVER1", func(n int) string { return Opcode(n).String() }},
		{14, "FLUSH ATOMIC_WRITE", func(n int) string { return Opcode(n).String() }},
		{0, "SEND RDMA_WRITE RDMA_READ COMP_SWAP FETCH_ADD BIND_MW LOCAL_INV TSO FLUSH ATOMIC_WRITE",
			func(n int) string { return WCOpcode(n).String() }},
		{128, "RECV RECV_RDMA_WITH_IMM", func(n int) string { return WCOpcode(n).String() }},
		{0, "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR BAD_RESP_ERR " +
			"LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR " +
			"REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR " +
			"TM_ERR TM_RNDV_INCOMPLETE", func(n int) string { return Status(n).String() }},
		{0, "CQ_ERR QP_FATAL QP_REQ_ERR QP_ACCESS_ERR COMM_EST SQ_DRAINED PATH_MIG PATH_MIG_ERR DEVICE_FATAL " +
			"PORT_ACTIVE PORT_ERR LID_CHANGE PKEY_CHANGE SM_CHANGE SRQ_ERR SRQ_LIMIT_REACHED QP_LAST_WQE_REACHED " +
			"CLIENT_REREGISTER GID_CHANGE WQ_FATAL DEVICE_SPEED_CHANGE", func(n int) string { return EventType(n).String() }},
		{0, "ADDR_RESOLVED ADDR_ERROR ROUTE_RESOLVED ROUTE_ERROR CONNECT_REQUEST CONNECT_RESPONSE CONNECT_ERROR " +
			"UNREACHABLE REJECTED ESTABLISHED DISCONNECTED DEVICE_REMOVAL MULTICAST_JOIN MULTICAST_ERROR ADDR_CHANGE " +
			"TIMEWAIT_EXIT ADDRINFO_RESOLVED ADDRINFO_ERROR USER", func(n int) string { return CMEventType(n).String() }},
		{1, "NO_QP NO_EEC NO_RESOURCES TIMEOUT UNSUPPORTED INVALID_COMM_ID INVALID_COMM_INSTANCE INVALID_SERVICE_ID " +
			"INVALID_TRANSPORT_TYPE STALE_CONN RDC_NOT_EXIST INVALID_GID INVALID_LID INVALID_SL INVALID_TRAFFIC_CLASS " +
			"INVALID_HOP_LIMIT INVALID_PACKET_RATE INVALID_ALT_GID INVALID_ALT_LID INVALID_ALT_SL " +
			"INVALID_ALT_TRAFFIC_CLASS INVALID_ALT_HOP_LIMIT INVALID_ALT_PACKET_RATE PORT_CM_REDIRECT PORT_REDIRECT " +
			"INVALID_MTU INSUFFICIENT_RESP_RESOURCES CONSUMER_DEFINED INVALID_RNR_RETRY DUPLICATE_LOCAL_COMM_ID " +
			"INVALID_CLASS_VERSION INVALID_FLOW_LABEL INVALID_ALT_FLOW_LABEL",
			func(n int) string { return RejectReason(n).String() }},
		{35, "VENDOR_OPTION_NOT_SUPPORTED", func(n int) string { return RejectReason(n).String() }},
		{0x002, "IPOIB", func(n int) string { return PortSpace(n).String() }},
		{0x106, "TCP", func(n int) string { return PortSpace(n).String() }},
		{0x111, "UDP", func(n int) string { return PortSpace(n).String() }},
		{0x13F, "IB", func(n int) string { return PortSpace(n).String() }},
		{0, "FULLMEMBER SENDONLY_FULLMEMBER", func(n int) string { return JoinFlags(n).String() }},
		{-1, "UNKNOWN", func(n int) string { return NodeType(n).String() }},
		{1, "CA SWITCH ROUTER RNIC USNIC USNIC_UDP UNSPECIFIED", func(n int) string { return NodeType(n).String() }},
		{-1, "UNKNOWN InfiniBand iWARP usNIC", func(n int) string { return Transport(n).String() }},
		{4, "UNSPECIFIED", func(n int) string { return Transport(n).String() }},
		{0, "NONE HCA GLOB", func(n int) string { return AtomicCap(n).String() }},
		{0, "NOP DOWN INIT ARMED ACTIVE ACTIVE_DEFER", func(n int) string { return PortState(n).String() }},
		{1, "SLEEP POLLING DISABLED PORT_CONFIGURATION_TRAINING LINK_UP LINK_ERROR_RECOVERY PHY_TEST",
			func(n int) string { return PhysState(n).String() }},
		{0, "Unspecified InfiniBand Ethernet", func(n int) string { return LinkLayer(n).String() }},
		{1, "256 512 1024 2048 4096", func(n int) string { return MTU(n).String() }},
		{1, "TYPE_1 TYPE_2", func(n int) string { return MWType(n).String() }},
		{0, "PREFETCH PREFETCH_WRITE PREFETCH_NO_FAULT", func(n int) string { return MRAdvice(n).String() }},
		{0, "BASIC XRC", func(n int) string { return SRQType(n).String() }},
		{0, "RANGE MR", func(n int) string { return FlushLevel(n).String() }},
		{0, "WRS BYTES", func(n int) string { return CounterType(n).String() }},
	} {
		names := strings.Fields(c.names)
		for i, want := range names {
			if got := c.of(c.from + i); got != want {
				t.Errorf("%d is %s, want %s", c.from+i, got, want)
			}
		}
		// The number after the last is unknown, or the first of the next row.
		if next := c.of(c.from + len(names)); strings.Contains(c.names, next) {
			t.Errorf("%d is %s too", c.from+len(names), next)
		}
	}
	for v, want := range map[GIDType]string{GIDTypeIB: "IB", GIDTypeRoCEv1: "RoCE v1", GIDTypeRoCEv2: "RoCE v2"} {
		if v.String() != want {
			t.Errorf("GID type %d is %v", v, v)
		}
	}
}

// The named constants are those numbers.
func TestConstants(t *testing.T) {
	t.Parallel()
	for got, want := range map[fmt.Stringer]string{
		RC: "RC", UD: "UD", XRCRecv: "XRC_RECV", DriverQP: "DRIVER", StateRTR: "RTR", StateError: "ERR", Armed: "ARMED",
		OpTSO: "TSO", OpSendInv: "SEND_WITH_INV", OpAtomicWrite: "ATOMIC_WRITE", WCAtomicWrite: "ATOMIC_WRITE",
		WCRecv: "RECV", WCRecvWriteImm: "RECV_RDMA_WITH_IMM", StatusTMRndvIncomplete: "TM_RNDV_INCOMPLETE",
		StatusRespTimeout: "RESP_TIMEOUT_ERR", EventDeviceSpeedChange: "DEVICE_SPEED_CHANGE", EventSRQErr: "SRQ_ERR",
		CMUser: "USER", CMTimewaitExit: "TIMEWAIT_EXIT", RejectStaleConn: "STALE_CONN", RejectInvalidMTU: "INVALID_MTU",
		NodeUnknown: "UNKNOWN", NodeCA: "CA", NodeUnspecified: "UNSPECIFIED", TransportUSNICUDP: "usNIC UDP",
		PhysTest: "PHY_TEST", PortActiveDefer: "ACTIVE_DEFER", MTU4096: "4096", MWType2: "TYPE_2", SRQXRC: "XRC",
		LinkEthernet: "Ethernet", AtomicGlobal: "GLOB", JoinSendOnly: "SENDONLY_FULLMEMBER", LevelMR: "MR",
		CounterBytes: "BYTES", AdvicePrefetchNoFault: "PREFETCH_NO_FAULT",
		NotifyAny: "ANY", NotifySolicited: "SOLICITED",
	} {
		if got.String() != want {
			t.Errorf("%T %v, want %s", got, got, want)
		}
	}
	for o := range 256 {
		if WCOpcode(o).IsRecv() != (o >= 128) {
			t.Errorf("opcode %d: IsRecv %v", o, !(o >= 128))
		}
	}
	for v, want := range map[QPType]bool{RC: true, UC: true, UD: false, RawPacket: false, XRCSend: true, XRCRecv: true, DriverQP: false} {
		if v.Connected() != want {
			t.Errorf("%v connected: %v", v, !want)
		}
	}
}

// Every named flag has one bit, the right one, and its name.
func TestFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		v    fmt.Stringer
		bit  int
		name string
	}{
		{LocalWrite, 0, "LOCAL_WRITE"}, {RemoteWrite, 1, "REMOTE_WRITE"}, {RemoteRead, 2, "REMOTE_READ"},
		{RemoteAtomic, 3, "REMOTE_ATOMIC"}, {MWBind, 4, "MW_BIND"}, {ZeroBased, 5, "ZERO_BASED"}, {OnDemand, 6, "ON_DEMAND"},
		{HugeTLB, 7, "HUGETLB"}, {FlushGlobal, 8, "FLUSH_GLOBAL"}, {FlushPersistent, 9, "FLUSH_PERSISTENT"},
		{RelaxedOrdering, 20, "RELAXED_ORDERING"},
		{Fence, 0, "FENCE"}, {Signaled, 1, "SIGNALED"}, {Solicited, 2, "SOLICITED"}, {Inline, 3, "INLINE"}, {IPChecksum, 4, "IP_CSUM"},
		{WithGRH, 0, "GRH"}, {WithImm, 1, "WITH_IMM"}, {IPChecksumOK, 2, "IP_CSUM_OK"}, {WithInv, 3, "WITH_INV"},
		{AttrState, 0, "STATE"}, {AttrCurState, 1, "CUR_STATE"}, {AttrSQDNotify, 2, "EN_SQD_ASYNC_NOTIFY"},
		{AttrAccess, 3, "ACCESS_FLAGS"}, {AttrPKeyIndex, 4, "PKEY_INDEX"}, {AttrPort, 5, "PORT"}, {AttrQKey, 6, "QKEY"},
		{AttrAV, 7, "AV"}, {AttrPathMTU, 8, "PATH_MTU"}, {AttrTimeout, 9, "TIMEOUT"}, {AttrRetryCount, 10, "RETRY_CNT"},
		{AttrRNRRetry, 11, "RNR_RETRY"}, {AttrRQPSN, 12, "RQ_PSN"}, {AttrMaxRDAtomic, 13, "MAX_QP_RD_ATOMIC"},
		{AttrAltPath, 14, "ALT_PATH"}, {AttrMinRNRTimer, 15, "MIN_RNR_TIMER"}, {AttrSQPSN, 16, "SQ_PSN"},
		{AttrMaxDestRDAtomic, 17, "MAX_DEST_RD_ATOMIC"}, {AttrPathMigState, 18, "PATH_MIG_STATE"}, {AttrCap, 19, "CAP"},
		{AttrDestQPN, 20, "DEST_QPN"}, {AttrRateLimit, 25, "RATE_LIMIT"},
		{CapResizeMaxWR, 0, "RESIZE_MAX_WR"}, {CapNNotifyCQ, 14, "N_NOTIFY_CQ"}, {CapMemoryWindow, 17, "MEM_WINDOW"},
		{CapUDIPChecksum, 18, "UD_IP_CSUM"}, {CapXRC, 20, "XRC"}, {CapMemMgtExtensions, 21, "MEM_MGT_EXTENSIONS"},
		{CapMW2A, 23, "MEM_WINDOW_TYPE_2A"}, {CapMW2B, 24, "MEM_WINDOW_TYPE_2B"}, {CapRCIPChecksum, 25, "RC_IP_CSUM"},
		{CapRawIPChecksum, 26, "RAW_IP_CSUM"}, {CapManagedFlowSteering, 29, "MANAGED_FLOW_STEERING"},
		{CapRawScatterFCS, 34, "RAW_SCATTER_FCS"}, {CapPCIWriteEndPadding, 36, "PCI_WRITE_END_PADDING"},
		{CapFlushGlobal, 38, "FLUSH_GLOBAL"}, {CapFlushPersistent, 39, "FLUSH_PERSISTENT"},
		{CapAtomicWrite, 40, "ATOMIC_WRITE"}, {CapCCDMABounce, 41, "CC_DMA_BOUNCE"},
		{ODPSend, 0, "SEND"}, {ODPRecv, 1, "RECV"}, {ODPWrite, 2, "WRITE"}, {ODPRead, 3, "READ"}, {ODPAtomic, 4, "ATOMIC"},
		{ODPSRQRecv, 5, "SRQ_RECV"}, {ODPFlush, 6, "FLUSH"}, {ODPAtomicWrite, 7, "ATOMIC_WRITE"},
		{PortCapSM, 1, "SM"}, {PortCapLEDInfo, 9, "LED_INFO"}, {PortCapSysImageGUID, 11, "SYS_IMAGE_GUID"},
		{PortCapPKeySwitchExtPortTrap, 12, "PKEY_SW_EXT_PORT_TRAP"}, {PortCapExtendedSpeeds, 14, "EXTENDED_SPEEDS"},
		{PortCapCM, 16, "CM"}, {PortCapIPBasedGIDs, 26, "IP_BASED_GIDS"},
		{PortCap2SetNodeDesc, 0, "SET_NODE_DESC"}, {PortCap2LinkSpeedHDR, 5, "LINK_SPEED_HDR"},
		{PortCap2LinkSpeedNDR, 10, "LINK_SPEED_NDR"},
		{PlaceGlobal, 0, "GLOBAL"}, {PlacePersistent, 1, "PERSISTENT"},
		{CountSend, 0, "SEND"}, {CountRecv, 1, "RECV"}, {CountRead, 2, "RDMA_READ"}, {CountRemoteRead, 3, "REMOTE_RDMA_READ"},
		{CountWrite, 4, "RDMA_WRITE"}, {CountRemoteWrite, 5, "REMOTE_RDMA_WRITE"},
	} {
		if got := fmt.Sprintf("%d", c.v); got != fmt.Sprint(uint64(1)<<c.bit) || c.v.String() != c.name {
			t.Errorf("%T %s is %s, want %s in bit %d", c.v, c.v, got, c.name, c.bit)
		}
	}
	for got, want := range map[string]string{
		Access(0).String():                               "0",
		(LocalWrite | RemoteRead | 1<<31).String():       "LOCAL_WRITE|REMOTE_READ|0x80000000",
		Access(1 << 12).String():                         "0x1000",
		(RelaxedOrdering | LocalWrite).String():          "LOCAL_WRITE|RELAXED_ORDERING",
		(Signaled | SendFlags(0x80)).String():            "SIGNALED|0x80",
		DeviceCaps(1<<63 | 1).String():                   "RESIZE_MAX_WR|0x8000000000000000",
		(AttrState | AttrRateLimit | 1<<21).String():     "STATE|RATE_LIMIT|0x200000",
		(RemoteAny &^ RemoteRead &^ RemoteRead).String(): "REMOTE_WRITE|REMOTE_ATOMIC",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Unknown numbers are kept and printed.
func TestUnknown(t *testing.T) {
	t.Parallel()
	for got, want := range map[fmt.Stringer]string{
		QPType(0): "QPType(0)", QPType(77): "QPType(77)", QPState(7): "QPState(7)", Opcode(12): "Opcode(12)",
		Opcode(200): "Opcode(200)", WCOpcode(130): "WCOpcode(130)", Status(24): "Status(24)", Status(255): "Status(255)",
		EventType(21): "EventType(21)", CMEventType(19): "CMEventType(19)", RejectReason(0): "RejectReason(0)",
		RejectReason(34): "RejectReason(34)", RejectReason(65535): "RejectReason(65535)", PortSpace(1): "PortSpace(1)",
		NodeType(0): "NodeType(0)", NodeType(-2): "NodeType(-2)", Transport(9): "Transport(9)", PortState(6): "PortState(6)",
		PhysState(0): "PhysState(0)", MTU(0): "MTU(0)", MTU(6): "MTU(6)", Rate(1): "Rate(1)", Rate(99): "Rate(99)",
		MWType(0): "MWType(0)", GIDType(3): "GIDType(3)", LinkLayer(3): "LinkLayer(3)", AtomicCap(3): "AtomicCap(3)",
	} {
		if got.String() != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for got, want := range map[fmt.Stringer]string{
		QPN(0x11): "0x000011", QPNMulticast: "0xffffff", LKey(0x1234): "0x1234", RKey(0xdead): "0xdead",
		PKeyDefault: "0xffff", PKey(1): "0x0001", QKeyCM: "0x01234567", QKeyGSI: "0x80010000",
	} {
		if got.String() != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, c := range []struct {
		a, b PKey
		want bool
	}{
		{0xFFFF, 0xFFFF, true}, {0xFFFF, 0x7FFF, true}, {0x7FFF, 0xFFFF, true}, {0x7FFF, 0x7FFF, false}, {0xFFFF, 0xFFFE, false},
	} {
		if c.a.Matches(c.b) != c.want {
			t.Errorf("%v and %v match: %v", c.a, c.b, !c.want)
		}
	}
}
