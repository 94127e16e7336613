package softroce

import (
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// TestC252_ChannelDescriptor is readable exactly while there is an event.
func TestC252_ChannelDescriptor(t *testing.T) {
	t.Parallel()
	n := newNetwork()
	a := newCMSide(t, n.provider(t, 1, addrA), addrA)
	fd, err := a.ch.FD()
	if err != nil {
		t.Fatal(err)
	}
	readable := func() bool {
		t.Helper()
		p := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}
		k, err := unix.Poll(p, 0)
		if err != nil {
			t.Fatal(err)
		}
		return k > 0
	}
	if readable() {
		t.Error("readable, and there is nothing")
	}
	to := netip.AddrPortFrom(addrB, 1)
	one, two := a.newID(), a.newID()
	for _, id := range []*cmID{one, two} {
		if err := id.ResolveAddr(netip.AddrPort{}, to, 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if !readable() {
			t.Error("not readable, and there is an event")
		}
		a.want(ib.CMAddrResolved)
	}
	if readable() {
		t.Error("readable after the last event")
	}
	// The events of a closed id go with it, and of one that moves.
	if err := one.ResolveRoute(0); err != nil {
		t.Fatal(err)
	}
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if readable() {
		t.Error("readable for an id that is closed")
	}
	if err := two.ResolveRoute(0); err != nil {
		t.Fatal(err)
	}
	if err := two.Migrate(a.channel()); err != nil {
		t.Fatal(err)
	}
	if readable() {
		t.Error("readable for an id that is elsewhere")
	}
}
