package rdmatest

import "slices"

// areaKinds are the checks of what not every device has: the limits of shared receive queues.
func areaKinds() []check {
	return slices.Concat(areaSRQLimit())
}
