//go:build !linux

package softroce

import (
	"errors"
	"fmt"
	"runtime"
)

// eventFD exists on Linux only; elsewhere goroutines wait without a descriptor.
type eventFD struct{}

func (e *eventFD) open(bool) (int, error) {
	return -1, fmt.Errorf("softroce: event descriptor on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func (e *eventFD) there() bool { return false }
func (e *eventFD) raise()      {}
func (e *eventFD) lower()      {}
func (e *eventFD) close()      {}
