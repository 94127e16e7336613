//go:build !linux

package rdmatest

// soakDescriptorWays: there are no descriptors here.
func soakDescriptorWays() []soakWay { return nil }
