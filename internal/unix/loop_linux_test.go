package unix

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

func TestEpollKeys(t *testing.T) {
	t.Parallel()
	ep, err := EpollCreate()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(ep)
	fd, err := Eventfd()
	if err != nil {
		t.Fatal(err)
	}
	const key = 0xFEDCBA9876543210
	events := make([]EpollEvent, 2)
	wait := func(want int) {
		t.Helper()
		n, err := EpollWait(ep, events, 0)
		if n != want || err != nil || n > 0 && EpollKey(&events[0]) != key {
			t.Fatalf("%d events, %v, key %x; want %d", n, err, EpollKey(&events[0]), want)
		}
	}
	if err := EpollAddKey(ep, fd, PollIn|EpollOneshot, key); err != nil {
		t.Fatal(err)
	}
	if err := EventfdSignal(fd); err != nil {
		t.Fatal(err)
	}
	wait(1)
	wait(0) // one-shot
	if err := EpollModKey(ep, fd, PollIn|EpollOneshot, key); err != nil {
		t.Fatal(err)
	}
	wait(1)
	if err := Close(fd); err != nil {
		t.Fatal(err)
	}
	if err := EpollModKey(ep, fd, PollIn, key); err == nil {
		t.Error("a closed descriptor, or another's, was changed")
	}
}

func TestEpollOtherFile(t *testing.T) {
	// Not in parallel: it closes a descriptor and takes its number again.
	ep, err := EpollCreate()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(ep)
	fd, err := Eventfd()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	other, err := Eventfd()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(other)
	if err := EpollAddKey(ep, fd, PollIn, 1); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Dup3(other, fd, syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if err := EpollModKey(ep, fd, PollIn, 1); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("another file of the same number: %v", err)
	}
}

func TestSelect(t *testing.T) {
	t.Parallel()
	a, b := eventfd(t), eventfd(t)
	if max(a, b) >= FDSetSize {
		t.Skip("the test has more than 1024 descriptors open")
	}
	if err := EventfdSignal(b); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []bool{true, false} {
		var r, w FDSet
		r.Set(a)
		r.Set(b)
		w.Set(a)
		n, err := Select(max(a, b)+1, &r, &w, wait)
		if n != 2 || err != nil || r.IsSet(a) || !r.IsSet(b) || !w.IsSet(a) {
			t.Error(n, err, r.IsSet(a), r.IsSet(b), w.IsSet(a))
		}
	}
}

func TestTimerfd(t *testing.T) {
	t.Parallel()
	fd, err := Timerfd()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	fds := []PollFD{{Fd: int32(fd), Events: PollIn}}
	readable := func(limit time.Duration) bool {
		t.Helper()
		n, err := Poll(fds, limit)
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
	start := time.Now()
	const d = 2 * time.Millisecond
	for _, d := range []time.Duration{d, time.Nanosecond} {
		if err := TimerfdSet(fd, d); err != nil {
			t.Fatal(err)
		}
		for !readable(-1) {
		}
	}
	if took := time.Since(start); took < d {
		t.Errorf("too early, after %v", took)
	}
	for _, d := range []time.Duration{time.Hour, 0} {
		if err := TimerfdSet(fd, d); err != nil {
			t.Fatal(err)
		}
		if readable(0) {
			t.Errorf("readable after %v was set", d)
		}
	}
}
