//go:build !linux

package unix

// StreamPair gives two connected, non-blocking sockets.
func StreamPair() (a, b int, err error) { return -1, -1, errUnsupported }
