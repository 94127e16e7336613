package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

var gridMTUs = []int{256, 512, 1024, 2048, 4096}

// bothSides plays cases with both sides in this process.
func bothSides(t *testing.T, leader, follower verbs.Provider, at [4]string, cases []gridCase) {
	t.Helper()
	a, b := tcpPair(t)
	done := make(chan error, 1)
	go func() { done <- newGrid(follower, at[2], at[3], 1, b).follow(t.Context()) }()
	g := newGrid(leader, at[0], at[1], 0, a)
	for _, c := range append(cases, gridCase{}) {
		if err := g.lead(t.Context(), c); err != nil {
			a.Close()
			t.Fatalf("%+v: %v; the other side: %v", c, err, <-done)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// tcpPair gives the ends of a connection.
func tcpPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// TestGrid: the script is right, on two embedded devices.
func TestGrid(t *testing.T) {
	t.Parallel()
	f := rdmatest.NewFabric(t, 1)
	at := [4]string{"10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2"}
	host := func(v4, v6 string) verbs.Provider {
		return f.MultiHost(netip.MustParseAddr(v4), netip.MustParseAddr(v6))
	}
	var cases []gridCase
	for i, mtu := range gridMTUs {
		cases = append(cases, gridCase{MTU: mtu, V6: i%2 == 1, Seed: uint64(i), Bad: i%2 == 1})
	}
	bothSides(t, host(at[0], at[1]), host(at[2], at[3]), at, cases)
}

// A case is tried again if the requests of the other side did not come to their end, and for
// no other reason.
func TestGridStopped(t *testing.T) {
	t.Parallel()
	late := context.DeadlineExceeded
	wrong := errors.New("byte 1 is 2, want 3")
	for _, c := range []struct {
		what         string
		mine, theirs error // of this side, which waits in its turn if it is nil; and what the other tells
		active       int
		want         bool
	}{
		{"the other's requests stop", late, nil, 1, true},
		{"it says so itself", nil, late, 1, true},
		{"its queue pair fails by itself", nil, errAlone, 1, true},
		{"so, while this side waits", late, errAlone, 1, true},
		{"ours fails by itself", errAlone, nil, 0, false},
		{"it says so of ours", nil, errAlone, 0, false},
		{"ours stop", late, nil, 0, false},
		{"a wrong byte here", wrong, nil, 1, false},
		{"a wrong byte there", nil, wrong, 1, false},
		{"a wrong byte there, while this side waits", late, wrong, 1, false},
	} {
		a, b := tcpPair(t)
		g, other := newGrid(nil, "10.0.0.1", "fd00::1", 0, a), newGrid(nil, "10.0.0.2", "fd00::2", 1, b)
		if c.theirs != nil {
			other.tell(c.theirs)
		}
		b.(*net.TCPConn).CloseWrite()
		err := c.mine
		if err == nil {
			err = g.barrier()
		}
		if got := stopped(g.ended(turnError(c.active, err))); got != c.want {
			t.Errorf("%s: tried again %v, want %v", c.what, got, c.want)
		}
	}
}

// TestGuestGrid: everything in every MTU, between two queue pairs of the kernel's device.
func TestGuestGrid(t *testing.T) {
	guest := inGuest(t)
	p, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	var cases []gridCase
	for i, mtu := range gridMTUs {
		cases = append(cases, gridCase{MTU: mtu, Seed: uint64(i)}, gridCase{MTU: mtu, V6: true, Seed: uint64(i)})
	}
	bothSides(t, p, p, [4]string{guest.v4, guest.v6, guest.v4, guest.v6}, cases)
}

// network is a kind of network between host and guest: arguments of tc-netem(8), for each
// direction.
type network struct {
	name  string
	netem []string
}

var networks = []network{
	{"Clean", nil},
	{"Loss", []string{"loss", "1%"}},
	{"Reordering", []string{"delay", "1ms", "reorder", "95%", "25%"}},
	{"Duplication", []string{"duplicate", "5%"}},
	{"Delay", []string{"delay", "20ms"}},
}

// tries is how often a case is tried on a bad network: the requester of Soft-RoCE, in the
// guest, stops for good on some runs, or fails by itself (docs/kernel-devices.md). That is all
// that it is excused for, and on a good network it has no excuse.
const tries = 5

// stopped reports the error of a turn in which the guest's requester has stopped, or failed by
// itself.
func stopped(err error) bool {
	var s *stall
	return errors.As(err, &s) && s.active == 1
}

// TestHostC118_Grid: the embedded device of one machine and the kernel's of another
// transfer everything there is, in every MTU, in both directions, over good and bad
// networks.
func TestHostC118_Grid(t *testing.T) {
	host, guest := onHost(t)
	p, err := softroce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	guest.bothWays(t)
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			whole := t
			guest.impair(t, n.netem)
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
			defer cancel()
			c, peer := gridWith(ctx, t, host, guest)
			g := newGrid(p, host.v4, host.v6, 0, c)
			for i, mtu := range gridMTUs {
				for _, v6 := range []bool{false, true} {
					x := gridCase{MTU: mtu, V6: v6, Seed: uint64(i), Bad: n.netem != nil}
					t.Run(fmt.Sprintf("%d/%s", mtu, map[bool]string{false: "IPv4", true: "IPv6"}[v6]), func(t *testing.T) {
						for try := 1; ; try++ {
							x.Soon = n.netem != nil && try < tries
							err := g.lead(ctx, x)
							if err == nil {
								return
							}
							c.Close()
							theirs := <-peer.done
							c, peer = gridWith(ctx, whole, host, guest)
							g = newGrid(p, host.v4, host.v6, 0, c)
							if try == tries || n.netem == nil || !stopped(err) {
								t.Fatalf("%v; the guest: %v", err, theirs)
							}
							t.Logf("try %d: %v; the guest: %v", try, err, theirs)
						}
					})
				}
			}
			if err := g.lead(ctx, gridCase{}); err != nil {
				t.Error(err)
			}
			if err := <-peer.done; err != nil {
				t.Errorf("%v\n%s", err, peer.out.String())
			}
		})
	}
}

