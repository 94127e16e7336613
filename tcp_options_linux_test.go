package rdma_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// tcpEnds gives the ends of a connection that TCP carries, of a dialer and of a listener with
// this configuration, each with the socket at its other end.
func tcpEnds(t *testing.T, cfg rdma.Config, address string) (ends map[string]*rdma.Conn, peers map[string]*net.TCPConn) {
	t.Helper()
	cfg.Fallback = rdma.TCPFallback
	cfg.Provider = rdmatest.NewFabric(t, 0).Host(netip.MustParseAddr("10.0.0.1")) // reaches none of these
	ends, peers = map[string]*rdma.Conn{}, map[string]*net.TCPConn{}
	add := func(who string, c net.Conn, peer net.Conn, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(who, err)
		}
		ends[who], peers[who] = c.(*rdma.Conn), peer.(*net.TCPConn)
		t.Cleanup(func() { closeBoth(c, peer) })
		if tr := ends[who].Transport(); tr.Kind != "tcp" {
			t.Fatalf("%s: %+v", who, tr)
		}
	}
	ln, err := (&rdma.ListenConfig{Config: &cfg}).Listen(t.Context(), "rdma", address)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	peer, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := ln.Accept()
	add("listener", c, peer, err)

	plain, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	c, err = (&rdma.Dialer{Config: &cfg}).Dial("rdma", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err = plain.Accept()
	add("dialer", c, peer, err)
	return ends, peers
}

// TestTCPOptions: what Config says of buffers and the type of service is so over TCP too, and
// a zero Config leaves the socket alone.
func TestTCPOptions(t *testing.T) {
	rdmatest.CheckLeaks(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		option := func(c *rdma.Conn, opt int) int {
			t.Helper()
			fd, err := c.FD()
			if err != nil {
				t.Fatal(err)
			}
			n, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, opt)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		class := func(c *rdma.Conn) int {
			t.Helper()
			fd, err := c.FD()
			if err != nil {
				t.Fatal(err)
			}
			n, err := unix.TrafficClass(fd, address[0] == '[')
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		ends, peers := tcpEnds(t, rdma.Config{SendBuf: 16 << 10, RecvBuf: 8 << 10, TOS: 0x48}, address)
		for who, c := range ends {
			// The kernel doubles the sizes, for what it needs itself.
			if s, r := option(c, syscall.SO_SNDBUF), option(c, syscall.SO_RCVBUF); s != 32<<10 || r != 16<<10 {
				t.Errorf("%s at %s: buffers of %d and %d bytes", who, address, s, r)
			}
			if n := class(c); n != 0x48 {
				t.Errorf("%s at %s: class %#x", who, address, n)
			}
			writes(t, c, []byte("hello"))
			reads(t, peers[who], []byte("hello"))
		}
		ends, peers = tcpEnds(t, rdma.Config{}, address)
		for who, c := range ends {
			plain, err := peers[who].SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var want int
			plain.Control(func(fd uintptr) { want, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF) })
			if got := option(c, syscall.SO_SNDBUF); err != nil || got < 32<<10 || want < 32<<10 {
				t.Errorf("%s at %s: a send buffer of %d bytes, the peer's has %d, %v", who, address, got, want, err)
			}
			if n := class(c); n != 0 {
				t.Errorf("%s at %s: class %#x", who, address, n)
			}
		}
	}
}

// TestTCPLinger: with a negative Linger the peer sees a reset, over TCP too, and SetLinger(-1)
// goes back to what Config says.
func TestTCPLinger(t *testing.T) {
	rdmatest.CheckLeaks(t)
	for _, x := range []struct {
		what  string
		cfg   rdma.Config
		sec   []int
		reset bool
	}{
		{"default", rdma.Config{}, nil, false},
		{"negative", rdma.Config{Linger: -1}, nil, true},
		{"negative, and as it was", rdma.Config{Linger: -1}, []int{5, -1}, true},
		{"negative, then set", rdma.Config{Linger: -1}, []int{5}, false},
		{"positive, and as it was", rdma.Config{Linger: 1}, []int{0, -1}, false},
		{"reset", rdma.Config{}, []int{0}, true},
	} {
		ends, peers := tcpEnds(t, x.cfg, "127.0.0.1:0")
		for who, c := range ends {
			for _, sec := range x.sec {
				if err := c.SetLinger(sec); err != nil {
					t.Error(err)
				}
			}
			c.Close()
			_, err := peers[who].Read(make([]byte, 1))
			if want := map[bool]error{true: syscall.ECONNRESET, false: io.EOF}[x.reset]; want != io.EOF {
				isErr(t, x.what+", "+who, err, want)
			} else if err != want {
				t.Errorf("%s, %s: %v, want %v", x.what, who, err, want)
			}
		}
	}
}

