package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is far more than anything takes; it only ends a test that hangs.
const patience = 2 * time.Minute

// cluster is three nodes, each a process in a network namespace.
type cluster struct {
	t          *testing.T
	namespaces []string
	peers      string
	dirs       []string
	nodes      []*process
}

// TestKillLeader: entries are written, the leader is killed in the middle of a write, and
// nothing that was acknowledged is lost: not on the survivors, which elect another leader
// and go on, and not on the killed one, which comes back. In the end all logs are equal.
func TestKillLeader(t *testing.T) {
	c := newCluster(t)
	acked := map[string]bool{}
	for i := range 100 {
		if err := c.write(fmt.Sprintf("before:%d", i), acked); err != nil {
			t.Fatal(err)
		}
	}
	leader := c.killWriting(acked)
	t.Logf("node %d is killed after %d acknowledged entries", leader, len(acked))

	next := c.leader()
	c.agree(acked)
	t.Logf("node %d leads; nothing is lost", next)
	for i := range 100 {
		key := fmt.Sprintf("after:%d", i)
		if err := c.write(key, acked); err != nil {
			t.Fatal(err)
		}
	}
	c.agree(acked)

	c.start(leader)
	logs := c.agree(acked)
	for i, p := range c.nodes {
		for key := range acked {
			if got := c.must(p, "get "+key); got != "value value of "+key {
				t.Errorf("node %d: get %s: %s", i, key, got)
			}
		}
	}
	t.Logf("three equal logs of %d entries, %d of them acknowledged writes", len(logs), len(acked))
	for i, p := range c.nodes {
		if err := p.end(); err != nil {
			t.Errorf("node %d: %v", i, err)
		}
	}
}

// killWriting kills the leader while a writer is at work, and gives its number.
func (c *cluster) killWriting(acked map[string]bool) (leader int) {
	c.t.Helper()
	for try := range 20 {
		leader = c.leader()
		p := c.nodes[leader]
		few, done := make(chan struct{}), make(chan map[string]bool, 1)
		go func() {
			mine := map[string]bool{}
			for i := 0; ; i++ {
				key := fmt.Sprintf("during:%d:%d", try, i)
				if answer, err := p.ask("set " + key + " value of " + key); err != nil || answer != "ok" {
					done <- mine
					return
				}
				mine[key] = true
				if i == 20 {
					close(few)
				}
			}
		}()
		killed := false
		select {
		case <-few:
			p.kill()
			c.nodes[leader] = nil
			killed = true
			maps.Copy(acked, <-done)
		case mine := <-done: // on a busy machine a leader may lose its office without a kill
			maps.Copy(acked, mine)
		}
		if killed {
			return leader
		}
	}
	c.t.Fatal("no leader stays in office for 20 writes")
	return 0
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	names, addrs := hosts(t, 3)
	c := &cluster{t: t, namespaces: names, nodes: make([]*process, len(names))}
	var peers []string
	for i, a := range addrs {
		peers = append(peers, fmt.Sprintf("n%d=%s:7000", i, a))
		c.dirs = append(c.dirs, filepath.Join(t.TempDir(), fmt.Sprint(i)))
	}
	c.peers = strings.Join(peers, ",")
	for i := range c.nodes {
		c.start(i)
	}
	return c
}

// start starts a node, which goes on with what is in its directory.
func (c *cluster) start(i int) {
	c.t.Helper()
	c.nodes[i] = startProcess(c.t, c.namespaces[i], "-id", fmt.Sprintf("n%d", i), "-peers", c.peers, "-dir", c.dirs[i])
}

// poll tries something until it is done, for a bounded time.
func (c *cluster) poll(what string, done func() bool) {
	c.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// leader waits until a node leads, and gives its number.
func (c *cluster) leader() (leader int) {
	c.t.Helper()
	c.poll("a leader", func() bool {
		for i, p := range c.nodes {
			if p != nil && strings.HasPrefix(c.must(p, "state"), "Leader") {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// write writes an entry until it is acknowledged, by whoever leads.
func (c *cluster) write(key string, acked map[string]bool) error {
	for end := time.Now().Add(patience); ; {
		answer := c.must(c.nodes[c.leader()], "set "+key+" value of "+key)
		if answer == "ok" {
			acked[key] = true
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: %s", key, answer)
		}
	}
}

// agree waits until the logs of all living nodes are equal and have all that was
// acknowledged. Meanwhile no two may contradict one another.
func (c *cluster) agree(acked map[string]bool) (all []record) {
	c.t.Helper()
	c.poll("equal logs with everything acknowledged", func() bool {
		var logs [][]record
		for _, p := range c.nodes {
			if p == nil {
				continue
			}
			var l []record
			text := c.must(p, "log")
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				c.t.Fatalf("log: %v: %s", err, text)
			}
			logs = append(logs, l)
		}
		equal := true
		for _, l := range logs[1:] {
			n := min(len(l), len(logs[0]))
			if !slices.Equal(l[:n], logs[0][:n]) {
				c.t.Fatalf("the logs contradict one another:\n%v\n%v", l[:n], logs[0][:n])
			}
			equal = equal && len(l) == len(logs[0])
		}
		all = logs[0]
		return equal && missing(all, acked) == 0
	})
	return all
}

// missing counts what was acknowledged and is not in a log.
func missing(log []record, acked map[string]bool) int {
	has := map[string]bool{}
	for _, r := range log {
		var e entry
		if json.Unmarshal([]byte(r.Data), &e) == nil && e.Value == "value of "+e.Key {
			has[e.Key] = true
		}
	}
	n := 0
	for key := range acked {
		if !has[key] {
			n++
		}
	}
	return n
}

func (c *cluster) must(p *process, command string) string {
	c.t.Helper()
	answer, err := p.ask(command)
	if err != nil {
		c.t.Fatalf("%s: %v", command, err)
	}
	return answer
}

// process is a node.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer

	mu  sync.Mutex
	in  io.WriteCloser
	out *bufio.Reader
}

const nodeEnv = "RAFT_TEST_NODE"

// TestMain makes the test program a node if it is started as one.
func TestMain(m *testing.M) {
	if os.Getenv(nodeEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func startProcess(t *testing.T, namespace string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command("ip", append([]string{"netns", "exec", namespace, self}, args...)...)}
	p.cmd.Env = append(os.Environ(), nodeEnv+"=1")
	p.cmd.Stderr = &p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(2*patience, func() { p.cmd.Process.Kill() })
	t.Cleanup(func() {
		late.Stop()
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args, " "), p.stderr.String())
		}
	})
	if line, err := p.out.ReadString('\n'); err != nil || !strings.Contains(line, "is ready") {
		t.Fatalf("the node says %q, %v", line, err)
	}
	return p
}

var errEnded = errors.New("the process has ended")

// ask has a command done.
func (p *process) ask(command string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		return "", errEnded
	}
	answer, err := p.out.ReadString('\n')
	if err != nil {
		return "", errEnded
	}
	return strings.TrimSuffix(answer, "\n"), nil
}

// kill is kill -9. (ip netns exec becomes the node, it does not start it.)
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// end lets the node end by itself.
func (p *process) end() error {
	p.in.Close()
	if _, err := io.ReadAll(p.out); err != nil {
		return err
	}
	return p.cmd.Wait()
}
