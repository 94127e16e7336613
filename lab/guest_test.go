package lab_test

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestGuestConformance runs the suite on the kernel's Soft-RoCE device, and then asks the kernel
// what is left of it (conformance C-304).
func TestGuestConformance(t *testing.T) {
	guest := inGuest(t)
	held := holdKernel(t, netip.MustParseAddr(guest.v4))
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	rdmatest.Conformance(t, p, profile(os.Getenv("LAB_GUEST")).put(&rdmatest.ConformanceOptions{Limit: time.Minute}))
	t.Run("C304_Resources", held.same)
}
