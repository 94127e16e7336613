package ib

import "syscall"

// RejectReason is the IB CM's code in a REJ (IBTA Vol 1 §12.6.7.2); it is an error
// with a name. Unknown numbers are passed on.
type RejectReason uint16

const (
	RejectNoQP                RejectReason = 1 // none left
	RejectNoEEC               RejectReason = 2
	RejectNoResources         RejectReason = 3
	RejectTimeout             RejectReason = 4 // an answer did not come in time
	RejectUnsupported         RejectReason = 5
	RejectInvalidCommID       RejectReason = 6
	RejectInvalidCommInstance RejectReason = 7
	RejectInvalidServiceID    RejectReason = 8 // nobody listens
	RejectInvalidTransport    RejectReason = 9
	RejectStaleConn           RejectReason = 10 // the peer has a connection with the same queue pair
	RejectRDCNotExist         RejectReason = 11
	RejectInvalidGID          RejectReason = 12
	RejectInvalidLID          RejectReason = 13
	RejectInvalidSL           RejectReason = 14
	RejectInvalidTrafficClass RejectReason = 15
	RejectInvalidHopLimit     RejectReason = 16
	RejectInvalidRate         RejectReason = 17
	RejectInvalidAltGID       RejectReason = 18
	RejectInvalidAltLID       RejectReason = 19
	RejectInvalidAltSL        RejectReason = 20
	RejectInvalidAltTrafClass RejectReason = 21
	RejectInvalidAltHopLimit  RejectReason = 22
	RejectInvalidAltRate      RejectReason = 23
	RejectPortCMRedirect      RejectReason = 24
	RejectPortRedirect        RejectReason = 25
	RejectInvalidMTU          RejectReason = 26
	RejectInsufficientRespRes RejectReason = 27
	RejectConsumer            RejectReason = 28 // the peer's program said no
	RejectInvalidRNRRetry     RejectReason = 29
	RejectDuplicateCommID     RejectReason = 30
	RejectInvalidClassVersion RejectReason = 31
	RejectInvalidFlowLabel    RejectReason = 32
	RejectInvalidAltFlowLabel RejectReason = 33
	RejectVendorOption        RejectReason = 35
)

// String gives the name of the code: INVALID_SERVICE_ID, CONSUMER_DEFINED.
func (r RejectReason) String() string {
	if int(r) < len(rejects) && rejects[r].name != "" {
		return rejects[r].name
	}
	return name("RejectReason", nil, int(r))
}

// Error says what the code means. It allocates only when called.
func (r RejectReason) Error() string {
	if int(r) < len(rejects) && rejects[r].name != "" {
		return "connection rejected: " + rejects[r].text + " (" + rejects[r].name + ")"
	}
	return "connection rejected: " + r.String()
}

// Is lets errors.Is find syscall.ECONNREFUSED in the two reasons that mean the same
// as with TCP: nobody listens, and the program said no.
func (r RejectReason) Is(target error) bool {
	return target == syscall.ECONNREFUSED && (r == RejectInvalidServiceID || r == RejectConsumer)
}

