package event

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Backend is the system call that a Loop waits in. All give the same results.
type Backend uint8

const (
	// Epoll waits in Go's poller, on an epoll descriptor: a loop that is idle holds no
	// thread, and a turn costs what the sources that have something cost, however many
	// there are.
	Epoll Backend = iota
	// Poll waits in poll(2). A turn looks at all descriptors, and the goroutine holds a
	// thread while it waits.
	Poll
	// Select waits in select(2). It is like Poll, but has room for descriptors below
	// 1024 only; others are refused when they are added, with a *DescriptorLimitError.
	Select
)

// String gives "epoll", "poll" or "select".
func (b Backend) String() string {
	switch b {
	case Epoll:
		return "epoll"
	case Poll:
		return "poll"
	case Select:
		return "select"
	}
	return "Backend(" + strconv.Itoa(int(b)) + ")"
}

// Spin is verbs.Spin: how long a Loop looks for completions before it arms and sleeps.
// What an adaptive one learns, it learns for each source.
type Spin = verbs.Spin

// Config of a Loop; nil and the zero value mean epoll and no spinning.
type Config struct {
	Backend Backend
	Spin    Spin
	// Batch bounds how much of one source (completions, events, calls) is handled in a
	// turn, before the others have their turn. Zero: 64.
	Batch int
	// Recheck is how long a CQ may be silent before the loop looks whether it has
	// completions without an event, see Stats.Rescued. Zero: 1 s; negative: never.
	Recheck time.Duration
}

const (
	defaultBatch   = 64
	defaultRecheck = time.Second
)

// check gives the configuration without zeroes.
func (c *Config) check() (Config, error) {
	if c == nil {
		c = &Config{}
	}
	cfg := *c
	switch {
	case cfg.Backend > Select:
		return cfg, invalid("new loop", "", "%v is not one of Epoll, Poll and Select", cfg.Backend)
	case cfg.Batch < 0:
		return cfg, invalid("new loop", "", "Batch is %d", cfg.Batch)
	case cfg.Batch == 0:
		cfg.Batch = defaultBatch
	}
	if cfg.Recheck == 0 {
		cfg.Recheck = defaultRecheck
	}
	return cfg, nil
}

// Stats counts what a Loop has done since New.
type Stats struct {
	Turns    uint64 // turns, whatever was in them
	Calls    uint64 // calls of handlers
	Sleeps   uint64 // times that it went to sleep
	Wakeups  uint64 // of those: it was woken by something
	Empty    uint64 // of those: no handler was called; an event is a hint
	Spins    uint64 // times that it looked for a while before sleeping
	SpinHits uint64 // of those: it found something
	// Rescued counts completions that no event had told of, and that only the re-check
	// found: a lost wake-up, which kernels permit themselves when they are short of memory. It
	// should be zero.
	Rescued uint64
}

type counters struct {
	turns, calls, sleeps, wakeups, empty, spins, spinHits, rescued atomic.Uint64
}

// Stats gives the counters. They may be read at any time, by any goroutine.
func (l *Loop) Stats() Stats {
	if l == nil {
		return Stats{}
	}
	s := &l.stats
	return Stats{
		Turns: s.turns.Load(), Calls: s.calls.Load(), Sleeps: s.sleeps.Load(), Wakeups: s.wakeups.Load(), Empty: s.empty.Load(),
		Spins: s.spins.Load(), SpinHits: s.spinHits.Load(), Rescued: s.rescued.Load(),
	}
}

// invalid is a wrong argument.
func invalid(op, source, format string, args ...any) error {
	return &OpError{Op: op, Source: source, Err: fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), syscall.EINVAL)}
}
