package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestRedis: the client's work goes through two proxy processes to the server, and the
// proxies say that they have carried it.
func TestRedis(t *testing.T) {
	verbena := filepath.Join(t.TempDir(), "verbena")
	build := exec.Command("go", "build", "-o", verbena, "./cmd/verbena")
	build.Dir = "../.." // another module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rdmatest.CheckLeaks(t)
	server := miniredis.RunT(t)
	far := startProxy(t, verbena, "rdma://127.7.3.1:0", "tcp://"+server.Addr())
	near := startProxy(t, verbena, "tcp://127.0.0.1:0", "rdma://"+far.addr)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := work(ctx, near.addr); err != nil {
		t.Error(err)
	}
	// What the client stored is in the server.
	if got, err := server.Get("key:99"); err != nil || got != "value 9801" {
		t.Errorf("key:99 is %q, %v", got, err)
	}
	for _, p := range []*proxy{near, far} {
		if text := p.stop(); strings.Contains(text, "ended: 0 connections") || !strings.Contains(text, " 0 failed") {
			t.Errorf("a proxy says:\n%s", text)
		}
	}
}

// proxy is a verbena proxy.
type proxy struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *bufio.Reader
	addr string
}

func startProxy(t *testing.T, verbena, listen, to string) *proxy {
	t.Helper()
	p := &proxy{t: t, cmd: exec.Command(verbena, "proxy", "-listen", listen, "-to", to)}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill(); p.cmd.Wait() })
	p.out = bufio.NewReader(out)
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(line, "listening on ")
	_, rest, _ = strings.Cut(rest, "://")
	p.addr, _, _ = strings.Cut(rest, ", ")
	return p
}

// stop interrupts the proxy and gives what it says at its end.
func (p *proxy) stop() string {
	p.t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		p.t.Fatal(err)
	}
	text, err := io.ReadAll(p.out)
	if err != nil {
		p.t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Error(err)
	}
	return string(text)
}
