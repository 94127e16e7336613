package ib

// FlowLabelMask has the 20 bits of a flow label.
const FlowLabelMask = 1<<20 - 1

// UDPSourcePort gives the source port, 49152 to 65535, that RoCEv2 derives from a flow
// label (ibv_flow_label_to_udp_sport). It spreads connections over the paths of a
// network and the queues of an interface; no receiver looks at it.
func UDPSourcePort(flow uint32) uint16 {
	return uint16(0xC000 | (flow&0x3FFF ^ flow&0xFC000>>14))
}

// FlowLabel derives a flow label from the numbers of both queue pairs, as Linux does
// where none is set. It is the same on both sides.
func FlowLabel(local, remote QPN) uint32 {
	v := uint64(local) * uint64(remote)
	v ^= v >> 20
	v ^= v >> 40
	return uint32(v) & FlowLabelMask
}

// UDPSourcePortQP gives the source port of a connection: that of the flow label, or, if
// it is 0, that of FlowLabel.
func UDPSourcePortQP(flow uint32, local, remote QPN) uint16 {
	if flow &= FlowLabelMask; flow == 0 {
		flow = FlowLabel(local, remote)
	}
	return UDPSourcePort(flow)
}
