// Package model explores all schedules of a small concurrent program: real code, run by
// goroutines that stop before every step that others can see, and go on when the explorer
// says so. The program runs once for each schedule that leads to something new; a state
// that was seen before is not explored again.
//
// The code under test is not rewritten. It stops where a test can have it stopped: before
// a call of the provider (internal/scripted), before it takes a lock that tells, and
// where it sleeps on channels, which testing/synctest sees. What happens between two
// stops is one step. That is exact as long as what others can see is touched once a step,
// and no lock is asked for while somebody who has stopped holds it.
package model

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// Program is what is explored.
type Program struct {
	Name string
	// Start builds a world and starts its threads with Sched.Go. It is called once a run,
	// in a bubble of testing/synctest.
	Start func(s *Sched) World
	// Longest bounds the steps of a run; zero: 500.
	Longest int
}

// World is a run of a program. Its methods are called while nothing moves, except End.
type World interface {
	// Actions gives what the environment may do now.
	Actions() []Action
	// Reduce gives those of the steps (threads' first) that have to be tried here: all, or
	// a set none of whose steps depends on what the others can do before one of the set is
	// done (a persistent set).
	Reduce(steps []Action) []Action
	// State describes everything that what comes depends on, but not where threads are,
	// which is in at, one text for each thread.
	State(at []string) string
	// Check is called in each state. asleep means that no thread can take a step.
	Check(asleep bool) error
	// End is called after a run, wherever it stopped. Gates are open then. It ends the
	// threads, takes the world down, and says what is wrong with it.
	End(complete bool) error
}

// Action is a step. A name means the same whenever it comes. Op is what a thread is
// about to do, empty for the environment.
type Action struct {
	Name string
	Op   string
	Do   func()
}

// Result counts what was explored.
type Result struct {
	States int // different ones
	Runs   int
	Steps  int // of all runs
	Longer int // steps of the longest run
}

func (r Result) String() string {
	return fmt.Sprintf("%d states, %d runs, %d steps, the longest run %d", r.States, r.Runs, r.Steps, r.Longer)
}

// Failure is a schedule that led to something wrong.
type Failure struct {
	Err      error
	Schedule []string // names of steps
}

func (f *Failure) Error() string {
	return fmt.Sprintf("%v\nafter the schedule %s", f.Err, strings.Join(f.Schedule, ","))
}

func (f *Failure) Unwrap() error { return f.Err }

// Explore runs all schedules of a program, or all until the first failure.
func Explore(t *testing.T, p Program) (res Result, fail *Failure) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		x := explorer{p: p, seen: map[uint64]struct{}{}}
		fail = x.explore()
		res = x.res
		res.States = len(x.seen)
	})
	return res, fail
}

// Replay runs one schedule and goes on with the first step that is possible. each, if not
// nil, is called after each step with its name and the state.
func Replay(t *testing.T, p Program, schedule []string, each func(step, state string)) (fail *Failure) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		x := explorer{p: p, each: each}
		fail = x.replay(schedule)
	})
	return fail
}

type explorer struct {
	p    Program
	path []node
	seen map[uint64]struct{}
	res  Result
	each func(step, state string)
}

// node is a state on the path that is being explored.
type node struct {
	names []string
	next  int
	locs  []uint64 // where the threads are
}

var seed = maphash.MakeSeed()

func (x *explorer) explore() *Failure {
	for {
		if f := x.run(); f != nil {
			return f
		}
		for len(x.path) > 0 {
			n := &x.path[len(x.path)-1]
			if n.next++; n.next < len(n.names) {
				break
			}
			x.path = x.path[:len(x.path)-1]
		}
		if len(x.path) == 0 {
			return nil
		}
	}
}

// run follows the path, and then makes it longer until something known or the end.
func (x *explorer) run() *Failure {
	x.res.Runs++
	return x.play(func(s *Sched, depth int, names []string, state func() string) (pick int, err error) {
		if depth < len(x.path) {
			n := &x.path[depth]
			s.setPlaces(n.locs)
			if !slices.Equal(n.names, names) {
				return -1, fmt.Errorf("model: %s is not deterministic: at step %d the choices were %v, then %v", x.p.Name, depth, n.names, names)
			}
			return n.next, nil
		}
		key := maphash.String(seed, state())
		if _, ok := x.seen[key]; ok {
			return -1, nil
		}
		x.seen[key] = struct{}{}
		if len(names) == 0 {
			return -1, nil
		}
		x.path = append(x.path, node{names: names, locs: s.places()})
		return 0, nil
	})
}

