package rdma

import (
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/internal/unix"
)

// The descriptor says exactly what it was told, in both directions, after any history.
func TestReadiness(t *testing.T) {
	var r readiness
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	fd, err := r.get(false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	check := func(readable, writable bool) {
		t.Helper()
		fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn | unix.PollOut}}
		if _, err := unix.Poll(fds, 0); err != nil {
			t.Fatal(err)
		}
		want := int16(0)
		if readable {
			want |= unix.PollIn
		}
		if writable {
			want |= unix.PollOut
		}
		if got := fds[0].Revents; got != want {
			t.Fatalf("poll gives %#x, want %#x (readable %v, writable %v)", got, want, readable, writable)
		}
	}
	check(false, false)
	for range 2000 {
		readable, writable := rnd.IntN(2) == 0, rnd.IntN(2) == 0
		r.set(readable, writable)
		check(readable, writable)
		again, err := r.get(readable, writable)
		if again != fd || err != nil {
			t.Fatal(again, err)
		}
	}
}

func TestReadinessAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	var r readiness
	if _, err := r.get(false, false); err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if n := testing.AllocsPerRun(100, func() { r.set(true, false); r.set(false, true) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
