//go:build !linux

package rdmatest

import "errors"

// readable is not known here; neither are descriptors given.
func readable(int) (bool, error) { return false, errors.ErrUnsupported }
