package softroce

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// echoed connects to an echoing process, with receives posted.
func echoed(t testing.TB) *end {
	t.Helper()
	e, _ := connectPeer(t, "echo")
	for range 64 {
		if err := e.recv(); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// hushes counts the calls of Hush.
type hushes struct {
	netio.Interruptible
	n int
}

func (h *hushes) Hush() { h.n++; h.Interruptible.Hush() }

// Who spins, or goes on polling, has the socket hushed; who polls now and then has not.
func TestHush(t *testing.T) {
	e := echoed(t)
	ep := e.qp.peer.Load().e
	for i := 0; e.cq.from.Load() == nil || !ep.role.claim(); i++ { // until the reader leaves it to who polls
		if i%4096 == 0 {
			if err := e.send(64, 0); err != nil {
				t.Fatal(err)
			}
		}
		ws, err := e.cq.Poll()
		if err != nil {
			t.Fatal(err)
		}
		for range ws {
			e.recv()
		}
		runtime.Gosched()
	}
	h := &hushes{Interruptible: ep.role.conn}
	ep.role.conn = h
	ep.role.looks.Store(0)
	ep.vacate()
	_, _ = e.cq.PollFor(0)
	if h.n != 0 {
		t.Errorf("hushed %d times by one look", h.n)
	}
	_, _ = e.cq.PollFor(time.Microsecond)
	if h.n != 1 {
		t.Errorf("hushed %d times by one spin", h.n)
	}
	for range hushAfter {
		_, _ = e.cq.PollFor(0)
	}
	if h.n < 2 {
		t.Errorf("hushed %d times by one who goes on polling", h.n)
	}
}

// Between two processes, with pauses at every step of the wait, and with every kind of
// context: no wake-up is lost, whoever reads the socket.
func TestC239_PingPongBetweenProcesses(t *testing.T) {
	t.Parallel()
	e := echoed(t)
	const seed, rounds = 11, 4000
	r := rand.New(rand.NewPCG(seed, seed))
	pause := func() {
		switch r.IntN(40) {
		case 0:
			time.Sleep(time.Duration(r.IntN(int(2 * maxGrace))))
		case 1, 2, 3:
			runtime.Gosched()
		}
	}
	standing, cancel := context.WithCancel(context.Background())
	defer cancel()
	signaled := 0
	for i := range rounds {
		f := ib.SendFlags(0)
		if i%32 == 0 {
			f = ib.Signaled
			signaled++
		}
		if err := e.send(64, f); err != nil {
			t.Fatal(err)
		}
		for got := false; !got; {
			pause()
			ws, err := e.cq.Poll()
			if len(ws) == 0 && r.IntN(4) == 0 { // spin: the socket is hushed then
				ws, err = e.cq.PollFor(time.Duration(1+r.IntN(50)) * time.Microsecond)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range ws {
				if w.Status != ib.StatusSuccess {
					t.Fatalf("seed %d, round %d: %v", seed, i, w.Status)
				}
				if w.Opcode.IsRecv() {
					got = true
				} else {
					signaled--
				}
			}
			if got {
				break
			}
			switch r.IntN(4) {
			case 0:
				continue // poll on
			case 1:
				pause()
				e.cq.Sleep(standing) // or arm, if it cannot
				continue
			}
			if err := e.cq.Arm(false); err != nil {
				t.Fatal(err)
			}
			pause()
			if e.cq.ready.Load() > 0 {
				continue
			}
			ctx, end := standing, context.CancelFunc(func() {})
			switch r.IntN(4) {
			case 0:
				ctx = context.Background()
			case 1:
				ctx, end = context.WithTimeout(context.Background(), time.Duration(1+r.IntN(200))*time.Microsecond)
			}
			err = e.ch.Wait(ctx)
			end()
			if err != nil && (ctx == standing || !errors.Is(err, context.DeadlineExceeded)) {
				t.Fatalf("seed %d, round %d: %v", seed, i, err)
			}
			pause()
			for {
				if _, ok, err := e.ch.Next(); err != nil {
					t.Fatal(err)
				} else if !ok {
					break
				}
			}
		}
		pause()
		if err := e.recv(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d: %+v", seed, e.p.Stats())
	if signaled != 0 {
		t.Errorf("%d signaled requests did not complete", signaled)
	}
}

// waitAsLeader starts a wait of e that has the role of the reader.
func waitAsLeader(t *testing.T, e *end, ctx context.Context) chan error {
	t.Helper()
	for i := 0; ; i++ {
		// A round trip leaves the role vacant.
		pingPong(t, e, 1)
		if err := e.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { got <- e.ch.Wait(ctx) }()
		for range 1000 {
			if e.ch.leader.at.Load() != nil {
				return got
			}
			time.Sleep(10 * time.Microsecond)
		}
		if i == 50 {
			t.Fatal("nobody becomes the reader")
		}
		// It waits in the other way. End that: a local completion fires.
		if err := e.send(0, ib.Signaled); err != nil {
			t.Fatal(err)
		}
		<-got
		for {
			if _, ok, _ := e.ch.Next(); !ok {
				break
			}
		}
		for n := 0; n < 2; { // what was sent, and the echo
			w, err := e.next()
			if err != nil {
				t.Fatal(err)
			}
			if w.Opcode.IsRecv() {
				e.recv()
			}
			n++
		}
	}
}

// Who sleeps on the socket is woken by everything else that can end a wait.
func TestReaderIsInterrupted(t *testing.T) {
	t.Parallel()
	for what, x := range map[string]struct {
		do   func(*testing.T, *end, context.CancelFunc)
		want error
	}{
		"context":         {func(_ *testing.T, _ *end, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"channel closed":  {func(_ *testing.T, e *end, _ context.CancelFunc) { e.ch.Close() }, nil},
		"device removed":  {func(_ *testing.T, e *end, _ context.CancelFunc) { e.p.RemoveDevice() }, nil},
		"provider closed": {func(_ *testing.T, e *end, _ context.CancelFunc) { e.p.Close() }, nil},
		"completion of another": {func(t *testing.T, e *end, _ context.CancelFunc) {
			// The queue pair fails here, not because of a packet.
			if err := e.qp.Modify(&driver.QPAttr{State: ib.StateError}, ib.AttrState); err != nil {
				t.Error(err)
			}
		}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e := echoed(t)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			got := waitAsLeader(t, e, ctx)
			x.do(t, e, cancel)
			select {
			case err := <-got:
				if !errors.Is(err, x.want) {
					t.Errorf("%v, want %v", err, x.want)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("still asleep")
			}
		})
	}
}

// A goroutine that does something else after its wait does not stop the others: the
// endpoint's goroutine takes over.
func TestVacantRoleExpires(t *testing.T) {
	t.Parallel()
	e, m := connectPeer(t, "sink")
	for range 8 {
		if err := e.recv(); err != nil {
			t.Fatal(err)
		}
	}
	ep, err := e.p.dev.endpoint(e.addr)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := e.write(m, 64, ib.Signaled); err != nil {
			t.Fatal(err)
		}
		if _, err := e.next(); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(10 * time.Second)
	for ep.role.state.Load() != roleTaken || !e.p.dev.timers.Idle() {
		if time.Now().After(deadline) {
			t.Fatalf("the role is %d, timers idle %v", ep.role.state.Load(), e.p.dev.timers.Idle())
		}
		time.Sleep(time.Millisecond)
	}
}

func TestC314_AddressInUse(t *testing.T) {
	t.Parallel()
	peer := startPeer(t, "idle")
	m, err := peer.hear()
	if err != nil {
		t.Fatal(err)
	}
	p := newProvider(t, nil)
	_, err = p.dev.endpoint(m.Addr)
	var used *netio.InUseError
	if !errors.As(err, &used) || !contains(err, "process") || !contains(err, m.Addr.String()) {
		t.Errorf("an address of another process: %v", err)
	}
	if p.dev.holds(m.Addr) {
		t.Error("held")
	}
	// The other one's death frees it at once.
	peer.killed = true
	peer.cmd.Process.Kill()
	peer.out.ReadByte() // until its end
	if _, err := p.dev.endpoint(m.Addr); err != nil {
		t.Errorf("after its death: %v", err)
	}
}
