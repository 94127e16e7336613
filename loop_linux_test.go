package rdma_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/event"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// TestC298_EventLoop: a server of streams in one event.Loop, on each of its system calls,
// without a goroutine of its own: it accepts, and echoes with TryRead and TryWrite, only
// when their descriptors say so.
func TestC298_EventLoop(t *testing.T) {
	for _, b := range []event.Backend{event.Epoll, event.Poll, event.Select} {
		for _, m := range modes {
			t.Run(b.String()+"/"+m.name, func(t *testing.T) {
				cfg := rdma.Config{Compatible: m.compatible, SendBuf: 16 << 10, RecvBuf: 64 << 10}
				l := &rig{place: onLoopback(t), server: cfg, client: cfg}
				ln := l.listen(t)
				defer ln.Close()
				s := &loopServer{t: t, ln: ln}
				var err error
				if s.loop, err = event.New(&event.Config{Backend: b}); err != nil {
					t.Fatal(err)
				}
				defer s.loop.Close()
				fd, err := ln.FD()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.loop.File(fd, event.Readable, s.accept); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				done := make(chan error, 1)
				go func() { done <- s.loop.Run(ctx) }()
				var clients sync.WaitGroup
				n := l.times(8, 2)
				for i := range n {
					clients.Go(func() { echoed(t, l, ln, 600_000+i) })
				}
				clients.Wait()
				cancel()
				<-done
				if s.accepted != n || s.blocks == 0 {
					t.Errorf("%d accepted; %d times there was no room, so that nothing waited to write", s.accepted, s.blocks)
				}
			})
		}
	}
}

// echoed is a client that writes n bytes, and later reads them back.
func echoed(t *testing.T, l *rig, ln *rdma.Listener, n int) {
	c, err := l.dialer().Dial("rdma", ln.Addr().String())
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	want := pattern(n, n)
	go func() {
		c.Write(want)
		c.(*rdma.Conn).CloseWrite()
	}()
	for c.(*rdma.Conn).Stats().CreditStalls == 0 { // the server is full, in both directions
		time.Sleep(time.Millisecond)
	}
	got, err := io.ReadAll(c)
	if string(got) != string(want) || err != nil {
		t.Errorf("%d of %d bytes: %v", len(got), n, err)
	}
}

// loopServer runs in its loop's goroutine.
type loopServer struct {
	t                *testing.T
	loop             *event.Loop
	ln               *rdma.Listener
	accepted, blocks int
}

func (s *loopServer) accept(event.Mask) {
	c, err := s.ln.AcceptRDMA() // it does not block
	if err != nil {
		s.t.Error(err)
		return
	}
	s.accepted++
	fd, err := c.FD()
	if err != nil {
		s.t.Error(err)
		return
	}
	e := &loopEcho{s: s, c: c, b: make([]byte, 10_000)}
	if e.w, err = s.loop.File(fd, event.Readable, e.ready); err != nil {
		s.t.Error(err)
	}
}

// loopEcho is a connection: it reads while it has nothing to write.
type loopEcho struct {
	s    *loopServer
	c    *rdma.Conn
	w    *event.Watch
	b    []byte
	left []byte
}

func (e *loopEcho) ready(m event.Mask) {
	if len(e.left) == 0 {
		n, err := e.c.TryRead(e.b)
		switch {
		case err == rdma.ErrWouldBlock:
			e.s.t.Errorf("%v, and TryRead would block", m)
			return
		case err != nil:
			if err != io.EOF {
				e.s.t.Error(err)
			}
			e.w.Close()
			e.c.CloseWrite()
			go e.c.Close() // which may wait for the peer
			return
		}
		e.left = e.b[:n]
	}
	n, err := e.c.TryWrite(e.left)
	if err != nil && err != rdma.ErrWouldBlock {
		e.s.t.Error(err)
	}
	e.left = e.left[n:]
	want := event.Readable
	if len(e.left) > 0 {
		e.s.blocks++
		want = event.Writable
	}
	if err := e.w.SetMask(want); err != nil {
		e.s.t.Error(err)
	}
}

// TestC298_Epoll: level triggered under epoll: told again and again until it is read, and
// then no more.
func TestC298_Epoll(t *testing.T) {
	pairsNow(t, func(t *testing.T, _ *rig, s, c *rdma.Conn) {
		fd, err := c.FD()
		if err != nil {
			t.Fatal(err)
		}
		ep, err := unix.EpollCreate()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ep)
		if err := unix.EpollAdd(ep, fd, unix.PollIn); err != nil {
			t.Fatal(err)
		}
		var evs [4]unix.EpollEvent
		told := func(limit time.Duration) int {
			for end := time.Now().Add(limit); ; { // a signal ends the wait early
				n, err := unix.EpollWait(ep, evs[:], limit)
				if err != nil {
					t.Fatal(err)
				}
				if n > 0 || !time.Now().Before(end) {
					return n
				}
			}
		}
		if told(0) != 0 {
			t.Error("readable at first")
		}
		for range 3 {
			writes(t, s, []byte("ab"))
			for range 3 {
				if told(time.Minute) != 1 {
					t.Fatal("not told of data")
				}
			}
			reads(t, c, []byte("a"))
			if told(0) != 1 {
				t.Error("not told of what is left")
			}
			reads(t, c, []byte("b"))
			if told(0) != 0 {
				t.Error("told of nothing")
			}
		}
		s.CloseWrite()
		for range 3 {
			if told(time.Minute) != 1 {
				t.Fatal("not told of the end")
			}
		}
	})
}
