package rdma_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// duplex is what a *net.TCPConn and a *rdma.Conn have in common.
type duplex interface {
	net.Conn
	io.ReaderFrom
	io.WriterTo
	CloseRead() error
	CloseWrite() error
	SetLinger(int) error
	SetNoDelay(bool) error
	SetKeepAlive(bool) error
	SetKeepAlivePeriod(time.Duration) error
	SetKeepAliveConfig(net.KeepAliveConfig) error
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}

// class names what errors.Is would tell a program.
func class(err error) string {
	var op *net.OpError
	wrapped := ""
	if errors.As(err, &op) {
		wrapped = op.Op + " "
	}
	var ne net.Error
	timeout := errors.As(err, &ne) && ne.Timeout()
	switch {
	case err == nil:
		return "ok"
	case err == io.EOF:
		return "EOF"
	case errors.Is(err, os.ErrDeadlineExceeded) && timeout:
		return wrapped + "deadline"
	case errors.Is(err, net.ErrClosed):
		return wrapped + "closed"
	case errors.Is(err, syscall.ECONNRESET):
		return wrapped + "ECONNRESET"
	case errors.Is(err, syscall.EPIPE):
		return wrapped + "EPIPE"
	case errors.Is(err, syscall.ENOTCONN):
		return wrapped + "ENOTCONN"
	case errors.Is(err, syscall.EINVAL):
		return wrapped + "EINVAL"
	case errors.Is(err, errOdd):
		return wrapped + "odd"
	}
	return "other: " + err.Error()
}

// script is what a program does with the two ends, and notes what comes of it.
type script struct {
	a, b  duplex
	notes []string
}

func (s *script) note(what string, err error) {
	s.notes = append(s.notes, what+": "+class(err))
}

func (s *script) count(what string, n any, err error) {
	s.notes = append(s.notes, fmt.Sprintf("%s: %v, %s", what, n, class(err)))
}

func (s *script) read(c duplex, n int) {
	b := make([]byte, n)
	n, err := c.Read(b)
	s.count("Read", string(b[:n]), err)
}

func (s *script) write(c duplex, p string) {
	n, err := c.Write([]byte(p))
	s.count("Write "+p, n, err)
}

// full reads all of n bytes, so that what the peer did before is known here.
func (s *script) full(c duplex, n int) {
	b := make([]byte, n)
	n, err := io.ReadFull(c, b)
	s.count("ReadFull", string(b[:n]), err)
}

// broken writes until that fails, which it must by and by.
func (s *script) broken(c duplex) {
	for range 1000 {
		if _, err := c.Write([]byte("x")); err != nil {
			s.note("broken", err)
			return
		}
		time.Sleep(time.Millisecond) // for what the peer says to arrive: a bound, not a measure
	}
	s.notes = append(s.notes, "never broken")
}

// nothing calls with no bytes.
func (s *script) nothing(c duplex) {
	n, err := c.Read(nil)
	s.count("Read nothing", n, err)
	n, err = c.Write(nil)
	s.count("Write nothing", n, err)
}

// blocked waits until a call that was begun has had time to block, as far as one can tell.
func blocked() { time.Sleep(20 * time.Millisecond) }

type errReader struct{ n int }

var errOdd = errors.New("odd")

func (r *errReader) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, errOdd
	}
	n := min(r.n, len(p))
	clear(p[:n])
	r.n -= n
	return n, nil
}

type errWriter struct{ n int }

func (w *errWriter) Write(p []byte) (int, error) {
	if len(p) > w.n {
		n := w.n
		w.n = 0
		return n, errOdd
	}
	w.n -= len(p)
	return len(p), nil
}

