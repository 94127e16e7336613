package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestCluster: three nodes in one process agree, and leave nothing behind at their end.
func TestCluster(t *testing.T) {
	rdmatest.CheckLeaks(t)
	const list = "a=127.7.5.1:7000,b=127.7.5.2:7000,c=127.7.5.3:7000"
	peers, err := parsePeers(list)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var nodes []*node
	for _, p := range peers {
		n, err := open(string(p.ID), filepath.Join(dir, string(p.ID)), peers, t.Output())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := n.close(); err != nil {
				t.Error(err)
			}
		}()
		nodes = append(nodes, n)
	}
	end := time.Now().Add(2 * time.Minute)
	for i := range 50 {
		command := fmt.Sprintf("set key:%d the value %d", i, i)
		for !slices.ContainsFunc(nodes, func(n *node) bool { return n.command(command) == "ok" }) {
			if time.Now().After(end) {
				t.Fatalf("%s: nobody does it", command)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, n := range nodes {
		for n.command("get key:49") != "value the value 49" {
			if time.Now().After(end) {
				t.Fatalf("a node does not get the last entry: %s", n.command("state"))
			}
			time.Sleep(20 * time.Millisecond)
		}
		if got := n.command("get key:7"); got != "value the value 7" {
			t.Error(got)
		}
		var log []record
		if err := json.Unmarshal([]byte(n.command("log")), &log); err != nil || len(log) < 50 {
			t.Errorf("%d entries, %v", len(log), err)
		}
	}
	for _, k := range []string{"", "set x", "put x y"} {
		if got := nodes[0].command(k); !strings.HasPrefix(got, "error: ") {
			t.Errorf("%q: %s", k, got)
		}
	}
	if got := nodes[0].command("get nothing"); got != "none" {
		t.Error(got)
	}
}

func TestPeers(t *testing.T) {
	for _, s := range []string{"", "a", "=x:1", "a=", "a=h:1,"} {
		if p, err := parsePeers(s); err == nil {
			t.Errorf("%q: %v", s, p)
		}
	}
}
