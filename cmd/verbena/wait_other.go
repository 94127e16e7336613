//go:build !linux

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/verbena-rdma/verbena/cm"
)

func newPollWaiter(context.Context, *cm.EventChannel, handlers) (waiter, error) {
	return nil, fmt.Errorf("waiting with poll on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func newEpollWaiter(context.Context, *cm.EventChannel, handlers) (waiter, error) {
	return nil, fmt.Errorf("waiting with epoll on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
