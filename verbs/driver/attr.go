package driver

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// DeviceAttr are the limits and abilities of a device (struct ibv_device_attr_ex, with the
// field of it in parentheses). They are upper bounds: what a program gets may be less, as
// others use the device too.
type DeviceAttr struct {
	Firmware     string        // version, in the vendor's form (fw_ver)
	NodeGUID     ib.GUID       // of the device (node_guid)
	SysImageGUID ib.GUID       // of what the device is a part of (sys_image_guid)
	VendorID     uint32        // IEEE number of the vendor (vendor_id)
	VendorPartID uint32        // the vendor's number of the model (vendor_part_id)
	HWVersion    uint32        // of the model (hw_ver)
	Caps         ib.DeviceCaps // both words of flags (device_cap_flags, device_cap_flags_ex)

	MaxMRSize uint64 // bytes of a memory region (max_mr_size)
	PageSizes uint64 // bit n: memory may consist of pages of 2^n bytes (page_size_cap)

	MaxQP      int // queue pairs (max_qp)
	MaxQPWR    int // requests outstanding in a queue of a queue pair (max_qp_wr)
	MaxSGE     int // pieces of memory of a request (max_sge)
	MaxSGERead int // pieces of memory of a READ (max_sge_rd)
	MaxCQ      int // completion queues (max_cq)
	MaxCQE     int // entries of a completion queue (max_cqe)
	MaxMR      int // memory regions (max_mr)
	MaxPD      int // protection domains (max_pd)
	MaxMW      int // memory windows; zero: it has none (max_mw)
	MaxAH      int // address handles; zero: it has none (max_ah)

	// MaxQPRDAtomic is how many READs and atomics of its peer a queue pair serves at a time:
	// the limit of QPAttr.MaxDestRDAtomic (max_qp_rd_atom).
	MaxQPRDAtomic int
	// MaxQPInitRDAtomic is how many of its own a queue pair has outstanding: the limit of
	// QPAttr.MaxRDAtomic (max_qp_init_rd_atom).
	MaxQPInitRDAtomic int

	MaxSRQ    int // shared receive queues; zero: it has none (max_srq)
	MaxSRQWR  int // receives outstanding in one (max_srq_wr)
	MaxSRQSGE int // pieces of memory of such a receive (max_srq_sge)

	MaxMcastGroups   int // multicast groups (max_mcast_grp)
	MaxMcastQPAttach int // queue pairs attached to a group (max_mcast_qp_attach)

	MaxPKeys    int          // entries of the P_Key table of a port (max_pkeys)
	Ports       int          // they have the numbers 1 to Ports (phys_port_cnt_ex, phys_port_cnt)
	CompVectors int          // where completion channels can be served (num_comp_vectors of struct ibv_context)
	Atomic      ib.AtomicCap // among whom atomics are atomic (atomic_cap)

	// AckDelay is how long an acknowledgement may take after the request came, 4.096 µs × 2^n;
	// zero: the device does not say (local_ca_ack_delay, the code n).
	AckDelay time.Duration

	// MaxModerationCount and MaxModerationPeriod bound how many completions, and for how long,
	// may wait before an armed queue tells of them; zero: there is no moderation
	// (cq_mod_caps.max_cq_count and max_cq_period, which is in microseconds).
	MaxModerationCount  int
	MaxModerationPeriod time.Duration

	MaxDMSize uint64     // bytes of memory on the device; zero: it has none (max_dm_size)
	ODP       ib.ODPCaps // for RC; zero: no on-demand paging (odp_caps.per_transport_caps.rc_odp_caps)
}

// PortAttr is the state of a port (struct ibv_port_attr, with the field of it in
// parentheses).
type PortAttr struct {
	State ib.PortState // data travel if it is PortActive (state)
	Phys  ib.PhysState // of the link (phys_state)
	Link  ib.LinkLayer // InfiniBand or Ethernet (link_layer)

	MaxMTU    ib.MTU // of the device, a code: MTU.Bytes gives bytes (max_mtu)
	ActiveMTU ib.MTU // that of the link allows: the limit of QPAttr.PathMTU (active_mtu)

	GIDs       int    // size of the GID table, whose entries may be empty (gid_tbl_len)
	PKeys      int    // size of the P_Key table (pkey_tbl_len)
	MaxMessage uint32 // bytes of a message; zero: not known (max_msg_sz)

	LID   ib.LID // of the port; zero on Ethernet (lid)
	SMLID ib.LID // of the subnet manager; zero on Ethernet (sm_lid)

	Caps  ib.PortCaps  // (port_cap_flags)
	Caps2 ib.PortCaps2 // (port_cap_flags2)

	// GRHRequired: AHAttr.Global must be set, as every packet has a GRH: always so on
	// Ethernet, and on some InfiniBand ports (flags, IBV_QPF_GRH_REQUIRED).
	GRHRequired bool

	// SpeedMbps is lanes × speed of a lane, in Mbit/s; zero: not known (active_width ×
	// active_speed, which are codes). The embedded device says 10000.
	SpeedMbps int
}

// GIDEntry is an entry of a GID table (struct ibv_gid_entry).
type GIDEntry struct {
	GID     ib.GID
	Index   int
	Port    int
	Type    ib.GIDType
	IfIndex int // of the network interface; zero: not known
	// MTU is the largest path MTU from this address, where addresses of a port lie on
	// different links; zero: that of the port.
	MTU ib.MTU
}

