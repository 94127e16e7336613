package netio

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// memConn is a packet connection in memory.
type memConn struct {
	addr   net.Addr
	in     chan memPacket
	peer   *memConn
	closed chan struct{}
	once   sync.Once
}

type memPacket struct {
	b   []byte
	tos uint8
}

func memPair() (a, b *memConn) {
	end := func(s string) *memConn {
		return &memConn{
			addr:   net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)),
			in:     make(chan memPacket, 16),
			closed: make(chan struct{}),
		}
	}
	a, b = end("10.0.0.1:4791"), end("[::ffff:10.0.0.2]:4791")
	a.peer, b.peer = b, a
	return a, b
}

func (c *memConn) ReadMarked(b []byte) (int, uint8, net.Addr, error) {
	select {
	case p := <-c.in:
		return copy(b, p.b), p.tos, c.peer.addr, nil
	case <-c.closed:
		return 0, 0, nil, io.ErrClosedPipe
	}
}

func (c *memConn) WriteMarked(b []byte, tos uint8, to net.Addr) (int, error) {
	if addrPortOf(to) != addrPortOf(c.peer.addr) {
		return 0, errNobody
	}
	select {
	case c.peer.in <- memPacket{bytes.Clone(b), tos}:
		return len(b), nil
	case <-c.closed:
		return 0, io.ErrClosedPipe
	}
}

var errNobody = errors.New("nobody there")

func (c *memConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, _, from, err := c.ReadMarked(b)
	return n, from, err
}
func (c *memConn) WriteTo(b []byte, to net.Addr) (int, error) { return c.WriteMarked(b, 0, to) }
func (c *memConn) LocalAddr() net.Addr                        { return c.addr }
func (c *memConn) Close() error                               { c.once.Do(func() { close(c.closed) }); return nil }

func (c *memConn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (c *memConn) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (c *memConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// unmarked hides everything that a packet connection need not have.
type unmarked struct{ net.PacketConn }

func (u unmarked) ReceiveBuffer() int { return 12345 }

func (u unmarked) TryReadFrom(b []byte) (int, net.Addr, error) {
	if len(u.PacketConn.(*memConn).in) == 0 {
		return 0, nil, nil
	}
	return u.ReadFrom(b)
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, marked := range []bool{true, false} {
		p, q := memPair()
		a, b := Wrap(p, 1500), Wrap(q, 1500)
		if !marked {
			a, b = Wrap(unmarked{p}, 1500), Wrap(unmarked{q}, 1500)
		}
		if a.LocalAddr().String() != "10.0.0.1:4791" || b.LocalAddr().String() != "10.0.0.2:4791" {
			t.Error(a.LocalAddr(), b.LocalAddr())
		}
		l := a.Limits()
		if l.Segments != 1 || l.MTU != 1500 || l.ReceiveSize != 1472 || l.RecvBuffer != map[bool]int{true: 64 << 10, false: 12345}[marked] {
			t.Errorf("%+v", l)
		}
		n, err := a.Write([]Message{
			{Buf: pattern(250, 0), Segment: 100, Addr: b.LocalAddr(), TOS: 3},
			{Buf: nil, Addr: b.LocalAddr()},
			{Buf: []byte("end"), Addr: b.LocalAddr()},
			{Buf: []byte("lost"), Addr: a.LocalAddr()},
			{Buf: []byte("not tried"), Addr: b.LocalAddr()},
		})
		if n != 3 || !errors.Is(err, errNobody) {
			t.Fatal(n, err)
		}
		in := room(4, 200)
		for i, want := range []string{string(pattern(250, 0)[:100]), string(pattern(250, 0)[100:200]), string(pattern(250, 0)[200:]), "", "end"} {
			if n, err := b.Read(in); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			m := in[0]
			tos := uint8(0)
			if marked && i < 3 {
				tos = 3
			}
			if string(m.Buf) != want || m.Segment != 0 || m.Addr != a.LocalAddr() || m.TOS != tos {
				t.Errorf("message %d: %+v", i, m)
			}
		}
		if n, err := b.TryRead(in); n != 0 || err != nil {
			t.Error(n, err)
		}
		if _, err := a.Write([]Message{{Buf: []byte("x"), Addr: b.LocalAddr()}}); err != nil {
			t.Fatal(err)
		}
		if n, err := b.TryRead(in); (n == 1) == marked || err != nil {
			t.Error(n, err)
		}
		if c := countersOf(a); c.Sent != 6 {
			t.Errorf("%+v", c)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if _, err := b.TryRead(in); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
}

// TestWrapDurable: a reader over memory is durably blocked, so that virtual time runs.
func TestWrapDurable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, _ := memPair()
		c := Wrap(p, 1500)
		done := make(chan error, 1)
		go func() {
			_, err := c.Read(room(1, 64))
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatal(err)
		default:
		}
		c.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) || !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
	})
}

func TestWrapPeers(t *testing.T) {
	t.Parallel()
	p, _ := memPair()
	c := newPacketConn(p, 1500)
	for i := range 2*maxPeers + 10 {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 4791)
		if got := addrPortOf(c.peer(a)); got != a {
			t.Fatalf("%v became %v", a, got)
		}
	}
	if len(c.peers) > maxPeers {
		t.Errorf("%d addresses kept", len(c.peers))
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			var ends [2]*plainConn
			for i := range ends {
				udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
				if err != nil {
					t.Fatal(err)
				}
				ends[i] = newPlainConn(udp)
				defer ends[i].Close()
			}
			a, b := ends[0], ends[1]
			want := pattern(2500, 5)
			if n, err := a.Write([]Message{{Buf: want, Segment: 1000, Addr: b.LocalAddr()}, {Addr: b.LocalAddr()}}); n != 2 || err != nil {
				t.Fatal(n, err)
			}
			in := room(3, b.Limits().ReceiveSize)
			var got []byte
			for range 4 {
				if n, err := b.Read(in); n != 1 || err != nil {
					t.Fatal(n, err)
				}
				if in[0].Addr != a.LocalAddr() {
					t.Error(in[0].Addr)
				}
				got = slices.Concat(got, in[0].Buf)
			}
			if !bytes.Equal(got, want) {
				t.Error("other bytes")
			}
			if n, err := b.TryRead(in); n != 0 || err != nil {
				t.Error(n, err)
			}
			if n, err := a.Write([]Message{{Buf: make([]byte, 70000), Addr: b.LocalAddr()}}); n != 0 || err == nil {
				t.Error(n, err)
			}
			if c := countersOf(a); c.Sent != 4 {
				t.Errorf("%+v", c)
			}
			if l := a.Limits(); l.Segments != 1 || l.MTU < 1280 || l.RecvBuffer != defaultRecvBuffer {
				t.Errorf("%+v", l)
			}
			done := make(chan error, 1)
			go func() {
				_, err := b.Read(in)
				done <- err
			}()
			b.Close()
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	}
}
