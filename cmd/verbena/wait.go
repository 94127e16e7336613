package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
)

// RDMA has three sources of events: the connection manager's channel, completion
// queues, and the asynchronous events of devices. A waiter waits for all of them in one
// of the ways that a program has, and hands out what comes:
//
//	block  a goroutine for each source, waiting in Event or Wait
//	poll   one loop around poll(2) on the sources' descriptors
//	epoll  one loop around epoll
//	spin   one loop that never sleeps
//
// With block, handlers run in several goroutines, else in that of until.
type waiter interface {
	// queue makes a completion queue of n entries and gives its completions to f, in
	// order. It ends when f gives false, with an error of the queue, with stop, or with
	// close; then done is called, once.
	queue(d *verbs.Device, n int, f func([]verbs.WC) bool, done func(error)) (*queue, error)

	// until waits for cond, which may become true only through a handler. A zero
	// deadline is none; a deadline that has passed gives os.ErrDeadlineExceeded. If ctx
	// ends it gives ctx's error.
	until(ctx context.Context, deadline time.Time, cond func() bool) error

	// close ends everything that queue began and waits for it.
	close()
}

// queue is a completion queue of a waiter.
type queue struct {
	cq   *verbs.CQ
	stop func()
}

// handlers get what no queue is for.
type handlers struct {
	cm    func(cm.Event)
	async func(verbs.AsyncEvent)
}

// waitModes are the ways to wait; those that the system lacks give an error.
var waitModes = map[string]func(context.Context, *cm.EventChannel, handlers) (waiter, error){
	"block": newBlockWaiter,
	"spin": func(_ context.Context, ch *cm.EventChannel, h handlers) (waiter, error) {
		return newLoop(ch, h, &spinner{}), nil
	},
	"poll":  newPollWaiter,
	"epoll": newEpollWaiter,
}

func waitModeNames() string {
	names := make([]string, 0, len(waitModes))
	for n := range waitModes {
		names = append(names, n)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func checkWaitMode(mode string) error {
	if waitModes[mode] == nil {
		return &usageError{text: fmt.Sprintf("-wait %s: there are %s", mode, waitModeNames())}
	}
	return nil
}

// batchSize is how many completions are fetched at once.
const batchSize = 16

// spinner is the sleeper of a loop that does not sleep.
type spinner struct{ turns uint }

// Spinning is for machines with processors to spare. On others whoever spins is what the
// peer waits for; after a few microseconds without success it steps aside.
const yieldTurns = 64

func (s *spinner) sleep(time.Duration) error {
	runtime.Gosched()
	if s.turns++; s.turns%yieldTurns == 0 {
		unix.Yield()
	}
	return nil
}

func (*spinner) add(source) error { return nil }
func (*spinner) wake()            {}
func (*spinner) close()           {}
