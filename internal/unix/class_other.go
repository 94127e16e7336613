//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package unix

func SetTrafficClass(int, bool, int) error { return errUnsupported }
func TrafficClass(int, bool) (int, error)  { return 0, errUnsupported }
