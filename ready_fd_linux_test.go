package rdma_test

import (
	"fmt"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// polled gives what poll says of a descriptor now.
func polled(t testing.TB, fd int) (readable, writable bool) {
	t.Helper()
	fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn | unix.PollOut}}
	if _, err := unix.Poll(fds, 0); err != nil {
		t.Fatal(err)
	}
	return fds[0].Revents&unix.PollIn != 0, fds[0].Revents&unix.PollOut != 0
}

// fill writes until there is no room, and stays none: the peer's memory takes some though
// nobody reads there. It gives how much it wrote.
func fill(t testing.TB, l *rig, c *rdma.Conn, fd int) (total int) {
	t.Helper()
	b := make([]byte, 10000)
	for {
		var err error
		for err == nil {
			var n int
			n, err = c.TryWrite(b)
			total += n
		}
		time.Sleep(l.of(time.Second, 300*time.Millisecond))
		if _, w := polled(t, fd); !w {
			return total
		}
	}
}

// TestC298_FD: the descriptor says exactly what TryRead and TryWrite would do, without any
// call in between.
func TestC298_FD(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		fd, err := c.FD()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := c.FD(); again != fd || err != nil {
			t.Error(again, err)
		}
		check := func(what string, readable, writable bool) {
			t.Helper()
			time.Sleep(l.of(time.Second, 0))
			l.comes(t, fmt.Sprintf("%s: readable %v, writable %v", what, readable, writable), func() bool {
				r, w := polled(t, fd)
				return r == readable && w == writable
			})
			var b [1]byte
			if !readable {
				if n, err := c.TryRead(b[:]); n != 0 || err != rdma.ErrWouldBlock {
					t.Fatalf("%s: TryRead gives %d, %v", what, n, err)
				}
			}
			if !writable {
				if n, err := c.TryWrite(b[:]); n != 0 || err != rdma.ErrWouldBlock {
					t.Fatalf("%s: TryWrite gives %d, %v", what, n, err)
				}
			}
		}
		check("at first", false, true)
		for range 3 {
			writes(t, s, []byte("abc"))
			check("data", true, true)
			var b [2]byte
			c.TryRead(b[:])
			check("some left", true, true)
			c.TryRead(b[:])
			check("read", false, true)
			total := 0
			total += fill(t, l, c, fd)
			check("full", false, false)
			writes(t, s, []byte("x"))
			total += fill(t, l, c, fd) // what the peer writes can tell of room
			check("full and data", true, false)
			reads(t, c, []byte("x"))
			reads(t, s, make([]byte, total))
			check("drained", false, true)
		}
		s.CloseWrite()
		check("end", true, true)
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("no end")
		}
		check("after the end", true, true)
	})
}

// A connection that fails is readable and writable.
func TestC298_FDFailure(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		s, c := l.pair(t)
		defer c.Close()
		fd, err := c.FD()
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := c.TryWrite(make([]byte, 60000)); err != nil {
				break
			}
		}
		s.SetLinger(0)
		s.Close()
		time.Sleep(time.Second)
		if r, w := polled(t, fd); !r || !w {
			t.Errorf("readable %v, writable %v", r, w)
		}
		c.Close()
		if _, err := c.FD(); err == nil {
			t.Error("FD after Close")
		}
	})
}

// TestC298_ListenerFD: readable exactly while Accept would not block.
func TestC298_ListenerFD(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		ln := l.listen(t)
		defer ln.Close()
		fd, err := ln.FD()
		if err != nil {
			t.Fatal(err)
		}
		want := func(readable bool) {
			t.Helper()
			time.Sleep(l.of(time.Second, 0))
			l.comes(t, fmt.Sprintf("readable %v", readable), func() bool { r, _ := polled(t, fd); return r == readable })
		}
		for range l.times(3, 2) {
			want(false)
			c, err := l.dialer().Dial("rdma", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			want(true)
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			want(false)
			closeBoth(s, c)
		}
	})
}

// A deadline that passes, or is set in the past, is an answer for TryRead and TryWrite, and
// one that moves away takes it back.
func TestC298_FDDeadline(t *testing.T) {
	pairs(t, func(t *testing.T, l *rig, s, c *rdma.Conn) {
		fd, err := c.FD()
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, readable, writable bool) {
			t.Helper()
			l.comes(t, fmt.Sprintf("%s: readable %v, writable %v", what, readable, writable), func() bool {
				r, w := polled(t, fd)
				return r == readable && w == writable
			})
		}
		c.SetReadDeadline(time.Now().Add(time.Second))
		check("before", false, true)
		time.Sleep(l.of(2*time.Second, 0))
		check("passed", true, true)
		c.SetReadDeadline(time.Time{})
		check("taken back", false, true)
		c.SetReadDeadline(time.Unix(1, 0))
		check("past", true, true)
		c.SetReadDeadline(time.Now().Add(time.Hour))
		check("moved", false, true)
		total := fill(t, l, c, fd)
		c.SetWriteDeadline(time.Now().Add(time.Second))
		check("full", false, false)
		time.Sleep(l.of(2*time.Second, 0))
		check("full and passed", false, true)
		c.SetWriteDeadline(time.Time{})
		check("full again", false, false)
		reads(t, s, make([]byte, total))
	})
}
