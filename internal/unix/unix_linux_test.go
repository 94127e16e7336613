package unix

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"
)

func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := Eventfd()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Close(fd); err != nil {
			t.Error(err)
		}
	})
	return fd
}

func TestEventfd(t *testing.T) {
	t.Parallel()
	fd := eventfd(t)
	if n, err := EventfdDrain(fd); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	for range 3 {
		if err := EventfdSignal(fd); err != nil {
			t.Fatal(err)
		}
	}
	dup, err := Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := EventfdDrain(dup); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if err := Close(dup); err != nil {
		t.Fatal(err)
	}
	if err := EventfdSignal(-1); err != syscall.EBADF {
		t.Error(err)
	}
	if _, err := EventfdDrain(-1); err != syscall.EBADF {
		t.Error(err)
	}
	// A full counter is readable, which is all that a signal says.
	full := bytes.Repeat([]byte{0xff}, 8)
	full[0] = 0xfe
	if _, err := Write(fd, full); err != nil {
		t.Fatal(err)
	}
	if err := EventfdSignal(fd); err != nil {
		t.Error(err)
	}
}

func TestEventfdAllocations(t *testing.T) {
	fd := eventfd(t)
	if n := testing.AllocsPerRun(100, func() {
		if EventfdSignal(fd) != nil {
			t.Error("signal")
		}
		if _, err := EventfdDrain(fd); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMmap(t *testing.T) {
	t.Parallel()
	n := 3 * PageSize()
	b, err := Mmap(n, ProtReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != n || !bytes.Equal(b, make([]byte, n)) {
		t.Error("not zeroes")
	}
	b[n-1] = 1
	for _, err := range []error{
		Madvise(b, AdviseDontFork), Madvise(b, AdviseDoFork), Mprotect(b[:PageSize()], ProtNone),
		Mprotect(b[:PageSize()], ProtRead), Munmap(b),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := Mmap(-1, ProtRead); err == nil {
		t.Error("a mapping of -1 bytes")
	}
	if limit, err := MemlockLimit(); limit == 0 || err != nil {
		t.Error(limit, err)
	}
}

func TestPoll(t *testing.T) {
	t.Parallel()
	a, b := eventfd(t), eventfd(t)
	fds := []PollFD{{Fd: int32(a), Events: PollIn}, {Fd: int32(b), Events: PollIn}}
	for _, limit := range []time.Duration{0, time.Microsecond} {
		if n, err := Poll(fds, limit); n != 0 || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := EventfdSignal(b); err != nil {
		t.Fatal(err)
	}
	if n, err := Poll(fds, -1); n != 1 || err != nil || fds[0].Revents != 0 || fds[1].Revents != PollIn {
		t.Fatal(n, err, fds)
	}
}

func TestEpoll(t *testing.T) {
	t.Parallel()
	ep, err := EpollCreate()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(ep)
	fd := eventfd(t)
	if err := EpollAdd(ep, fd, PollIn); err != nil {
		t.Fatal(err)
	}
	if err := EpollAdd(ep, fd, PollIn); !errors.Is(err, syscall.EEXIST) {
		t.Error(err)
	}
	events := make([]EpollEvent, 4)
	for _, limit := range []time.Duration{0, time.Microsecond} {
		if n, err := EpollWait(ep, events, limit); n != 0 || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := EventfdSignal(fd); err != nil {
		t.Fatal(err)
	}
	for range 2 { // level-triggered
		if n, err := EpollWait(ep, events, -1); n != 1 || err != nil || events[0].Fd != int32(fd) || events[0].Events != PollIn {
			t.Fatal(n, err, events[0])
		}
	}
	if err := EpollMod(ep, fd, 0); err != nil {
		t.Fatal(err)
	}
	if n, err := EpollWait(ep, events, 0); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if err := EpollDel(ep, fd); err != nil {
		t.Fatal(err)
	}
}
