package cm_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestFD: the descriptor is readable exactly while TryEvent gives an event, and
// waiting by it works as waiting without.
func TestFD(t *testing.T) {
	t.Parallel()
	for _, only := range []bool{false, true} {
		w := newWorld(t)
		w.cm.Descriptors = only
		ch := w.channel()
		id := w.id(ch)
		raw := w.cmid(id)
		fd, err := ch.FD()
		must(t, err)
		readable := func() bool {
			fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}
			n, err := unix.Poll(fds, 0)
			must(t, err)
			return n > 0
		}
		if readable() {
			t.Error("readable without event")
		}
		for range 3 {
			raw.Post(driver.CMEvent{Type: cm.AddrChange})
		}
		for range 3 {
			if !readable() {
				t.Error("not readable with an event")
			}
			w.want(ch, cm.AddrChange, id)
		}
		if readable() {
			t.Error("readable after the last event")
		}
		if again, err := ch.FD(); err != nil || again != fd {
			t.Errorf("FD gives %d, then %d, %v", fd, again, err)
		}

		got := make(chan error)
		for range 20 {
			go func() { _, err := ch.Event(t.Context()); got <- err }()
			raw.Post(driver.CMEvent{Type: cm.AddrChange})
			select {
			case err := <-got:
				must(t, err)
			case <-time.After(10 * time.Second):
				t.Fatal("the event did not wake")
			}
		}
		go func() { _, err := ch.Event(t.Context()); got <- err }()
		must(t, ch.Close())
		if err := <-got; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
}

// TestDescriptorProvider connects on a provider that can only be waited for by
// descriptors, as the kernel's.
func TestDescriptorProvider(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cm.Descriptors = true
	l := w.listener()
	if fd, err := l.FD(); err != nil || fd < 0 {
		t.Errorf("FD %d, %v", fd, err)
	}
	a, b := w.conns(l)
	must(t, a.Close())
	<-b.Done()
	must(t, b.Close())
}
