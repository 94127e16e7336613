package rdmatest

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// signalPause is the time between two signals of a storm, each to another thread. (Without one
// the program would do nothing else.)
const signalPause = 20 * time.Microsecond

// storm sends signals that mean nothing to every thread of this process, those that sleep in the
// kernel among them, until the test ends. It counts the system calls of a thread of its own that
// ended with EINTR, so that a test can tell that there is a storm.
func storm(t *testing.T) (interrupted func() uint64) {
	t.Helper()
	var over atomic.Bool
	var count atomic.Uint64
	asleep, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	slept, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(slept)
		for !over.Load() {
			// It ends with the eventfd, or with a signal: there is nothing else for it.
			if _, err := unix.Ppoll([]unix.PollFd{{Fd: int32(asleep), Events: unix.POLLIN}}, nil, nil); err == unix.EINTR {
				count.Add(1)
			}
		}
	}()
	go func() {
		defer close(sent)
		runtime.LockOSThread()
		self := unix.Getpid()
		for !over.Load() {
			threads, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Error(err)
				return
			}
			for _, thread := range threads {
				id, _ := strconv.Atoi(thread.Name())
				for _, s := range []syscall.Signal{syscall.SIGURG, syscall.SIGCHLD} {
					if err := unix.Tgkill(self, id, s); err != nil && err != unix.ESRCH {
						t.Errorf("signal to thread %d: %v", id, err)
						return
					}
					time.Sleep(signalPause)
				}
			}
		}
	}()
	t.Cleanup(func() {
		over.Store(true)
		<-sent
		unix.Write(asleep, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		<-slept
		unix.Close(asleep)
	})
	return count.Load
}

// stormLasts waits until n more sleeps of the storm's own thread were interrupted.
func stormLasts(interrupted func() uint64, n uint64) {
	for end := interrupted() + n; interrupted() < end; {
		time.Sleep(signalPause)
	}
}

// TestC257_Signals: signals that arrive at every moment end no wait with an error and lose no
// wake-up, in whichever way a program waits. It is not parallel: the signals are everybody's.
func TestC257_Signals(t *testing.T) {
	CheckLeaks(t)
	interrupted := storm(t)
	const cycles = 8 * 1000
	for name, pair := range map[string]func(testing.TB) [2]*soakSide{
		"Scripted":            func(t testing.TB) [2]*soakSide { return scriptedPair(t, false) },
		"ScriptedDescriptors": func(t testing.TB) [2]*soakSide { return scriptedPair(t, true) },
		"Embedded":            func(t testing.TB) [2]*soakSide { _, dev := soakDevice(t); return soakPair(t, dev) },
	} {
		t.Run(name, func(t *testing.T) {
			before := interrupted()
			soak(t, &SoakOptions{Cycles: cycles}, pair)
			stormLasts(interrupted, 1)
			t.Logf("%d sleeps were interrupted meanwhile, of one thread", interrupted()-before)
		})
	}
}

// soakDevice gives an embedded device of its own.
func soakDevice(t testing.TB) (*softroce.Provider, *verbs.Device) {
	t.Helper()
	p, err := softroce.New(&softroce.Config{Addrs: []netip.Addr{netio.PrivateLoopback(42)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	dev, err := verbs.Open(p, "")
	if err != nil {
		t.Fatal(err)
	}
	return p, dev
}

// TestC257_SignalsAsleep: who sleeps through many signals is woken by what it waits for, and by
// nothing before, whichever source that is.
func TestC257_SignalsAsleep(t *testing.T) {
	CheckLeaks(t)
	interrupted := storm(t)
	addr := netio.PrivateLoopback(42)
	p, dev := soakDevice(t)
	side := soakPair(t, dev)
	comp, err := side[1].cq.Channel()
	if err != nil {
		t.Fatal(err)
	}
	ch, err := cm.NewEventChannel(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ch.Close() })
	up := true
	for name, source := range map[string]struct {
		event func(context.Context) error
		cause func() error
	}{
		"CompChannel": {
			func(ctx context.Context) error {
				if _, err := side[1].cq.Arm(ib.NotifyAny); err != nil {
					return err
				}
				if _, err := comp.Event(ctx); err != nil {
					return err
				}
				wc, err := side[1].cq.Next(ctx)
				return errors.Join(err, wc.Err(), side[1].took())
			},
			side[0].give,
		},
		"EventChannel": {
			func(ctx context.Context) error {
				ev, err := ch.Event(ctx)
				if err != nil {
					return err
				}
				return errors.Join(ev.Err, ev.ID.Close())
			},
			func() error {
				id, err := ch.NewID(ib.PortSpaceTCP)
				if err != nil {
					return err
				}
				return id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(addr, 7471), time.Minute)
			},
		},
		"AsyncEvents": {
			func(ctx context.Context) error { _, err := dev.Async().Event(ctx); return err },
			func() error { up = !up; return p.SetLink(up) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 {
				got := make(chan error, 1)
				go func() { got <- source.event(t.Context()) }()
				stormLasts(interrupted, 5)
				select {
				case err := <-got:
					t.Fatalf("woken by nothing, %v", err)
				default:
				}
				if err := source.cause(); err != nil {
					t.Fatal(err)
				}
				if err := <-got; err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if !up {
		t.Error("the link is down")
	}
}
