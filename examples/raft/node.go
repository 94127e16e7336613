package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
)

// node is a member of the cluster.
type node struct {
	store *store
	logs  *boltdb.BoltStore
	trans *raft.NetworkTransport
	raft  *raft.Raft
}

// dialTimeout bounds a connection to another node, and an answer of it.
const dialTimeout = 5 * time.Second

// open starts the member with this id of the cluster, with its state in a directory.
func open(id, dir string, peers []raft.Server, logs io.Writer) (*node, error) {
	n := &node{store: &store{values: map[string]string{}}}
	if err := n.start(id, dir, peers, logs); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) start(id, dir string, peers []raft.Server, logs io.Writer) error {
	var self raft.ServerAddress
	for _, p := range peers {
		if p.ID == raft.ServerID(id) {
			self = p.Address
		}
	}
	if self == "" {
		return fmt.Errorf("%q is none of the peers", id)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	cfg := raft.DefaultConfig()
	cfg.LocalID = raft.ServerID(id)
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Name: id, Level: hclog.Info, Output: logs})
	var err error
	if n.logs, err = boltdb.NewBoltStore(filepath.Join(dir, "log")); err != nil {
		return err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, cfg.Logger)
	if err != nil {
		return err
	}
	l, err := listen(string(self))
	if err != nil {
		return err
	}
	n.trans = raft.NewNetworkTransportWithLogger(l, 3, dialTimeout, cfg.Logger)
	known, err := raft.HasExistingState(n.logs, n.logs, snapshots)
	if err != nil {
		return err
	}
	if !known { // all nodes begin with the same list
		if err := raft.BootstrapCluster(cfg, n.logs, n.logs, snapshots, n.trans, raft.Configuration{Servers: peers}); err != nil {
			return err
		}
	}
	n.raft, err = raft.NewRaft(cfg, n.store, n.logs, n.logs, snapshots, n.trans)
	return err
}

// close ends the node; what it has acknowledged stays in its directory.
func (n *node) close() error {
	var errs []error
	if n.raft != nil {
		errs = append(errs, n.raft.Shutdown().Error())
	}
	if n.trans != nil {
		n.trans.CloseStreams()
		errs = append(errs, n.trans.Close())
	}
	if n.logs != nil {
		errs = append(errs, n.logs.Close())
	}
	return errors.Join(errs...)
}

// set changes the store of the cluster. Without an error a majority has the change on disk.
func (n *node) set(key, value string) error {
	b, err := json.Marshal(entry{key, value})
	if err != nil {
		return err
	}
	f := n.raft.Apply(b, 10*time.Second)
	if err := f.Error(); err != nil {
		_, leader := n.raft.LeaderWithID()
		return fmt.Errorf("%w (the leader is %q)", err, leader)
	}
	if err, ok := f.Response().(error); ok {
		return err
	}
	return nil
}

// record is an entry of the log.
type record struct {
	Index, Term uint64
	Type        string
	Data        string
}

// committed gives the log as far as this node knows it to be settled.
func (n *node) committed() ([]record, error) {
	first, err := n.logs.FirstIndex()
	if err != nil {
		return nil, err
	}
	var all []record
	for i := max(first, 1); i <= n.raft.CommitIndex(); i++ {
		var l raft.Log
		if err := n.logs.GetLog(i, &l); err != nil {
			return nil, err
		}
		data := string(l.Data)
		if !utf8.ValidString(data) {
			data = strconv.Quote(data) // JSON has no bytes
		}
		all = append(all, record{l.Index, l.Term, l.Type.String(), data})
	}
	return all, nil
}

// parsePeers takes id=host:port,id=host:port…
func parsePeers(s string) ([]raft.Server, error) {
	var peers []raft.Server
	for one := range strings.SplitSeq(s, ",") {
		id, addr, ok := strings.Cut(one, "=")
		if !ok || id == "" || addr == "" {
			return nil, fmt.Errorf("-peers: %q is not ID=HOST:PORT", one)
		}
		peers = append(peers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(addr)})
	}
	return peers, nil
}
