package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"sync"

	"github.com/hashicorp/raft"
)

// store is what the cluster agrees on: values by key.
type store struct {
	mu     sync.Mutex
	values map[string]string
}

// entry is a change of the store, as it is in the log.
type entry struct{ Key, Value string }

// Apply makes a change that a majority has in its log.
func (s *store) Apply(l *raft.Log) any {
	var e entry
	if err := json.Unmarshal(l.Data, &e); err != nil {
		return fmt.Errorf("entry %d: %w", l.Index, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[e.Key] = e.Value
	return nil
}

func (s *store) get(key string) (value string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok = s.values[key]
	return value, ok
}

// Snapshot gives a copy that can be written while the store changes.
func (s *store) Snapshot() (raft.FSMSnapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return snapshot(maps.Clone(s.values)), nil
}

// Restore takes the place of everything by what a snapshot wrote.
func (s *store) Restore(r io.ReadCloser) error {
	defer r.Close()
	values := map[string]string{}
	if err := json.NewDecoder(r).Decode(&values); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = values
	return nil
}

type snapshot map[string]string

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := json.NewEncoder(sink).Encode(s); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

func (snapshot) Release() {}
