package lab_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Two of our streams on kernel devices: the tests of the root package run in the guest,
// those that need neither a network in memory nor virtual time.

// rootTests are those that need nothing but a device.
const rootTests = "^(TestC262_Nettest|TestC263_Zero|TestC265_CloseWrite|TestC267_PeerCloses|TestC272_DeadlineRace" +
	"|TestC276_BothWriteFirst|TestC278_ManySizes|TestC286_Addresses|TestC287_Gathers|TestC288_Concurrent|TestC288_Contiguous" +
	"|TestC290_LingerLong|TestC297_ListenerWrites|TestC299_RPC|TestC303_Everything)$"

// onKernelDevices runs tests of the root package between two addresses of the guest.
func onKernelDevices(t *testing.T, guest *place, server, client, tests string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "rdma.test", "-test.v", "-test.timeout", "5m", "-test.run", tests)
	cmd.Env = append(os.Environ(), "RDMA_TEST_ADDRESSES="+server+","+client)
	out, err := cmd.CombinedOutput()
	passed := report(t, out)
	if err != nil || len(passed) == 0 {
		t.Errorf("%v\n%s", err, failures(out))
	}
}

// TestGuestC262_Streams: our streams on the kernel's device.
func TestGuestC262_Streams(t *testing.T) {
	guest := inGuest(t)
	if os.Getenv("LAB_GUEST") != kernels[0] {
		onKernelDevices(t, guest, guest.v4, guest.v4, "^(TestC263_Zero|TestC278_ManySizes)$")
		return
	}
	onKernelDevices(t, guest, guest.v4, guest.v4, rootTests)
}

// TestGuestC262_StreamsIPv6: and over IPv6.
func TestGuestC262_StreamsIPv6(t *testing.T) {
	guest := inGuest(t)
	onKernelDevices(t, guest, guest.v6, guest.v6, "^TestC278_ManySizes$")
}

// wire is two devices of the guest with a cable between them that loses every hundredth
// packet. What goes from one address of a machine to another never leaves it, except if
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
		tc qdisc add dev wire$n root netem limit 20000 loss 1%
	done`

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
	guest.must(t, "sh", "-ec", wire)
	defer func() {
		if out := guest.must(t, "sh", "-ec", unwire); !strings.Contains(out, "dropped") || strings.Contains(out, "dropped 0,") {
			t.Errorf("the cable has lost nothing:\n%s", out)
		}
	}()
	onKernelDevices(t, guest, "10.7.0.1", "10.7.0.2", "^TestC262_Nettest$/^kernel$/^verbena$")
}
