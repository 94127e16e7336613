package lab_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// Faults are caused on a network of their own, as they would end what other tests do:
// fault0 with the kernel's device faultrxe here, and fault1 at its other end in a network
// namespace that plays another host.
const (
	faultHere  = "10.9.8.1"
	faultThere = "10.9.8.2"
	faultNS    = "fault"
	faultRXE   = "faultrxe"
)

// faultNet makes the network. What is left of it in the end, is removed.
func faultNet(t *testing.T) {
	t.Helper()
	inGuest(t)
	sh(t, "ip netns add "+faultNS)
	t.Cleanup(func() { sh(t, "ip netns del "+faultNS) })
	sh(t, "ip link add fault0 type veth peer name fault1 netns "+faultNS)
	t.Cleanup(func() { exec.Command("ip", "link", "del", "fault0").Run() })
	sh(t, "ip link set fault0 up && ip addr add "+faultHere+"/24 dev fault0")
	sh(t, "ip -n "+faultNS+" link set lo up && ip -n "+faultNS+" link set fault1 up && ip -n "+faultNS+" addr add "+faultThere+"/24 dev fault1")
	faultDevice(t)
}

// faultDevice makes the kernel's device.
func faultDevice(t *testing.T) {
	t.Helper()
	sh(t, "rdma link add "+faultRXE+" type rxe netdev fault0")
	t.Cleanup(func() { exec.Command("rdma", "link", "del", faultRXE).Run() })
}

func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
}

// faultProcess is a process with orders.
type faultProcess struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	stop  func()
	lines chan string
	ended chan struct{}
	once  sync.Once
	err   error
	seen  []string
}

// faultStart starts one. wrap are programs before it, such as ip netns exec.
func faultStart(t *testing.T, name string, o faultOrders, env string, wrap ...string) *faultProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	orders, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	args := append(wrap, self, "-test.run=^TestFaultRole$", "-test.timeout=10m")
	p := &faultProcess{t: t, name: name, cmd: exec.Command(args[0], args[1:]...), lines: make(chan string, 1000), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), faultEnv+"="+string(orders), env)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stop = func() { in.Close() }
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	go func() {
		defer close(p.ended)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- fmt.Sprintf("%7.3f %s", time.Since(start).Seconds(), s.Text())
		}
	}()
	t.Cleanup(func() {
		p.kill()
		for l := range p.lines {
			p.seen = append(p.seen, l)
		}
		p.wait()
		if t.Failed() || testing.Verbose() {
			t.Logf("%s:\n%s", p.name, strings.Join(p.seen, "\n"))
		}
	})
	return p
}

func (p *faultProcess) kill() { p.cmd.Process.Kill() }

func (p *faultProcess) wait() error {
	p.once.Do(func() { p.err = p.cmd.Wait() })
	return p.err
}

// expect reads lines until one has the text, for a time; it gives what follows the text.
func (p *faultProcess) expect(limit time.Duration, text string) string {
	p.t.Helper()
	said := p.until(limit, text)
	_, rest, _ := strings.Cut(said[strings.LastIndex(said, "fault: "):], text)
	return strings.TrimSuffix(rest, "\n")
}

// until reads lines until one has the text, for a time, and gives them all.
func (p *faultProcess) until(limit time.Duration, text string) string {
	p.t.Helper()
	from := len(p.seen)
	late := time.After(limit)
	for {
		select {
		case l, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("%s: ended without %q", p.name, text)
			}
			p.seen = append(p.seen, l)
			if strings.Contains(l, "fault: "+text) {
				return strings.Join(p.seen[from:], "\n") + "\n"
			}
		case <-late:
			p.t.Fatalf("%s: no %q within %v", p.name, text, limit)
		}
	}
}

// faultUse is what a process has.
type faultUse struct{ objects, fds, threads, kib int }

func (p *faultProcess) used(limit time.Duration) (u faultUse) {
	p.t.Helper()
	rest := p.expect(limit, "used ")
	if _, err := fmt.Sscan(rest, &u.objects, &u.fds, &u.threads, &u.kib); err != nil {
		p.t.Fatalf("%q: %v", rest, err)
	}
	return u
}

// grown fails the test if a process has more than it had.
func (p *faultProcess) grown(before, after faultUse) {
	p.t.Helper()
	if after.objects > before.objects || after.fds > before.fds || after.threads > before.threads+3 || after.kib > before.kib+6<<10 {
		p.t.Errorf("%s: a leak: %+v, and later %+v", p.name, before, after)
	}
}
