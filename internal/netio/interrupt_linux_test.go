package netio

import (
	"errors"
	"net/netip"
	"os"
	"testing"
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
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
