package softroce

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// Two processes on loopback. The comparisons run the same exchange with Go's own
// sockets in the same run, as numbers of different machines, or hours, do not compare.

func BenchmarkPingPongSend64(b *testing.B) {
	e, _ := connectPeer(b, "echo")
	for range 64 {
		if err := e.recv(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		pingPong(b, e, i)
		i++
	}
	s := e.p.Stats()
	b.ReportMetric(float64(s.SendCalls)/float64(i), "sends/op")
	b.ReportMetric(float64(s.ReadCalls)/float64(i), "reads/op")
	b.ReportMetric(float64(s.AcksPiggybacked)/float64(max(s.AcksDelayed, 1)), "piggybacked")
}

// BenchmarkPingPongSpin polls on both sides and never sleeps.
func BenchmarkPingPongSpin(b *testing.B) {
	e, _ := connectPeer(b, "spin")
	e.spin = true
	for range 64 {
		if err := e.recv(); err != nil {
			b.Fatal(err)
		}
	}
	i := 0
	for b.Loop() {
		pingPong(b, e, i)
		i++
	}
	s := e.p.Stats()
	b.ReportMetric(float64(s.SendCalls)/float64(i), "sends/op")
	b.ReportMetric(float64(s.AcksPiggybacked)/float64(max(s.AcksDelayed, 1)), "piggybacked")
}

func pingPong(b testing.TB, e *end, i int) {
	f := ib.SendFlags(0)
	if i%32 == 0 {
		f = ib.Signaled
	}
	if err := e.send(64, f); err != nil {
		b.Fatal(err)
	}
	for {
		w, err := e.next()
		if err != nil {
			b.Fatal(err)
		}
		if w.Opcode.IsRecv() {
			break
		}
	}
	if err := e.recv(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkPingPongUDP(b *testing.B) {
	c, to := udpPeer(b)
	buf := make([]byte, 2048)
	b.ReportAllocs()
	for b.Loop() {
		pingUDP(b, c, to, buf)
	}
}

func udpPeer(b testing.TB) (*net.UDPConn, netip.AddrPort) {
	p := startPeer(b, "udp")
	m, err := p.hear()
	if err != nil {
		b.Fatal(err)
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), m.Port)
}

func pingUDP(b testing.TB, c *net.UDPConn, to netip.AddrPort, buf []byte) {
	if _, err := c.WriteToUDPAddrPort(buf[:64], to); err != nil {
		b.Fatal(err)
	}
	if _, _, err := c.ReadFromUDPAddrPort(buf); err != nil {
		b.Fatal(err)
	}
}

func tcpPeer(b testing.TB) net.Conn {
	p := startPeer(b, "tcp")
	m, err := p.hear()
	if err != nil {
		b.Fatal(err)
	}
	c, err := net.DialTCP("tcp4", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(m.Port)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

func BenchmarkPingPongTCP(b *testing.B) {
	c := tcpPeer(b)
	buf := make([]byte, 64)
	buf[0] = 1
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

const bulk = 1 << 20

func BenchmarkTCP1MiB(b *testing.B) {
	c := tcpPeer(b)
	buf := make([]byte, bulk)
	b.SetBytes(bulk)
	for b.Loop() {
		writeTCP(b, c, buf)
	}
	// Bulk is over when the last byte has been answered.
	small := make([]byte, 64)
	small[0] = 1
	c.Write(small)
	io.ReadFull(c, small)
}

func writeTCP(b testing.TB, c net.Conn, buf []byte) {
	if _, err := c.Write(buf); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkWrite1MiB(b *testing.B) {
	e, m := connectPeer(b, "sink")
	b.SetBytes(bulk)
	b.ReportAllocs()
	w := writer{b: b, e: e, m: m}
	for b.Loop() {
		w.write()
	}
	w.finish()
	s := e.p.Stats()
	b.ReportMetric(float64(s.SendCalls)/float64(b.N), "sends/op")
	b.ReportMetric(float64(s.ReadCalls)/float64(b.N), "reads/op")
	b.ReportMetric(float64(s.PacketsOut)/float64(b.N), "packets/op")
}

// writer keeps a few WRITEs of 1 MiB under way.
type writer struct {
	b       testing.TB
	e       *end
	m       *meeting
	pending int
}

const writeDepth = 4

func (w *writer) write() {
	if w.pending == writeDepth {
		w.wait()
	}
	if err := w.e.write(w.m, bulk, ib.Signaled); err != nil {
		w.b.Fatal(err)
	}
	w.pending++
}

func (w *writer) wait() {
	if _, err := w.e.next(); err != nil {
		w.b.Fatal(err)
	}
	w.pending--
}

func (w *writer) finish() {
	for w.pending > 0 {
		w.wait()
	}
}

// BenchmarkRatios runs the pairs in turn and reports what the device costs against
// Go's sockets: times/udp of the ping-pong, below is better, and bytes/tcp of bulk,
// above is better.
func BenchmarkRatios(b *testing.B) {
	b.Run("PingPong", func(b *testing.B) {
		e, _ := connectPeer(b, "echo")
		for range 64 {
			if err := e.recv(); err != nil {
				b.Fatal(err)
			}
		}
		c, to := udpPeer(b)
		buf := make([]byte, 2048)
		var rdma, udp time.Duration
		i := 0
		for b.Loop() {
			start := time.Now()
			for range 100 {
				pingPong(b, e, i)
				i++
			}
			mid := time.Now()
			for range 100 {
				pingUDP(b, c, to, buf)
			}
			rdma += mid.Sub(start)
			udp += time.Since(mid)
		}
		n := float64(100 * b.N)
		b.ReportMetric(float64(rdma.Nanoseconds())/n, "ns/send")
		b.ReportMetric(float64(udp.Nanoseconds())/n, "ns/udp")
		b.ReportMetric(float64(rdma)/float64(udp), "times/udp")
	})
	b.Run("Bulk", func(b *testing.B) {
		e, m := connectPeer(b, "sink")
		c := tcpPeer(b)
		buf := make([]byte, bulk)
		small := make([]byte, 64)
		small[0] = 1
		var rdma, tcp time.Duration
		w := writer{b: b, e: e, m: m}
		for b.Loop() {
			start := time.Now()
			for range 32 {
				w.write()
			}
			w.finish()
			mid := time.Now()
			for range 32 {
				writeTCP(b, c, buf)
			}
			c.Write(small)
			if _, err := io.ReadFull(c, small); err != nil {
				b.Fatal(err)
			}
			rdma += mid.Sub(start)
			tcp += time.Since(mid)
			small[0] = 1
		}
		n := float64(32 * b.N * bulk)
		b.ReportMetric(n/rdma.Seconds()/1e6, "MB/s-write")
		b.ReportMetric(n/tcp.Seconds()/1e6, "MB/s-tcp")
		b.ReportMetric(float64(tcp)/float64(rdma), "bytes/tcp")
	})
}
