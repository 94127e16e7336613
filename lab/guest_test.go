package lab_test

import (
	"os"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// inGuest skips a test outside of a guest: TestGuest runs it in one.
func inGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("LAB_GUEST") == "" {
		t.Skip("runs in a guest of lab/vm, started by TestLab")
	}
}

// TestGuestConformance runs the suite on the kernel's Soft-RoCE device.
func TestGuestConformance(t *testing.T) {
	inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	rdmatest.Conformance(t, p, &rdmatest.ConformanceOptions{Known: differs, Unsteady: unsteady, Limit: time.Minute})
}
