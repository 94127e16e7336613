//go:build !linux

package scripted

import "errors"

func socketPair() (fd, peer int, err error) { return -1, -1, errors.ErrUnsupported }

func disconnect(int) {}
