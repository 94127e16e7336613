package rdma_test

import (
	"io"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
)

// TestC279_Allocs: Read and Write, TryRead, TryWrite and MapWrite allocate nothing, blocked or
// not.
func TestC279_Allocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			cfg := rdma.Config{Compatible: m.compatible}
			l := &rig{place: onLoopback(t), server: cfg, client: cfg}
			l.client.Maps = 1
			s, c := l.pair(t)
			defer closeBoth(s, c)
			mr, err := s.PD().Alloc(4096, ib.LocalWrite|ib.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			defer mr.Close()
			if _, err := s.Map(mr, 0); err != nil {
				t.Fatal(err)
			}
			go io.Copy(s, s)
			for _, size := range []int{1, 1000, 100000} {
				p := make([]byte, size)
				turn := func() {
					writes(t, c, p)
					for n := 0; n < size; {
						m, err := c.Read(p[n:])
						if err != nil {
							t.Fatal(err)
						}
						n += m
					}
				}
				for range l.times(50, 20) {
					turn()
				}
				if n := testing.AllocsPerRun(l.times(200, 50), turn); n >= 1 {
					t.Errorf("%d bytes: %v allocations for a Write and a Read", size, n)
				}
			}
			var b [10]byte
			if n := testing.AllocsPerRun(100, func() { c.TryRead(b[:]) }); n != 0 {
				t.Errorf("TryRead in vain: %v allocations", n)
			}
			place := make([]byte, 4096) // the map has been told of before the first answer
			if n := testing.AllocsPerRun(200, func() {
				if _, err := c.MapWrite(place, 0); err != nil {
					t.Fatal(err)
				}
			}); n >= 1 {
				t.Errorf("MapWrite: %v allocations", n)
			}
			if n := testing.AllocsPerRun(200, func() {
				if n, err := c.TryWrite(place[:1]); n == 0 && err != rdma.ErrWouldBlock {
					t.Fatal(err)
				}
			}); n >= 1 {
				t.Errorf("TryWrite: %v allocations", n)
			}
		})
	}
}
