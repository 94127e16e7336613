package rdmatest_test

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/softroce"
)

// everything is what beds on a fabric of embedded devices have.
const everything = rdmatest.Faults | rdmatest.VirtualTime | rdmatest.TwoHosts | rdmatest.Changes

// The embedded device on two hosts of a fabric, in virtual time.
func TestConformance(t *testing.T) {
	rdmatest.Conformance(t, nil, &rdmatest.ConformanceOptions{Each: rdmatest.OnFabric, Has: everything})
}

// Both sides on one device.
func TestConformanceOneHost(t *testing.T) {
	rdmatest.Conformance(t, nil, &rdmatest.ConformanceOptions{
		Each: rdmatest.OnFabricOneHost, Has: everything &^ rdmatest.TwoHosts,
	})
}

func TestConformanceIPv6(t *testing.T) {
	rdmatest.Conformance(t, nil, &rdmatest.ConformanceOptions{Each: rdmatest.OnFabricIPv6, Has: everything})
}

// The embedded device over real sockets: one device on loopback addresses.
func TestConformanceUDP(t *testing.T) {
	rdmatest.CheckLeaks(t)
	a, b := netio.PrivateLoopback(40), netio.PrivateLoopback(41)
	newProvider := func(a netip.Addr) *softroce.Provider {
		p, err := softroce.New(&softroce.Config{Addrs: []netip.Addr{a}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	rdmatest.Conformance(t, newProvider(a), &rdmatest.ConformanceOptions{Addr: a, Peer: newProvider(b), PeerAddr: b})
}

// A fabric without a bubble: the same tests in real time.
func TestConformanceRealTime(t *testing.T) {
	f := rdmatest.NewFabric(t, 1)
	a := netip.MustParseAddr("10.0.0.1")
	rdmatest.Conformance(t, f.Host(a), &rdmatest.ConformanceOptions{Addr: a})
}

// A pair in one line, in a bubble and outside.
func TestPairs(t *testing.T) {
	t.Run("Bubble", func(t *testing.T) { synctest.Test(t, pairs) })
	t.Run("RealTime", pairs)
}
