package rdma

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A limit that moves is over exactly at its last place, never before, and once.
func TestDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var d deadline
		var over time.Time
		var fire func()
		fire = func() {
			mu.Lock()
			defer mu.Unlock()
			if d.passed(fire) && over.IsZero() {
				over = time.Now()
			}
		}
		set := func(at time.Time) {
			mu.Lock()
			over = time.Time{}
			d.set(at, fire)
			mu.Unlock()
		}
		start := time.Now()
		check := func(at time.Duration, want bool) {
			t.Helper()
			time.Sleep(time.Until(start.Add(at)))
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if d.over != want || d.expired() != want {
				t.Fatalf("at %v: over %v, want %v", at, d.over, want)
			}
		}
		at := func(d time.Duration) time.Time { return start.Add(d) }
		set(at(10 * time.Second))
		check(9*time.Second, false)
		set(at(20 * time.Second)) // later
		check(19*time.Second, false)
		check(20*time.Second, true)
		if over != at(20*time.Second) {
			t.Errorf("over at %v", over.Sub(start))
		}
		set(at(100 * time.Second))
		set(at(30 * time.Second)) // sooner
		check(29*time.Second, false)
		check(30*time.Second, true)
		set(time.Time{})
		check(1000*time.Second, false)
		set(at(time.Second)) // in the past
		check(1000*time.Second, true)
		set(at(2000 * time.Second))
		set(time.Time{})
		set(at(3000 * time.Second))
		check(2500*time.Second, false)
		check(3000*time.Second, true)
		mu.Lock()
		d.stop()
		mu.Unlock()
	})
}

// TestDeadlineEndsWithClose: a timer that fires while its owner is closed does not go on, for
// a limit that had moved away.
func TestDeadlineEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestNet(t)
		server, client := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		n, err := (&ListenConfig{Config: &Config{Provider: f.Host(server)}}).Listen(t.Context(), "rdma", server.String()+":7471")
		if err != nil {
			t.Fatal(err)
		}
		a, err := (&Dialer{Config: &Config{Provider: f.Host(client)}}).Dial("rdma", "10.0.0.1:7471")
		if err != nil {
			t.Fatal(err)
		}
		l, c := n.(*Listener), a.(*Conn)
		c.SetDeadline(time.Now().Add(time.Hour))
		l.SetDeadline(time.Now().Add(time.Hour))
		c.SetLinger(0)
		c.Close()
		l.Close()
		c.onReadDeadline() // as they are called by timers that had fired
		c.onWriteDeadline()
		l.onDeadline()
		for _, d := range []*deadline{&c.rdl, &c.wdl, &l.limit} {
			if !d.fires.IsZero() {
				t.Error("a timer runs after Close")
			}
		}
		time.Sleep(time.Minute)
	})
}
