//go:build !linux

package wait

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

// poller does not exist here: all providers of this system are driver.Waiters.
type poller struct{}

func newPoller(int) (*poller, error) {
	return nil, fmt.Errorf("waiting for event descriptors on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func newGated(fd int) (*poller, error) { return newPoller(fd) }

func (*poller) enter() error                       { return nil }
func (*poller) wait(context.Context) (bool, error) { return false, errors.ErrUnsupported }
func (*poller) close()                             {}
