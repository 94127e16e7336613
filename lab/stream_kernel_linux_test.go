package lab_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Two of our streams on kernel devices, or one of them on the embedded device: the tests of the
// root package run in the guest, those that need neither a network in memory nor virtual time.

// rootTests are those that need nothing but a device.
const rootTests = "^(TestC262_Nettest|TestC263_Zero|TestC264_Close|TestC264_CloseUnblocks|TestC265_CloseWrite|TestC266_CloseRead" +
	"|TestC267_PeerCloses|TestC268_PeerClosesUnread|TestC271_PastDeadline|TestC272_DeadlineRace|TestC272_MovedDeadlines" +
	"|TestC274_WriteTimeout|TestC275_NoRNR|TestC276_BothWriteFirst|TestC278_ManySizes|TestC279_Allocs|TestC280_ListenerClose" +
	"|TestC282_KilledDialers|TestC283_DialErrors|TestC283_PortTaken|TestC286_Addresses|TestC286_IPv6|TestC286_Wildcard" +
	"|TestC287_Copies|TestC287_Gathers|TestC288_Concurrent|TestC288_Contiguous" +
	"|TestC290_Linger|TestC290_LingerLong|TestC290_SlowReader|TestC291_FrozenPeer|TestC292_EarlyData" +
	"|TestC297_ListenerWrites|TestC297_Maps|TestC297_UnmapWithoutPeer" +
	"|TestC298_Epoll|TestC298_EventLoop|TestC298_FD|TestC298_FDDeadline|TestC298_FDFailure|TestC298_ListenerFD" +
	"|TestC299_HTTP|TestC299_RPC|TestC299_TLS|TestC303_Everything)$"

// hostileTests are those of them in which the peer is made of verbs and cm alone, and misbehaves.
const hostileTests = "^(TestC295_WrongKeys|TestC296_AfterShutdown|TestC296_BeyondWindow|TestC296_CloseInTheMiddle|TestC296_Misbehaving" +
	"|TestC296_Silent|TestC296_WrongEntry|TestC331_Overwrites|TestC331_RandomWords|TestC332_LeastPrivilege|TestC332_Refused)$"

// onHostile runs those, many at the same time, as most of their time is waiting.
func onHostile(t *testing.T, server, client string) {
	t.Helper()
	options := []string{"-test.parallel", "16"}
	if os.Getenv("LAB_GUEST") != kernels[0] {
		options = append(options, "-test.skip", "^TestC296_Silent$") // takes as long as all others, and is about the library
	}
	onLabDevices(t, server, client, hostileTests, options...)
}

// onLabDevices runs tests of the root package between two addresses, in a process of their own.
func onLabDevices(t *testing.T, server, client, tests string, options ...string) {
	t.Helper()
	options = append([]string{"-test.v", "-test.timeout", "5m", "-test.run", tests}, options...)
	cmd := exec.CommandContext(t.Context(), "rdma.test", options...)
	cmd.Env = append(os.Environ(), "RDMA_TEST_ADDRESSES="+server+","+client)
	out, err := cmd.CombinedOutput()
	passed := report(t, out)
	if err != nil || len(passed) == 0 {
		t.Errorf("%v\n%s", err, failures(out))
	}
}

// TestGuestC262_Streams: our streams on the kernel's device, which counts no RNR NAK meanwhile.
func TestGuestC262_Streams(t *testing.T) {
	guest := inGuest(t)
	before := rnrCounters(t)
	tests := rootTests
	if os.Getenv("LAB_GUEST") != kernels[0] {
		tests = "^(TestC263_Zero|TestC264_CloseUnblocks|TestC278_ManySizes)$"
	}
	onLabDevices(t, guest.v4, guest.v4, tests)
	if after := rnrCounters(t); after != before {
		t.Errorf("RNR NAKs: the device counted\n%s, and now it has\n%s", before, after)
	}
}

// TestGuestC296_Hostile: one of our streams on the kernel's device, and a peer that misbehaves.
func TestGuestC296_Hostile(t *testing.T) {
	guest := inGuest(t)
	onHostile(t, guest.v4, guest.v4)
}