// scripts say what a program does. differs are notes of TCP that are others here, and why is
// in docs/streams.md.
var scripts = []struct {
	name    string
	do      func(s *script)
	differs map[string]string // of both protocols
	c       map[string]string // of rsockets alone
}{
	{name: "nothing", do: func(s *script) {
		s.nothing(s.a)
		s.a.CloseWrite()
		s.nothing(s.a)
		s.full(s.b, 0)
		s.b.Close()
		s.read(s.a, 1)
		s.nothing(s.a)
		s.a.Close()
		s.nothing(s.a)
	}},
	{name: "nothing after CloseRead", do: func(s *script) {
		s.note("CloseRead", s.a.CloseRead())
		s.nothing(s.a)
		s.read(s.a, 1)
		s.note("again", s.a.CloseRead())
		s.write(s.a, "on")
		s.full(s.b, 2)
	}},
	{name: "CloseRead with data", do: func(s *script) {
		s.write(s.b, "data")
		s.read(s.a, 1)
		s.note("CloseRead", s.a.CloseRead())
		s.read(s.a, 10)
		s.read(s.a, 10)
		s.write(s.b, "more")
	}, differs: map[string]string{"Read: ata, ok": "Read: , EOF"}},
	{name: "peer closes", do: func(s *script) {
		s.write(s.b, "abc")
		s.note("Close", s.b.Close())
		s.full(s.a, 3)
		s.read(s.a, 1)
		s.read(s.a, 1)
		s.broken(s.a)
		_, err := s.a.Write([]byte("x"))
		s.note("for ever", err)
	}},
	{name: "half close", do: func(s *script) {
		s.write(s.a, "question")
		s.note("CloseWrite", s.a.CloseWrite())
		s.note("again", s.a.CloseWrite())
		s.full(s.b, 8)
		s.read(s.b, 1)
		s.read(s.b, 1)
		s.write(s.a, "late")
		s.write(s.b, "answer")
		s.note("CloseWrite", s.b.CloseWrite())
		s.full(s.a, 6)
		s.read(s.a, 1)
		s.note("CloseRead", s.a.CloseRead())
		s.note("Close", s.a.Close())
		s.note("Close", s.b.Close())
		s.note("again", s.b.Close())
	}, differs: map[string]string{"CloseRead: close ENOTCONN": "CloseRead: ok"}},
	{name: "deadlines", do: func(s *script) {
		s.write(s.b, "waits")
		for _, past := range []time.Time{time.Unix(1, 0), time.Now().Add(-1), time.Now()} {
			s.note("SetDeadline", s.a.SetDeadline(past))
			s.read(s.a, 1)
			s.write(s.a, "no")
			s.nothing(s.a)
			v := net.Buffers{[]byte("no")}
			n, err := v.WriteTo(s.a)
			s.count("Buffers", n, err)
		}
		s.note("SetDeadline", s.a.SetDeadline(time.Time{}))
		s.full(s.a, 5)
		s.note("SetReadDeadline", s.a.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		s.read(s.a, 1)
		s.write(s.a, "writes")
		s.full(s.b, 6)
		s.note("SetReadDeadline", s.a.SetReadDeadline(time.Time{}))
		s.note("SetWriteDeadline", s.a.SetWriteDeadline(time.Unix(1, 0)))
		s.write(s.b, "reads")
		s.full(s.a, 5)
		s.write(s.a, "no")
	}, differs: map[string]string{"Buffers: 0, writev deadline": "Buffers: 0, write deadline"}},
	{name: "deadline of a blocked Write", do: func(s *script) {
		p := make([]byte, 64<<20)
		s.a.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := s.a.Write(p)
		s.count("Write", n > 0 && n < len(p), err)
		n2, err := s.a.Write(p)
		s.count("Write", n2, err)
		s.a.SetWriteDeadline(time.Time{})
		go func() {
			s.a.Write([]byte("tail"))
			s.a.CloseWrite()
		}()
		all, err := io.ReadAll(s.b)
		s.count("ReadAll", len(all) == n+4 && bytes.HasSuffix(all, []byte("tail")), err)
	}},
	{name: "deadline set by another", do: func(s *script) {
		done := make(chan error, 1)
		go func() { _, err := s.a.Read(make([]byte, 1)); done <- err }()
		blocked()
		s.a.SetReadDeadline(time.Unix(1, 0))
		s.note("Read", <-done)
	}},
	{name: "closed", do: func(s *script) {
		local, remote := s.a.LocalAddr().String(), s.a.RemoteAddr().String()
		s.note("Close", s.a.Close())
		s.read(s.a, 1)
		s.write(s.a, "x")
		v := net.Buffers{[]byte("x")}
		n, err := v.WriteTo(s.a)
		s.count("Buffers", n, err)
		n, err = s.a.ReadFrom(strings.NewReader("x"))
		s.count("ReadFrom", n, err)
		n, err = s.a.WriteTo(io.Discard)
		s.count("WriteTo", n, err)
		s.note("CloseRead", s.a.CloseRead())
		s.note("CloseWrite", s.a.CloseWrite())
		s.note("SetDeadline", s.a.SetDeadline(time.Time{}))
		s.note("SetReadDeadline", s.a.SetReadDeadline(time.Time{}))
		s.note("SetWriteDeadline", s.a.SetWriteDeadline(time.Time{}))
		s.note("SetLinger", s.a.SetLinger(1))
		s.note("SetNoDelay", s.a.SetNoDelay(true))
		s.note("SetKeepAlive", s.a.SetKeepAlive(true))
		s.note("SetKeepAlivePeriod", s.a.SetKeepAlivePeriod(time.Second))
		s.note("SetKeepAliveConfig", s.a.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true}))
		s.note("SetReadBuffer", s.a.SetReadBuffer(10000))
		s.note("SetWriteBuffer", s.a.SetWriteBuffer(10000))
		s.note("Close", s.a.Close())
		s.notes = append(s.notes, fmt.Sprint(local == s.a.LocalAddr().String(), remote == s.a.RemoteAddr().String()))
	}, differs: map[string]string{"Buffers: 0, writev closed": "Buffers: 0, write closed"}},
	{name: "Close of who is blocked", do: func(s *script) {
		s.a.SetLinger(0)
		rd, wr, rf, wt := make(chan error, 1), make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() { _, err := s.a.Read(make([]byte, 1)); rd <- err }()
		go func() { _, err := s.a.Write(make([]byte, 64<<20)); wr <- err }()
		go func() { _, err := s.b.WriteTo(&errWriter{}); wt <- err }()
		s.note("WriteTo", <-wt)
		blocked()
		go func() { _, err := s.a.ReadFrom(&errReader{64 << 20}); rf <- err }()
		blocked()
		s.note("Close", s.a.Close())
		s.note("Read", <-rd)
		s.note("Write", <-wr)
		s.note("ReadFrom", <-rf)
	}},
	{name: "several Closes", do: func(s *script) {
		errs := make(chan error, 8)
		for range 8 {
			go func() { errs <- s.a.Close() }()
		}
		var all []string
		for range 8 {
			all = append(all, class(<-errs))
		}
		slices.Sort(all)
		s.notes = append(s.notes, all...)
	}},
	{name: "reset", do: func(s *script) {
		s.write(s.b, "last")
		s.full(s.a, 4)
		s.note("SetLinger", s.b.SetLinger(0))
		s.note("Close", s.b.Close())
		s.read(s.a, 1)
	}, c: map[string]string{"Read: , read ECONNRESET": "Read: , EOF"}},
	{name: "reset, then Write", do: func(s *script) {
		s.b.SetLinger(0)
		s.b.Close()
		s.read(s.a, 1)
		s.broken(s.a)
	}, differs: map[string]string{"broken: write EPIPE": "broken: write ECONNRESET"},
		c: map[string]string{"Read: , read ECONNRESET": "Read: , EOF", "broken: write EPIPE": "broken: write EPIPE"}},
	{name: "reset of a blocked Write", do: func(s *script) {
		done := make(chan error, 1)
		go func() { _, err := s.a.Write(make([]byte, 64<<20)); done <- err }()
		blocked()
		s.b.SetLinger(0)
		s.b.Close()
		s.note("Write", <-done)
	}, c: map[string]string{"Write: write ECONNRESET": "Write: write EPIPE"}},
	{name: "peer closes unread", do: func(s *script) {
		s.write(s.a, "unread")
		s.write(s.b, "x")
		s.full(s.a, 1)
		blocked()
		s.b.Close()
		s.read(s.a, 1)
	}, differs: map[string]string{"Read: , read ECONNRESET": "Read: , EOF"}},
	{name: "Buffers", do: func(s *script) {
		for _, v := range []net.Buffers{nil, {}, {nil}, {nil, []byte("ab"), {}, []byte("c"), nil}} {
			n, err := v.WriteTo(s.a)
			s.count("Buffers", fmt.Sprint(n, len(v)), err)
		}
		s.full(s.b, 3)
	}, differs: map[string]string{"Buffers: 0 1, ok": "Buffers: 0 0, ok"}}, // package net's own loop
	{name: "copies", do: func(s *script) {
		n, err := s.a.ReadFrom(strings.NewReader("hello"))
		s.count("ReadFrom", n, err)
		n, err = s.a.ReadFrom(&io.LimitedReader{R: strings.NewReader("limited"), N: 3})
		s.count("limited", n, err)
		n, err = s.a.ReadFrom(&errReader{100})
		s.count("of an error", n, err)
		n, err = io.Copy(s.a, io.LimitReader(&errReader{1000}, 500))
		s.count("io.Copy", n, err)
		n, err = io.CopyN(s.a, strings.NewReader("short"), 100)
		s.count("io.CopyN", n, err)
		s.a.CloseWrite()
		s.full(s.b, 8)
		var b bytes.Buffer
		n, err = s.b.WriteTo(&b)
		s.count("WriteTo", n, err)
		n, err = s.b.WriteTo(&b)
		s.count("at the end", n, err)
		s.write(s.b, "0123456789")
		n, err = s.a.WriteTo(&errWriter{4})
		s.count("to an error", n, err)
		n, err = s.a.ReadFrom(strings.NewReader("late"))
		s.count("ReadFrom", n, err)
	}},
	{name: "options", do: func(s *script) {
		s.note("SetLinger", s.a.SetLinger(-1))
		s.note("SetLinger", s.a.SetLinger(3))
		s.note("SetNoDelay", s.a.SetNoDelay(false))
		s.note("SetKeepAlive", s.a.SetKeepAlive(false))
		s.note("SetKeepAlive", s.a.SetKeepAlive(true))
		s.note("SetKeepAlivePeriod", s.a.SetKeepAlivePeriod(time.Minute))
		s.note("SetKeepAliveConfig", s.a.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: -1, Interval: -1, Count: -1}))
		s.note("SetReadBuffer", s.a.SetReadBuffer(1))
		s.note("SetWriteBuffer", s.a.SetWriteBuffer(1))
		s.write(s.a, strings.Repeat("y", 3000))
		s.full(s.b, 3000)
	}},
}

