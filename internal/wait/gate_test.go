package wait

import (
	"context"
	"testing"
	"testing/synctest"
)

// tying is a notifier whose Wait ties something to the end of its context, as one that
// sleeps on something else than a channel has to.
type tying struct {
	*queue
	seen  []context.Context
	ended chan context.Context
}

func (w *tying) Wait(ctx context.Context) error {
	if len(w.seen) == 0 || w.seen[len(w.seen)-1] != ctx {
		w.seen = append(w.seen, ctx)
		context.AfterFunc(ctx, func() { w.ended <- ctx })
	}
	return w.queue.Wait(ctx)
}

// TestParkContext: what a Waiter gets is a context like any other. Its end is told to
// whoever asked, whenever that comes to run, and lasts.
func TestParkContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &tying{queue: newQueue(), ended: make(chan context.Context, 10)}
		p := NewParker(w, w.take)
		const rounds = 5
		for range rounds {
			// A sleep that nobody interrupts uses the context of the one before.
			go func() {
				synctest.Wait()
				w.put(1)
			}()
			parkWant(t, p, context.Background(), 0, Found, nil)
			go func() {
				synctest.Wait()
				p.Kick()
			}()
			parkWant(t, p, context.Background(), 0, Kicked, nil)
		}
		synctest.Wait()
		if len(w.seen) != rounds || len(w.ended) != rounds {
			t.Errorf("%d contexts, %d ends told, want %d", len(w.seen), len(w.ended), rounds)
		}
		for i, ctx := range w.seen {
			select {
			case <-ctx.Done():
			default:
				t.Errorf("context %d is not done", i)
			}
			if ctx.Err() == nil {
				t.Errorf("context %d has ended without an error", i)
			}
		}
		p.Close()
	})
}
