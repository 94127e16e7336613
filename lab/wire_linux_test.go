package lab_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	packets "github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/rdmatest"
	"github.com/verbena-rdma/verbena/verbs"
)

// The tests named TestWire… run in a guest, in a process of their own: the cable of the
// kernel's device ends in the test, which reads and writes its frames. So the embedded
// device at the other end lies on a fabric, whose rules lose, repeat and forge what passes
// between it and the kernel. All other addresses of the network belong to the test as well.
const wireNetwork = `
	rdma link del rxe0
	ip link add wire0 mtu 4200 type veth peer name wire1 mtu 4200
	ip addr add 10.0.0.2/24 dev wire0
	ip addr add 10.0.0.66/24 dev wire0
	ip link set wire1 up
	ip link set wire0 up
	for i in 1 97 98 99; do ip neigh replace 10.0.0.$i lladdr 02:00:00:00:00:01 dev wire0 nud permanent; done
	rdma link add rxe0 type rxe netdev wire0`

var (
	wireSoft   = netip.MustParseAddr("10.0.0.1")
	wireKernel = netip.MustParseAddr("10.0.0.2")
	wireOther  = netip.MustParseAddr("10.0.0.66") // of the kernel too
)

// cable is the end of it that the test holds.
type cable struct {
	file *os.File // packet socket of wire1
	mac  net.HardwareAddr
	in   atomic.Pointer[rdmatest.Carry] // where what comes from the kernel goes
}

// wireCable lays the cable, once for the process.
func wireCable(t *testing.T) *cable {
	t.Helper()
	guest := inGuest(t)
	if os.Getenv("LAB_WIRE") == "" {
		t.Skip("runs in a process of its own, with LAB_WIRE set")
	}
	guest.must(t, "sh", "-ec", wireNetwork)
	here, err := net.InterfaceByName("wire1")
	if err != nil {
		t.Fatal(err)
	}
	there, err := net.InterfaceByName("wire0")
	if err != nil {
		t.Fatal(err)
	}
	const ip = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xFF<<8 // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, ip)
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{file: os.NewFile(uintptr(fd), "cable"), mac: there.HardwareAddr}
	t.Cleanup(func() { c.file.Close() })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: here.Index}); err != nil {
		t.Fatal(err)
	}
	go c.receive()
	return c
}

const (
	ethernetLen = 14
	ipv4Len     = 20
	udpLen      = 8
)

// receive takes the kernel's datagrams to the fabric, until the cable is cut.
func (c *cable) receive() {
	var b [9000]byte
	for {
		n, err := c.file.Read(b[:])
		if err != nil {
			return
		}
		h := b[ethernetLen:n]
		if len(h) < ipv4Len+udpLen || h[0] != 0x45 || h[9] != unix.IPPROTO_UDP {
			continue
		}
		u := h[ipv4Len:]
		end := int(binary.BigEndian.Uint16(u[4:]))
		if end < udpLen || end > len(u) || binary.BigEndian.Uint16(u[2:]) != packets.Port {
			continue
		}
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(h[12:16])), binary.BigEndian.Uint16(u))
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(h[16:20])), packets.Port)
		if in := c.in.Load(); in != nil && ofKernel(from.Addr()) {
			(*in)(from, to, u[udpLen:end], h[1])
		}
	}
}

func ofKernel(a netip.Addr) bool { return a == wireKernel || a == wireOther }

