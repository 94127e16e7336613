package lab_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// rstream is our side of the exchange of rdma-core's rstream (man page rstream(1)) with the
// options -I, -C, -S and -T v: the sides say hello with 16 bytes, the client first; then,
// iterations times, the client sends count messages of size bytes, and then the server as
// many. All bytes of a side are one sequence that counts.
type rstream struct {
	iterations, count, size int
	active                  bool

	sent, got byte
}

const rstreamSync = 16

func (r *rstream) run(c net.Conn) error {
	b := make([]byte, max(r.size, rstreamSync))
	steps := func(n, size int) error {
		for _, send := range []bool{r.active, !r.active} {
			for range n {
				var err error
				if send {
					err = r.send(c, b[:size])
				} else {
					err = r.receive(c, b[:size])
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := steps(1, rstreamSync); err != nil {
		return fmt.Errorf("at the beginning: %w", err)
	}
	for range r.iterations {
		if err := steps(r.count, r.size); err != nil {
			return err
		}
	}
	return nil
}

func (r *rstream) send(c net.Conn, b []byte) error {
	for i := range b {
		b[i] = r.sent
		r.sent++
	}
	n, err := c.Write(b)
	if err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, len(b), err)
	}
	return nil
}

func (r *rstream) receive(c net.Conn, b []byte) error {
	if n, err := io.ReadFull(c, b); err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, len(b), err)
	}
	for i := range b {
		if b[i] != r.got {
			return fmt.Errorf("byte %d is %#02x, not %#02x", i, b[i], r.got)
		}
		r.got++
	}
	return nil
}

// TestRstream: both of our sides understand each other, and find a byte that is wrong.
func TestRstream(t *testing.T) {
	t.Parallel()
	rdmatest.CheckLeaks(t)
	for _, wrong := range []bool{false, true} {
		s, c := ourPair(t, rdma.Config{Compatible: true})
		server := rstream{iterations: 3, count: 4, size: 5000}
		client := server
		client.active = true
		if wrong {
			client.sent = 1
		}
		var err error
		var all sync.WaitGroup
		all.Go(func() { defer s.Close(); err = server.run(s) })
		e := client.run(c)
		c.Close()
		all.Wait()
		if (err != nil) != wrong || (e != nil) != wrong {
			t.Errorf("wrong bytes %v: server %v, client %v", wrong, err, e)
		}
	}
}

// rstreamCase is a run of rstream.
type rstreamCase struct {
	name                    string
	iterations, count, size int
	args                    []string
	cfg                     rdma.Config
	defaults                map[string]int // of rsockets
}

// rstreamSizes are those of -S all.
func rstreamSizes() []int {
	sizes := []int{64}
	for n := 128; n <= 4<<20; n *= 2 {
		sizes = append(sizes, n, n+n/2)
	}
	return sizes
}

// rstreamModes are the ways in which it uses its socket. A server that sleeps in rpoll sees
// its first connection only after librdmacm's wake-up interval, which is 5 s.
var rstreamModes = []rstreamCase{
	{name: "Nonblocking", iterations: 3, count: 40, size: 3000, args: []string{"-T", "n"}},
	{name: "Blocking", iterations: 3, count: 40, size: 3000, args: []string{"-T", "b"}},
	{name: "Poll", iterations: 3, count: 40, size: 3000, args: []string{"-T", "a"}},
	{name: "PollBlocking", iterations: 3, count: 40, size: 3000, args: []string{"-T", "a", "-T", "b"}, defaults: map[string]int{"wake_up_interval": 500}},
	{name: "Resolve", iterations: 3, count: 40, size: 3000, args: []string{"-T", "r", "-T", "b"}},
	{name: "PingPong", iterations: 100, count: 1, size: 100},
	{name: "ManySmall", iterations: 1, count: 2000, size: 10, args: []string{"-T", "b"}},
	{name: "FewCredits", iterations: 1, count: 500, size: 10, args: []string{"-T", "b"}, defaults: map[string]int{"sqsize_default": 16, "rqsize_default": 16}},
	{name: "SmallRing", iterations: 1, count: 12, size: 20000, args: []string{"-B", "4096"}, defaults: map[string]int{"mem_default": 8192}},
	{name: "OddRing", iterations: 2, count: 30, size: 3000, args: []string{"-B", "1001", "-T", "b"}, defaults: map[string]int{"mem_default": 2002}},
	{name: "KeepAlive", iterations: 10, count: 10, size: 1000, args: []string{"-k", "1", "-T", "b"}},
	{name: "OurSmallBuffers", iterations: 1, count: 12, size: 20000, args: []string{"-T", "b"}, cfg: rdma.Config{SendBuf: 4096, RecvBuf: 4096, SendQueue: 16, RecvQueue: 32}},
	{name: "OurLargeBuffers", iterations: 1, count: 4, size: 1 << 20, args: []string{"-T", "a"}, cfg: rdma.Config{SendBuf: 4 << 20, RecvBuf: 4 << 20}},
	{name: "Compatible", iterations: 5, count: 20, size: 5000, cfg: rdma.Config{Compatible: true, Inline: -1}},
}

// command runs one of the two programs, which have their options in common.
func (c *rstreamCase) command(program, addr string, serves bool) []string {
	to := "-s"
	if serves {
		to = "-b"
	}
	args := []string{program, to, addr, "-I", strconv.Itoa(c.iterations), "-C", strconv.Itoa(c.count), "-S", strconv.Itoa(c.size), "-T", "v"}
	return append(args, c.args...)
}

// TestGuestC294_Rstream: rdma-core's rstream and our streams, both on the kernel's device.
func TestGuestC294_Rstream(t *testing.T) {
	ours, theirs := guestSockets(t)
	rstreams(t, ours, theirs)
}

// TestHostC294_Rstream: rstream on the kernel's device, our streams on the embedded one.
func TestHostC294_Rstream(t *testing.T) {
	ours, theirs := hostSockets(t)
	rstreams(t, ours, theirs)
}

func rstreams(t *testing.T, ours sockets, theirs *place) {
	cases := slices.Clone(rstreamModes)
	part := partOf(t, ours.at, theirs)
	for i, n := range rstreamSizes() {
		if every := 4 - 2*part.place; !part.all && i%every != 0 {
			continue // the guest is slow
		}
		c := rstreamCase{name: strconv.Itoa(n), iterations: 2, count: min(max(1<<17/n, 1), 40), size: n}
		c.args = [][]string{nil, {"-T", "b"}, {"-T", "a"}}[i%3]
		cases = append(cases, c)
	}
	sides(t, "Rstream", func(t *testing.T, way int, serves bool, a family) {
		for i, c := range cases {
			if !part.has(i, way, i < len(rstreamModes) && part.place == 1) {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				m := meeting{ours: ours, theirs: theirs, of: a.of, serves: serves, cfg: c.cfg, ok: says("custom")}
				m.args = func(addr string) []string {
					return withDefaults(c.defaults, c.command("rstream", addr, serves)...)
				}
				m.meet(t, "7471", func(_ context.Context, s *rdma.Conn) error {
					r := rstream{iterations: c.iterations, count: c.count, size: c.size, active: serves}
					if err := r.run(s); err != nil {
						return err
					}
					return atEnd(s)
				})
			})
		}
	})
}
