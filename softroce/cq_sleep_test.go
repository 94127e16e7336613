package softroce

import (
	"context"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// sleepAsLeader starts a sleep of e that has the role of the reader.
func sleepAsLeader(t *testing.T, e *end, ctx context.Context) chan bool {
	t.Helper()
	for i := range 50 {
		pingPong(t, e, 1+i%8) // leaves the role vacant
		got := make(chan bool, 1)
		go func() { got <- e.cq.Sleep(ctx) }()
		for {
			select {
			case <-got: // it could not have the role
			default:
				if e.cq.sleeper.at.Load() != nil {
					return got
				}
				time.Sleep(10 * time.Microsecond)
				continue
			}
			break
		}
	}
	t.Fatal("nobody becomes the reader")
	return nil
}

// Who sleeps for a queue is woken by what comes for it, though it is not armed, and no
// event is made; and by everything else that can end the sleep.
func TestSleep(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(*testing.T, *end, context.CancelFunc){
		"answer": func(t *testing.T, e *end, _ context.CancelFunc) {
			if err := e.send(0, 0); err != nil {
				t.Error(err)
			}
		},
		"context":         func(_ *testing.T, _ *end, cancel context.CancelFunc) { cancel() },
		"rouse":           func(_ *testing.T, e *end, _ context.CancelFunc) { e.cq.Rouse() },
		"queue closed":    func(_ *testing.T, e *end, _ context.CancelFunc) { e.cq.Close() },
		"device removed":  func(_ *testing.T, e *end, _ context.CancelFunc) { e.p.RemoveDevice() },
		"provider closed": func(_ *testing.T, e *end, _ context.CancelFunc) { e.p.Close() },
		"completion of another": func(t *testing.T, e *end, _ context.CancelFunc) {
			// The queue pair fails here, not because of a packet.
			if err := e.qp.Modify(&driver.QPAttr{State: ib.StateError}, ib.AttrState); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e := echoed(t)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			got := sleepAsLeader(t, e, ctx)
			do(t, e, cancel)
			select {
			case <-got: // false: there is no socket any more
			case <-time.After(10 * time.Second):
				t.Fatal("still asleep")
			}
			if what == "answer" {
				if _, ok, err := e.ch.Next(); ok || err != nil {
					t.Errorf("an event was made: %v, %v", ok, err)
				}
				if e.cq.ready.Load() != 1 {
					t.Errorf("%d entries", e.cq.ready.Load())
				}
			}
		})
	}
}

// A queue nobody knows the socket of, and a second who waits, must be armed.
func TestSleepRefused(t *testing.T) {
	t.Parallel()
	e := echoed(t)
	if e.cq.Sleep(t.Context()) {
		t.Error("slept on no socket")
	}
	got := sleepAsLeader(t, e, t.Context())
	if e.cq.Sleep(t.Context()) {
		t.Error("two slept")
	}
	e.cq.Rouse()
	<-got
}

// Who waits beside another finds the role vacant, and gives it to the endpoint's goroutine:
// each of two that wait could else take the other for the reader until the grace is over.
func TestVacantRoleOfTwo(t *testing.T) {
	t.Parallel()
	e := echoed(t)
	ep, err := e.p.dev.endpoint(e.addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 50 {
		ep.role.grace.Store(int64(time.Hour)) // it is not the grace that ends this
		pingPong(t, e, 1)
		if ep.role.state.Load() == roleVacant {
			break
		}
	}
	e.p.dev.waiting.Add(1) // the other
	defer e.p.dev.waiting.Add(-1)
	if err := e.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { got <- e.ch.Wait(ctx) }()
	for end := time.Now().Add(10 * time.Second); ep.role.state.Load() != roleTaken; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Error("nobody reads the socket")
			break
		}
	}
	cancel()
	<-got
}
