package rdma_test

import (
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// resident gives the resident memory of this process in bytes, after a collection.
func resident(b testing.TB) float64 {
	debug.FreeOSMemory()
	s, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.Atoi(strings.Fields(string(s))[1])
	if err != nil {
		b.Fatal(err)
	}
	return float64(n * os.Getpagesize())
}

func threads() int {
	d, _ := os.ReadDir("/proc/self/task")
	return len(d)
}

// BenchmarkIdle: one active connection, first alone and then beside 10,000 idle ones
// (RDMA_IDLE says how many) to the same process. What the idle ones cost is that of this
// end, the dialer's; each has carried a message.
func BenchmarkIdle(b *testing.B) {
	keepAwake(b)
	n := 10000
	if s := os.Getenv("RDMA_IDLE"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	for _, r := range []peerRole{{Network: "tcp"}, {Network: "rdma", Spin: "sleep"}} {
		b.Run(r.name(), func(b *testing.B) {
			r.Service = "echo"
			p := startPeer(b, r)
			active := dialPeer(b, r, p)
			buf := make([]byte, 64)
			turns := func() time.Duration {
				for range 500 {
					roundTrip(b, active, buf)
				}
				best := time.Hour
				for range 5 {
					start := time.Now()
					for range 4000 {
						roundTrip(b, active, buf)
					}
					best = min(best, time.Since(start)/4000)
				}
				return best
			}
			alone := turns()
			before, goroutines, tasks := resident(b), runtime.NumGoroutine(), threads()
			conns := make([]net.Conn, n)
			start := time.Now()
			var next atomic.Int64
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					buf := make([]byte, 64)
					for {
						i := int(next.Add(1)) - 1
						if i >= n {
							return
						}
						c, err := dialAs(r, p.address)
						if err != nil {
							b.Error(i, err)
							return
						}
						conns[i] = c
						roundTrip(b, c, buf)
					}
				})
			}
			wg.Wait()
			took := time.Since(start)
			if b.Failed() {
				return
			}
			time.Sleep(3 * time.Second) // buffers that were lent go back
			memory := resident(b) - before
			goroutines, tasks = runtime.NumGoroutine()-goroutines, threads()-tasks
			with := turns()
			for b.Loop() {
				roundTrip(b, active, buf)
			}
			b.ReportMetric(memory/float64(n)/1024, "KiB/conn")
			b.ReportMetric(float64(goroutines), "goroutines")
			b.ReportMetric(float64(tasks), "threads")
			b.ReportMetric(float64(n)/took.Seconds(), "dials/s")
			b.ReportMetric(float64(alone.Nanoseconds()), "alone-ns")
			b.ReportMetric(float64(with.Nanoseconds()), "beside-ns")
			for _, c := range conns {
				if t, ok := c.(interface{ SetLinger(int) error }); ok {
					t.SetLinger(0)
				}
				wg.Go(func() { c.Close() })
			}
			wg.Wait()
		})
	}
}
