package lab_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
)

// Programs that know nothing of RDMA: librdmacm's preload library has their sockets be
// rsockets. It takes TCP without a word where that fails, so each meeting looks at the
// counters of the guest's connection manager as well as at our Conn.Transport.

const preloadLibrary = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"

// unmodified is a meeting with such a program.
type unmodified struct {
	name     string
	server   func(addr string) []string // the program's arguments; nil: it is none
	client   func(addr string) []string
	families []family
	begins   string // what it says as a server when it is ready; empty: nothing
	port     string
	f        func(ctx context.Context, c *rdma.Conn) error
	ok       func(out string) error
}

// preloaded gives the arguments of a shell command in which $RS makes a program use rsockets.
func preloaded(script string, args ...string) []string {
	return append([]string{"env", "RS=env LD_PRELOAD=" + preloadLibrary, "sh", "-c", script, "sh"}, args...)
}

// numbers is what seq(1) writes.
func numbers(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.Bytes()
}

const manyNumbers = 150000 // a megabyte

var v4only = families[:1]

// iperfBytes is what iperf transfers.
const iperfBytes = 2 << 20

// iperfReports is a check of iperf's report in CSV, whose eighth field is the bytes.
func iperfReports(n int) func(string) error {
	return func(out string) error {
		for line := range strings.Lines(out) {
			if f := strings.Split(strings.TrimSpace(line), ","); len(f) >= 9 && f[7] == strconv.Itoa(n) {
				return nil
			}
		}
		return fmt.Errorf("iperf does not report %d bytes", n)
	}
}

// A server does not count the four bytes that might be flags.
var (
	iperfSent = iperfReports(iperfBytes)
	iperfGot  = iperfReports(iperfBytes - 4)
)

func iperfServer(more ...string) func(string) []string {
	return func(addr string) []string {
		return preloaded(`exec $RS iperf -s -P 1 -p 5001 -y C -B "$@"`, append([]string{addr}, more...)...)
	}
}

func iperfClient(more ...string) func(string) []string {
	return func(addr string) []string {
		return preloaded(`exec $RS iperf -p 5001 -y C -l 64K -n `+strconv.Itoa(iperfBytes)+` -c "$@"`, append([]string{addr}, more...)...)
	}
}

// drain reads all that an iperf client sends.
func drain(_ context.Context, c *rdma.Conn) error {
	n, err := io.Copy(io.Discard, c)
	if err == nil && n != iperfBytes {
		err = fmt.Errorf("iperf sent %d bytes", n)
	}
	return err
}

// pour sends what an iperf server counts.
func pour(_ context.Context, c *rdma.Conn) error {
	if _, err := c.Write(make([]byte, iperfBytes)); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, c)
	return err
}

// sendNumbers sends, and takes the sum that the other side has made.
func sendNumbers(_ context.Context, c *rdma.Conn) error {
	if _, err := c.Write(numbers(manyNumbers)); err != nil {
		return err
	}
	return errors.Join(c.CloseWrite(), atEnd(c))
}

// receiveNumbers reads what seq writes. netcat ends when we do.
func receiveNumbers(_ context.Context, c *rdma.Conn) error {
	want := numbers(manyNumbers)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, len(want), err)
	}
	if a, b := sha256.Sum256(got), sha256.Sum256(want); a != b {
		return fmt.Errorf("%x, not %x", a, b)
	}
	return nil
}

var (
	numbersSum = says(fmt.Sprintf("%x", sha256.Sum256(numbers(manyNumbers))))
)

// netcatThatWaits is netcat as a server, and says when it is in accept: there it reads from a
// socket of the library's. A connection that is made before makes the library's select tell of
// a descriptor that netcat does not know, see docs/lab.md.
const netcatThatWaits = `exec 3>&1 4<&0
	{
		$RS nc.traditional -n -l -p 7472 -s "$1" <&4 &
		while kill -0 $!; do
			read call fd rest < /proc/$!/syscall
			if [ "$call" = 0 ]; then
				case $(readlink /proc/$!/fd/$((fd))) in socket:*) break ;; esac
			fi
			sleep 0.02
		done
		echo netcat accepts >&3
		wait $!
	} | sha256sum`

