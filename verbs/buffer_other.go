//go:build !linux

package verbs

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// mapping is empty: the memory is Go's.
type mapping struct{}

func mapBuffer(n int, o *BufferOptions) (mapping, []byte, error) {
	if o.HugePages || o.Guard || o.DontFork {
		return mapping{}, nil, fmt.Errorf("buffer options on %s: %w", runtime.GOOS, errors.ErrUnsupported)
	}
	page := unix.PageSize()
	b := make([]byte, n+page-1)
	skip := int(-reflect.ValueOf(b).Pointer() & uintptr(page-1))
	return mapping{}, b[skip:], nil
}

func (mapping) unmap() error { return nil }
