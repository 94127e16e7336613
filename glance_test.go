package rdma

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// TestC267_WriterHears: who does nothing but write hears that the peer has closed, though
// nobody has the role of looking at the queue: each call that writes takes a look.
func TestC267_WriterHears(t *testing.T) {
	for name, write := range map[string]func(*Conn) error{
		"Write":        func(c *Conn) error { _, err := c.Write([]byte("x")); return err },
		"TryWrite":     func(c *Conn) error { _, err := c.TryWrite([]byte("x")); return err },
		"WriteBuffers": func(c *Conn) error { _, err := c.WriteBuffers(&net.Buffers{[]byte("x")}); return err },
		"MapWrite":     func(c *Conn) error { _, err := c.MapWrite([]byte("x"), 0); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { writerHears(t, write) })
		})
	}
}

func writerHears(t *testing.T, write func(*Conn) error) {
	f := newTestNet(t)
	ln, err := (&ListenConfig{Config: &Config{Provider: f.Host(netip.MustParseAddr("10.0.0.1"))}}).Listen(t.Context(), "rdma", "10.0.0.1:7471")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialled, err := (&Dialer{Config: &Config{Provider: f.Host(netip.MustParseAddr("10.0.0.2")), Maps: 1}}).Dial("rdma", "10.0.0.1:7471")
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s, c := accepted.(*Conn), dialled.(*Conn)
	mr, err := s.PD().Alloc(100, ib.LocalWrite|ib.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	if _, err := s.Map(mr, 0); err != nil {
		t.Fatal(err)
	}
	// The hub's goroutine leaves the role to a reader that it has woken, and who does not
	// come back.
	role := &c.hub.role
	role.grace.Store(int64(maxGrace))
	read := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
	synctest.Wait()
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	if err := write(c); err != nil {
		t.Error("before the end:", err)
	}
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	time.Sleep(maxGrace / 4) // the end arrives
	if role.held.Load() {
		t.Error("somebody has the role")
	}
	if err := write(c); !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the end: %v", err)
	}
	c.Close()
	<-closed
}

// TestC291_AnswerInQueue: the peer's answer may lie in a queue that nobody looks at when the
// time for it is over: who is about to give up looks first.
func TestC291_AnswerInQueue(t *testing.T) {
	for _, compatible := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newTestNet(t)
			cfg := func(host string) *Config {
				return &Config{Provider: f.Host(netip.MustParseAddr(host)), Compatible: compatible, KeepAlive: -1}
			}
			ln, err := (&ListenConfig{Config: cfg("10.0.0.1")}).Listen(t.Context(), "rdma", "10.0.0.1:7471")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			a, err := (&Dialer{Config: cfg("10.0.0.2")}).Dial("rdma", "10.0.0.1:7471")
			if err != nil {
				t.Fatal(err)
			}
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c := a.(*Conn)
			role := &c.hub.role
			role.timer.Stop() // once vacant it stays so
			role.fires.Store(math.MinInt64)
			role.skip.Store(0)
			read := make(chan error, 1)
			go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
			synctest.Wait()
			if _, err := s.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := <-read; err != nil {
				t.Fatal(err)
			}
			if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute + time.Second/2)
			if role.held.Load() {
				t.Error("somebody has the role")
			}
			if _, err := c.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			done := make(chan struct{})
			go func() { s.Close(); close(done) }()
			c.Close()
			<-done
		})
	}
}
