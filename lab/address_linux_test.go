package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/cm"
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

// TestGuestC187_Readers: while addresses come and go, two readers get each event once: as many, in
// all, as one that has an opening of the device for itself.
func TestGuestC187_Readers(t *testing.T) {
	guest := inGuest(t)
	d := kernelDevice(t)
	alone, err := d.Info().OpenPrivate()
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	drain := func(d *verbs.Device) (n int) {
		t.Helper()
		for {
			ev, ok, err := d.Async().TryEvent()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				return n
			}
			if ev.Type == ib.EventGIDChange {
				n++
			}
		}
	}
	drain(alone)
	drain(d)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got [2]int
	var readers sync.WaitGroup
	for i := range got {
		readers.Go(func() {
			for ev, err := range d.Async().Events(ctx) {
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					return
				}
				if ev.Type == ib.EventGIDChange && ev.Port == 1 && ev.Device == d {
					got[i]++
				}
			}
		})
	}
	const rounds = 50
	guest.must(t, "sh", "-ec", fmt.Sprintf("for i in $(seq %d); do echo addr add 10.9.0.78/24 dev eth0; echo addr del 10.9.0.78/24 dev eth0; done | ip -batch -", rounds))
	// The kernel changes the table in the background; it is through when both changes of a last
	// address have been seen.
	last := netip.MustParseAddr("10.9.0.79")
	for _, verb := range []string{"add", "del"} {
		guest.must(t, "ip", "addr", verb, last.String()+"/24", "dev", "eth0")
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			gids, err := d.GIDs()
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(gids, func(g verbs.GIDEntry) bool { return g.GID.Addr() == last }) == (verb == "add") {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s %v: the table does not follow", verb, last)
			}
		}
	}
	want, more := 0, 0
	for end := time.Now().Add(faultLimit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if more = drain(alone); more == 0 && want > rounds {
			break
		}
		want += more
	}
	cancel()
	readers.Wait()
	left := drain(d) // a reader that has ended took none
	if sum := got[0] + got[1] + left; sum != want || want < 2*rounds {
		t.Errorf("the readers got %d and %d, %d were left; who read alone got %d of %d changes", got[0], got[1], left, want, 2*rounds+2)
	}
}

// TestGuestC011_MTU: the active MTU follows that of the interface, and a queue pair keeps its own.
func TestGuestC011_MTU(t *testing.T) {
	guest := inGuest(t)
	d := kernelDevice(t)
	was := strings.TrimSpace(guest.must(t, "cat", "/sys/class/net/eth0/mtu"))
	defer guest.must(t, "ip", "link", "set", "eth0", "mtu", was)
	set := func(mtu string, want ib.MTU) {
		t.Helper()
		guest.must(t, "ip", "link", "set", "eth0", "mtu", mtu)
		p, err := d.Port(1)
		if err != nil {
			t.Fatal(err)
		}
		if p.ActiveMTU != want {
			t.Errorf("an interface of %s bytes: active MTU %v, want %v", mtu, p.ActiveMTU, want)
		}
	}
	set("4200", ib.MTU4096)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	cq, err := d.CreateCQ(8, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Close()
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 2, MaxRecvWR: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer qp.Close()
	e, err := qp.Endpoint(1, -1)
	if err == nil {
		err = qp.Join(e, &verbs.PathOptions{NoReceives: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []struct {
		mtu  string
		want ib.MTU
	}{{"1500", ib.MTU1024}, {"4200", ib.MTU4096}, {"1500", ib.MTU1024}} {
		set(m.mtu, m.want)
		if a, err := qp.Query(ib.AttrPathMTU); err != nil || a.PathMTU != ib.MTU4096 {
			t.Errorf("the queue pair has path MTU %v, %v", a.PathMTU, err)
		}
	}
}

// TestGuestC201_Loopback: the kernel finds a device for 127.0.0.1, and no route of it. The error says
// what that means.
func TestGuestC201_Loopback(t *testing.T) {
	inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	r, err := cm.Resolve(t.Context(), p, "127.0.0.1:7", nil)
	if err == nil {
		r.Close()
		t.Fatal("127.0.0.1 was resolved: if kernels can do that, say so in docs/kernel-devices.md")
	}
	if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "no RDMA device has, or reaches, this address") {
		t.Errorf("%v", err)
	}
}

// TestGuestC223_SilentHost: who waits for the address of a host that does not answer can be called
// off at any time, and leaves nothing.
func TestGuestC223_SilentHost(t *testing.T) {
	inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	before := len(cm.Objects())
	for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(after, cancel)
		// The kernel would give up after three seconds, with another error.
		r, err := cm.Resolve(ctx, p, "10.9.0.99:7", nil)
		if err == nil {
			r.Close()
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("called off after %v: %v", after, err)
		}
		cancel()
	}
	if left := cm.Objects(); len(left) > before {
		t.Errorf("left: %q", left)
	}
}
