package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// stalled is how long the peers of TestProxySlow do not read: longer than any limit that there
// is for dead ones, with -keepalive 1s, and than a Close waits by default.
const stalled = 8 * time.Second

// TestProxySlow: peers that do not read for a long time, but live, lose nothing.
func TestProxySlow(t *testing.T) {
	rdmatest.CheckLeaks(t)
	t.Run("TCP", func(t *testing.T) {
		t.Parallel()
		want := random(6, 32<<20) // more than all buffers
		client, _ := pairHere(t, listenTCPTest(t, func(c *net.TCPConn) { c.Write(want) }), "-keepalive", "1s")
		c := dialService(t, client.addr)
		c.CloseWrite()
		time.Sleep(stalled) // it is what is tested
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
		}
	})
	t.Run("end", func(t *testing.T) { // all is in the proxy's memory, and both directions have ended
		t.Parallel()
		want := random(7, 400_000)
		p, c := lastBytes(t, want, "-keepalive", "1s")
		defer c.Close()
		time.Sleep(stalled)
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
		}
		c.Close()
		p.expect("ended after")
	})
	t.Run("stop", func(t *testing.T) { // the same, but the proxy is to stop
		t.Parallel()
		p, c := lastBytes(t, random(8, 400_000), "-grace", "1s")
		defer c.Close()
		p.cancel()
		p.expect("stopping: 1 connections")
		p.expect("ended: 0 connections carried, 1 failed")
		if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer of a proxy that has stopped: %v", err)
		}
	})
	t.Run("idle", func(t *testing.T) { // the same, but that is not to go on for ever
		t.Parallel()
		p, c := lastBytes(t, random(9, 400_000), "-idle", "1s")
		defer c.Close()
		p.expect("-idle")
		if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer of an idle connection: %v", err)
		}
	})
}

// lastBytes starts the proxy of a service that says b, and gives a connection to it over RDMA,
// whose end it has passed on to the service. The connection takes a part of b.
func lastBytes(t *testing.T, b []byte, args ...string) (*running, *rdma.Conn) {
	t.Helper()
	done := make(chan struct{})
	service := listenTCPTest(t, func(c *net.TCPConn) {
		io.Copy(io.Discard, c)
		c.Write(b)
		close(done)
	})
	p := runHere(t, append([]string{"-listen", "rdma://" + privateAddr().String() + ":0", "-to", "tcp://" + service}, args...)...)
	d := rdma.Dialer{Config: &rdma.Config{RecvBuf: 64 << 10}, Timeout: patience}
	c, err := d.Dial("rdma", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.(*rdma.Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	<-done
	return p, c.(*rdma.Conn)
}

// TestProxyVanished: a peer over TCP that vanishes while there is something on its way to it
// is noticed, and the other side told.
func TestProxyVanished(t *testing.T) {
	rdmatest.CheckLeaks(t)
	ended := make(chan error, 1)
	client, _ := pairHere(t, listenTCPTest(t, func(c *net.TCPConn) {
		_, err := io.ReadFull(c, make([]byte, 1))
		for err == nil {
			_, err = c.Write(make([]byte, 64<<10))
		}
		ended <- err
	}), "-keepalive", "1s")
	c := dialService(t, client.addr)
	rc, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var serr error
	err = rc.Control(func(fd uintptr) {
		// The socket hears nothing any more, and what it does not hear it does not answer.
		deaf := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
		if _, serr = unix.Write(int(fd), []byte("x")); serr == nil {
			serr = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &deaf[0]})
		}
	})
	if err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	if err := <-ended; !gone(err) {
		t.Errorf("the server: %v", err)
	}
	client.expect("timed out")
}

// TestProxyKeepAliveLong: times that a system does not take are no reason to carry nothing.
func TestProxyKeepAliveLong(t *testing.T) {
	rdmatest.CheckLeaks(t)
	client, _ := pairHere(t, listenTCPTest(t, echo), "-keepalive", "1000h")
	if err := exchange(dialService(t, client.addr), []byte("x")); err != nil {
		t.Error(err)
	}
}
