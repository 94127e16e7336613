package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/rdmatest"
)

func TestProxyCommandLine(t *testing.T) {
	t.Parallel()
	for _, k := range []struct{ args, stderr string }{
		{"", "-listen NET://ADDR"},
		{"-listen tcp://:0", "-to NET://ADDR"},
		{"-listen tcp://:0 -to rdma://h:1 x", "x"},
		{"-listen udp://:0 -to rdma://h:1", "tcp, tcp4"},
		{"-listen :80 -to rdma://h:1", `":80"`},
		{"-listen tcp://h -to rdma://h:1", "missing port"},
		{"-listen tcp://h:65536 -to rdma://h:1", "no port number"},
		{"-listen tcp://:0 -to rdma://:1", "needs a host"},
		{"-listen tcp://:0 -to rdma://h:0", "needs a host and a port"},
		{"-listen tcp://:0 -to rdma://h:1 -max 0", "-max"},
		{"-listen tcp://:0 -to rdma://h:1 -timeout 0", "-timeout"},
		{"-listen tcp://:0 -to rdma://h:1 -keepalive 1ms", "-keepalive"},
		{"-listen tcp://:0 -to rdma://h:1 -idle -1s", "-idle"},
		{"-listen tcp://:0 -to rdma://h:1 -grace -1s", "-grace"},
	} {
		code, stdout, stderr := here(append([]string{"proxy"}, strings.Fields(k.args)...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, k.stderr) {
			t.Errorf("verbena proxy %s: exit code %d\n%s%s", k.args, code, stdout, stderr)
		}
	}
	if code, _, stderr := here("proxy", "-listen", "tcp://127.0.0.1:1", "-to", "tcp://127.0.0.1:2", "-max", "x"); code != exitUsage {
		t.Error(code, stderr)
	}
	taken := listenTCPTest(t, func(*net.TCPConn) {})
	if code, _, stderr := here("proxy", "-listen", "tcp://"+taken, "-to", "rdma://127.0.0.1:1"); code != exitFailed || !strings.Contains(stderr, taken) {
		t.Errorf("an address that is taken: exit code %d, %s", code, stderr)
	}
}

func TestComplaints(t *testing.T) {
	t.Parallel()
	var c complaints
	now := time.Unix(1000, 0)
	for i := range 3 * perSecond {
		if ok, lost := c.allow(now); ok != (i < perSecond) || lost != 0 {
			t.Fatalf("%d: %v, %d lost", i, ok, lost)
		}
	}
	if ok, lost := c.allow(now.Add(time.Second)); !ok || lost != 2*perSecond {
		t.Errorf("a second later: %v, %d lost", ok, lost)
	}
}

// running is a proxy in this process.
type running struct {
	t      *testing.T
	addr   string
	cancel context.CancelFunc
	code   chan int
	lines  chan string
	mu     sync.Mutex
	seen   []string
}

// runHere starts a proxy and waits until it listens.
func runHere(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, cancel: cancel, code: make(chan int, 1), lines: make(chan string, 1000)}
	in, out := io.Pipe()
	var stderr bytes.Buffer
	go func() {
		code := dispatch(ctx, append([]string{"proxy", "-v"}, args...), strings.NewReader(""), out, &stderr)
		out.Close()
		r.code <- code
	}()
	go func() {
		s := bufio.NewScanner(in)
		for s.Scan() {
			r.mu.Lock()
			r.seen = append(r.seen, s.Text())
			r.mu.Unlock()
			r.lines <- s.Text()
		}
		close(r.lines)
	}()
	t.Cleanup(func() {
		cancel()
		for range r.lines {
		}
		if code := <-r.code; code != exitOK {
			t.Errorf("verbena proxy %s: exit code %d: %s", strings.Join(args, " "), code, stderr.String())
		}
		if t.Failed() {
			t.Logf("verbena proxy %s:\n%s", strings.Join(args, " "), strings.Join(r.seen, "\n"))
		}
	})
	r.addr = listening(r.expect("listening on "))
	return r
}

func listening(line string) string {
	_, rest, _ := strings.Cut(line, "listening on ")
	_, rest, _ = strings.Cut(rest, "://")
	addr, _, _ := strings.Cut(rest, ", ")
	return addr
}

// expect waits for a line.
func (r *running) expect(part string) string {
	r.t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case l, ok := <-r.lines:
			if !ok {
				r.t.Fatalf("the proxy ended before it said %q", part)
			}
			if strings.Contains(l, part) {
				return l
			}
		case <-late.C:
			r.t.Fatalf("no line with %q", part)
		}
	}
}

// pairHere starts both proxies of a service and gives the address for its clients.
func pairHere(t *testing.T, service string, clientArgs ...string) (client, server *running) {
	t.Helper()
	server = runHere(t, "-listen", "rdma://"+privateAddr().String()+":0", "-to", "tcp://"+service, "-grace", "2s")
	client = runHere(t, append([]string{"-listen", "tcp://127.0.0.1:0", "-to", "rdma://" + server.addr, "-grace", "2s"}, clientArgs...)...)
	return client, server
}

