package rdma_test

import (
	"net"
	"slices"
	"testing"
	"time"
)

// BenchmarkRatios compares with TCP in turns, on a machine that others may use meanwhile:
// the ratios are those of the medians, and of the best turn of each.
func BenchmarkRatios(b *testing.B) {
	const turns = 21
	compare := func(b *testing.B, service string, n int, turn func(c net.Conn, n int)) {
		for _, r := range networks[1:] {
			b.Run(r.name(), func(b *testing.B) {
				var conns [2]net.Conn
				var times [2][]time.Duration
				for i, r := range []peerRole{networks[0], r} {
					r.Service = service
					conns[i] = dialPeer(b, r, startPeer(b, r))
					turn(conns[i], n)
				}
				for range turns {
					for i, c := range conns {
						start := time.Now()
						turn(c, n)
						times[i] = append(times[i], time.Since(start)/time.Duration(n))
					}
				}
				for b.Loop() {
					time.Sleep(time.Nanosecond) // all was measured above
				}
				slices.Sort(times[0])
				slices.Sort(times[1])
				b.ReportMetric(float64(times[0][turns/2]), "tcp-ns")
				b.ReportMetric(float64(times[1][turns/2]), "rdma-ns")
				b.ReportMetric(float64(times[1][turns/2])/float64(times[0][turns/2]), "ratio-of-medians")
				b.ReportMetric(float64(times[1][0])/float64(times[0][0]), "ratio-of-best")
			})
		}
	}
	b.Run("RoundTrip64", func(b *testing.B) {
		buf := make([]byte, 64)
		compare(b, "echo", 2000, func(c net.Conn, n int) {
			for range n {
				roundTrip(b, c, buf)
			}
		})
	})
	b.Run("Write64K", func(b *testing.B) {
		buf := make([]byte, 64<<10)
		compare(b, "sink", 2000, func(c net.Conn, n int) {
			for range n {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}
