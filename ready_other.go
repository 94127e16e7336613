//go:build !linux

package rdma

import (
	"errors"
	"fmt"
	"runtime"
)

// readiness: there is no such descriptor here.
type readiness struct{ open bool }

func (r *readiness) get(readable, writable bool) (int, error) {
	return -1, fmt.Errorf("descriptors of connections on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func (r *readiness) set(readable, writable bool) {}

func (r *readiness) close() {}
