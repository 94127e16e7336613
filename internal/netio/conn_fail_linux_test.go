package netio

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/unix"
)

func TestTruncated(t *testing.T) {
	t.Parallel()
	a, b := open(t, loopbacks[0], everything), open(t, loopbacks[0], everything)
	out := []Message{
		{Buf: pattern(10, 1), Addr: b.LocalAddr()},
		{Buf: pattern(101, 2), Addr: b.LocalAddr()},
		{Buf: pattern(100, 3), Addr: b.LocalAddr()},
	}
	if n, err := a.Write(out); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	in := room(8, 100)
	b.read.want = len(in) // as if much had come
	n, err := b.Read(in)
	if n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if !bytes.Equal(in[0].Buf, out[0].Buf) || !bytes.Equal(in[1].Buf, out[2].Buf) {
		t.Error("other bytes")
	}
	if c := countersOf(b); c.Truncated != 1 || c.Received != 2 {
		t.Errorf("%+v", c)
	}
	for i := range in { // no two messages share memory afterwards
		for j := range i {
			if &in[i].Buf[:1][0] == &in[j].Buf[:1][0] {
				t.Errorf("messages %d and %d share memory", i, j)
			}
		}
	}
	// A read that finds nothing else goes on waiting.
	if n, err := b.TryRead(in); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := a.Write(out[1:2]); err != nil {
		t.Fatal(err)
	}
	if n, err := b.TryRead(in); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if c := countersOf(b); c.Truncated != 2 {
		t.Errorf("%+v", c)
	}
}

// TestICMP: a datagram to a port that nobody has leaves no error behind.
func TestICMP(t *testing.T) {
	t.Parallel()
	for _, addr := range loopbacks {
		a, b := open(t, addr, everything), open(t, addr, everything)
		gone := b.LocalAddr()
		b.Close()
		for range 3 {
			if n, err := a.Write([]Message{{Buf: []byte("?"), Addr: gone}, {Buf: []byte("!"), Addr: a.LocalAddr()}}); n != 2 || err != nil {
				t.Fatal(n, err)
			}
			in := room(2, 64)
			if n, err := a.Read(in); n != 1 || err != nil || string(in[0].Buf) != "!" {
				t.Fatal(n, err)
			}
		}
	}
}

func TestWrongFamily(t *testing.T) {
	t.Parallel()
	four, six := open(t, loopbacks[0], everything), open(t, loopbacks[1], everything)
	for _, k := range []struct {
		c  *batchConn
		to netip.AddrPort
	}{{four, six.LocalAddr()}, {six, four.LocalAddr()}, {four, netip.AddrPort{}}, {six, netip.AddrPort{}}} {
		n, err := k.c.Write([]Message{{Buf: []byte("a"), Addr: k.c.LocalAddr()}, {Buf: []byte("b"), Addr: k.to}})
		if n != 1 || !errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Errorf("%v to %v: %d, %v", k.c.LocalAddr(), k.to, n, err)
		}
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(four.LocalAddr().Addr().As16()), four.LocalAddr().Port())
	if n, err := four.Write([]Message{{Buf: []byte("a"), Addr: mapped}}); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// TestOverflow fills the receive buffer and expects to be told.
func TestOverflow(t *testing.T) {
	t.Parallel()
	a, b := open(t, loopbacks[0], everything), open(t, loopbacks[0], everything)
	if err := unix.SetsockoptInt(b.fd, unix.SolSocket, unix.SoRcvbuf, 64<<10); err != nil {
		t.Fatal(err)
	}
	out := make([]Message, 200)
	for i := range out {
		out[i] = Message{Buf: make([]byte, 1024), Addr: b.LocalAddr()}
	}
	if n, err := a.Write(out); n != len(out) || err != nil {
		t.Fatal(n, err)
	}
	in := room(batch, 2048)
	got := 0
	for {
		n, err := b.TryRead(in)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		got += n
	}
	if got == 0 || got >= len(out) {
		t.Fatalf("the buffer held %d", got)
	}
	if _, err := a.Write(out[:1]); err != nil { // carries the count
		t.Fatal(err)
	}
	if n, err := b.Read(in); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if c := countersOf(b); int(c.Overflow) != len(out)-got {
		t.Errorf("%d lost, counted %d", len(out)-got, c.Overflow)
	}
}
