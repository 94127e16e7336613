package rdma_test

import (
	"testing"
	"testing/synctest"
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

// TestC298_FD: the descriptor says exactly what TryRead and TryWrite would do, without any
// call in between.
func TestC298_FD(t *testing.T) {
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		fd, err := c.FD()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := c.FD(); again != fd || err != nil {
			t.Error(again, err)
		}
		check := func(what string, readable, writable bool) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if r, w := polled(t, fd); r != readable || w != writable {
				t.Fatalf("%s: readable %v, writable %v, want %v and %v", what, r, w, readable, writable)
			}
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
			fill := func() { // the peer takes some without reading
				for full := false; !full; {
					for {
						n, err := c.TryWrite(make([]byte, 10000))
						total += n
						if err != nil {
							break
						}
					}
					time.Sleep(time.Second)
					_, w := polled(t, fd)
					full = !w
				}
			}
			fill()
			check("full", false, false)
			writes(t, s, []byte("x"))
			fill() // what the peer writes can tell of room
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
			time.Sleep(time.Second)
			if r, _ := polled(t, fd); r != readable {
				t.Fatalf("readable %v", r)
			}
		}
		for range 3 {
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
	pairs(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		fd, err := c.FD()
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, readable, writable bool) {
			t.Helper()
			synctest.Wait()
			if r, w := polled(t, fd); r != readable || w != writable {
				t.Errorf("%s: readable %v, writable %v, want %v and %v", what, r, w, readable, writable)
			}
		}
		c.SetReadDeadline(time.Now().Add(time.Second))
		check("before", false, true)
		time.Sleep(2 * time.Second)
		check("passed", true, true)
		c.SetReadDeadline(time.Time{})
		check("taken back", false, true)
		c.SetReadDeadline(time.Unix(1, 0))
		check("past", true, true)
		c.SetReadDeadline(time.Now().Add(time.Hour))
		check("moved", false, true)
		total := 0
		for full := false; !full; {
			for {
				n, err := c.TryWrite(make([]byte, 10000))
				total += n
				if err != nil {
					break
				}
			}
			time.Sleep(time.Second)
			_, w := polled(t, fd)
			full = !w
		}
		c.SetWriteDeadline(time.Now().Add(time.Second))
		check("full", false, false)
		time.Sleep(2 * time.Second)
		check("full and passed", false, true)
		c.SetWriteDeadline(time.Time{})
		check("full again", false, false)
		reads(t, s, make([]byte, total))
	})
}
