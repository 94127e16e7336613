package netio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
)

var loopbacks = []string{"127.0.0.1:0", "[::1]:0"}

// everything is what a socket does unless it is told not to.
var everything = options{gso: true, gro: true, ecn: true}

func open(t testing.TB, addr string, o options) *batchConn {
	t.Helper()
	c, err := listen(netip.MustParseAddrPort(addr), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return c.(*batchConn)
}

// collect reads until n bytes are there.
func collect(t testing.TB, c Conn, n int) (all []byte, ms []Message) {
	t.Helper()
	for len(all) < n {
		in := room(8, c.Limits().ReceiveSize)
		k, err := c.Read(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range in[:k] {
			all = append(all, m.Buf...)
			ms = append(ms, m)
		}
	}
	return all, ms
}

func TestDatagram(t *testing.T) {
	t.Parallel()
	for _, addr := range loopbacks {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			a, b := open(t, addr, everything), open(t, addr, everything)
			for _, size := range []int{0, 1, 64, 4168, 8192} {
				for _, tos := range []uint8{0, 2, 0x68, 0xff} {
					out := []Message{{Buf: pattern(size, tos), Addr: b.LocalAddr(), TOS: tos}}
					if n, err := a.Write(out); n != 1 || err != nil {
						t.Fatal(n, err)
					}
					in := room(4, 8192)
					n, err := b.Read(in)
					if n != 1 || err != nil {
						t.Fatal(n, err)
					}
					m := in[0]
					if !bytes.Equal(m.Buf, out[0].Buf) || m.Segment != 0 || m.Addr != a.LocalAddr() || m.TOS != tos || m.TTL == 0 {
						t.Errorf("size %d, TOS %#x: got %d bytes, segment %d, from %v, TOS %#x, TTL %d",
							size, tos, len(m.Buf), m.Segment, m.Addr, m.TOS, m.TTL)
					}
				}
			}
		})
	}
}

func TestTrain(t *testing.T) {
	t.Parallel()
	plain := options{ecn: true}
	sendOnly, receiveOnly := options{gso: true}, options{gro: true}
	for _, addr := range loopbacks {
		for _, o := range []struct {
			name     string
			from, to options
			train    bool // arrives as one
		}{
			{"both", everything, everything, true},
			{"out", sendOnly, plain, false},
			{"in", plain, receiveOnly, false},
			{"none", plain, plain, false},
		} {
			t.Run(o.name+" "+addr, func(t *testing.T) {
				t.Parallel()
				a, b := open(t, addr, o.from), open(t, addr, o.to)
				for _, k := range []struct{ segment, size int }{
					{100, 100}, {100, 101}, {100, 1000}, {1040, 50 * 1040}, {4112, 15 * 4112}, {4112, 4112*14 + 5}, {1, 10},
				} {
					want := pattern(k.size, byte(k.segment))
					out := []Message{{Buf: want, Segment: k.segment, Addr: b.LocalAddr()}}
					if n, err := a.Write(out); n != 1 || err != nil {
						t.Fatal(n, err)
					}
					got, ms := collect(t, b, k.size)
					if !bytes.Equal(got, want) {
						t.Errorf("%v: other bytes", k)
					}
					datagrams := (k.size + k.segment - 1) / k.segment
					switch {
					case o.train && len(ms) != 1:
						t.Errorf("%v: %d messages instead of one train", k, len(ms))
					case o.train && k.size > k.segment && ms[0].Segment != k.segment:
						t.Errorf("%v: segment size %d", k, ms[0].Segment)
					case !o.train && len(ms) != datagrams:
						t.Errorf("%v: %d messages instead of %d", k, len(ms), datagrams)
					}
				}
				if sent, got := countersOf(a).Sent, countersOf(b).Received; sent != got || sent == 0 {
					t.Errorf("%d datagrams sent, %d received", sent, got)
				}
			})
		}
	}
}

// TestLongTrain: a train beyond what the system takes at once is cut.
func TestLongTrain(t *testing.T) {
	t.Parallel()
	for _, addr := range loopbacks {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			a, b := open(t, addr, everything), open(t, addr, everything)
			want := pattern(200*1000+7, 1)
			if n, err := a.Write([]Message{{Buf: want, Segment: 1000, Addr: b.LocalAddr()}}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			got, ms := collect(t, b, len(want))
			if !bytes.Equal(got, want) {
				t.Error("other bytes")
			}
			if len(ms) != 4 {
				t.Errorf("%d messages", len(ms))
			}
			// Segments larger than any datagram: nothing to be done.
			n, err := a.Write([]Message{
				{Buf: []byte("before"), Addr: b.LocalAddr()},
				{Buf: make([]byte, 3*70000), Segment: 70000, Addr: b.LocalAddr()},
			})
			if n != 1 || !errors.Is(err, syscall.EMSGSIZE) {
				t.Error(n, err)
			}
		})
	}
}

