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
// the limit of the process: in listening, dialling, accepting, and what a connection has.
// Each time there is an error that says so, and nothing is left.
func TestGuestFaultC305_Descriptors(t *testing.T) {
	faultNet(t)
	p := faultStart(t, "process", faultOrders{Scarce: faultHere + ":7009"}, kernelEnv)
	said := p.until(8*faultLimit, "scarce ")
	if strings.Contains(said, "fault: left ") {
		t.Error("objects are left")
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
}

// scarce makes a connection of this process to itself with room for no descriptor, then
// with room for one more each time, until there is enough.
func (r *faultRun) scarce(ctx context.Context) error {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return err
	}
	open := func() int {
		l, _ := os.ReadDir("/proc/self/fd")
		return len(l) - 1 // and that of the directory
	}
	// The libraries look for their parts once: what they do not find then they never have.
	if err := r.once(ctx); err != nil {
		return err
	}
	failed := 0
	for room := 0; room < 64; room++ {
		few := was
		few.Cur = uint64(open() + room)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			return err
		}
		err := r.once(ctx)
		if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); e != nil {
			return e
		}
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
	before := open()
	err := r.once(ctx)
	r.say("scarce %d %d %d", failed, before, open())
	return err
}

// once makes a connection of this process to itself, and has a message echoed.
func (r *faultRun) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	l, err := cm.Listen(r.p, r.o.Scarce, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			err = r.serveOne(ctx, req)
		}
		done <- err
	}()
	err = func() error {
		route, err := cm.Resolve(ctx, r.p, r.o.Scarce, nil)
		if err != nil {
			return err
		}
		defer route.Close()
		var c faultConn
		defer c.close()
		if err := c.open(route.Device(), route.CreateQP); err != nil {
			return err
		}
		conn, err := route.Connect(ctx, r.param())
		if err != nil {
			return err
		}
		defer conn.Close()
		return c.exchange(ctx)
	}()
	l.Close()
	if served := <-done; err != nil { // else it tells of the end only
		err = errors.Join(err, served)
	}
	return err
}
