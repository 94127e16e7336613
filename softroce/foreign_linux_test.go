package softroce

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/unix"
)

// kernelReaders counts the goroutines that read a socket in the kernel, each of which
// holds a thread.
func kernelReaders() int {
	b := make([]byte, 1<<20)
	b = b[:runtime.Stack(b, true)]
	return bytes.Count(b, []byte(".ReadBlocking("))
}

func wantKernelReaders(t *testing.T, want int, when string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for kernelReaders() != want {
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d threads read sockets, want %d", when, kernelReaders(), want)
		}
		time.Sleep(time.Millisecond)
	}
}

// pollNext waits for a completion as a foreign loop does: arm, poll, and sleep in poll(2).
func pollNext(t testing.TB, e *end, fd int) ib.WCOpcode {
	t.Helper()
	for {
		for range 2 { // before and after arming
			ws, err := e.cq.Poll()
			if err != nil {
				t.Fatal(err)
			}
			if len(ws) > 0 {
				w := ws[0]
				if len(ws) > 1 || w.Status != ib.StatusSuccess {
					t.Fatalf("%+v", ws)
				}
				return w.Opcode
			}
			if err := e.cq.Arm(false); err != nil {
				t.Fatal(err)
			}
		}
		n, err := unix.Poll([]unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}, 20*time.Second)
		if n == 0 || err != nil {
			t.Fatal("no event: ", err)
		}
		for {
			if _, more, err := e.ch.Next(); err != nil {
				t.Fatal(err)
			} else if !more {
				break
			}
		}
	}
}

// TestForeignLoop: as long as somebody has a descriptor, each socket has a reader that
// does not need Go's scheduler to be woken, and otherwise none. It is not parallel, as it
// counts goroutines of the process.
func TestForeignLoop(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("with one processor the reader stays in Go's poller")
	}
	e := echoed(t)
	wantKernelReaders(t, 0, "before FD")
	// A wait leaves the role of the reader vacant, or somebody sleeps with it.
	got := waitAsLeader(t, e, t.Context())
	spare, err := e.ctx.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := spare.FD(); err != nil {
		t.Fatal(err)
	}
	wantKernelReaders(t, 1, "FD, while a goroutine waits")
	if err := e.send(64, 0); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil { // the goroutine that waited is woken by the reader now
		t.Fatal(err)
	}
	fd, err := e.ch.FD()
	if err != nil {
		t.Fatal(err)
	}
	e.ch.Next()
	if op := pollNext(t, e, fd); !op.IsRecv() {
		t.Fatal(op)
	}
	for range 300 {
		if err := e.recv(); err != nil {
			t.Fatal(err)
		}
		if err := e.send(64, 0); err != nil {
			t.Fatal(err)
		}
		if op := pollNext(t, e, fd); !op.IsRecv() {
			t.Fatal(op)
		}
	}
	wantKernelReaders(t, 1, "after exchanges")
	// The last descriptor goes: the old way again.
	spare.Close()
	wantKernelReaders(t, 1, "one descriptor left")
	e.ch.Close()
	wantKernelReaders(t, 0, "no descriptor left")
	again, err := e.ctx.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.FD(); err != nil {
		t.Fatal(err)
	}
	wantKernelReaders(t, 1, "FD again")
	e.p.Close()
	wantKernelReaders(t, 0, "provider closed")
}

// A poller has the role of the reader as long as it polls, and no longer: who sleeps
// arms before.
func TestForeignPollerResigns(t *testing.T) {
	t.Parallel()
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("with one processor the reader stays in Go's poller")
	}
	e := echoed(t)
	fd, err := e.ch.FD()
	if err != nil {
		t.Fatal(err)
	}
	ep, err := e.p.dev.endpoint(e.addr)
	if err != nil {
		t.Fatal(err)
	}
	// The way back when somebody polls, and then neither polls nor arms, is not to help.
	ep.role.timer.F = func(time.Duration) {}
	deadline := time.Now().Add(20 * time.Second)
	vacant := 0
	for vacant < 20 {
		if time.Now().After(deadline) {
			t.Fatalf("the poller was given the role %d times", vacant)
		}
		e.spin = true
		pingPong(t, e, 1)
		e.spin = false
		was := ep.role.state.Load() == roleVacant
		if err := e.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		if was {
			vacant++
		}
		// The reader may be just handing the role over, and takes it back then.
		for i := 0; ep.role.state.Load() == roleVacant; i++ {
			if i == 10_000 {
				t.Fatal("armed, and nobody reads the socket")
			}
			time.Sleep(time.Millisecond)
		}
		if err := e.send(64, 0); err != nil {
			t.Fatal(err)
		}
		if op := pollNext(t, e, fd); !op.IsRecv() {
			t.Fatal(op)
		}
		if err := e.recv(); err != nil {
			t.Fatal(err)
		}
	}
	// One who waits in Go beside it is woken too.
	if err := e.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	if err := e.send(64, 0); err != nil {
		t.Fatal(err)
	}
	if err := e.ch.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
}