// TestOrder sends more messages than fit a system call, of every kind, and expects them
// in order.
func TestOrder(t *testing.T) {
	t.Parallel()
	for _, addr := range loopbacks {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			a, b := open(t, addr, everything), open(t, addr, everything)
			var out []Message
			var want []byte
			for i := range 3 * batch {
				m := Message{Buf: pattern(1+i*37%3000, byte(i)), Addr: b.LocalAddr(), TOS: uint8(i % 4)}
				if i%3 == 0 {
					m.Segment = 256
				}
				out, want = append(out, m), append(want, m.Buf...)
			}
			if n, err := a.Write(out); n != len(out) || err != nil {
				t.Fatal(n, err)
			}
			got, ms := collect(t, b, len(want))
			if !bytes.Equal(got, want) {
				t.Error("other bytes, or another order")
			}
			for i, m := range ms {
				if m.TOS != uint8(i%4) {
					t.Fatalf("message %d has TOS %d", i, m.TOS)
				}
			}
		})
	}
}

// TestReadGrows: a read asks for more messages the more there are, so that much costs few
// calls and one costs no look for a second.
func TestReadGrows(t *testing.T) {
	t.Parallel()
	b := open(t, loopbacks[0], everything)
	there, size := 0, 10
	var asked []int
	b.try.recv = func(_ uintptr, h []unix.Mmsghdr) (int, syscall.Errno) {
		asked = append(asked, len(h))
		n := min(len(h), there)
		if n == 0 {
			return -1, syscall.EAGAIN
		}
		there -= n
		for i := range n {
			h[i].Len = uint32(size)
		}
		return n, 0
	}
	in := room(16, 100)
	read := func(want []int) {
		t.Helper()
		asked, there = nil, 20
		total := 0
		for n := 1; n > 0; total += n {
			var err error
			if n, err = b.TryRead(in); err != nil {
				t.Fatal(err)
			}
		}
		if total != 20 || !slices.Equal(asked, want) {
			t.Errorf("%d messages with %v, want %v", total, asked, want)
		}
	}
	read([]int{1, 2, 4, 8, 16, 5})
	read([]int{1, 2, 4, 8, 16, 5})
	// Not beyond what stays in a cache: trains of 60 KB, and then longer ones.
	in = room(16, 128<<10)
	size = 60e3
	read([]int{1, 2, 4, 4, 4, 4, 4, 1})
	b.try.want, size = 4, 100e3
	read([]int{4, 2, 2, 2, 2, 2, 2, 2, 2, 2})
}

func TestCloseWakesRead(t *testing.T) {
	t.Parallel()
	for _, addr := range loopbacks {
		c := open(t, addr, everything)
		started, done := make(chan struct{}), make(chan error)
		c.read.recv = func(fd uintptr, h []unix.Mmsghdr) (int, syscall.Errno) {
			n, e := unix.Recvmmsg(fd, h)
			if e == syscall.EAGAIN {
				close(started)
			}
			return n, e
		}
		go func() {
			_, err := c.Read(room(1, 64))
			done <- err
		}()
		<-started
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read: %v", err)
		}
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
		if _, err := c.Read(room(1, 64)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read: %v", err)
		}
		if _, err := c.TryRead(room(1, 64)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("TryRead: %v", err)
		}
		if _, err := c.Write([]Message{{Addr: c.LocalAddr()}}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write: %v", err)
		}
	}
}