func (x *explorer) replay(schedule []string) *Failure {
	return x.play(func(_ *Sched, depth int, names []string, state func() string) (int, error) {
		if x.each != nil {
			step := "(start)"
			if depth > 0 && depth <= len(schedule) {
				step = schedule[depth-1]
			}
			x.each(step, state())
		}
		if len(names) == 0 {
			return -1, nil
		}
		if depth >= len(schedule) {
			return 0, nil
		}
		i := slices.Index(names, schedule[depth])
		if i < 0 {
			return -1, fmt.Errorf("model: step %d of the schedule, %s, is not possible: there are %v", depth, schedule[depth], names)
		}
		return i, nil
	})
}

// play is one run; choose gives the index of the next step, or -1 to stop.
func (x *explorer) play(choose func(s *Sched, depth int, names []string, state func() string) (int, error)) (fail *Failure) {
	s := &Sched{}
	w := x.p.Start(s)
	var trace []string
	complete := false
	longest := x.p.Longest
	if longest == 0 {
		longest = 500
	}
	failed := func(err error) {
		if err != nil && fail == nil {
			fail = &Failure{err, slices.Clone(trace)}
		}
	}
	// What is known is done again without a look at it.
	if n := len(x.path); n > 1 && x.each == nil {
		s.look(false)
		for _, nd := range x.path[:n-1] {
			synctest.Wait()
			name := nd.names[nd.next]
			trace = append(trace, name)
			x.res.Steps++
			if !s.step(name) && !act(w, name) {
				failed(fmt.Errorf("model: %s is not deterministic: %s was possible, and is not", x.p.Name, name))
				break
			}
		}
		s.look(true)
	}
	for fail == nil {
		synctest.Wait()
		steps, asleep := s.steps(), false
		asleep = len(steps) == 0
		steps = append(steps, w.Actions()...)
		if err := w.Check(asleep); err != nil {
			failed(err)
			break
		}
		steps = w.Reduce(steps)
		names := make([]string, len(steps))
		for i := range steps {
			names[i] = steps[i].Name
		}
		i, err := choose(s, len(trace), names, func() string { return w.State(s.at()) })
		failed(err)
		complete = len(steps) == 0
		if i < 0 || fail != nil {
			break
		}
		if len(trace) >= longest {
			failed(fmt.Errorf("model: no end after %d steps", longest))
			break
		}
		trace = append(trace, names[i])
		x.res.Steps++
		steps[i].Do()
	}
	x.res.Longer = max(x.res.Longer, len(trace))
	s.release()
	failed(w.End(complete && fail == nil))
	synctest.Wait()
	if left := s.left(); len(left) > 0 {
		failed(fmt.Errorf("model: these do not end: %s", strings.Join(left, ", ")))
	}
	return fail
}

// Sched has the threads of a run.
type Sched struct {
	mu      sync.Mutex // threads reach their gates at the same time
	threads []*thread
	free    bool
	blind   bool // on a known path, where no state is needed
}

type thread struct {
	name    string
	ready   func(op string) bool
	gate    chan struct{}
	waiting bool // at a gate
	done    bool
	op      string
	note    string
	loc     uint64
}

const most = 4

// entries tell threads apart: each is a frame of one thread's stack.
var (
	entries = [most]func(func()){enter0, enter1, enter2, enter3}
	pcs     = [most]uintptr{entry(enter0), entry(enter1), entry(enter2), entry(enter3)}
)

//go:noinline
func enter0(f func()) { f() }

//go:noinline
func enter1(f func()) { f() }

//go:noinline
func enter2(f func()) { f() }

//go:noinline
func enter3(f func()) { f() }

