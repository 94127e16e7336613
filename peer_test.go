package rdma_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/verbs"
)

// Tests and benchmarks of two processes run this program again; the environment tells it
// what to be.
const peerEnv = "RDMA_TEST_PEER"

func TestMain(m *testing.M) {
	if role := os.Getenv(peerEnv); role != "" {
		if err := peerMain(role); err != nil {
			fmt.Fprintln(os.Stderr, role, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// peerRole is "network policy protocol service", and for some services an address.
type peerRole struct{ Network, Spin, Service, Address string }

// peerAlone are services without a listener of peerMain: they say a line, and end.
var peerAlone = map[string]func() error{}

// peerMain listens, says where, and serves until its standard input ends.
func peerMain(role string) error {
	var r peerRole
	if err := json.Unmarshal([]byte(role), &r); err != nil {
		return err
	}
	if f := peerAlone[r.Service]; f != nil {
		return f()
	}
	if r.Address != "" {
		return peerDials(r)
	}
	ln, err := listenAs(r.Network, r.Spin)
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if r.Service == "http" {
		return http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello, world\n") }))
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go servePeer(c, r.Service)
	}
}

// listenAs listens on TCP, or on the embedded device of this process; in the lab, on the
// server's.
func listenAs(network, spin string) (net.Listener, error) {
	if network == "tcp" {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	cfg, err := configAs(network, spin)
	if err != nil {
		return nil, err
	}
	address := ownLoopback() + ":0"
	if e, err := labEnd(0); err != nil {
		return nil, err
	} else if e != nil {
		cfg.Provider, address = e.p, netip.AddrPortFrom(e.addr, 0).String()
	}
	return (&rdma.ListenConfig{Config: cfg}).Listen(bg, "rdma", address)
}

func configAs(network, spin string) (*rdma.Config, error) {
	p, _, err := rdma.Provider(rdma.Soft)
	cfg := &rdma.Config{Provider: p, Compatible: network == "rsockets"}
	if spin == "adaptive" {
		cfg.Spin = verbs.Adaptive
	}
	return cfg, err
}

func servePeer(c net.Conn, service string) {
	defer c.Close()
	b := make([]byte, 256<<10)
	switch service {
	case "echo":
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if _, err := c.Write(b[:n]); err != nil {
				return
			}
		}
	case "sink": // an answer of one byte at the end
		for {
			if _, err := c.Read(b); err != nil {
				c.Write(b[:1])
				return
			}
		}
	case "hold":
		c.Read(b)
		time.Sleep(time.Hour)
	}
}

// peerProcess is a process of ours.
type peerProcess struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	address string
}

func startPeer(t testing.TB, r peerRole) *peerProcess {
	t.Helper()
	return startPeerBy(t, exec.Command(os.Args[0]), r)
}

// startPeerBy is startPeer by a command that runs this program.
func startPeerBy(t testing.TB, cmd *exec.Cmd, r peerRole) *peerProcess {
	t.Helper()
	role, _ := json.Marshal(r)
	cmd.Env = append(os.Environ(), peerEnv+"="+string(role))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &peerProcess{cmd: cmd, stdin: stdin}
	t.Cleanup(p.stop)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the peer process said nothing: %v", err)
	}
	p.address = strings.TrimSpace(line)
	return p
}

func (p *peerProcess) stop() {
	p.stdin.Close()
	p.cmd.Wait()
}

func (p *peerProcess) kill() {
	p.cmd.Process.Signal(syscall.SIGKILL)
	p.cmd.Wait()
}

// dialPeer connects to a process of ours.
func dialPeer(t testing.TB, r peerRole, p *peerProcess) net.Conn {
	t.Helper()
	c, err := dialAs(r, p.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func dialAs(r peerRole, address string) (net.Conn, error) {
	if r.Network == "tcp" {
		return net.Dial("tcp", address)
	}
	d, err := dialerAs(r)
	if err != nil {
		return nil, err
	}
	return d.Dial("rdma", address)
}

// dialerAs dials from the embedded device of this process; in the lab, from the client's.
func dialerAs(r peerRole) (*rdma.Dialer, error) {
	cfg, err := configAs(r.Network, r.Spin)
	if err != nil {
		return nil, err
	}
	d := &rdma.Dialer{Config: cfg, Timeout: 30 * time.Second}
	if e, err := labEnd(1); err != nil {
		return nil, err
	} else if e != nil {
		cfg.Provider, d.LocalAddr = e.p, rdma.Addr{AddrPort: netip.AddrPortFrom(e.addr, 0)}
	}
	return d, nil
}
