package event_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/event"
)

// TestTooDeep: nests that the kernel does not permit are refused with an error that says so,
// when they are made or when the outermost loop is run; and up to that they work.
func TestTooDeep(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b event.Backend) {
		for depth := 1; ; depth++ {
			top, deep := newLoop(t, event.Config{Backend: b}), (*event.Loop)(nil)
			deep = top
			var err error
			for range depth - 1 {
				out := newLoop(t, event.Config{Backend: b})
				in := top
				_, err = out.File(get[int](t)(in.FD()), event.Readable, func(event.Mask) {
					_, err := in.Turn(0)
					must(t, err)
				})
				if err != nil {
					break
				}
				top = out
			}
			if err == nil {
				called := false
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				deep.After(2*time.Millisecond, func() { called = true; cancel() })
				if err = top.Run(ctx); called {
					is(t, err, context.Canceled, "Run")
					cancel()
					continue
				}
				cancel()
			}
			is(t, err, syscall.ELOOP, "too deep")
			t.Logf("%d loops: %v", depth, err)
			if depth < 4 || depth > 7 {
				t.Errorf("the limit is %d", depth)
			}
			return
		}
	})
}