// Go starts a thread. It stops before its first step. ready says whether it may go on
// from a gate (the name of an operation); nil: always. A thread must not be let go when
// it would ask for a lock that one who has stopped holds.
func (s *Sched) Go(name string, ready func(op string) bool, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.threads) == most {
		panic("model: too many threads")
	}
	i := len(s.threads)
	th := &thread{name: name, ready: ready, gate: make(chan struct{}, 1)}
	s.threads = append(s.threads, th)
	go func() {
		entries[i](func() {
			s.Gate("start", "")
			f()
		})
		s.mu.Lock()
		th.done = true
		s.mu.Unlock()
	}()
}

// Gate stops the thread that calls it. Calls of other goroutines pass. note tells apart
// what the place in the code does not; it becomes a part of the state.
func (s *Sched) Gate(op, note string) {
	s.mu.Lock()
	th, loc := s.only(), uint64(0)
	s.mu.Unlock()
	if th == nil {
		var stack [64]uintptr
		n := runtime.Callers(1, stack[:])
		i := owner(stack[:n])
		if i < 0 {
			return
		}
		s.mu.Lock()
		th, loc = s.threads[i], place(stack[:n])
		s.mu.Unlock()
	}
	s.mu.Lock()
	if s.free {
		s.mu.Unlock()
		return
	}
	th.op, th.note, th.loc, th.waiting = op, note, loc, true
	s.mu.Unlock()
	<-th.gate
}

// look says whether the places of threads matter.
func (s *Sched) look(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blind = !on
}

func (s *Sched) places() (locs []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, th := range s.threads {
		locs = append(locs, th.loc)
	}
	return locs
}

func (s *Sched) setPlaces(locs []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, th := range s.threads {
		th.loc = locs[i]
	}
}

// only gives the thread that moves, if it can be only one and its place in the code is
// not asked for, as looking at the stack takes most of the time. s.mu is held.
func (s *Sched) only() (th *thread) {
	if !s.blind {
		return nil
	}
	for _, x := range s.threads {
		if !x.waiting && !x.done {
			if th != nil {
				return nil
			}
			th = x
		}
	}
	return th
}

// Running reports whether gates are closed.
func (s *Sched) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.free
}

// owner finds the thread that a stack belongs to.
func owner(stack []uintptr) int {
	for k := len(stack) - 1; k >= 0 && k >= len(stack)-5; k-- {
		f := runtime.FuncForPC(stack[k] - 1)
		if f == nil {
			continue
		}
		if i := slices.Index(pcs[:], f.Entry()); i >= 0 {
			return i
		}
	}
	return -1
}

// place makes a number of a stack, the same for all threads.
func place(stack []uintptr) uint64 {
	h := uint64(14695981039346656037)
	for _, pc := range stack[:max(len(stack)-4, 0)] {
		h = (h ^ uint64(pc)) * 1099511628211
	}
	return h
}

// steps gives what threads can do, while nothing moves.
func (s *Sched) steps() []Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Action
	for _, th := range s.threads {
		if th.waiting && (th.ready == nil || th.ready(th.op)) {
			all = append(all, Action{th.name, th.op, func() {
				s.mu.Lock()
				th.waiting = false
				s.mu.Unlock()
				th.gate <- struct{}{}
			}})
		}
	}
	return all
}

// step has a thread take its step, if there is one of that name.
func (s *Sched) step(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, th := range s.threads {
		if th.name == name && th.waiting {
			th.waiting = false
			th.gate <- struct{}{}
			return true
		}
	}
	return false
}

// act has the environment take a step.
func act(w World, name string) bool {
	for _, a := range w.Actions() {
		if a.Name == name {
			a.Do()
			return true
		}
	}
	return false
}

// at says where threads are.
func (s *Sched) at() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := make([]string, len(s.threads))
	for i, th := range s.threads {
		switch {
		case th.done:
			at[i] = "done"
		case th.waiting:
			at[i] = fmt.Sprintf("%s %s %x", th.op, th.note, th.loc)
		default:
			at[i] = fmt.Sprintf("asleep after %s %s %x", th.op, th.note, th.loc)
		}
	}
	return at
}

// release opens all gates for good.
func (s *Sched) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = true
	for _, th := range s.threads {
		if th.waiting {
			th.waiting = false
			th.gate <- struct{}{}
		}
	}
}

func (s *Sched) left() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, th := range s.threads {
		if !th.done {
			names = append(names, th.name)
		}
	}
	return names
}
