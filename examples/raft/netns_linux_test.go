package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// hosts makes n network namespaces that a switch, in one more, connects. They are as
// machines: each has one address, and nothing of this machine's network changes. They go
// when the test ends.
func hosts(t *testing.T, n int) (names, addrs []string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	prefix := fmt.Sprintf("verbena-raft-%d", os.Getpid())
	sw := prefix + "-switch"
	if err := addNamespace(t, sw); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("CI runs this test: %v", err)
		}
		t.Skipf("no network namespaces here: %v", err)
	}
	must := func(args ...string) {
		t.Helper()
		if err := ip(args...); err != nil {
			t.Fatal(err)
		}
	}
	must("-n", sw, "link", "add", "switch", "type", "bridge")
	must("-n", sw, "link", "set", "switch", "up")
	for i := range n {
		name, port := fmt.Sprintf("%s-%d", prefix, i+1), fmt.Sprintf("port%d", i+1)
		if err := addNamespace(t, name); err != nil {
			t.Fatal(err)
		}
		addr := fmt.Sprintf("10.111.7.%d", i+1)
		must("link", "add", "name", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", sw)
		must("-n", sw, "link", "set", port, "master", "switch")
		must("-n", sw, "link", "set", port, "up")
		must("-n", name, "addr", "add", addr+"/24", "dev", "eth0")
		must("-n", name, "link", "set", "eth0", "up")
		must("-n", name, "link", "set", "lo", "up")
		names, addrs = append(names, name), append(addrs, addr)
	}
	return names, addrs
}

func addNamespace(t *testing.T, name string) error {
	t.Helper()
	if err := ip("netns", "add", name); err != nil {
		return err
	}
	t.Cleanup(func() {
		if err := ip("netns", "del", name); err != nil {
			t.Error(err)
		}
	})
	return nil
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
