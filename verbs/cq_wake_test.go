package verbs_test

import (
	"testing"
	"testing/synctest"

	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
)

// Wake ends a sleep without a completion and without an error, once; Next sleeps on.
func TestWake(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		qp, sqp, cq, _ := r.ready(verbs.QPConfig{})
		for range 3 {
			r.recv(qp, 1)
			type result struct {
				n   int
				err error
			}
			done := make(chan result, 1)
			wait := func() {
				var dst [4]verbs.WC
				n, err := cq.Wait(bg, dst[:])
				done <- result{n, err}
			}
			go wait()
			synctest.Wait()
			select {
			case g := <-done:
				t.Fatalf("Wait gave %v before anything happened", g)
			default:
			}
			cq.Wake()
			cq.Wake()
			if g := <-done; g != (result{}) {
				t.Fatalf("woken: %v", g)
			}
			cq.Wake() // before the wait: two calls count as one
			cq.Wake()
			go wait()
			if g := <-done; g != (result{}) {
				t.Fatalf("woken before: %v", g)
			}
			next := make(chan error, 1)
			go func() { _, err := cq.Next(bg); next <- err }()
			synctest.Wait()
			cq.Wake()
			synctest.Wait()
			select {
			case err := <-next:
				t.Fatalf("Next ended: %v", err)
			default:
			}
			sqp.CompleteRecv(1, scripted.Received(8), false)
			if err := <-next; err != nil {
				t.Fatal(err)
			}
		}
	})
}
