package driver

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// DeviceAttr are the limits and abilities of a device (struct ibv_device_attr_ex).
type DeviceAttr struct {
	Firmware                                  string
	NodeGUID, SysImageGUID                    ib.GUID
	VendorID, VendorPartID, HWVersion         uint32
	Caps                                      ib.DeviceCaps
	MaxMRSize                                 uint64
	PageSizes                                 uint64
	MaxQP, MaxQPWR, MaxSGE, MaxSGERead        int
	MaxCQ, MaxCQE, MaxMR, MaxPD, MaxMW, MaxAH int
	MaxQPRDAtomic, MaxQPInitRDAtomic          int
	MaxSRQ, MaxSRQWR, MaxSRQSGE               int
	MaxMcastGroups, MaxMcastQPAttach          int
	MaxPKeys, Ports, CompVectors              int
	Atomic                                    ib.AtomicCap
	AckDelay                                  time.Duration
	MaxModerationCount                        int
	MaxModerationPeriod                       time.Duration
	MaxDMSize                                 uint64
	ODP                                       ib.ODPCaps
}

// PortAttr is the state of a port (struct ibv_port_attr).
type PortAttr struct {
	State             ib.PortState
	Phys              ib.PhysState
	Link              ib.LinkLayer
	MaxMTU, ActiveMTU ib.MTU
	GIDs, PKeys       int // sizes of the tables
	MaxMessage        uint32
	LID, SMLID        ib.LID
	Caps              ib.PortCaps
	Caps2             ib.PortCaps2
	SpeedMbps         int // lanes × lane speed
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
	Global       bool // has a GRH; always so on RoCE
	Port         int
}

// QPAttr are the attributes of a queue pair (struct ibv_qp_attr). Times are times; the
// 5-bit codes live in providers only.
type QPAttr struct {
	State, CurState                  ib.QPState
	PathMTU                          ib.MTU
	PathMigState                     ib.MigState
	QKey                             ib.QKey
	RQPSN, SQPSN                     ib.PSN
	DestQPN                          ib.QPN
	Access                           ib.Access
	Cap                              Caps
	AH, AltAH                        AHAttr
	PKeyIndex, AltPKeyIndex          int
	SQDNotify, SQDraining            bool
	MaxRDAtomic, MaxDestRDAtomic     int
	MinRNRTimer, Timeout, AltTimeout time.Duration
	Port, AltPort                    int
	RetryCount, RNRRetry             int // RNRRetry 7: for ever
	RateLimitKbps                    int
}
