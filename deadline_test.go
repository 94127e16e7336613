package rdma

import (
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
