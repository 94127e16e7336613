package wait

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// leanPause is the time between two looks of who has nothing to be woken by.
const leanPause = 4 * time.Millisecond

// scarce says that an error means a lack of descriptors, of watches or of memory. What waits does
// not end for that: it looks every few milliseconds, which takes a timer only, until there are some
// again (conformance C-312).
func scarce(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOSPC)
}

// lean waits for the next look, or until one of the contexts ends.
func lean(a, b context.Context) {
	t := time.NewTimer(leanPause)
	defer t.Stop()
	select {
	case <-a.Done():
	case <-b.Done():
	case <-t.C:
	}
}
