//go:build !linux

package rdmatest

// openDescriptors is not known here.
func openDescriptors() map[string]string { return nil }

// osThreads is not known here.
func osThreads() int { return 0 }