// AHAttr is an address vector (struct ibv_ah_attr).
type AHAttr struct {
	DGID         ib.GID
	SGIDIndex    int
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	TrafficClass uint8
	DLID         ib.LID
	SL           uint8
	PathBits     uint8
	Rate         ib.Rate
	Global       bool // has a GRH; see PortAttr.GRHRequired
	Port         int
}

// QPAttr are the attributes of a queue pair (struct ibv_qp_attr, with the field of it in
// parentheses). Modify takes those whose bit is in its mask, and which the change of state
// allows; Query gives at least those. Each comment begins with the bit. Times are times; the
// 5-bit codes live in providers only, which take the next longer time that has a code.
type QPAttr struct {
	// State: AttrState (qp_state). Without the bit the state stays.
	State ib.QPState
	// CurState: AttrCurState (cur_qp_state). The state that the caller thinks the queue pair
	// has; EINVAL if it has another. Query gives State.
	CurState ib.QPState

	// PathMTU: AttrPathMTU (path_mtu). Payload of a packet, a code from 1 to 5, at most
	// PortAttr.ActiveMTU; zero is not valid.
	PathMTU ib.MTU
	// PathMigState: AttrPathMigState (path_mig_state). Of devices with CapAutoPathMigration.
	PathMigState ib.MigState

	// QKey: AttrQKey (qkey). Of datagrams: who receives one compares it with this.
	QKey ib.QKey
	// RQPSN: AttrRQPSN (rq_psn). Number of the first packet of the peer, 24 bits: its SQPSN.
	RQPSN ib.PSN
	// SQPSN: AttrSQPSN (sq_psn). Number of the first packet to the peer, 24 bits.
	SQPSN ib.PSN
	// DestQPN: AttrDestQPN (dest_qp_num). The peer's queue pair, 24 bits.
	DestQPN ib.QPN

	// Access: AttrAccess (qp_access_flags). What the peer may do, of RemoteWrite, RemoteRead
	// and RemoteAtomic, if the memory region allows it as well; zero: nothing of these.
	Access ib.Access
	// Cap: AttrCap (cap). The sizes, which Query gives. No state takes them: EINVAL.
	Cap Caps

	// AH: AttrAV (ah_attr). The way to the peer, from the queue pair's port.
	AH AHAttr
	// AltAH: AttrAltPath (alt_ah_attr), as are AltPKeyIndex, AltPort and AltTimeout. A second
	// way, which is used when the first fails. The embedded device has none: EINVAL.
	AltAH AHAttr

	// PKeyIndex: AttrPKeyIndex (pkey_index). In the P_Key table of the port, from zero,
	// below DeviceAttr.MaxPKeys.
	PKeyIndex int
	// AltPKeyIndex: see AltAH (alt_pkey_index).
	AltPKeyIndex int

	// SQDNotify: AttrSQDNotify (en_sqd_async_notify). On the way to SQD: EventSQDrained is
	// wanted when the send queue is drained. Without the bit the embedded device gives it too.
	SQDNotify bool
	// SQDraining is given by Query in SQD: the send queue is not drained yet (sq_draining).
	// There is no bit.
	SQDraining bool

	// MaxRDAtomic: AttrMaxRDAtomic (max_rd_atomic). How many READs and atomics may be on their
	// way to the peer, at most DeviceAttr.MaxQPInitRDAtomic; later ones wait. It should not be
	// more than the peer's MaxDestRDAtomic. Zero: none can be posted.
	MaxRDAtomic int
	// MaxDestRDAtomic: AttrMaxDestRDAtomic (max_dest_rd_atomic). How many of the peer are
	// served at a time, at most DeviceAttr.MaxQPRDAtomic. Zero: none.
	MaxDestRDAtomic int

	// MinRNRTimer: AttrMinRNRTimer (min_rnr_timer). How long a peer that found no receive is to
	// wait before it tries again, 10 µs to 655.36 ms. Zero is 10 µs; C's code 0 is the longest.
	MinRNRTimer time.Duration
	// Timeout: AttrTimeout (timeout). How long an acknowledgement may take until the request is
	// sent again, 4.096 µs × 2^n with n from 1 to 31; the device may take up to four times as
	// long. Zero: for ever.
	Timeout time.Duration
	// AltTimeout: see AltAH (alt_timeout).
	AltTimeout time.Duration

	// Port: AttrPort (port_num). From 1.
	Port int
	// AltPort: see AltAH (alt_port_num).
	AltPort int

	// RetryCount: AttrRetryCount (retry_cnt). How often a request is sent again that got no
	// answer in time, or a NAK for a lost packet, 0 to 7; then it fails with
	// StatusRetryExc. Linux Soft-RoCE takes 7 for ever.
	RetryCount int
	// RNRRetry: AttrRNRRetry (rnr_retry). How often a request is sent again that found no
	// receive, 0 to 6; then it fails with StatusRNRRetryExc. 7: for ever.
	RNRRetry int

	// RateLimitKbps: AttrRateLimit (rate_limit). Of raw packet queue pairs, in kbit/s; zero:
	// none. Package verbs has no such queue pairs: EINVAL.
	RateLimitKbps int
}
