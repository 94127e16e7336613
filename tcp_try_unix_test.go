//go:build unix

package rdma_test

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestTryTCP: TryRead and TryWrite do over TCP what they do over RDMA: they do not wait, not
// even for who is in Read or Write, and their errors are those of package net.
func TestTryTCP(t *testing.T) {
	rdmatest.CheckLeaks(t)
	c, peer := overTCP(t)
	defer closeBoth(c, peer)
	b := make([]byte, 10)
	if n, err := c.TryRead(b); n != 0 || err != rdma.ErrWouldBlock {
		t.Error("nothing there:", n, err)
	}
	read := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
	for range 1000 { // the other goroutine gets there at some time
		if n, err := c.TryRead(b); n != 0 || err != rdma.ErrWouldBlock {
			t.Fatal("another reads:", n, err)
		}
		runtime.Gosched()
	}
	writes(t, peer, []byte("x"))
	if err := <-read; err != nil {
		t.Error(err)
	}
	for err := error(nil); err != rdma.ErrWouldBlock; {
		if _, err = c.TryWrite(make([]byte, 64<<10)); err != nil && err != rdma.ErrWouldBlock {
			t.Fatal(err)
		}
	}
	c.SetDeadline(time.Now().Add(-time.Second))
	_, err := c.TryRead(b)
	isErr(t, "deadline", err, os.ErrDeadlineExceeded)
	c.SetDeadline(time.Time{})
	peer.SetLinger(0)
	peer.Close()
	if _, err := c.Read(b); err == nil { // waits for the reset
		t.Fatal("no reset")
	}
	_, err = c.TryWrite(b)
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "write" || op.Net != "tcp" || op.Source == nil || op.Addr == nil || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("after a reset: %#v", err)
	}
	if _, err := c.TryRead(b); err != io.EOF {
		t.Error("after a reset:", err)
	}
}

// gate is what a copy comes from or goes to, and where it waits.
type gate struct{ here, goOn chan struct{} }

func newGate() gate { return gate{make(chan struct{}), make(chan struct{})} }

func (g gate) Write(p []byte) (int, error) {
	g.here <- struct{}{}
	<-g.goOn
	return len(p), nil
}

func (g gate) Read([]byte) (int, error) {
	g.here <- struct{}{}
	<-g.goOn
	return 0, io.EOF
}

// TestTryTCPCopy: TryRead and TryWrite over TCP do not wait for who is in WriteTo or
// ReadFrom, and take nothing from between.
func TestTryTCPCopy(t *testing.T) {
	rdmatest.CheckLeaks(t)
	c, peer := overTCP(t)
	defer closeBoth(c, peer)
	b := make([]byte, 1)
	type result struct {
		n   int64
		err error
	}
	copied := make(chan result, 1)
	to := newGate()
	go func() { n, err := c.WriteTo(to); copied <- result{n, err} }()
	none := func(what string) {
		t.Helper()
		for range 1000 { // the other goroutine gets there at some time
			if n, err := c.TryRead(b); n != 0 || err != rdma.ErrWouldBlock {
				t.Fatal(what, n, err)
			}
			runtime.Gosched()
		}
	}
	writes(t, peer, []byte("x"))
	<-to.here
	writes(t, peer, []byte("y"))
	none("WriteTo writes:")
	to.goOn <- struct{}{}
	<-to.here
	to.goOn <- struct{}{}
	none("WriteTo reads:")
	peer.CloseWrite()
	if r := <-copied; r.n != 2 || r.err != nil {
		t.Error("WriteTo:", r.n, r.err)
	}
	if n, err := c.TryRead(b); n != 0 || err != io.EOF {
		t.Error("behind WriteTo:", n, err)
	}
	from := newGate()
	go func() { n, err := c.ReadFrom(from); copied <- result{n, err} }()
	<-from.here
	if n, err := c.TryWrite(b); n != 0 || err != rdma.ErrWouldBlock {
		t.Error("ReadFrom:", n, err)
	}
	from.goOn <- struct{}{}
	if r := <-copied; r.n != 0 || r.err != nil {
		t.Error("ReadFrom:", r.n, r.err)
	}
	if n, err := c.TryWrite(b); n != 1 || err != nil {
		t.Error("behind ReadFrom:", n, err)
	}
}
