package rdmatest_test

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// everything is what beds on a fabric of embedded devices have.
const everything = rdmatest.Faults | rdmatest.VirtualTime | rdmatest.TwoHosts | rdmatest.Changes

// The embedded device on two hosts of a fabric, in virtual time.
func TestConformance(t *testing.T) {
	rdmatest.Conformance(t, nil, &rdmatest.ConformanceOptions{Each: rdmatest.OnFabric, Has: everything | rdmatest.IPv4})
}

// Both sides on one device.
func TestConformanceOneHost(t *testing.T) {
	rdmatest.Conformance(t, nil, &rdmatest.ConformanceOptions{
		Each: rdmatest.OnFabricOneHost, Has: everything&^rdmatest.TwoHosts | rdmatest.IPv4,
	})
}

func TestConformanceIPv6(t *testing.T) {
	rdmatest.Conformance(t, nil, &rdmatest.ConformanceOptions{Each: rdmatest.OnFabricIPv6, Has: everything})
}

// The embedded device over real sockets: two devices on loopback addresses.
func TestConformanceUDP(t *testing.T) {
	a, b := netio.PrivateLoopback(40), netio.PrivateLoopback(41)
	newProvider := func(a netip.Addr) *softroce.Provider {
		p, err := softroce.New(&softroce.Config{Addrs: []netip.Addr{a}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		// The descriptor of a shared device's events stays as long as the process.
		d, err := verbs.Open(p, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Async().FD(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Fatal(err)
		}
		return p
	}
	pa, pb := newProvider(a), newProvider(b)
	rdmatest.CheckLeaks(t)
	rdmatest.Conformance(t, pa, &rdmatest.ConformanceOptions{Addr: a, Peer: pb, PeerAddr: b})
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