// TestDifferential runs each script over TCP and over both protocols, and compares what
// programs see. Each difference is in the table, and in docs/streams.md.
func TestDifferential(t *testing.T) {
	p := onLoopback(t)
	for _, x := range scripts {
		t.Run(x.name, func(t *testing.T) {
			want := runScript(t, x.do, tcpPair)
			for _, m := range modes {
				cfg := rdma.Config{Compatible: m.compatible}
				if m.compatible {
					cfg.Linger = 300 * time.Millisecond // who closes waits for the other to close
				}
				l := &rig{place: p, server: cfg, client: cfg}
				got := runScript(t, x.do, func(t *testing.T) (duplex, duplex) {
					s, c := l.pair(t)
					return c, s
				})
				expect := slices.Clone(want)
				for i, n := range expect {
					if d, ok := x.c[n]; ok && m.compatible {
						expect[i] = d
					} else if d, ok := x.differs[n]; ok {
						expect[i] = d
					}
				}
				if !slices.Equal(got, expect) {
					t.Errorf("%s:", m.name)
					for i := range max(len(got), len(expect)) {
						g, w := "-", "-"
						if i < len(got) {
							g = got[i]
						}
						if i < len(expect) {
							w = expect[i]
						}
						if g != w {
							t.Errorf("  %2d %.100s, want %.100s (TCP: %.100s)", i, g, w, want[min(i, len(want)-1)])
						}
					}
				}
			}
		})
	}
}

func tcpPair(t *testing.T) (a, b duplex) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(duplex), s.(duplex)
}

func runScript(t *testing.T, do func(*script), pair func(*testing.T) (duplex, duplex)) []string {
	s := &script{}
	s.a, s.b = pair(t)
	for _, c := range []duplex{s.a, s.b} { // no script hangs
		limit := time.AfterFunc(time.Minute, func() { c.SetLinger(0); c.Close() })
		defer limit.Stop()
	}
	do(s)
	for _, c := range []duplex{s.a, s.b} {
		c.SetLinger(0)
		c.Close()
	}
	return s.notes
}