// rnrCounters gives the numbers of RNR NAKs that the kernel's devices have sent and received.
func rnrCounters(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/sys/class/infiniband/*/ports/1/hw_counters/*_rnr_err")
	if err != nil || len(files) < 2 {
		t.Fatalf("%q, %v", files, err)
	}
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(f + " " + string(b))
	}
	return all.String()
}

// TestGuestC262_StreamsIPv6: and over IPv6.
func TestGuestC262_StreamsIPv6(t *testing.T) {
	guest := inGuest(t)
	onLabDevices(t, guest.v6, guest.v6, "^TestC278_ManySizes$")
}

// wire is two devices of the guest with a cable between them, and what netem does to what
// each of them sends. What goes from one address of a machine to another never leaves it, except if
// the rules of routing say so: what comes in is local, what goes out takes the cable.
const wire = `
	ip link add wire1 mtu 4200 type veth peer name wire2 mtu 4200
	for n in 1 2; do
		ip addr add 10.7.0.$n/32 dev wire$n
		ip link set wire$n up
		echo 1 > /proc/sys/net/ipv4/conf/wire$n/accept_local
		ip rule add pref $n iif wire$n lookup local
	done
	other() { cat /sys/class/net/$1/address; }
	ip neigh add 10.7.0.2 lladdr $(other wire2) dev wire1 nud permanent
	ip neigh add 10.7.0.1 lladdr $(other wire1) dev wire2 nud permanent
	ip route add 10.7.0.2 dev wire1 src 10.7.0.1 table 101
	ip route add 10.7.0.1 dev wire2 src 10.7.0.2 table 102
	ip rule add pref 11 from 10.7.0.1 to 10.7.0.2 lookup 101
	ip rule add pref 12 from 10.7.0.2 to 10.7.0.1 lookup 102
	ip rule add pref 13 lookup local
	ip rule del pref 0
	for n in 1 2; do
		rdma link add rxe$n type rxe netdev wire$n
	done
	netem() { tc qdisc add dev wire$1 root netem limit 20000 $2; }
	`

// unwire takes them away again.
const unwire = `
	tc -s qdisc show dev wire1
	rdma link del rxe1
	rdma link del rxe2
	ip rule add pref 0 lookup local
	for n in 1 2 11 12 13; do ip rule del pref $n; done
	ip link del wire1`

// TestGuestC262_StreamsLoss: our streams between two kernel devices, over a cable that
// loses every hundredth packet.
func TestGuestC262_StreamsLoss(t *testing.T) {
	guest := inGuest(t)
	if os.Getenv("LAB_GUEST") != kernels[0] {
		t.Skip("tried on the first kernel")
	}
	guest.must(t, "sh", "-ec", wire+"netem 1 'loss 1%'; netem 2 'loss 1%'")
	defer func() {
		if out := guest.must(t, "sh", "-ec", unwire); !strings.Contains(out, "dropped") || strings.Contains(out, "dropped 0,") {
			t.Errorf("the cable has lost nothing:\n%s", out)
		}
	}()
	onLabDevices(t, "10.7.0.1", "10.7.0.2", "^TestC262_Nettest$/^kernel$/^verbena$")
}

// TestGuestC289_StreamsDelay: what comes late is written into no buffer of a call that has ended.
func TestGuestC289_StreamsDelay(t *testing.T) {
	guest := inGuest(t)
	if os.Getenv("LAB_GUEST") != kernels[0] {
		t.Skip("tried on the first kernel")
	}
	guest.must(t, "sh", "-ec", wire+"netem 2 'delay 250ms'")
	defer guest.must(t, "sh", "-ec", unwire)
	onLabDevices(t, "10.7.0.1", "10.7.0.2", "^TestC289_Ownership$")
}

// TestAcrossC262_Streams: our streams between the embedded device and the kernel's, each of
// them on either side; and a peer that stands still with its device.
func TestAcrossC262_Streams(t *testing.T) {
	acrossGuest(t)
	tests := "^(TestC262_Nettest|TestC265_CloseWrite|TestC267_PeerCloses|TestC268_PeerClosesUnread|TestC274_WriteTimeout|TestC276_BothWriteFirst)$"
	first := os.Getenv("LAB_GUEST") == kernels[0]
	if !first {
		tests = "^(TestC265_CloseWrite|TestC278_ManySizes)$"
	}
	kernel, soft := acrossAddr.kernel4, acrossAddr.soft4+"@soft"
	t.Run("KernelServes", func(t *testing.T) { onLabDevices(t, kernel, soft, tests) })
	t.Run("SoftServes", func(t *testing.T) {
		onLabDevices(t, soft, kernel, tests)
		if first {
			onLabDevices(t, soft, kernel, "^TestC291_FrozenPeer$") // its processes have the embedded device's socket one at a time
		}
	})
}

// TestAcrossC296_Hostile: a stream of one device, and a peer on the other one that misbehaves.
func TestAcrossC296_Hostile(t *testing.T) {
	acrossGuest(t)
	kernel, soft := acrossAddr.kernel4, acrossAddr.soft4+"@soft"
	t.Run("KernelServes", func(t *testing.T) { onHostile(t, kernel, soft) })
	t.Run("SoftServes", func(t *testing.T) { onHostile(t, soft, kernel) })
}
