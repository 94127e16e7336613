//go:build !unix

package rdma

import (
	"errors"
	"fmt"
	"runtime"
)

var errNoTry = fmt.Errorf("TryRead and TryWrite of TCP connections on %s: %w", runtime.GOOS, errors.ErrUnsupported)

func sysRead(uintptr, []byte) (int, error)  { return 0, errNoTry }
func sysWrite(uintptr, []byte) (int, error) { return 0, errNoTry }