// listenTCPTest is a TCP service.
func listenTCPTest(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(patience))
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

func dialService(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

func random(seed uint64, n int) []byte {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

// store reads all, and answers only then with all of it: without half close nobody gets an
// answer.
func store(c *net.TCPConn) {
	b, err := io.ReadAll(c)
	if err == nil {
		c.Write(b)
	}
}

// echo answers at once.
func echo(c *net.TCPConn) { io.Copy(c, c) }

func exchange(c *net.TCPConn, b []byte) error {
	if _, err := c.Write(b); err != nil {
		return err
	}
	got := make([]byte, len(b))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, b) {
		return errors.New("other bytes came back")
	}
	return nil
}

// TestProxyData: many connections at once, of all sizes, each with the end of its stream
// passed on while the other direction goes on.
func TestProxyData(t *testing.T) {
	rdmatest.CheckLeaks(t)
	client, server := pairHere(t, listenTCPTest(t, store))
	var wg sync.WaitGroup
	sizes := []int{0, 1, 4095, 4096, 4097, 65536, 1 << 20, 3<<20 + 7}
	for i := range 3 * len(sizes) {
		wg.Go(func() {
			c := dialService(t, client.addr)
			want := random(uint64(i), sizes[i%len(sizes)])
			if _, err := c.Write(want); err != nil {
				t.Error(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d came back, %v", len(got), len(want), err)
			}
		})
	}
	wg.Wait()
	client.cancel()
	server.cancel()
	want := fmt.Sprintf("ended: %d connections carried, 0 failed", 3*len(sizes))
	client.expect(want)
	server.expect(want)
}

// TestProxyServerFirst: the server speaks first and ends its direction first; the client's
// goes on.
func TestProxyServerFirst(t *testing.T) {
	rdmatest.CheckLeaks(t)
	greeting, back := random(1, 100_000), random(2, 2<<20)
	got := make(chan []byte, 1)
	client, _ := pairHere(t, listenTCPTest(t, func(c *net.TCPConn) {
		c.Write(greeting)
		c.CloseWrite()
		b, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}))
	c := dialService(t, client.addr)
	if b, err := io.ReadAll(c); err != nil || !bytes.Equal(b, greeting) {
		t.Fatalf("greeting: %d bytes, %v", len(b), err)
	}
	if _, err := c.Write(back); err != nil {
		t.Fatal(err)
	}
	c.CloseWrite()
	if b := <-got; !bytes.Equal(b, back) {
		t.Errorf("the server got %d bytes of %d", len(b), len(back))
	}
}

// TestProxyEarlyAnswer: a server that answers and closes without having read all. Its
// answer arrives, and what the client writes further fails.
func TestProxyEarlyAnswer(t *testing.T) {
	rdmatest.CheckLeaks(t)
	client, _ := pairHere(t, listenTCPTest(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 10))
		c.Write([]byte("too large"))
		c.CloseWrite()
		io.CopyN(io.Discard, c, 1<<20)
		c.SetLinger(0)
	}))
	c := dialService(t, client.addr)
	answer := make(chan string, 1)
	go func() {
		b := make([]byte, 9)
		io.ReadFull(c, b)
		answer <- string(b)
	}()
	var err error
	for n := 0; err == nil; n++ {
		_, err = c.Write(make([]byte, 64<<10))
	}
	if got := <-answer; got != "too large" {
		t.Errorf("answer %q", got)
	}
	if !gone(err) {
		t.Errorf("writing on ended with %v", err)
	}
}

// gone reports whether an error is what TCP gives after a reset.
func gone(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// TestProxyReset: a reset of either side is a reset of the other, and of nobody else.
func TestProxyReset(t *testing.T) {
	rdmatest.CheckLeaks(t)
	seen := make(chan error, 1)
	client, _ := pairHere(t, listenTCPTest(t, func(c *net.TCPConn) {
		var what [1]byte
		io.ReadFull(c, what[:])
		c.Write(what[:])
		switch what[0] {
		case 'e':
			echo(c)
		case 's': // the server resets
			io.ReadFull(c, what[:])
			c.SetLinger(0)
			c.Close()
		case 'c': // the client will
			_, err := io.ReadFull(c, what[:])
			seen <- err
		}
	}))
	other := dialService(t, client.addr)
	if err := exchange(other, []byte("e")); err != nil {
		t.Fatal(err)
	}
	c := dialService(t, client.addr)
	if err := exchange(c, []byte("s")); err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("now"))
	if _, err := c.Read(make([]byte, 1)); !gone(err) {
		t.Errorf("after the server's reset: %v", err)
	}
	c = dialService(t, client.addr)
	if err := exchange(c, []byte("c")); err != nil {
		t.Fatal(err)
	}
	c.SetLinger(0)
	c.Close()
	if err := <-seen; !gone(err) {
		t.Errorf("after the client's reset: %v", err)
	}
	if err := exchange(other, random(3, 1<<20)); err != nil {
		t.Errorf("the other connection: %v", err)
	}
}

// firstWord dials and reads. The reset may come while Dial still looks at the connection.
func firstWord(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	_, err = c.Read(make([]byte, 1))
	return err
}