// gridWith starts the other side in the guest.
func gridWith(ctx context.Context, t *testing.T, host, guest *place) (net.Conn, *program) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host.v4, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer := guest.start(ctx, t, "env", roleEnv+"=grid", "lab.test", l.Addr().String())
	l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
	c, err := l.Accept()
	if err != nil {
		peer.stop()
		t.Fatalf("the guest does not call: %v, %v\n%s", err, <-peer.done, peer.out.String())
	}
	t.Cleanup(func() { c.Close() })
	return c, peer
}

// bothWays makes ifb0 the way of what comes into the guest: netem is for what goes out of
// an interface only.
func (p *place) bothWays(t *testing.T) {
	t.Helper()
	p.must(t, "sh", "-ec", `
		[ -e /sys/class/net/ifb0 ] || ip link add ifb0 type ifb
		ip link set ifb0 up
		tc qdisc replace dev eth0 ingress
		tc filter replace dev eth0 ingress pref 1 handle 1 matchall action mirred egress redirect dev ifb0`)
	t.Cleanup(func() { p.must(t, "sh", "-c", "tc qdisc del dev eth0 ingress") })
}

// impair makes the network as netem says, until the test ends.
func (p *place) impair(t *testing.T, netem []string) {
	t.Helper()
	if netem == nil {
		return
	}
	for _, dev := range []string{"eth0", "ifb0"} {
		p.must(t, append([]string{"tc", "qdisc", "replace", "dev", dev, "root", "netem", "limit", "20000"}, netem...)...)
	}
	t.Cleanup(func() {
		p.must(t, "sh", "-c", "tc -s qdisc; tc qdisc del dev eth0 root; tc qdisc del dev ifb0 root")
	})
}
