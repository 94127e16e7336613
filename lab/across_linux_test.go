package lab_test

import (
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// The tests named TestAcross… run in a guest, in a process of their own: both providers in
// one process, with a cable between them. The kernel's rxe0 moves to one end of it; the
// sockets of the embedded device are at the other end, in a network namespace, as the
// kernel's device has the UDP port of every address in its own.
const acrossNetwork = `
	rdma link del rxe0
	ip netns add soft
	ip link add kernel0 mtu 4200 type veth peer name soft0 mtu 4200 netns soft
	ip addr add 10.8.0.1/24 dev kernel0
	ip -6 addr add fd00:8::1/64 dev kernel0 nodad
	ip link set kernel0 up
	ip -n soft addr add 10.8.0.2/24 dev soft0
	ip -n soft -6 addr add fd00:8::2/64 dev soft0 nodad
	ip -n soft link set soft0 up
	ip -n soft link set lo up
	rdma link add rxe0 type rxe netdev kernel0`

var acrossAddr = struct{ kernel4, kernel6, soft4, soft6 string }{"10.8.0.1", "fd00:8::1", "10.8.0.2", "fd00:8::2"}

// acrossGuest makes the network, once.
func acrossGuest(t *testing.T) *place {
	t.Helper()
	guest := inGuest(t)
	if os.Getenv("LAB_ACROSS") == "" {
		t.Skip("runs in a process of its own, with LAB_ACROSS set")
	}
	if _, err := os.Stat("/sys/class/net/kernel0"); err != nil {
		guest.must(t, "sh", "-ec", acrossNetwork)
	}
	return guest
}

// across gives both providers.
func across(t *testing.T) (kernel *ibverbs.Provider, soft *softroce.Provider) {
	t.Helper()
	acrossGuest(t)
	kernel, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	addrs := []netip.Addr{netip.MustParseAddr(acrossAddr.soft4), netip.MustParseAddr(acrossAddr.soft6)}
	if soft, err = softroce.New(&softroce.Config{Addrs: addrs, MTU: 4200}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { soft.Close() })
	inNamespace(t, "soft", func() {
		for _, a := range addrs { // a socket stays where it was opened
			id, err := cm.NewID(soft, ib.PortSpaceTCP)
			if err == nil {
				err = id.Bind(netip.AddrPortFrom(a, 0))
			}
			if err == nil {
				err = id.Listen(0)
			}
			if err != nil {
				t.Errorf("socket of %v: %v", a, err)
			}
			id.Close()
		}
	})
	return kernel, soft
}

// inNamespace runs f on a thread that is in a network namespace.
func inNamespace(t *testing.T, name string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		fd, err := unix.Open("/run/netns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err != nil {
			t.Errorf("namespace %s: %v", name, err)
			return
		}
		f()
	}()
	<-done
}

// TestAcross runs the conformance suite between the embedded device and the kernel's, each
// of them on either side.
func TestAcross(t *testing.T) {
	kernel, soft := across(t)
	k, s := netip.MustParseAddr(acrossAddr.kernel4), netip.MustParseAddr(acrossAddr.soft4)
	for _, c := range []struct {
		name           string
		p, peer        verbs.Provider
		addr, peerAddr netip.Addr
	}{
		{"KernelToSoft", kernel, soft, k, s},
		{"SoftToKernel", soft, kernel, s, k},
	} {
		t.Run(c.name, func(t *testing.T) {
			rdmatest.Conformance(t, c.p, acrossProfile(os.Getenv("LAB_GUEST"), c.name).put(&rdmatest.ConformanceOptions{
				Addr: c.addr, Peer: c.peer, PeerAddr: c.peerAddr, Limit: time.Minute}))
		})
	}
}

// TestAcrossGrid: everything in every MTU, between both devices of one process.
func TestAcrossGrid(t *testing.T) {
	kernel, soft := across(t)
	var cases []gridCase
	for i, mtu := range gridMTUs {
		cases = append(cases, gridCase{MTU: mtu, V6: i%2 == 0, Seed: uint64(i)})
	}
	a := acrossAddr
	bothSides(t, kernel, soft, [4]string{a.kernel4, a.kernel6, a.soft4, a.soft6}, cases)
}

// acrossDiffers names the entries of the kernel's profile that show when the kernel's device
// is on one side only.
var acrossDiffers = map[string][]string{
	"KernelToSoft": {"C-120/key", "C-120/range", "C-131/sender", "C-143/sender", "C-177/local", "C-186_CQError", "C-238_SolicitedSendError", "C-323_KeysAreUnpredictable"},
	"SoftToKernel": {"C-076/receiver", "C-076/sender", "C-119/receiver", "C-119/sender", "C-121/key", "C-121/range", "C-121/right", "C-174/outside", "C-175/bound", "C-176_KeyOfCompletion",
		"C-185_AccessError", "C-185_Established", "C-185_RequestError"},
}

// acrossProfile is the profile of a direction.
func acrossProfile(kernel, name string) differences {
	d := profile(kernel).only(acrossDiffers[name])
	if name == "KernelToSoft" {
		// rxe takes the acknowledgement of a packet that it has not sent yet, on 6.1 always.
		d.accept["C-137/high"] = []ib.Status{ib.StatusSuccess, ib.StatusRetryExc}
		d.accept["C-137/high-upper"] = d.accept["C-137/high"]
		// The embedded device's answers may come in time.
		d.accept["C-131/sender"] = []ib.Status{ib.StatusSuccess, ib.StatusRetryExc}
	}
	return d
}

// only keeps what names say: points, and tests.
func (d differences) only(names []string) differences {
	for _, m := range []map[string]string{d.known, d.unsteady} {
		maps.DeleteFunc(m, func(name, _ string) bool { return !slices.Contains(names, name) })
	}
	maps.DeleteFunc(d.accept, func(point string, _ []ib.Status) bool { return !slices.Contains(names, point) })
	return d
}
