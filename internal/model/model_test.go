package model_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/verbena-rdma/verbena/internal/model"
)

// counter is the textbook program: two threads read a number, stop, and write it plus one.
type counter struct {
	s    *model.Sched
	mu   sync.Mutex
	n    atomic.Int64 // once a run is over, its threads go on at the same time
	lock bool         // they lock before they read
}

func start(lock bool) func(s *model.Sched) model.World {
	return func(s *model.Sched) model.World {
		c := &counter{s: s, lock: lock}
		for _, name := range []string{"a", "b"} {
			s.Go(name, c.ready, func() {
				if c.lock {
					s.Gate("lock", "")
					c.mu.Lock()
					defer c.mu.Unlock()
				}
				s.Gate("read", "")
				n := c.n.Load()
				s.Gate("write", fmt.Sprint(n))
				c.n.Store(n + 1)
			})
		}
		return c
	}
}

func (c *counter) ready(op string) bool {
	if op != "lock" {
		return true
	}
	if !c.mu.TryLock() {
		return false
	}
	c.mu.Unlock()
	return true
}

func (c *counter) Actions() []model.Action                    { return nil }
func (c *counter) Reduce(steps []model.Action) []model.Action { return steps }
func (c *counter) State(at []string) string                   { return fmt.Sprint(c.n.Load(), at) }
func (c *counter) Check(asleep bool) error                    { return nil }

func (c *counter) End(complete bool) error {
	if complete && c.n.Load() != 2 {
		return errors.New("an update is lost")
	}
	return nil
}

func TestExplore(t *testing.T) {
	t.Parallel()
	res, fail := model.Explore(t, model.Program{Name: "locked", Start: start(true)})
	if fail != nil {
		t.Error(fail)
	}
	t.Log(res)
	p := model.Program{Name: "open", Start: start(false)}
	_, fail = model.Explore(t, p)
	if fail == nil || !strings.Contains(fail.Error(), "lost") {
		t.Fatal("the lost update is not found:", fail)
	}
	if again := model.Replay(t, p, fail.Schedule, nil); again == nil || again.Err.Error() != fail.Err.Error() {
		t.Error("the schedule shows", again)
	}
	if f := model.Replay(t, p, []string{"a", "c"}, nil); f == nil || !strings.Contains(f.Error(), "not possible") {
		t.Error("a schedule that cannot be:", f)
	}
}

// TestExploreAll: two threads of three steps each, none of which matters to the other, have
// twenty orders, and sixteen states.
func TestExploreAll(t *testing.T) {
	t.Parallel()
	for _, merge := range []bool{true, false} {
		orders := map[string]bool{}
		res, fail := model.Explore(t, model.Program{Name: "free", Start: func(s *model.Sched) model.World {
			w := &free{orders: orders, merge: merge}
			for _, name := range []string{"a", "b"} {
				s.Go(name, nil, func() {
					for i := range 3 {
						if i > 0 {
							s.Gate("step", fmt.Sprint(i))
						}
						w.mu.Lock()
						w.order += name
						w.mu.Unlock()
					}
				})
			}
			return w
		}})
		if fail != nil {
			t.Fatal(fail)
		}
		if merge && res.States != 16 || !merge && len(orders) != 20 {
			t.Errorf("merge %v: %v, %d orders", merge, res, len(orders))
		}
	}
}

type free struct {
	mu     sync.Mutex
	order  string
	orders map[string]bool
	merge  bool
}

func (w *free) Actions() []model.Action                    { return nil }
func (w *free) Reduce(steps []model.Action) []model.Action { return steps }
func (w *free) Check(asleep bool) error                    { return nil }

func (w *free) State(at []string) string {
	if w.merge {
		return fmt.Sprint(at)
	}
	return w.order
}

func (w *free) End(complete bool) error {
	if complete {
		w.orders[w.order] = true
	}
	return nil
}
