package lab_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestGuestFaultC305_Descriptors lets each call that makes a descriptor fail in turn, by
// the limit of the process: in listening, dialling, accepting, what a connection has, and, in
// a process that never had it, what the device has. Each time there is an error that says so,
// and nothing is left. A connection that stands lives on.
func TestGuestFaultC305_Descriptors(t *testing.T) {
	faultNet(t)
	for _, fresh := range []bool{false, true} {
		t.Run(map[bool]string{false: "Used", true: "Fresh"}[fresh], func(t *testing.T) {
			p := faultStart(t, "process", faultOrders{Scarce: faultHere + ":7009", Fresh: fresh}, kernelEnv)
			said := p.until(8*faultLimit, "scarce ")
			if strings.Contains(said, "fault: left ") {
				t.Error("objects are left")
			}
			if !fresh && !strings.Contains(said, "fault: standing <nil>") {
				t.Error("a connection that stands does not live on")
			}
			if strings.Contains(said, "fault: round other") {
				t.Error("an error does not say what is scarce")
			}
			var failed, before, after int
			rest := said[strings.LastIndex(said, "fault: scarce ")+len("fault: scarce "):]
			if _, err := fmt.Sscan(rest, &failed, &before, &after); err != nil {
				t.Fatalf("%q: %v", rest, err)
			}
			if failed < 4 {
				t.Errorf("only %d calls failed", failed)
			}
			if after > before {
				t.Errorf("%d descriptors after a connection, and %d after another", before, after)
			}
			p.expect(faultLimit, "done")
		})
	}
}

// TestGuestFaultC312_Accept: a server without descriptors is told so by Accept, its peer is
// refused at once, and when it has descriptors again it serves, and keeps nothing.
func TestGuestFaultC312_Accept(t *testing.T) {
	faultNet(t)
	server := faultStart(t, "server", faultOrders{Starved: ":7012"}, kernelEnv)
	server.expect(faultLimit, "ready ")
	// The device of a listener on all addresses is not open yet.
	refused := faultStart(t, "refused", faultOrders{Dial: faultHere + ":7012", Cycles: 1}, kernelEnv)
	if end := refused.expect(faultLimit, "ended "); !strings.HasPrefix(end, "ECONNREFUSED: ") {
		t.Errorf("a peer of a server without descriptors ended with %s", end)
	}
	if said := server.expect(faultLimit, "accept "); !strings.HasPrefix(said, "EMFILE: ") {
		t.Errorf("Accept gave %s", said)
	}
	var used [2]faultUse
	for i := range used {
		c := faultStart(t, "client", faultOrders{Dial: faultHere + ":7012", Cycles: 1}, kernelEnv)
		c.expect(faultLimit, "connected")
		c.kill()
		used[i] = server.used(faultLimit)
	}
	if used[1].objects > used[0].objects || used[1].fds > used[0].fds {
		t.Errorf("the server had %+v, and has %+v", used[0], used[1])
	}
	server.expect(faultLimit, "done")
}

// starved waits for a request with no room for a descriptor, and then serves two.
func (r *faultRun) starved(ctx context.Context) error {
	l, err := cm.Listen(r.p, r.o.Starved, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	_, err = l.Accept(short) // as servers do before anything happens
	cancel()
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	err = withRoom(0, func() error {
		r.say("ready %v", l.Addr())
		_, err := l.Accept(ctx)
		r.say("accept %s: %v", faultClass(err), err)
		return nil
	})
	if err != nil {
		return err
	}
	for range 2 {
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		r.say("connection %v", r.serveOne(ctx, req))
		r.used()
	}
	return nil
}

// descriptors counts those that are open.
func descriptors() int {
	l, _ := os.ReadDir("/proc/self/fd")
	return len(l) - 1 // and that of the directory
}

// withRoom runs f while the process can open only so many descriptors more.
func withRoom(room int, f func() error) error {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return err
	}
	few := was
	few.Cur = uint64(descriptors() + room + 64)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		return err
	}
	var full []int // the limit is one of numbers, and there may be some free below others
	for {
		fd, err := unix.Dup(0)
		if err != nil {
			break
		}
		full = append(full, fd)
	}
	for _, fd := range full[:room] {
		unix.Close(fd)
	}
	err := f()
	for _, fd := range full[room:] {
		unix.Close(fd)
	}
	return errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
}

// scarce makes a connection of this process to itself with room for no descriptor, then
// with room for one more each time, until there is enough.
func (r *faultRun) scarce(ctx context.Context) error {
	if !r.o.Fresh {
		if err := r.once(ctx, r.o.Scarce); err != nil {
			return err
		}
		// What stands needs none.
		_, served, err := r.toItself(ctx, r.o.Scarce, func(c *faultConn) error {
			return withRoom(0, func() error { return c.exchange(ctx) })
		})
		r.say("standing %v, %v", err, served)
		if err != nil {
			return err
		}
	}
	failed := 0
	for room := 0; room < 64; room++ {
		err := withRoom(room, func() error { return r.once(ctx, r.o.Scarce) })
		class := "fine"
		switch {
		case errors.Is(err, syscall.EMFILE):
			class = "EMFILE"
		case errors.Is(err, syscall.ECONNREFUSED):
			class = "refused" // it was the other side
		case err != nil:
			class = "other"
		}
		r.say("round %s: room %d: %v", class, room, err)
		if left := append(verbs.Objects(), cm.Objects()...); len(left) > 0 {
			r.say("left %q", left)
		}
		if err == nil {
			break
		}
		failed++
	}
	before := descriptors()
	err := r.once(ctx, r.o.Scarce)
	r.say("scarce %d %d %d", failed, before, descriptors())
	return err
}

// once makes a connection of this process to itself, and has a message echoed.
func (r *faultRun) once(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, served, err := r.toItself(ctx, addr, func(c *faultConn) error { return c.exchange(ctx) })
	if err != nil { // else it tells of the end only
		err = errors.Join(err, served)
	}
	return err
}
