package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Area P: many connections, one after the other and at once.
func areaScale() []check {
	return []check{
		{"C-306_Churn", 0, churn},
		{"C-308_ConnectionStorm", VirtualTime, connectionStorm},
	}
}

// Connections come and go, whoever closes first, and leave nothing.
func churn(t *tb) {
	cycles := 40
	if t.Virtual {
		cycles = 300
	}
	l, addr := t.serve()
	served := make(chan error)
	handles := make(chan *waiting)
	go func() {
		defer close(handles)
		for {
			w, err := t.serveOne(t.limit, l, nil)
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					served <- err
				}
				return
			}
			handles <- w
		}
	}()
	objects := len(t.b.Objects())
	for i := range cycles {
		c, err := t.connectTo(t.limit, addr, nil)
		t.ok(err, "connect for the time %d", i)
		var s *waiting
		select {
		case s = <-handles:
		case err := <-served:
			t.Fatalf("accept for the time %d: %v", i, err)
		}
		t.ok(c.qp.PostSend(verbs.Send(9, c.mr.SGE(2048, 8), ib.Signaled)), "post")
		wc, err := s.cq.Next(t.limit)
		t.ok(err, "message %d", i)
		t.ok(wc.Err(), "message %d", i)
		ends := []*waiting{c, s}
		if t.rng.IntN(2) == 0 {
			ends[0], ends[1] = s, c
		}
		for _, w := range ends {
			t.ok(w.close(), "close for the time %d", i)
		}
	}
	t.closed(l, "listener")
	for range handles {
		t.Error("a connection that nobody asked for")
	}
	if t.a != t.b {
		if n := len(t.b.Objects()); n > objects {
			t.Errorf("%d objects after %d connections, %d before", n, cycles, objects)
		}
	}
}

// More dialers than the listener can serve at once: each is served, or fails by its
// own deadline, and none is left half connected.
func connectionStorm(t *tb) {
	const n = 200
	t.latency()
	l, addr := t.serve()
	ctx, stop := context.WithCancel(t.limit)
	defer stop()
	var servers sync.WaitGroup
	servers.Go(func() { // slowly, one after the other
		for {
			w, err := t.serveOne(ctx, l, nil)
			if w != nil {
				servers.Go(func() {
					<-w.conn.Done()
					if err := w.close(); err != nil {
						t.Errorf("close: %v", err)
					}
				})
			}
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	var mu sync.Mutex
	connected, late := 0, 0
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			// Half of them have patience.
			limit := 5 * time.Second
			if i%2 == 0 {
				limit = time.Minute
			}
			dial, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			start := time.Now()
			w, err := t.connectTo(dial, addr, nil)
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				connected++
				if err := w.close(); err != nil {
					t.Errorf("close: %v", err)
				}
			case errors.Is(err, context.DeadlineExceeded):
				late++
				if took > limit+time.Second {
					t.Errorf("a dialer with %v gave up after %v", limit, took)
				}
				if limit == time.Minute {
					t.Error("a patient dialer was not served")
				}
			default:
				t.Errorf("dialer: %v", err)
			}
		})
	}
	clients.Wait()
	if connected+late != n || connected < n/2 {
		t.Errorf("%d of %d connected, %d were late", connected, n, late)
	}
	// It works as before.
	w, err := t.connectTo(ctx, addr, nil)
	t.ok(err, "connect after the storm")
	t.ok(w.close(), "close")
	t.closed(l, "listener")
	stop()
	servers.Wait()
	if s := fmt.Sprint(t.a.Objects()); t.a != t.b && len(t.a.Objects()) > 0 {
		t.Errorf("left on the side that dialled: %s", s)
	}
}
