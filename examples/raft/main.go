// Raft is a node of a small replicated store, hashicorp/raft over RDMA. What differs from
// a program on TCP is layer.go: a listener and a dialer. Each node is a process with an
// address of its own:
//
//	P=a=127.0.0.11:7000,b=127.0.0.12:7000,c=127.0.0.13:7000
//	go run ./raft -id a -peers $P -dir /tmp/a
//	go run ./raft -id b -peers $P -dir /tmp/b
//	go run ./raft -id c -peers $P -dir /tmp/c
//
// It takes commands from its standard input, one a line, until that ends:
//
//	set KEY VALUE    at the leader; "ok" when a majority has it
//	get KEY          what this node has
//	state            whether it leads, or who does
//	log              the log as far as it is settled, as JSON
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		log.Fatal(err)
	}
}

func run(args []string, in io.Reader, out, logs io.Writer) error {
	fs := flag.NewFlagSet("raft", flag.ExitOnError)
	id := fs.String("id", "a", "name of this node")
	list := fs.String("peers", "", "all nodes, this one too: ID=HOST:PORT,…")
	dir := fs.String("dir", "", "directory for the state of this node")
	fs.Parse(args)
	if *list == "" || *dir == "" {
		return errors.New("say who the nodes are (-peers) and where the state of this one is kept (-dir)")
	}
	peers, err := parsePeers(*list)
	if err != nil {
		return err
	}
	n, err := open(*id, *dir, peers, logs)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s is ready on %s\n", *id, n.trans.LocalAddr())
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fmt.Fprintln(out, n.command(lines.Text()))
	}
	return errors.Join(lines.Err(), n.close())
}

// command does what a line says and gives the answer, one line.
func (n *node) command(line string) string {
	what, rest, _ := strings.Cut(line, " ")
	switch what {
	case "set":
		key, value, ok := strings.Cut(rest, " ")
		if !ok {
			return "error: set KEY VALUE"
		}
		if err := n.set(key, value); err != nil {
			return "error: " + err.Error()
		}
		return "ok"
	case "get":
		value, ok := n.store.get(rest)
		if !ok {
			return "none"
		}
		return "value " + value
	case "state":
		_, leader := n.raft.LeaderWithID()
		return fmt.Sprintf("%v, term %d, the leader is %q", n.raft.State(), n.raft.CurrentTerm(), leader)
	case "log":
		all, err := n.committed()
		if err != nil {
			return "error: " + err.Error()
		}
		b, err := json.Marshal(all)
		if err != nil {
			return "error: " + err.Error()
		}
		return string(b)
	}
	return "error: the commands are set KEY VALUE, get KEY, state, log"
}
