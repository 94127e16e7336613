package main

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// modes are the ways to wait that this system has.
func modes() []string {
	if runtime.GOOS == "linux" {
		return []string{"block", "poll", "epoll", "spin"}
	}
	return []string{"block", "spin"}
}

// checkSummary looks for what a client prints at its end.
func checkSummary(t *testing.T, out string, exchanges, size int, tcp bool) {
	t.Helper()
	if want := fmt.Sprintf("\n%d exchanges of %d bytes, compared byte for byte", exchanges, size); !strings.Contains(out, want) {
		t.Errorf("no %q in:\n%s", want, out)
	}
	for _, want := range []string{"p50", "p99", "p99.9", "\nRDMA "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "the median over RDMA is ") != tcp {
		t.Errorf("compared with TCP: %v:\n%s", !tcp, out)
	}
}

func TestPair(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			out := start(t, nil, "ping", "-n", "20", "-interval", "0", "-wait", mode).ok()
			for seq := range 20 {
				if !strings.Contains(out, fmt.Sprintf(" seq=%d time=", seq)) {
					t.Errorf("no exchange %d", seq)
				}
			}
			checkSummary(t, out, 20, 64, true)
		})
	}
	t.Run("quiet", func(t *testing.T) {
		t.Parallel()
		out := start(t, nil, "ping", "--n=3", "--interval=1ms", "--q", "--tcp=false", "--size=65535").ok()
		if strings.Contains(out, "seq=") || !strings.Contains(out, "TCP    switched off") {
			t.Error(out)
		}
		checkSummary(t, out, 3, 65535, false)
	})
}

func TestVerbose(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			out := start(t, nil, "ping", "-n", "2", "-v", "-wait", mode).ok()
			for _, want := range []string{
				"cm    ADDR_RESOLVED", "cm    ROUTE_RESOLVED", "cm    ESTABLISHED", "cm    DISCONNECTED",
				"wc    SEND on QP", "wc    RECV of 16 bytes",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("the client shows no %q", want)
				}
			}
			for _, want := range []string{"cm    CONNECT_REQUEST", "cm    ESTABLISHED", "wc    RDMA_READ", "wc    RDMA_WRITE"} {
				found := false
				for line := range strings.Lines(out) {
					found = found || strings.HasPrefix(line, "server: ") && strings.Contains(line, want)
				}
				if !found {
					t.Errorf("the server shows no %q", want)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

// TestSwitches: without each of what speeds up sockets.
func TestSwitches(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"VERBENA_DISABLE_GSO", "VERBENA_DISABLE_GRO", "VERBENA_DISABLE_ECN"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := start(t, []string{name + "=1"}, "ping", "-n", "20", "-interval", "0", "-size", "65535").ok()
			checkSummary(t, out, 20, 65535, true)
		})
	}
}

// TestManyClients: one server, clients of all kinds at the same time.
func TestManyClients(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server, at := serve(t, "-wait", mode)
			sizes := []int{rpingMin, 64, 5000, rpingMax}
			var clients []*process
			for i, size := range sizes {
				clients = append(clients, ping(t, at, "-n", "10", "-interval", "1ms", "-size", strconv.Itoa(size), "-wait", modes()[i%len(modes())]))
			}
			for i, c := range clients {
				checkSummary(t, c.ok(), 10, sizes[i], true)
			}
			for range clients {
				server.expect(": 10 exchanges in ")
			}
			server.interrupt()
			if out := server.ok(); !strings.Contains(out, "clients: 4 served, 0 failed") {
				t.Error(out)
			}
		})
	}
}

func TestInterruptClient(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server, at := serve(t)
			client := ping(t, at, "-n", "0", "-interval", "1ms", "-wait", mode)
			client.expect("seq=5 ")
			client.interrupt()
			out := client.ok()
			if !strings.Contains(out, "ping summary") || !strings.Contains(out, "\nRDMA ") || strings.Contains(out, "no answer") {
				t.Error(out)
			}
			// The server hears of it at once, not when it gets suspicious.
			server.expect(" exchanges in ")
			server.interrupt()
			if out := server.ok(); !strings.Contains(out, "clients: 1 served, 0 failed") {
				t.Error(out)
			}
		})
	}
}

func TestInterruptPair(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "ping", "-n", "0", "-interval", "1ms")
	p.expect("seq=5 ")
	p.interrupt()
	if out := p.ok(); !strings.Contains(out, "ping summary") {
		t.Error(out)
	}
}