// send gives the kernel a datagram of any sender.
func (c *cable) send(from, to netip.AddrPort, p []byte, tos uint8) {
	if !ofKernel(to.Addr()) {
		return // there is nobody
	}
	b := make([]byte, 0, ethernetLen+ipv4Len+udpLen+len(p))
	b = append(b, c.mac...)
	b = append(b, 2, 0, 0, 0, 0, 1, 8, 0)
	n := udpLen + len(p)
	b = append(b, 0x45, tos)
	b = binary.BigEndian.AppendUint16(b, uint16(ipv4Len+n))
	b = append(b, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0) // no identification, not to be fragmented
	b = append(b, from.Addr().AsSlice()...)
	b = append(b, to.Addr().AsSlice()...)
	var sum uint32
	for i := ethernetLen; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xFFFF
	}
	binary.BigEndian.PutUint16(b[ethernetLen+10:], ^uint16(sum))
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = append(b, 0, 0) // no checksum: RoCE has its own
	b = append(b, p...)
	c.file.Write(b) // what does not fit is lost, as on any network
}

// plug connects a fabric, until its test ends.
func (c *cable) plug(t *testing.T, f *rdmatest.Fabric) {
	in := f.Uplink(c.send)
	c.in.Store(&in)
	t.Cleanup(func() { c.in.Store(nil) })
}

// TestWire runs those tests of the conformance suite that lose and forge packets between
// the embedded device and the kernel's, each of them on either side.
func TestWire(t *testing.T) {
	c := wireCable(t)
	kernel, err := ibverbs.New()
	if err != nil {
		t.Fatal(err)
	}
	wireReady(t, kernel)
	for _, side := range []string{"KernelToSoft", "SoftToKernel"} {
		t.Run(side, func(t *testing.T) {
			rdmatest.Conformance(t, nil, wireProfile(os.Getenv("LAB_GUEST"), side).put(&rdmatest.ConformanceOptions{
				Has:   rdmatest.Faults | rdmatest.TwoHosts | rdmatest.Patience | rdmatest.OtherAddress,
				Needs: rdmatest.Faults,
				Each: func(t *testing.T, run func(*testing.T, rdmatest.Bed)) {
					f := rdmatest.NewFabric(t, 0) // numbers of their own: the kernel remembers those of the last test
					c.plug(t, f)
					b := rdmatest.Bed{Provider: kernel, Addr: wireKernel, Peer: f.Host(wireSoft), PeerAddr: wireSoft, Fabric: f, Limit: time.Minute}
					if side == "SoftToKernel" {
						b.Provider, b.Addr, b.Peer, b.PeerAddr = b.Peer, b.PeerAddr, b.Provider, b.Addr
						b.OtherAddr = wireOther
					}
					run(t, b)
				},
			}))
		})
	}
}

// wireReady waits until the kernel's device has the GIDs of its addresses.
func wireReady(t *testing.T, p verbs.Provider) {
	t.Helper()
	d, err := verbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		gids, err := d.GIDs()
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, g := range gids {
			if ofKernel(g.GID.Addr()) && g.Type == ib.GIDTypeRoCEv2 {
				found++
			}
		}
		if found == 2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no GIDs of %v and %v: %v", wireKernel, wireOther, gids)
		}
	}
}

// wireProfile is what is known to differ here.
func wireProfile(kernel, side string) differences {
	const ids = "the connection manager of Linux asks for the two ids and the queue pair of a message, not for its sender"
	if side == "KernelToSoft" {
		const stops = "the requester of rxe stops for good on some runs, as in the grid"
		accept := map[string][]ib.Status{}
		if kernel == "6.12" { // where what fails by itself is flushed
			accept["C-113/requester"] = []ib.Status{ib.StatusSuccess, ib.StatusWRFlush}
		}
		return differences{
			accept: accept,
			known:  map[string]string{"C-327_StrangerToActive": ids},
			unsteady: map[string]string{
				"C-113_DuplicatesAtOnce": stops, "C-113_DuplicatesLater": stops,
				"C-113_DuplicatesThreeLater": stops, "C-113_DuplicatesMuchLater": stops,
			},
		}
	}
	return differences{
		known: map[string]string{"C-327_StrangerToPassive": ids},
		unsteady: map[string]string{
			"C-232_AnswerToDisconnectLost": "Linux answers a repeated disconnect until its time-wait is over, then only if the id is gone",
		},
	}
}
