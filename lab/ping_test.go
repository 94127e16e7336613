package lab_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is one that runs beside the test, in the guest.
type program struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

func start(ctx context.Context, t *testing.T, name string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.CommandContext(ctx, name, args...), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), "VERBENA_PROVIDER=kernel")
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	return p
}

// TestGuestRping: verbena ping and rdma-core's rping understand each other on the kernel's
// device, either of them as server.
func TestGuestRping(t *testing.T) {
	inGuest(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	verbena := filepath.Join(filepath.Dir(self), "verbena")
	for _, addr := range []string{"10.9.0.2", "fd00:9::2"} {
		for _, c := range []struct {
			name           string
			server, client []string
		}{
			{"RpingServes", []string{"rping", "-s", "-a", addr, "-C", "5", "-S", "100", "-v"},
				[]string{verbena, "ping", "-n", "5", "-size", "100", "-tcp=false", "-interval", "0", addr}},
			{"VerbenaServes", []string{verbena, "ping", "-listen", addr},
				[]string{"rping", "-c", "-a", addr, "-C", "5", "-S", "100", "-V", "-v"}},
		} {
			family := "IPv4"
			if strings.Contains(addr, ":") {
				family = "IPv6"
			}
			t.Run(c.name+"/"+family, func(t *testing.T) { exchange(t, c.server, c.client) })
		}
	}
}

// exchange starts a server, and a client until it finds the server there.
func exchange(t *testing.T, server, client []string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := start(ctx, t, server[0], server[1:]...)
	var c *program
	for {
		c = start(ctx, t, client[0], client[1:]...)
		if err := <-c.done; err == nil {
			break
		}
		select {
		case err := <-s.done:
			t.Fatalf("the server ended: %v\n%s\nclient:\n%s", err, s.out.String(), c.out.String())
		case <-ctx.Done():
			t.Fatalf("the client never succeeded:\n%s", c.out.String())
		case <-time.After(100 * time.Millisecond): // until the server listens
		}
	}
	t.Logf("client:\n%s", c.out.String())
	if !strings.Contains(server[0], "rping") {
		cancel()
		<-s.done
	} else if err := <-s.done; err != nil {
		t.Errorf("rping as server: %v\n%s", err, s.out.String())
	}
}
