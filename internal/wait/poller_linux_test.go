package wait

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// eventfd is a notifier with a descriptor and nothing else, as the kernel's.
type eventfd int

func newEventfd(t *testing.T) eventfd {
	t.Helper()
	fd, err := unix.Eventfd()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return eventfd(fd)
}

func (e eventfd) FD() (int, error) { return int(e), nil }

func (e eventfd) take() bool {
	n, err := unix.EventfdDrain(int(e))
	return err == nil && n > 0
}

func TestC252_Descriptor(t *testing.T) {
	t.Parallel()
	e := newEventfd(t)
	s := New(e)
	const rounds = 1000
	var wg sync.WaitGroup
	got := make(chan error)
	for range 4 {
		wg.Go(func() {
			for {
				err := s.Wait(context.Background(), e.take)
				got <- err
				if err != nil {
					return
				}
			}
		})
	}
	for i := range rounds {
		if err := unix.EventfdSignal(int(e)); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	s.Close()
	for range 4 {
		if err := <-got; !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	wg.Wait()
}

func TestC250_DescriptorCancel(t *testing.T) {
	t.Parallel()
	e := newEventfd(t)
	s := New(e)
	defer s.Close()
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Wait(ctx, e.take) }()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		// The cancelled wait leaves no deadline behind.
		go func() { done <- s.Wait(t.Context(), e.take) }()
		unix.EventfdSignal(int(e))
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.Wait(ctx, e.take); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestC244_Readiness: a descriptor that is readable although nothing can be taken is
// no error and no end.
func TestC244_Readiness(t *testing.T) {
	t.Parallel()
	e := newEventfd(t)
	s := New(e)
	defer s.Close()
	unix.EventfdSignal(int(e))
	tries := 0
	err := s.Wait(t.Context(), func() bool {
		tries++
		return tries == 5
	})
	if err != nil || tries != 5 {
		t.Errorf("%d tries, %v", tries, err)
	}
}

// pipeEnd is the reading end of a pipe whose writing end is closed: an error condition
// without data, as the descriptors of a removed device show.
type pipeEnd int

func (p pipeEnd) FD() (int, error) { return int(p), nil }

func TestC191_DescriptorGone(t *testing.T) {
	t.Parallel()
	s := New(pipeEnd(-1)) // nothing to duplicate
	defer s.Close()
	if err := s.Wait(t.Context(), func() bool { return false }); err == nil {
		t.Error("no descriptor was waited for")
	}

	r, w := hangUp(t)
	s2 := New(pipeEnd(r))
	defer s2.Close()
	done := make(chan error)
	go func() { done <- s2.Wait(t.Context(), func() bool { return false }) }()
	w()
	if err := <-done; !errors.Is(err, driver.ErrDeviceGone) {
		t.Errorf("got %v, want ErrDeviceGone", err)
	}
}

// hangUp gives the reading end of a pipe, and what closes the other end.
func hangUp(t *testing.T) (int, func()) {
	t.Helper()
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]) })
	return p[0], func() { unix.Close(p[1]) }
}

// TestRefused: what Go's poller does not take is an error that says why, and not a device
// that is gone.
func TestRefused(t *testing.T) {
	t.Parallel()
	f, err := os.Open("poller_linux_test.go")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	none := func() bool { return false }
	s := New(eventfd(fd))
	defer s.Close()
	if err := s.Wait(context.Background(), none); !errors.Is(err, syscall.EPERM) {
		t.Errorf("Wait: %v", err)
	}
	p := NewParker(eventfd(fd), none)
	defer p.Close()
	if _, err := p.Park(context.Background(), time.Second); !errors.Is(err, syscall.EPERM) {
		t.Errorf("Park: %v", err)
	}
}