var unmodifiedPrograms = []unmodified{
	{name: "NetcatReceives", begins: "netcat accepts", families: v4only, port: "7472", f: sendNumbers, ok: numbersSum,
		server: func(addr string) []string {
			return preloaded(netcatThatWaits, addr)
		},
		client: func(addr string) []string { return preloaded(`$RS nc.traditional -n "$1" 7472 | sha256sum`, addr) }},
	{name: "NetcatSends", begins: "netcat accepts", families: v4only, port: "7472", f: receiveNumbers,
		server: func(addr string) []string {
			return preloaded(`seq `+strconv.Itoa(manyNumbers)+` | { `+netcatThatWaits+"\n}", addr)
		},
		client: func(addr string) []string {
			return preloaded(`seq `+strconv.Itoa(manyNumbers)+` | $RS nc.traditional -n "$1" 7472`, addr)
		}},
	{name: "IperfReceives", families: v4only, port: "5001", f: pour, ok: iperfGot, server: iperfServer()},
	{name: "IperfReceives6", families: families[1:], port: "5001", f: pour, ok: iperfGot, server: iperfServer("-V")},
	{name: "IperfSends", families: v4only, port: "5001", f: drain, ok: iperfSent, client: iperfClient()},
	{name: "IperfSends6", families: families[1:], port: "5001", f: drain, ok: iperfSent, client: iperfClient("-V")},
	{name: "RstreamSockets", families: families, port: "7471", ok: says("custom"),
		f: func(_ context.Context, c *rdma.Conn) error {
			r := rstream{iterations: 3, count: 10, size: 3000}
			return errors.Join(r.run(c), atEnd(c))
		},
		client: func(addr string) []string {
			return preloaded(`exec $RS rstream -T s -T v -T b -I 3 -C 10 -S 3000 -s "$1"`, addr)
		}},
}

// TestGuestC299_Preload: unmodified C programs and our streams, both on the kernel's device.
func TestGuestC299_Preload(t *testing.T) {
	ours, theirs := guestSockets(t)
	preloads(t, ours, theirs)
}

// TestHostC299_Preload: unmodified C programs on the kernel's device, our streams on the
// embedded one.
func TestHostC299_Preload(t *testing.T) {
	ours, theirs := hostSockets(t)
	preloads(t, ours, theirs)
}

func preloads(t *testing.T, ours sockets, theirs *place) {
	part := partOf(t, ours.at, theirs)
	sides(t, "Program", func(t *testing.T, way int, serves bool, a family) {
		for i, x := range unmodifiedPrograms {
			args := x.client
			if serves {
				args = x.server
			}
			if args == nil || !slices.ContainsFunc(x.families, func(f family) bool { return f.name == a.name }) || !part.first && !part.all && i > 0 {
				continue
			}
			t.Run(x.name, func(t *testing.T) {
				counter := "cm_tx_msgs"
				if serves {
					counter = "cm_rx_msgs"
				}
				before := requests(t, theirs, counter)
				m := meeting{ours: ours, theirs: theirs, of: a.of, serves: serves, args: args, ok: x.ok, begins: x.begins}
				m.meet(t, x.port, x.f)
				if now := requests(t, theirs, counter); now <= before {
					t.Errorf("the connection manager has counted %d requests (%s) before and %d after", before, counter, now)
				}
			})
		}
	})
}

// requests gives how many requests for a connection the guest's device has sent or received.
func requests(t *testing.T, guest *place, counter string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(guest.must(t, "cat", "/sys/class/infiniband/rxe0/ports/1/"+counter+"/req")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
