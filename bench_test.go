package rdma_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"
)

var bg = context.Background()

// networks are what the benchmarks compare, always in one run.
var networks = []peerRole{
	{Network: "tcp"},
	{Network: "rdma", Spin: "sleep"},
	{Network: "rdma", Spin: "adaptive"},
	{Network: "rsockets", Spin: "sleep"},
}

func (r peerRole) name() string {
	if r.Spin == "" {
		return r.Network
	}
	return r.Network + "-" + r.Spin
}

// BenchmarkRoundTrip: 64 bytes to a process that sends them back.
func BenchmarkRoundTrip(b *testing.B) {
	for _, r := range networks {
		b.Run(r.name(), func(b *testing.B) {
			r.Service = "echo"
			c := dialPeer(b, r, startPeer(b, r))
			buf := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				roundTrip(b, c, buf)
			}
		})
	}
}

func roundTrip(b testing.TB, c net.Conn, buf []byte) {
	if _, err := c.Write(buf); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkThroughput: writes of 64 KiB to a process that throws them away.
func BenchmarkThroughput(b *testing.B) {
	for _, r := range networks {
		b.Run(r.name(), func(b *testing.B) {
			r.Service = "sink"
			c := dialPeer(b, r, startPeer(b, r))
			buf := make([]byte, 64<<10)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			c.(interface{ CloseWrite() error }).CloseWrite()
			c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.ReadFull(c, buf[:1]); err != nil {
				b.Fatal(err)
			}
		})
	}
}
