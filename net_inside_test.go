package rdma

import (
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/verbs"
)

// testNet is a rdmatest.Fabric for tests inside of this package. They cannot import rdmatest,
// which gives pairs of connections and so imports this package; the tests outside tell them
// (SetTestNet).
type testNet interface {
	Host(netip.Addr) verbs.Provider
	MultiHost(...netip.Addr) verbs.Provider
	Cut(from, to netip.Addr) (heal func())
	// LoseCM loses the messages of the connection manager of a kind.
	LoseCM(from netip.Addr, kind uint16)
}

var newTestNet func(testing.TB) testNet

// SetTestNet says how fabrics are made.
func SetTestNet[N testNet](f func(testing.TB) N) {
	newTestNet = func(t testing.TB) testNet { return f(t) }
}
