package softroce

import (
	"errors"
	"net"
	"testing"

	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func readable(t *testing.T, fd int) bool {
	t.Helper()
	n, err := unix.Poll([]unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

func TestDescriptorIsLevelTrue(t *testing.T) {
	t.Parallel()
	c, ch := newTestCQ(t, 64)
	c.Arm(false)
	c.push(done(1), nil) // before the descriptor exists
	fd, err := ch.FD()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := ch.FD(); again != fd {
		t.Errorf("descriptors %d and %d", fd, again)
	}
	if !readable(t, fd) {
		t.Error("not readable with an event from before")
	}
	for range 3 {
		c.Arm(false)
		c.push(done(1), nil)
	}
	for left := 4; left > 0; left-- {
		if !readable(t, fd) {
			t.Errorf("not readable with %d events left", left)
		}
		if _, ok, err := ch.Next(); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if readable(t, fd) {
		t.Error("readable without an event")
	}
	c.Arm(false)
	if readable(t, fd) {
		t.Error("readable after Arm alone")
	}
	c.push(done(2), nil)
	if !readable(t, fd) {
		t.Error("not readable")
	}
	c.Close() // takes the event along
	if readable(t, fd) {
		t.Error("readable, and the queue of the event is closed")
	}
	ch.Close()
	if _, err := ch.FD(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("FD after Close: %v", err)
	}
}

func TestDescriptorAfterRemoval(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	ctx := open(t, p)
	_, ch := addCQ(t, ctx, nil, 1, 4)
	fds := []int{}
	for _, n := range []driver.Notifier{ch, ctx.Async()} {
		fd, err := n.FD()
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		if readable(t, fd) {
			t.Error("readable before the removal")
		}
	}
	p.RemoveDevice()
	for i, fd := range fds {
		if !readable(t, fd) {
			t.Errorf("descriptor %d: who waits does not learn of the removal", i)
		}
	}
}