// TestInterruptServer: the client says what happened and how far it came.
func TestInterruptServer(t *testing.T) {
	t.Parallel()
	server, at := serve(t)
	client := ping(t, at, "-n", "0", "-interval", "1ms")
	client.expect("seq=5 ")
	server.interrupt()
	server.ok()
	client.fails(at.String(), "after ", "the peer ended the connection")
	if out := strings.Join(client.seen, "\n"); !strings.Contains(out, "ping summary") {
		t.Error(out)
	}
}

func TestKillServer(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server, at := serve(t)
			client := ping(t, at, "-n", "0", "-interval", "1ms", "-timeout", "3s", "-wait", mode)
			client.expect("seq=5 ")
			server.kill()
			client.fails(at.String(), "after ")
		})
	}
}

// TestKillClient: the server finds out, and serves others.
func TestKillClient(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server, at := serve(t, "-timeout", "100ms", "-wait", mode)
			client := ping(t, at, "-n", "0", "-interval", "1ms")
			client.expect("seq=5 ")
			client.kill()
			server.expect(", after ", " exchanges in ")
			ping(t, at, "-n", "3").ok()
			server.interrupt()
			if out := server.ok(); !strings.Contains(out, "clients: 1 served, 1 failed") {
				t.Error(out)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	_, at := serve(t)
	other := netip.AddrPortFrom(at.Addr(), at.Port()^1)
	for _, mode := range modes() {
		ping(t, other, "-wait", mode).fails(other.String(), "rejected", "nobody listens")
	}
}

// TestNobody: no program has the address.
func TestNobody(t *testing.T) {
	t.Parallel()
	at := netip.AddrPortFrom(privateAddr(), rpingPort)
	ping(t, at).fails(at.String(), "nobody listens")
}

// silent holds an address and does not answer.
func silent(t *testing.T) (netip.AddrPort, *net.UDPConn) {
	t.Helper()
	at := netip.AddrPortFrom(privateAddr(), rpingPort)
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), 4791)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return at, c
}

func TestSilence(t *testing.T) {
	t.Parallel()
	at, _ := silent(t)
	for _, mode := range modes() {
		ping(t, at, "-timeout", "300ms", "-wait", mode).fails(at.String(), "no answer within 300ms")
	}
}

func TestInterruptConnect(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		at, c := silent(t)
		p := ping(t, at, "-timeout", "1h", "-wait", mode)
		for n := 0; n < 200; { // it asks for a connection
			var err error
			if n, err = c.Read(make([]byte, 2048)); err != nil {
				t.Fatal(err)
			}
		}
		p.interrupt()
		p.fails("stopped before the first answer")
	}
}

func TestSizeRefused(t *testing.T) {
	t.Parallel()
	server, at := serve(t, "-size", "100")
	ping(t, at, "-size", "101").fails(at.String(), "the peer ended the connection before the first exchange", "size")
	server.expect("wants to exchange 101 bytes; 23 to 100 are allowed here, after 0 exchanges")
	ping(t, at, "-size", "100").ok()
}

func TestAddressTaken(t *testing.T) {
	t.Parallel()
	server, at := serve(t)
	holder := fmt.Sprintf("process %d", server.cmd.Process.Pid)
	start(t, nil, "ping", "-listen", at.String()).fails(at.Addr().String(), holder)
}

// TestPairParentGone: the server of a pair ends when its parent is gone.
func TestPairParentGone(t *testing.T) {
	t.Parallel()
	p := start(t, []string{pairEnv + "=1"}, "ping", "-listen", "loopback")
	p.expect("127.")
	p.stdin.Close()
	p.ok()
}

// TestNoise: datagrams that are not RoCE do not disturb.
func TestNoise(t *testing.T) {
	t.Parallel()
	server, at := serve(t)
	client := ping(t, at, "-n", "200", "-interval", "1ms", "-q")
	c, err := net.Dial("udp", netip.AddrPortFrom(at.Addr(), 4791).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for n := range 2000 {
		if _, err := c.Write(make([]byte, n%1500)); err != nil {
			t.Fatal(err)
		}
	}
	checkSummary(t, client.ok(), 200, 64, true)
	server.interrupt()
	server.ok()
}

func TestWrongProvider(t *testing.T) {
	t.Parallel()
	env := []string{"VERBENA_PROVIDER=nonsense"}
	start(t, env, "ping").fails("nonsense")
	start(t, env, "ping", "127.0.0.1").fails("nonsense")
	start(t, env, "ping", "-listen", "127.0.0.1").fails("nonsense")
}
