package netio

import (
	"net"
	"net/netip"
	"testing"
)

// Each benchmark runs netio beside package net, so that ratios come from one run.

// pinger is one end of a ping-pong.
type pinger struct {
	send, recv func() bool // false: closed
}

func netPinger(b *testing.B, c *net.UDPConn, to netip.AddrPort, size int) pinger {
	out, in := make([]byte, size), make([]byte, 9000)
	return pinger{
		send: func() bool { _, err := c.WriteToUDPAddrPort(out, to); return err == nil },
		recv: func() bool { _, _, err := c.ReadFromUDPAddrPort(in); return err == nil },
	}
}

func connPinger(b *testing.B, c Conn, to netip.AddrPort, size int) pinger {
	out, in := []Message{{Buf: make([]byte, size), Addr: to, TOS: 2}}, room(8, trainSize)
	return pinger{
		send: func() bool { _, err := c.Write(out); return err == nil },
		recv: func() bool { _, err := c.Read(in); return err == nil },
	}
}

func BenchmarkPingPong(b *testing.B) {
	run := func(b *testing.B, here, there pinger) {
		b.ReportAllocs()
		go func() {
			for there.recv() && there.send() {
			}
		}()
		for b.Loop() {
			if !here.send() || !here.recv() {
				b.Fatal("closed")
			}
		}
	}
	b.Run("net", func(b *testing.B) {
		x, y := udpSocket(b), udpSocket(b)
		run(b, netPinger(b, x, addrPortOf(y.LocalAddr()), 64), netPinger(b, y, addrPortOf(x.LocalAddr()), 64))
	})
	b.Run("netio", func(b *testing.B) {
		x, y := open(b, loopbacks[0], everything), open(b, loopbacks[0], everything)
		run(b, connPinger(b, x, y.LocalAddr(), 64), connPinger(b, y, x.LocalAddr(), 64))
	})
}

func udpSocket(b *testing.B) *net.UDPConn {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	if err := c.SetReadBuffer(recvBuffer); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

// BenchmarkBulk moves 1 MiB an operation in packets of 4112 bytes and waits for it, as a
// window does. The acknowledgement travels through a channel.
func BenchmarkBulk(b *testing.B) {
	const size, total = 4112, 255 * 4112
	run := func(b *testing.B, send func() error, recv func() (int, error)) {
		b.SetBytes(total)
		b.ReportAllocs()
		ack := make(chan struct{}, 1)
		go func() {
			for got := 0; ; {
				n, err := recv()
				if err != nil {
					return
				}
				if got += n; got == total {
					got = 0
					ack <- struct{}{}
				}
			}
		}()
		for b.Loop() {
			if err := send(); err != nil {
				b.Fatal(err)
			}
			<-ack
		}
		b.ReportMetric(float64(b.N*total/size)/b.Elapsed().Seconds(), "packets/s")
	}
	b.Run("net", func(b *testing.B) {
		x, y := udpSocket(b), udpSocket(b)
		to, out, in := addrPortOf(y.LocalAddr()), make([]byte, size), make([]byte, 9000)
		run(b, func() error {
			for range total / size {
				if _, err := x.WriteToUDPAddrPort(out, to); err != nil {
					return err
				}
			}
			return nil
		}, func() (int, error) {
			n, _, err := y.ReadFromUDPAddrPort(in)
			return n, err
		})
	})
	for _, k := range []struct {
		name string
		o    options
	}{{"batches", options{ecn: true}}, {"trains", everything}} {
		b.Run(k.name, func(b *testing.B) {
			x, y := open(b, loopbacks[0], k.o), open(b, loopbacks[0], k.o)
			out := make([]Message, total/size/15)
			for i := range out {
				out[i] = Message{Buf: make([]byte, 15*size), Segment: size, Addr: y.LocalAddr(), TOS: 2}
			}
			in := room(16, y.Limits().ReceiveSize)
			run(b, func() error {
				_, err := x.Write(out)
				return err
			}, func() (int, error) {
				n, err := y.Read(in)
				got := 0
				for i := range in[:n] {
					got += len(in[i].Buf)
				}
				return got, err
			})
		})
	}
}

// BenchmarkTryReadEmpty is what looking before a timer acts costs.
func BenchmarkTryReadEmpty(b *testing.B) {
	c, in := open(b, loopbacks[0], everything), room(8, trainSize)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := c.TryRead(in); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}
