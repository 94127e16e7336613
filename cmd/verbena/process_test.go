package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is verbena running as a process of its own.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  chan string // of standard output; closed at its end
	seen   []string
	stderr bytes.Buffer
	once   sync.Once
	err    error
}

// patience is far more than anything takes; it only ends a test that hangs.
const patience = 3 * time.Minute

// start runs verbena with args; env are more variables.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, env, args...)
}

// startWith is start with what only some systems have.
func startWith(t *testing.T, attr *syscall.SysProcAttr, env []string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(self, args...), lines: make(chan string, 1000)}
	p.cmd.Env = append(append(os.Environ(), runAsMain+"=1"), env...)
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = attr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		s := bufio.NewScanner(out)
		for s.Scan() {
			p.lines <- s.Text()
		}
	}()
	late := time.AfterFunc(patience, p.kill)
	t.Cleanup(func() {
		p.kill()
		for range p.lines {
		}
		<-read
		p.wait()
		late.Stop()
		if t.Failed() {
			t.Logf("verbena %s:\n%s\n%s", strings.Join(args, " "), strings.Join(p.seen, "\n"), p.stderr.String())
		}
	})
	return p
}

// kill ends the process without a chance to say goodbye. Later calls do nothing.
func (p *process) kill() { p.cmd.Process.Kill() }

func (p *process) interrupt() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		p.t.Fatal(err)
	}
}

// expect reads lines until one contains all parts, and gives it.
func (p *process) expect(parts ...string) string {
	p.t.Helper()
	for line := range p.lines {
		p.seen = append(p.seen, line)
		if containsAll(line, parts) {
			return line
		}
	}
	p.wait()
	p.t.Fatalf("no line with %q; standard error: %s", parts, p.stderr.String())
	return ""
}

func containsAll(s string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

func (p *process) wait() error {
	p.once.Do(func() { p.err = p.cmd.Wait() })
	return p.err
}

// end waits for the end of the process and gives all of its output and its exit code.
func (p *process) end() (code int, stdout, stderr string) {
	p.t.Helper()
	for line := range p.lines {
		p.seen = append(p.seen, line)
	}
	err := p.wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode(), strings.Join(p.seen, "\n"), p.stderr.String()
}

// ok waits for the end and expects success.
func (p *process) ok() (stdout string) {
	p.t.Helper()
	code, stdout, stderr := p.end()
	if code != exitOK || stderr != "" {
		p.t.Fatalf("exit code %d, standard error: %s", code, stderr)
	}
	return stdout
}

// fails waits for the end and expects failure with one line of explanation.
func (p *process) fails(parts ...string) {
	p.t.Helper()
	code, _, stderr := p.end()
	if code != exitFailed || strings.Count(stderr, "\n") != 1 || !containsAll(stderr, append(parts, "verbena ping: ")) {
		p.t.Errorf("exit code %d, standard error %q; want one line with %q", code, stderr, parts)
	}
}

// privateAddr gives an address of this machine that nobody else has: a process holds an
// address alone. The range is not one that the library or the tool chooses from.
func privateAddr() netip.Addr {
	v := rand.Uint32()
	return netip.AddrFrom4([4]byte{127, byte(16 + v>>27), byte(v >> 8), 1 + byte(v)%250})
}

// serve starts a server on an address of its own.
func serve(t *testing.T, args ...string) (p *process, at netip.AddrPort) {
	t.Helper()
	p = start(t, nil, append([]string{"ping", "-listen", privateAddr().String() + ":0"}, args...)...)
	f := strings.Fields(p.expect("serving on "))
	at, err := netip.ParseAddrPort(f[2])
	if err != nil {
		t.Fatal(err)
	}
	return p, at
}

// ping starts a client.
func ping(t *testing.T, at netip.AddrPort, args ...string) *process {
	t.Helper()
	return start(t, nil, append(append([]string{"ping"}, args...), at.String())...)
}
