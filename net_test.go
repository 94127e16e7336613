package rdma_test

import (
	"net/netip"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// testNet is what tests inside of package rdma know of a fabric.
type testNet struct{ *rdmatest.Fabric }

func (n testNet) LoseCM(from netip.Addr, kind uint16) {
	n.Rule(rdmatest.Rule{From: from, CM: kind, Drop: true})
}

func init() {
	rdma.SetTestNet(func(t testing.TB) testNet { return testNet{rdmatest.NewFabric(t, 0)} })
}
