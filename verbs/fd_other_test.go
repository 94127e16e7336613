//go:build !linux

package verbs_test

import (
	"errors"
	"time"
)

func waitReadable(int, time.Duration) error { return errors.ErrUnsupported }