var rejects = [...]struct{ name, text string }{
	RejectNoQP:                {"NO_QP", "the peer has no queue pair left"},
	RejectNoEEC:               {"NO_EEC", "the peer has no EE context left"},
	RejectNoResources:         {"NO_RESOURCES", "the peer lacks resources"},
	RejectTimeout:             {"TIMEOUT", "the peer gave up waiting for an answer"},
	RejectUnsupported:         {"UNSUPPORTED", "the peer does not support the request"},
	RejectInvalidCommID:       {"INVALID_COMM_ID", "the peer does not know the communication id"},
	RejectInvalidCommInstance: {"INVALID_COMM_INSTANCE", "the peer does not know the communication instance"},
	RejectInvalidServiceID:    {"INVALID_SERVICE_ID", "nobody listens on that port"},
	RejectInvalidTransport:    {"INVALID_TRANSPORT_TYPE", "the peer wants another transport service"},
	RejectStaleConn:           {"STALE_CONN", "the peer still has a connection with that queue pair; try again"},
	RejectRDCNotExist:         {"RDC_NOT_EXIST", "the RD channel does not exist"},
	RejectInvalidGID:          {"INVALID_GID", "the peer does not have that GID"},
	RejectInvalidLID:          {"INVALID_LID", "the peer does not have that LID"},
	RejectInvalidSL:           {"INVALID_SL", "the service level is not allowed"},
	RejectInvalidTrafficClass: {"INVALID_TRAFFIC_CLASS", "the traffic class is not allowed"},
	RejectInvalidHopLimit:     {"INVALID_HOP_LIMIT", "the hop limit is not allowed"},
	RejectInvalidRate:         {"INVALID_PACKET_RATE", "the packet rate is not allowed"},
	RejectInvalidAltGID:       {"INVALID_ALT_GID", "the alternate GID is not allowed"},
	RejectInvalidAltLID:       {"INVALID_ALT_LID", "the alternate LID is not allowed"},
	RejectInvalidAltSL:        {"INVALID_ALT_SL", "the alternate service level is not allowed"},
	RejectInvalidAltTrafClass: {"INVALID_ALT_TRAFFIC_CLASS", "the alternate traffic class is not allowed"},
	RejectInvalidAltHopLimit:  {"INVALID_ALT_HOP_LIMIT", "the alternate hop limit is not allowed"},
	RejectInvalidAltRate:      {"INVALID_ALT_PACKET_RATE", "the alternate packet rate is not allowed"},
	RejectPortCMRedirect:      {"PORT_CM_REDIRECT", "the peer wants to be asked at another port and CM"},
	RejectPortRedirect:        {"PORT_REDIRECT", "the peer wants to be asked at another port"},
	RejectInvalidMTU:          {"INVALID_MTU", "the peer cannot take packets of that MTU"},
	RejectInsufficientRespRes: {"INSUFFICIENT_RESP_RESOURCES", "the peer cannot serve so many READs and atomics at once"},
	RejectConsumer:            {"CONSUMER_DEFINED", "the peer's program, or its system, said no"},
	RejectInvalidRNRRetry:     {"INVALID_RNR_RETRY", "the RNR retry count is not allowed"},
	RejectDuplicateCommID:     {"DUPLICATE_LOCAL_COMM_ID", "the communication id is in use"},
	RejectInvalidClassVersion: {"INVALID_CLASS_VERSION", "the peer's CM speaks another version"},
	RejectInvalidFlowLabel:    {"INVALID_FLOW_LABEL", "the flow label is not allowed"},
	RejectInvalidAltFlowLabel: {"INVALID_ALT_FLOW_LABEL", "the alternate flow label is not allowed"},
	RejectVendorOption:        {"VENDOR_OPTION_NOT_SUPPORTED", "the peer does not support the vendor's option"},
}

// PortSpace of the CM (rdma_port_space). Each has ports of its own, unrelated to those
// of TCP and UDP.
type PortSpace uint16

const (
	PortSpaceIPoIB PortSpace = 0x0002
	PortSpaceTCP   PortSpace = 0x0106 // reliable connections
	PortSpaceUDP   PortSpace = 0x0111 // datagrams
	PortSpaceIB    PortSpace = 0x013F // any service id
)

func (p PortSpace) String() string {
	switch p {
	case PortSpaceIPoIB:
		return "IPOIB"
	case PortSpaceTCP:
		return "TCP"
	case PortSpaceUDP:
		return "UDP"
	case PortSpaceIB:
		return "IB"
	}
	return name("PortSpace", nil, int(p))
}

// JoinFlags says how to join a multicast group (rdma_cm_mc_join_flags).
type JoinFlags uint8

const (
	JoinFullMember JoinFlags = iota // send and receive
	JoinSendOnly                    // send only
)

func (f JoinFlags) String() string { return name("JoinFlags", joinFlagNames, int(f)) }

var joinFlagNames = []string{"FULLMEMBER", "SENDONLY_FULLMEMBER"}
