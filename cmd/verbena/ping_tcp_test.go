package main

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func tcpPair(t *testing.T, o *pingOptions) (*tcpServer, netip.AddrPort) {
	t.Helper()
	s, err := listenTCP(netip.MustParseAddrPort("127.0.0.1:0"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s, s.ln.Addr().(*net.TCPAddr).AddrPort()
}

var loopback = netip.MustParseAddr("127.0.0.1")

func TestTCPExchange(t *testing.T) {
	t.Parallel()
	_, at := tcpPair(t, &pingOptions{size: rpingMax, timeout: time.Minute})
	for _, size := range []int{rpingMin, 64, rpingMax} {
		c, err := dialTCP(context.Background(), loopback, at, &pingOptions{size: size, timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for seq := range 5 {
			c.exchange(seq)
		}
		if c.err != nil || c.stats.count() != 5 || c.stats.min <= 0 {
			t.Error(c.err, c.stats.count())
		}
		c.close()
	}
}

func TestTCPRefused(t *testing.T) {
	t.Parallel()
	s, at := tcpPair(t, &pingOptions{size: 100, timeout: time.Minute})
	o := &pingOptions{size: 101, timeout: time.Minute}
	if _, err := dialTCP(context.Background(), loopback, at, o); err == nil || !strings.Contains(err.Error(), "not verbena ping") {
		t.Errorf("too large: %v", err)
	}
	s.close()
	if _, err := dialTCP(context.Background(), loopback, at, o); err == nil || !strings.Contains(err.Error(), "offers none") {
		t.Errorf("nobody there: %v", err)
	}
}

// TestTCPStranger talks to a server that is something else.
func TestTCPStranger(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "220 mail.example.org ready for your message\r\n")
			c.Close()
		}
	}()
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	if _, err := dialTCP(context.Background(), loopback, at, &pingOptions{size: 64, timeout: time.Minute}); err == nil || !strings.Contains(err.Error(), "not verbena ping") {
		t.Error(err)
	}
}

// TestTCPGarbage sends garbage to the server at each step: it hangs up.
func TestTCPGarbage(t *testing.T) {
	t.Parallel()
	_, at := tcpPair(t, &pingOptions{size: 100, timeout: time.Minute})
	for _, sent := range []string{
		"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
		tcpHello + "  -64\n",
		tcpHello + "99999\n",
		string(hello(64)) + strings.Repeat("x", messageLen+64),
	} {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.WriteString(c, sent); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); strings.Contains(string(b), "rdma-ping") {
			t.Errorf("%q is answered with %q, %v", sent, b, err)
		}
		c.Close()
	}
}

// TestTCPInterrupted: the end of the context ends an exchange that hangs.
func TestTCPInterrupted(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	asked := make(chan net.Conn, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		b := make([]byte, len(hello(64)))
		io.ReadFull(c, b)
		c.Write(b)
		io.ReadFull(c, b[:messageLen])
		asked <- c // and says nothing more
	}()
	ctx, cancel := context.WithCancel(context.Background())
	c, err := dialTCP(ctx, loopback, ln.Addr().(*net.TCPAddr).AddrPort(), &pingOptions{size: 64, timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	go func() {
		defer (<-asked).Close()
		cancel()
	}()
	c.exchange(0)
	if c.err == nil || c.stats.count() != 0 {
		t.Error(c.err)
	}
}
