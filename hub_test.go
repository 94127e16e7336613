package rdma

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/cm"
)

// TestQueueBreaksInHandshake: the completion queue ends while a connection is made. Either
// that fails, or the first call does; nothing waits for a completion that nobody tells.
func TestQueueBreaksInHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNet(t)
		server, client := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		ln, err := (&ListenConfig{Config: &Config{Provider: f.Host(server)}}).listen(t.Context(), "rdma", server.String()+":0")
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := (&Config{KeepAlive: -1}).settle()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		route, err := cm.Resolve(ctx, f.Host(client), ln.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		h, err := acquireHub(route.Device(), 0)
		if err != nil {
			t.Fatal(err)
		}
		heal := f.Cut(client, server)
		type result struct {
			c   *Conn
			err error
		}
		made := make(chan result)
		go func() {
			c, err := connect(ctx, &cfg, route)
			made <- result{c, err}
		}()
		synctest.Wait() // it has asked, and nobody hears
		h.cq.Close()
		synctest.Wait()
		heal()
		r := <-made
		if r.err == nil {
			r.c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := r.c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read: %v, want ECONNRESET", err)
			}
			r.c.Close()
		}
		h.release(0)
		ln.Close()
		time.Sleep(time.Minute) // what nobody accepted is reset in the background
	})
}

// newRole gives a role that the caller has.
func newRole() *role {
	r := &role{}
	r.init(&hub{})
	<-r.back
	return r
}

// TestRoleRecalled: the hub's goroutine that is needed while somebody leaves the role has it at
// once: for a descriptor that was made after the leaver had looked, for a connection in the
// making, and at the end.
func TestRoleRecalled(t *testing.T) {
	for name, need := range map[string]func(r *role){
		"descriptor": func(r *role) { r.h.fds.Add(1) },
		"recall":     (*role).recall,
		"end":        func(r *role) { r.stop.Store(true) },
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRole()
			need(r)
			r.vacate()
			if !r.held.Load() || len(r.back) != 1 {
				t.Errorf("%s: held %v, given to the hub's goroutine %v", name, r.held.Load(), len(r.back))
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRole()
		r.recall()
		r.vacate()
		<-r.back
		r.vacate() // once is enough
		if r.held.Load() || len(r.back) != 0 {
			t.Errorf("held %v, given %d times more", r.held.Load(), len(r.back))
		}
		time.Sleep(time.Second)
		<-r.back
		r.vacate()
		r.recall() // it is vacant
		<-r.back
		r.vacate()
		if r.held.Load() || len(r.back) != 0 {
			t.Errorf("held %v, given %d times more", r.held.Load(), len(r.back))
		}
		time.Sleep(time.Second)
	})
}

// TestRoleSharedGrace: a role that becomes vacant while others wait is soon with the hub's
// goroutine, though the timer was set for later when nobody waited.
func TestRoleSharedGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRole()
		r.grace.Store(int64(maxGrace))
		r.vacate()
		if !r.claim() {
			t.Fatal("it is not vacant")
		}
		if !r.join() {
			t.Fatal("it is vacant")
		}
		for range 3 { // who has it takes turns with itself
			time.Sleep(100 * time.Microsecond)
			r.vacate()
			if !r.claim() {
				t.Fatal("it is not vacant")
			}
		}
		r.vacate()
		start := time.Now()
		<-r.back
		if d := time.Since(start); d != sharedGrace {
			t.Errorf("the hub's goroutine has it after %v, want %v", d, sharedGrace)
		}
	})
}

// TestRoleGrace: a role that nobody waits for is vacant for the whole grace, from when it was
// left last, and the timer is not set again each time.
func TestRoleGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRole()
		r.grace.Store(int64(maxGrace))
		r.vacate()
		fires := r.fires.Load()
		for range 3 {
			time.Sleep(time.Millisecond)
			if !r.claim() {
				t.Fatal("it is not vacant")
			}
			r.vacate()
		}
		if r.fires.Load() != fires {
			t.Error("the timer was set again")
		}
		start := time.Now()
		<-r.back
		if d := time.Since(start); d != maxGrace {
			t.Errorf("the hub's goroutine has it after %v, want %v", d, maxGrace)
		}
	})
}

// TestRoleJoin: nobody waits for the holder of a role that became vacant before the holder
// could see that somebody does.
func TestRoleJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRole()
		if !r.join() || r.follow.Load() != 1 {
			t.Error("it is held")
		}
		r.follow.Add(-1)
		r.vacate()
		if r.join() || r.follow.Load() != 0 {
			t.Error("it is vacant, and would be for the grace of one for whom nobody waits")
		}
		r.timer.Stop()
	})
}
