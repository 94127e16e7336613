package netio

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/verbena-rdma/verbena/internal/unix"
)

func TestReadBlocking(t *testing.T) {
	t.Parallel()
	a, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	c := a.(Blocking)
	ms := []Message{{Buf: make([]byte, 0, 100)}}
	got := make(chan error)
	read := func() {
		n, err := c.ReadBlocking(ms)
		if err == nil && (n != 1 || string(ms[0].Buf) != "hello") {
			t.Errorf("%d messages, %q", n, ms[0].Buf)
		}
		got <- err
	}
	send := []Message{{Buf: []byte("hello"), Addr: a.LocalAddr()}}
	for range 100 {
		go read()
		if _, err := c.Write(send); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		// Interrupted before, during, and again, until it is resumed.
		go read()
		c.Interrupt()
		if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("interrupted: %v", err)
		}
		go read()
		if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("still interrupted: %v", err)
		}
		c.Resume()
	}
	// Both ways of reading end the same way.
	c.Interrupt()
	if a.(*batchConn).bell.fd == 0 {
		t.Error("the test looks at the wrong descriptor")
	}
	if _, err := c.Read(ms); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read, interrupted: %v", err)
	}
	if a.(*batchConn).bell.fd != 0 {
		t.Error("the descriptor outlives the last sleep in the kernel")
	}
	go read()
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("interrupted while there was no bell: %v", err)
	}
	c.Resume()
	if n, err := c.ReadBlocking(nil); n != 0 || err != nil {
		t.Errorf("no room: %d, %v", n, err)
	}
	go func() {
		for {
			_, err := c.ReadBlocking(ms)
			if errors.Is(err, net.ErrClosed) {
				got <- err
				return
			}
			c.Resume() // as a reader does that is interrupted
		}
	}()
	if err := c.Close(); err != nil { // waits for who reads
		t.Error(err)
	}
	<-got
	if _, err := c.ReadBlocking(ms); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := c.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	c.Interrupt()
	c.Resume()
}

// A socket that was interrupted before anybody slept is so when somebody does.
func TestReadBlockingAfterInterrupt(t *testing.T) {
	t.Parallel()
	a, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b := &a.(*batchConn).bell
	b.ring()
	fd, err := b.open()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} {
		n, err := unix.Poll([]unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}, 0)
		if n != want || err != nil {
			t.Errorf("rings %d, %v, want %d", n, err, want)
		}
		b.rest()
	}
}

func TestReadBlockingDoesNotAllocate(t *testing.T) {
	a, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c := a.(Blocking)
	ms := []Message{{Buf: make([]byte, 0, 100)}}
	send := []Message{{Buf: []byte("hello"), Addr: a.LocalAddr()}}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := c.Write(send); err != nil {
			t.Fatal(err)
		}
		if n, err := c.ReadBlocking(ms); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
