package netio

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/verbena-rdma/verbena/internal/unix"
)

func TestInterrupt(t *testing.T) {
	t.Parallel()
	a, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c := a.(Interruptible)
	ms := []Message{{Buf: make([]byte, 0, 100)}}
	got := make(chan error)
	go func() {
		_, err := c.Read(ms)
		got <- err
	}()
	c.Interrupt() // before the read, or during it
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("interrupted: %v", err)
	}
	send := []Message{{Buf: []byte("hello"), Addr: a.LocalAddr()}}
	if n, err := c.Write(send); n != 1 || err != nil {
		t.Errorf("write while interrupted: %d, %v", n, err)
	}
	if _, err := c.Read(ms); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("still interrupted: %v", err)
	}
	if n, err := c.TryRead(ms); n != 1 || err != nil || string(ms[0].Buf) != "hello" {
		t.Errorf("TryRead while interrupted: %d, %v", n, err)
	}
	c.Resume()
	if _, err := c.Write(send); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(ms); n != 1 || err != nil || string(ms[0].Buf) != "hello" {
		t.Errorf("resumed: %d, %v", n, err)
	}
}

func TestInterruptDoesNotAllocate(t *testing.T) {
	a, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c := a.(Interruptible)
	if n := testing.AllocsPerRun(100, func() {
		c.Interrupt()
		c.Resume()
		c.Hush()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What arrives while the socket is hushed is not told to Go's poller, and is not lost for
// the next Read: neither what was there before it, nor what comes while it sleeps.
func TestHush(t *testing.T) {
	t.Parallel()
	a, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c := a.(*batchConn)
	told := func() bool {
		fds := []unix.PollFD{{Fd: int32(c.readable.ep), Events: unix.PollIn}}
		n, err := unix.Poll(fds, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	ms := []Message{{Buf: make([]byte, 0, 100)}}
	send := func(s string) {
		t.Helper()
		if n, err := c.Write([]Message{{Buf: []byte(s), Addr: a.LocalAddr()}}); n != 1 || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
	}
	read := func(want string) {
		t.Helper()
		if n, err := c.Read(ms); n != 1 || err != nil || string(ms[0].Buf) != want {
			t.Fatalf("read: %d, %v, %q", n, err, ms[0].Buf)
		}
	}
	send("heard")
	if !told() {
		t.Error("the poller is not told of what arrives")
	}
	read("heard")
	for range 100 {
		c.Hush()
		c.Hush()
		send("there before")
		if told() {
			t.Fatal("the poller is told of what arrives while the socket is hushed")
		}
		read("there before")
		c.Hush()
		got := make(chan string)
		go func() {
			_, err := c.Read(ms)
			got <- fmt.Sprint(err, " ", string(ms[0].Buf))
		}()
		for c.read.hushed.Load() {
			runtime.Gosched() // until it sleeps, or nearly
		}
		c.Hush() // somebody reads: nothing happens
		send("comes later")
		if s := <-got; s != "<nil> comes later" {
			t.Fatalf("read: %s", s)
		}
	}
	c.Close()
	c.Hush()
}
