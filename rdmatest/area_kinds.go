package rdmatest

import "slices"

// areaKinds are the checks of what not every device has: unreliable connections and datagrams,
// multicast, and the limits of shared receive queues.
func areaKinds() []check {
	return slices.Concat(areaUC(), areaUDMore(), areaMulticast(), areaSRQLimit())
}
