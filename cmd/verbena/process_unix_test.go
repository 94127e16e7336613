//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
)

// TestInterruptGroup: Ctrl-C in a terminal reaches both processes of a pair.
func TestInterruptGroup(t *testing.T) {
	t.Parallel()
	p := startWith(t, &syscall.SysProcAttr{Setpgid: true}, nil, "ping", "-n", "0", "-interval", "1ms")
	p.expect("seq=5 ")
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if out := p.ok(); !strings.Contains(out, "ping summary") {
		t.Error(out)
	}
}

// TestTerminate: SIGTERM is as good as Ctrl-C.
func TestTerminate(t *testing.T) {
	t.Parallel()
	server, at := serve(t)
	client := ping(t, at, "-n", "0", "-interval", "1ms")
	client.expect("seq=5 ")
	for _, p := range []*process{client, server} {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.ok()
	}
}
