package lab_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// kernelDevice opens the guest's device.
func kernelDevice(t *testing.T) *verbs.Device {
	t.Helper()
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	d, err := verbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestGuestC009_C183_GIDsFollowAddresses: an address that is added to the interface has a
// GID, and one that is removed has none; each change is an event.
func TestGuestC009_C183_GIDsFollowAddresses(t *testing.T) {
	guest := inGuest(t)
	d := kernelDevice(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	has := func(a netip.Addr) bool {
		gids, err := d.GIDs()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(gids, func(g verbs.GIDEntry) bool { return g.GID.Addr() == a && g.Type == ib.GIDTypeRoCEv2 })
	}
	for _, a := range []string{guest.v4, guest.v6} {
		if !has(netip.MustParseAddr(a)) {
			t.Errorf("no GID for %s", a)
		}
	}
	for _, prefix := range []string{"10.9.0.77/24", "fd00:9::77/64"} {
		a := netip.MustParsePrefix(prefix).Addr()
		for _, verb := range []string{"add", "del"} {
			for ok := true; ok; { // what came before is not meant
				var err error
				if _, ok, err = d.Async().TryEvent(); err != nil {
					t.Fatal(err)
				}
			}
			guest.must(t, "ip", "addr", verb, prefix, "dev", "eth0")
			for {
				ev, err := d.Async().Event(ctx)
				if err != nil {
					t.Fatalf("%s %s: no event: %v", verb, prefix, err)
				}
				if ev.Type == ib.EventGIDChange {
					if ev.Port != 1 {
						t.Errorf("%s %s: event of port %d", verb, prefix, ev.Port)
					}
					break
				}
			}
			if has(a) != (verb == "add") {
				t.Errorf("%s %s: GID %v", verb, prefix, has(a))
			}
		}
	}
}

// TestGuestC030_ReadOnlyMemory: memory that may only be read can be registered for reading
// only.
func TestGuestC030_ReadOnlyMemory(t *testing.T) {
	inGuest(t)
	d := kernelDevice(t)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	for _, a := range []ib.Access{ib.RemoteRead, 0} {
		mr, err := pd.RegisterBytes(mem, a)
		if err != nil {
			t.Errorf("access %v: %v", a, err)
			continue
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	}
	if mr, err := pd.RegisterBytes(mem, ib.LocalWrite); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("local write: %v, want EFAULT", err)
		mr.Close()
	}
}