// TestTCPStats: bytes are counted whatever call has moved them.
func TestTCPStats(t *testing.T) {
	rdmatest.CheckLeaks(t)
	ends, peers := tcpEnds(t, rdma.Config{}, "127.0.0.1:0")
	for who, c := range ends {
		peer := peers[who]
		var read, written uint64
		check := func(what string, r, w int) {
			t.Helper()
			read, written = read+uint64(r), written+uint64(w)
			if s := c.Stats(); s.BytesRead != read || s.BytesWritten != written {
				t.Errorf("%s, %s: %d and %d bytes, want %d and %d", who, what, s.BytesRead, s.BytesWritten, read, written)
			}
		}
		writes(t, c, pattern(10, 0))
		check("Write", 0, 10)
		if n, err := c.TryWrite(pattern(20, 10)); n != 20 || err != nil {
			t.Fatal(n, err)
		}
		check("TryWrite", 0, 20)
		v := net.Buffers{pattern(5, 30), pattern(7, 35)}
		if n, err := c.WriteBuffers(&v); n != 12 || err != nil {
			t.Fatal(n, err)
		}
		check("WriteBuffers", 0, 12)
		if n, err := c.ReadFrom(bytes.NewReader(pattern(1000, 42))); n != 1000 || err != nil {
			t.Fatal(n, err)
		}
		check("ReadFrom", 0, 1000)
		reads(t, peer, pattern(1042, 0))

		writes(t, peer, pattern(30, 0))
		reads(t, c, pattern(30, 0))
		check("Read", 30, 0)
		if n, err := c.TryRead(make([]byte, 8)); n != 0 || err != rdma.ErrWouldBlock {
			t.Fatal(n, err)
		}
		check("TryRead of nothing", 0, 0)
		writes(t, peer, pattern(31, 0))
		one := make([]byte, 1)
		if n, err := c.Read(one); n != 1 || err != nil { // all has come
			t.Fatal(n, err)
		}
		check("Read", 1, 0)
		if n, err := c.TryRead(make([]byte, 100)); n != 30 || err != nil {
			t.Fatal(n, err)
		}
		check("TryRead", 30, 0)
		writes(t, peer, pattern(500, 0))
		peer.CloseWrite()
		if n, err := c.WriteTo(io.Discard); n != 500 || err != nil {
			t.Fatal(n, err)
		}
		check("WriteTo", 500, 0)
	}
}

// TestTCPOdd: values that a system does not take are the nearest that it does, or refused as
// over RDMA; none is silently something else.
func TestTCPOdd(t *testing.T) {
	rdmatest.CheckLeaks(t)
	keepAlive := func(c *rdma.Conn) (v [4]int) {
		t.Helper()
		fd, err := c.FD()
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range [][2]int{{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE},
			{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT}} {
			if v[i], err = syscall.GetsockoptInt(fd, o[0], o[1]); err != nil {
				t.Fatal(err)
			}
		}
		return v
	}
	for d, want := range map[time.Duration][4]int{
		1:              {1, 1, 1, 3},
		24 * time.Hour: {1, 32767, 28800, 3},
		math.MaxInt64:  {1, 32767, 32767, 3},
	} {
		ends, _ := tcpEnds(t, rdma.Config{KeepAlive: d}, "127.0.0.1:0")
		for who, c := range ends {
			if got := keepAlive(c); got != want {
				t.Errorf("%s, KeepAlive of %v: %v, want %v", who, d, got, want)
			}
			if err := c.SetKeepAlivePeriod(time.Minute); err != nil || keepAlive(c) != [4]int{1, 60, 20, 3} {
				t.Errorf("a minute: %v, %v", keepAlive(c), err)
			}
			if err := c.SetKeepAlivePeriod(d); err != nil || keepAlive(c) != want {
				t.Errorf("SetKeepAlivePeriod(%v): %v, %v", d, keepAlive(c), err)
			}
		}
	}
	ends, peers := tcpEnds(t, rdma.Config{}, "127.0.0.1:0")
	for who, c := range ends {
		for _, n := range []int{-1, 0, 64<<20 + 1, math.MaxInt} {
			for what, err := range map[string]error{"SetReadBuffer": c.SetReadBuffer(n), "SetWriteBuffer": c.SetWriteBuffer(n)} {
				isErr(t, what, err, syscall.EINVAL)
				var op *net.OpError
				if !errors.As(err, &op) || op.Op != "set" || op.Net != "tcp" {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
		if err := errors.Join(c.SetReadBuffer(1), c.SetWriteBuffer(64<<20), c.SetLinger(1<<32)); err != nil {
			t.Error(err)
		}
		writes(t, c, []byte("hello"))
		c.Close()
		reads(t, peers[who], []byte("hello"))
		if n, err := peers[who].Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%s: a long linger ended with %v", who, err)
		}
	}
}