// TestTryReadBesideRead: a read that waits does not keep others from looking.
func TestTryReadBesideRead(t *testing.T) {
	t.Parallel()
	c := open(t, loopbacks[0], everything)
	started, done := make(chan struct{}), make(chan error)
	c.read.recv = func(fd uintptr, h []unix.Mmsghdr) (int, syscall.Errno) {
		// Sees nothing, as a reader that has missed its wake-up.
		select {
		case <-started:
		default:
			close(started)
		}
		return 0, syscall.EAGAIN
	}
	go func() {
		_, err := c.Read(room(1, 64))
		done <- err
	}()
	<-started
	in := room(4, 64)
	if n, err := c.TryRead(in); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := c.Write([]Message{{Buf: []byte("x"), Addr: c.LocalAddr()}}); err != nil {
		t.Fatal(err)
	}
	if n, err := c.TryRead(in); n != 1 || err != nil || string(in[0].Buf) != "x" {
		t.Fatal(n, err)
	}
	c.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestIdentification looks at the IPv4 header, part of which the ICRC covers.
func TestIdentification(t *testing.T) {
	t.Parallel()
	raw, err := net.ListenPacket("ip4:udp", "127.0.0.1")
	if errors.Is(err, syscall.EPERM) && os.Geteuid() != 0 {
		t.Skip("seeing IP headers takes CAP_NET_RAW, which an ordinary user lacks")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	a, b := open(t, loopbacks[0], everything), open(t, loopbacks[0], everything)
	send := func() {
		if _, err := a.Write([]Message{{Buf: pattern(32, 9), Addr: b.LocalAddr()}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		send()
	}
	sc, err := raw.(*net.IPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	for seen := 0; seen < 3; {
		var n int
		var e error
		// The socket sees all of the host's datagrams; those that it has no room for are
		// sent again.
		if err := raw.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		err := sc.Read(func(fd uintptr) bool {
			n, e = unix.Read(int(fd), buf)
			return e != syscall.EAGAIN
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			send()
			continue
		}
		if err != nil || e != nil {
			t.Fatal(err, e)
		}
		if n < 28 || binary.BigEndian.Uint16(buf[20:]) != a.LocalAddr().Port() {
			continue // of another test
		}
		seen++
		if id, flags := binary.BigEndian.Uint16(buf[4:]), binary.BigEndian.Uint16(buf[6:]); id != 0 || flags != 0x4000 {
			t.Errorf("identification %d, flags %#x", id, flags)
		}
	}
}

func TestEnvironment(t *testing.T) {
	for _, k := range []struct {
		name  string
		check func(l Limits, trains, marks bool) bool
	}{
		{"", func(l Limits, trains, marks bool) bool { return l.Segments > 1 && trains && marks }},
		{"VERBENA_DISABLE_GSO", func(l Limits, trains, marks bool) bool { return l.Segments == 1 && !trains && marks }},
		{"VERBENA_DISABLE_GRO", func(l Limits, trains, marks bool) bool {
			return l.Segments > 1 && l.ReceiveSize == singleSize && !trains && marks
		}},
		{"VERBENA_DISABLE_ECN", func(l Limits, trains, marks bool) bool { return l.Segments > 1 && trains && !marks }},
	} {
		t.Run("set "+k.name, func(t *testing.T) {
			if k.name != "" {
				t.Setenv(k.name, "1")
			}
			for _, addr := range loopbacks {
				a, err := Listen(netip.MustParseAddrPort(addr))
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				const dscp, ce = 0x68, 3
				if _, err := a.Write([]Message{{Buf: pattern(3000, 0), Segment: 1000, Addr: a.LocalAddr(), TOS: dscp | ce}}); err != nil {
					t.Fatal(err)
				}
				got, ms := collect(t, a, 3000)
				if !bytes.Equal(got, pattern(3000, 0)) {
					t.Error("other bytes")
				}
				tos := ms[0].TOS
				if tos&^ecnBits != dscp {
					t.Errorf("TOS %#x", tos)
				}
				if l := a.Limits(); !k.check(l, ms[0].Segment != 0, tos&ecnBits == ce) {
					t.Errorf("%s: limits %+v, segment %d, TOS %#x", addr, l, ms[0].Segment, tos)
				}
			}
		})
	}
	t.Setenv("VERBENA_DISABLE_GSO", "0")
	if !optionsFromEnv().gso {
		t.Error("0 disables")
	}
}

// TestConcurrent has many writers, one reader and one that looks in between. What is on
// its way is bounded, so nothing may be lost.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	const writers, each = 4, 500
	for _, addr := range loopbacks {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			c := open(t, addr, everything)
			a := open(t, addr, everything)
			credit := make(chan struct{}, 32)
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for i := range each {
						credit <- struct{}{}
						b := make([]byte, 600)
						binary.BigEndian.PutUint32(b, uint32(w*each+i))
						m := Message{Buf: b, Addr: c.LocalAddr()}
						if i%2 == 0 {
							m.Segment = 200
						}
						if n, err := a.Write([]Message{m}); n != 1 || err != nil {
							t.Error(n, err)
							return
						}
					}
				})
			}
			var mu sync.Mutex
			seen := make([]int, writers*each)
			bytesIn := 0
			take := func(ms []Message) (finished bool) {
				mu.Lock()
				defer mu.Unlock()
				for _, m := range ms {
					bytesIn += len(m.Buf)
					seen[binary.BigEndian.Uint32(m.Buf)]++
					<-credit
				}
				return bytesIn == 600*writers*each
			}
			wg.Go(func() {
				in := room(8, trainSize)
				for {
					n, err := c.Read(in)
					if err != nil {
						if !errors.Is(err, net.ErrClosed) {
							t.Error(err)
						}
						return
					}
					if take(in[:n]) {
						c.Close()
					}
				}
			})
			wg.Go(func() {
				in := room(8, trainSize)
				for {
					n, err := c.TryRead(in)
					if err != nil {
						if !errors.Is(err, net.ErrClosed) {
							t.Error(err)
						}
						return
					}
					if take(in[:n]) {
						c.Close()
					}
					c.Limits()
					countersOf(c)
				}
			})
			wg.Wait()
			for i, n := range seen {
				if n != 1 {
					t.Fatalf("message %d came %d times", i, n)
				}
			}
		})
	}
}
