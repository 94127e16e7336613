package lab_test

import (
	"os"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestGuestConformance runs the suite on the kernel's Soft-RoCE device.
func TestGuestConformance(t *testing.T) {
	inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	rdmatest.Conformance(t, p, profile(os.Getenv("LAB_GUEST")).put(&rdmatest.ConformanceOptions{Limit: time.Minute}))
}
