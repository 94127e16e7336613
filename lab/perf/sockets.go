package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/verbs"
)

// Tests of sockets: one end sends count messages and then takes as many, o.n times over, as
// rstream does. A count of one is a round trip.
const (
	sockLat = "socket_lat"
	sockBW  = "socket_bw"
)

// warm is how many round trips there are before the clock starts: adaptive waiting sleeps and
// compares at first.
func (o *options) warm() int {
	if o.test == sockLat {
		return 100
	}
	return 0
}

// burst is how many messages go one way before they come back.
func (o *options) burst() int {
	if o.test == sockLat {
		return 1
	}
	return o.depth
}

func (o *options) config() *rdma.Config {
	switch o.wait {
	case asleep:
		return &rdma.Config{Spin: verbs.Sleep}
	case polling:
		return &rdma.Config{Spin: verbs.SpinFor(time.Second)}
	}
	return &rdma.Config{Spin: verbs.Adaptive}
}

func (o *options) listen(ctx context.Context, addr string) (net.Listener, error) {
	if o.network == "tcp" {
		return net.Listen("tcp", addr)
	}
	return (&rdma.ListenConfig{Config: o.config()}).Listen(ctx, "rdma", addr)
}

func (o *options) dial(ctx context.Context, addr string) (net.Conn, error) {
	if o.network == "tcp" {
		return net.Dial("tcp", addr)
	}
	return (&rdma.Dialer{Config: o.config()}).DialContext(ctx, "rdma", addr)
}

func serveSocket(ctx context.Context, addr string, o *options) error {
	l, err := o.listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("ready")
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, o.size)
	for range o.warm() + o.n {
		if err := takeAll(c, buf, o.burst()); err != nil {
			return err
		}
		if err := sendAll(c, buf, o.burst()); err != nil {
			return err
		}
	}
	_, err = io.Copy(io.Discard, c) // the peer closes first
	return err
}

// connectSocket prints microseconds for a message one way, or MiB/s.
func connectSocket(ctx context.Context, addr string, o *options) error {
	c, err := o.dial(ctx, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, o.size)
	start := time.Now()
	for i := range o.warm() + o.n {
		if i == o.warm() {
			start = time.Now()
		}
		if err := sendAll(c, buf, o.burst()); err != nil {
			return err
		}
		if err := takeAll(c, buf, o.burst()); err != nil {
			return err
		}
	}
	took := time.Since(start)
	messages := 2 * float64(o.n) * float64(o.burst())
	if o.test == sockLat {
		fmt.Printf("result %.3f\n", float64(took)/messages/float64(time.Microsecond))
	} else {
		fmt.Printf("result %.3f\n", messages*float64(o.size)/(1<<20)/took.Seconds())
	}
	return nil
}

func sendAll(c net.Conn, buf []byte, n int) error {
	for range n {
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

func takeAll(c net.Conn, buf []byte, n int) error {
	for range n {
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
	}
	return nil
}

// rstream measures with rdma-core's rstream, which reports gigabits a second, and
// microseconds for a message.
func rstream(o options, args ...string) func() (float64, error) {
	args = append([]string{"-p", "18601", "-S", strconv.Itoa(o.size), "-I", strconv.Itoa(o.n), "-C", strconv.Itoa(o.burst())}, args...)
	return func() (float64, error) {
		server := exec.Command("rstream", args...)
		if err := server.Start(); err != nil {
			return 0, err
		}
		defer server.Wait()
		defer server.Process.Kill()
		var last string
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
			out, err := exec.Command("timeout", append([]string{"120", "rstream", "-s", guestAddr}, args...)...).CombinedOutput()
			last = string(out)
			if err != nil {
				continue // until it listens
			}
			return rstreamNumber(last, o.test)
		}
		return 0, fmt.Errorf("rstream: %s", last)
	}
}

// rstreamNumber takes the last two columns of rstream's table.
func rstreamNumber(out, test string) (float64, error) {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		gbits, err1 := strconv.ParseFloat(f[len(f)-2], 64)
		usec, err2 := strconv.ParseFloat(f[len(f)-1], 64)
		if err1 != nil || err2 != nil {
			continue
		}
		if test == sockLat {
			return usec, nil
		}
		return gbits * 1e9 / 8 / (1 << 20), nil
	}
	return 0, fmt.Errorf("no number in %s", out)
}
