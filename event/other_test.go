//go:build !linux

package event_test

import (
	"errors"
	"testing"

	"github.com/verbena-rdma/verbena/event"
)

func TestUnsupported(t *testing.T) {
	t.Parallel()
	if _, err := event.New(nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("New: %v", err)
	}
}
