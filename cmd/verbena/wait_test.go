package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// waiting is a waiter with what it waits for.
type waiting struct {
	waiter
	ch     *cm.EventChannel
	mu     sync.Mutex
	events []cm.Event
}

func (w *waiting) has(t cm.EventType) func() bool {
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, ev := range w.events {
			if ev.Type == t {
				return true
			}
		}
		return false
	}
}

// eachMode runs a test for every way to wait; what it needs is closed afterwards.
func eachMode(t *testing.T, f func(t *testing.T, ctx context.Context, stop func(), w *waiting)) {
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p, _, err := rdma.Provider(rdma.Auto)
			if err != nil {
				t.Fatal(err)
			}
			w := &waiting{}
			if w.ch, err = cm.NewEventChannel(p); err != nil {
				t.Fatal(err)
			}
			defer w.ch.Close()
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			w.waiter, err = waitModes[mode](ctx, w.ch, handlers{
				cm: func(ev cm.Event) {
					w.mu.Lock()
					w.events = append(w.events, ev)
					w.mu.Unlock()
				},
				async: func(verbs.AsyncEvent) {},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer w.close()
			f(t, ctx, stop, w)
		})
	}
}

func never() bool { return false }

// resolved makes an id whose device is known.
func resolved(t *testing.T, ctx context.Context, w *waiting) *cm.ID {
	t.Helper()
	id, err := w.ch.NewID(ib.PortSpaceTCP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { id.Close() })
	if err := id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:9"), patience); err != nil {
		t.Fatal(err)
	}
	if err := w.until(ctx, time.Now().Add(patience), w.has(cm.AddrResolved)); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestUntil(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, ctx context.Context, stop func(), w *waiting) {
		// What holds already needs no waiting, whatever else is the matter.
		over := time.Unix(1, 0)
		if err := w.until(ctx, over, func() bool { return true }); err != nil {
			t.Error(err)
		}
		for _, deadline := range []time.Time{over, time.Now().Add(time.Millisecond)} {
			if err := w.until(ctx, deadline, never); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
		}
		resolved(t, ctx, w)
		go stop()
		if err := w.until(ctx, time.Time{}, never); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		// Goodbyes are still possible.
		if err := w.until(context.Background(), time.Now().Add(time.Millisecond), never); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestQueueEnds(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, ctx context.Context, stop func(), w *waiting) {
		dev := resolved(t, ctx, w).Device()
		var mu sync.Mutex
		ended := map[string]int{}
		queue := func(name string) *queue {
			q, err := w.queue(dev, 8, func([]verbs.WC) bool { return true }, func(err error) {
				mu.Lock()
				ended[name]++
				if name != "broken" && err != nil {
					t.Errorf("%s: %v", name, err)
				}
				mu.Unlock()
			})
			if err != nil {
				t.Fatal(err)
			}
			return q
		}
		has := func(name string) func() bool {
			return func() bool {
				mu.Lock()
				defer mu.Unlock()
				return ended[name] > 0
			}
		}
		stopped := queue("stopped")
		stopped.stop()
		if err := w.until(ctx, time.Now().Add(patience), has("stopped")); err != nil {
			t.Error(err)
		}
		stopped.stop() // does nothing
		broken := queue("broken")
		broken.cq.Close()
		if err := w.until(ctx, time.Now().Add(patience), has("broken")); err != nil {
			t.Error(err)
		}
		left := queue("left")
		w.close()
		left.cq.Close()
		stopped.cq.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, name := range []string{"stopped", "broken", "left"} {
			if ended[name] != 1 {
				t.Errorf("%s ended %d times", name, ended[name])
			}
		}
	})
}
