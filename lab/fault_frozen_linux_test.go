package lab_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestHostFaultC134_HostFrozen stops the whole machine of the peer, with its kernel. The
// connection ends with an error within the time that the retries may take, nobody can
// connect, and when the machine goes on both sides have what they had before, and meet
// again.
func TestHostFaultC134_HostFrozen(t *testing.T) {
	_, guest := onHost(t)
	freeze, thaw := faultFreeze(t, "LAB_PID1")
	p, err := softroce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()

	addr := guest.v4 + ":7010"
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	server := guest.start(ctx, t, faultCommand(t, faultOrders{Serve: addr, Stay: true})...)
	until(ctx, t, server, "fault: ready ")

	const ackTimeout, retries = 100 * time.Millisecond, 3
	const bound = 4*(retries+1)*135*time.Millisecond + 10*time.Second // see TestGuestFaultC134_C221_PeerFrozen
	live := func(limit time.Duration) (connected chan struct{}, ended chan error, stop func()) {
		connected, ended = make(chan struct{}), make(chan error, 1)
		ctx, stop := context.WithCancel(ctx)
		r := &faultRun{p: p, o: faultOrders{Dial: addr, Timeout: ackTimeout, Retries: retries, Limit: limit}}
		r.say = func(format string, args ...any) {
			said := fmt.Sprintf(format, args...)
			if said == "connected" {
				close(connected)
			} else {
				t.Log(said)
			}
		}
		go func() { ended <- r.cycle(ctx) }()
		return connected, ended, stop
	}
	meet := func() (ended chan error, stop func()) {
		t.Helper()
		connected, ended, stop := live(0)
		select {
		case <-connected:
		case err := <-ended:
			t.Fatalf("no connection: %v\n%s", err, server.out.String())
		}
		return ended, stop
	}
	// used waits until the server has closed n connections, and gives what it has.
	used := func(n int) (u faultUse) {
		t.Helper()
		for {
			seen := 0
			for s := bufio.NewScanner(strings.NewReader(server.out.String())); s.Scan(); {
				rest, ok := strings.CutPrefix(s.Text(), "fault: used ")
				if !ok {
					continue
				}
				seen++
				if _, err := fmt.Sscan(rest, &u.objects, &u.fds, &u.threads, &u.kib); err != nil {
					t.Fatalf("%q: %v", rest, err)
				}
			}
			if seen >= n {
				return u
			}
			select {
			case err := <-server.done:
				t.Fatalf("the server ended: %v\n%s", err, server.out.String())
			case <-ctx.Done():
				t.Fatalf("the server has closed %d connections, want %d:\n%s", seen, n, server.out.String())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}

	ended, stop := meet()
	stop()
	<-ended
	before := used(1)

	ended, stop = meet()
	defer stop()
	freeze()
	select {
	case err := <-ended:
		if c := faultClass(err); c != "RETRY_EXC_ERR" {
			t.Errorf("the connection ended with %s: %v", c, err)
		}
	case <-time.After(bound):
		t.Errorf("the connection has not ended after %v", bound)
	}
	_, late, stopLate := live(2 * time.Second)
	defer stopLate()
	if err := <-late; faultClass(err) != "deadline" {
		t.Errorf("a connection to a frozen host: %s: %v", faultClass(err), err)
	}
	if left := append(verbs.Objects(), cm.Objects()...); len(left) > 0 {
		t.Errorf("left here: %q", left)
	}
	thaw()
	used(2)
	ended, stop = meet()
	stop()
	<-ended
	after := used(3)
	if after.objects > before.objects || after.fds > before.fds || after.threads > before.threads+3 || after.kib > before.kib+6<<10 {
		t.Errorf("the server had %+v, and has %+v:\n%s", before, after, server.out.String())
	}
	if left := append(verbs.Objects(), cm.Objects()...); len(left) > 0 {
		t.Errorf("left here: %q", left)
	}
}

// onPair skips a test that does not run beside two guests, and gives these.
func onPair(t *testing.T) (first, second *place) {
	t.Helper()
	if os.Getenv("LAB_HOST") == "" || os.Getenv("LAB_PID2") == "" {
		t.Skip("runs on the host's side of two guests of lab/vm, started by TestLab")
	}
	first = guestPlace(runAt(firstGuest))
	second = &place{name: "the second guest", v4: secondGuest, v6: "fd00:9::3", provider: "kernel", run: runAt(secondGuest)}
	first.ready(t)
	second.ready(t)
	return first, second
}

// TestPairC134_HostFrozen: the same between the kernel's devices of two machines.
func TestPairC134_HostFrozen(t *testing.T) {
	first, second := onPair(t)
	freeze, thaw := faultFreeze(t, "LAB_PID2")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	addr := second.v4 + ":7014"
	server := second.start(ctx, t, faultCommand(t, faultOrders{Serve: addr, Stay: true})...)
	until(ctx, t, server, "fault: ready ")
	const ackTimeout, retries = 100 * time.Millisecond, 3
	const bound = 4*(retries+1)*135*time.Millisecond + 10*time.Second // see TestGuestFaultC134_C221_PeerFrozen
	client := first.start(ctx, t, faultCommand(t, faultOrders{Dial: addr, Cycles: 1000, Timeout: ackTimeout, Retries: retries, Limit: 5 * time.Second, Stay: true})...)
	// said waits for the n-th line of a kind, and gives the rest of it.
	said := func(limit time.Duration, what string, n int) string {
		t.Helper()
		late := time.After(limit)
		for {
			lines := strings.Split(client.out.String(), "\n")
			seen := 0
			for _, l := range lines[:len(lines)-1] { // what follows is not a line yet
				rest, ok := strings.CutPrefix(l, "fault: "+what)
				if ok {
					seen++
				}
				if ok && seen == n {
					return strings.TrimPrefix(rest, " ")
				}
			}
			select {
			case err := <-client.done:
				t.Fatalf("the client ended: %v\n%s", err, client.out.String())
			case <-late:
				t.Fatalf("no %q (%d) within %v:\n%s\nthe server:\n%s", what, n, limit, client.out.String(), server.out.String())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	said(time.Minute, "connected", 1)
	freeze()
	if end := said(bound, "ended", 1); !strings.HasPrefix(end, "RETRY_EXC_ERR: ") {
		t.Errorf("the connection ended with %s", end)
	}
	if end := said(2*bound, "ended", 2); !strings.HasPrefix(end, "deadline: ") {
		t.Errorf("a connection to a frozen host ended with %s", end)
	}
	if left := said(bound, "used", 2); !strings.HasPrefix(left, "0 ") {
		t.Errorf("the client has %s", left)
	}
	thaw()
	said(time.Minute, "connected", 2)
	t.Log(client.out.String())
}

// faultFreeze gives what stops a guest, with its kernel, and what lets it go on. name is the
// variable with its process group.
func faultFreeze(t *testing.T, name string) (freeze, thaw func()) {
	t.Helper()
	group, err := strconv.Atoi(os.Getenv(name))
	if err != nil || group <= 1 {
		t.Fatalf("the guest's process: %q, %v", os.Getenv(name), err)
	}
	thaw = func() { syscall.Kill(-group, syscall.SIGCONT) }
	t.Cleanup(thaw)
	return func() {
		t.Helper()
		if err := syscall.Kill(-group, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}, thaw
}

// faultCommand is a process with orders, for place.start.
func faultCommand(t *testing.T, o faultOrders) []string {
	t.Helper()
	orders, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"env", "-u", roleEnv, faultEnv + "=" + string(orders), "lab.test", "-test.run=^TestFaultRole$", "-test.timeout=10m"}
}