// TestProxyNobody: no service behind the second proxy, and no second proxy.
func TestProxyNobody(t *testing.T) {
	rdmatest.CheckLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := ln.Addr().String()
	ln.Close()
	client, server := pairHere(t, free)
	if err := firstWord(client.addr); !gone(err) {
		t.Errorf("no service: %v", err)
	}
	server.expect("no connection to tcp://" + free)
	lonely := runHere(t, "-listen", "tcp://127.0.0.1:0", "-to", "rdma://"+privateAddr().String()+":1", "-timeout", "3s")
	if err := firstWord(lonely.addr); !gone(err) {
		t.Errorf("no proxy: %v", err)
	}
	lonely.expect("no connection to rdma://")
}

// TestProxyMax: one connection too many is reset, and there is room again when one ends.
func TestProxyMax(t *testing.T) {
	rdmatest.CheckLeaks(t)
	client, _ := pairHere(t, listenTCPTest(t, echo), "-max", "2")
	a, b := dialService(t, client.addr), dialService(t, client.addr)
	for _, c := range []*net.TCPConn{a, b} {
		if err := exchange(c, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := firstWord(client.addr); !gone(err) {
		t.Errorf("a third connection: %v", err)
	}
	client.expect("-max")
	a.CloseWrite()
	if _, err := io.ReadAll(a); err != nil {
		t.Error(err)
	}
	client.expect("ended after")
	for try := 0; ; try++ { // the line comes just before the room
		c, err := net.Dial("tcp", client.addr)
		if err == nil {
			c.SetDeadline(time.Now().Add(patience))
			err = exchange(c.(*net.TCPConn), []byte("y"))
			c.Close()
		}
		if err == nil {
			break
		}
		if !gone(err) || try == 1000 {
			t.Fatal(err)
		}
	}
	if err := exchange(b, []byte("z")); err != nil {
		t.Error(err)
	}
}

// TestProxyStop: after an interrupt a connection may go on, and one that does not end is
// reset after the grace.
func TestProxyStop(t *testing.T) {
	rdmatest.CheckLeaks(t)
	client, _ := pairHere(t, listenTCPTest(t, echo), "-grace", "3s")
	a, b := dialService(t, client.addr), dialService(t, client.addr)
	for _, c := range []*net.TCPConn{a, b} {
		if err := exchange(c, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	client.cancel()
	client.expect("stopping: 2 connections")
	if _, err := net.Dial("tcp", client.addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a dial after the stop: %v", err)
	}
	a.Write([]byte("last words"))
	a.CloseWrite()
	if got, err := io.ReadAll(a); err != nil || string(got) != "last words" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := b.Read(make([]byte, 1)); !gone(err) {
		t.Errorf("a connection that does not end: %v", err)
	}
	client.expect("ended: 1 connections carried, 1 failed")
}

// TestProxyIdle: a silent connection ends if that is asked for.
func TestProxyIdle(t *testing.T) {
	rdmatest.CheckLeaks(t)
	client, _ := pairHere(t, listenTCPTest(t, echo), "-idle", "200ms")
	c := dialService(t, client.addr)
	if _, err := c.Read(make([]byte, 1)); !gone(err) {
		t.Errorf("an idle connection: %v", err)
	}
	client.expect("-idle")
}

// TestProxyKill: the proxy of either side is killed. Clients and servers learn of it, and a
// new proxy at the same address goes on for new connections.
func TestProxyKill(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 10)
	service := listenTCPTest(t, func(c *net.TCPConn) {
		b := make([]byte, 4096)
		for {
			n, err := c.Read(b)
			if err != nil {
				ended <- err
				return
			}
			c.Write(b[:n])
		}
	})
	args := []string{"proxy", "-listen", "rdma://" + privateAddr().String() + ":7000", "-to", "tcp://" + service, "-keepalive", "1s"}
	server := start(t, nil, args...)
	at := listening(server.expect("listening on "))
	near := []string{"proxy", "-v", "-listen", "tcp://127.0.0.1:0", "-to", "rdma://" + at, "-keepalive", "1s"}
	client := start(t, nil, near...)
	addr := listening(client.expect("listening on "))

	c := dialService(t, addr)
	if err := exchange(c, random(4, 1<<20)); err != nil {
		t.Fatal(err)
	}
	server.kill()
	server.wait()
	if _, err := c.Read(make([]byte, 1)); !gone(err) {
		t.Errorf("after the kill of the server's proxy: %v", err)
	}
	if err := <-ended; !gone(err) && err != io.EOF { // the kernel closes for the dead: EOF
		t.Errorf("the server: %v", err)
	}

	server = start(t, nil, args...)
	server.expect("listening on ")
	c = dialService(t, addr)
	if err := exchange(c, random(5, 1<<20)); err != nil {
		t.Fatal(err)
	}
	client.kill()
	if err := <-ended; !gone(err) {
		t.Errorf("after the kill of the client's proxy: the server saw %v", err)
	}
	if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if out := server.ok(); !strings.Contains(out, "ended: 0 connections carried, 1 failed") {
		t.Error(out)
	}
}
