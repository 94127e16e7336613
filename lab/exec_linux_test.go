package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestGuestC258_Exec: programs that are executed while the kernel's device works inherit no
// descriptor of it, and disturb nothing.
func TestGuestC258_Exec(t *testing.T) {
	inGuest(t)
	d := kernelDevice(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	pd, err := d.AllocPD()
	must(err)
	defer pd.Close()
	cq, err := d.CreateCQ(16, nil)
	must(err)
	defer cq.Close()
	mr, err := pd.Alloc(64, ib.LocalWrite)
	must(err)
	defer mr.Close()
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
	must(err)
	defer qp.Close()
	p, err := ibverbs.New()
	must(err)
	ch, err := cm.NewEventChannel(p)
	must(err)
	defer ch.Close()
	id, err := ch.NewID(ib.PortSpaceTCP)
	must(err)
	defer id.Close()
	own, err := exec.CommandContext(ctx, "ls", "-l", fmt.Sprintf("/proc/%d/fd", os.Getpid())).CombinedOutput()
	must(err)
	for _, file := range []string{"uverbs", "rdma_cm"} {
		if !strings.Contains(string(own), file) {
			t.Fatalf("this process has no %s itself:\n%s", file, own)
		}
	}
	e, err := qp.Endpoint(1, -1)
	must(err)
	must(qp.Join(e, &verbs.PathOptions{NoReceives: true}))
	round := func() error {
		if err := qp.PostRecv(verbs.Recv(1, mr.SGE(0, 32))); err != nil {
			return err
		}
		if err := qp.PostSend(verbs.Send(2, mr.SGE(32, 32), ib.Signaled)); err != nil {
			return err
		}
		for range 2 {
			wc, err := cq.Next(ctx)
			if err == nil {
				err = wc.Err()
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	rounds := 0
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := round(); err != nil {
				done <- err
				return
			}
			rounds++
			time.Sleep(time.Millisecond) // the children need the processor too
		}
	}()
	const children = 15
	for range children {
		out, err := exec.CommandContext(ctx, "ls", "-l", "/proc/self/fd").Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(out) {
			for _, bad := range []string{"infiniband", "uverbs", "rdma_cm", "eventfd", "eventpoll"} {
				if s := string(line); strings.Contains(s, bad) {
					t.Errorf("a child has %s", s)
				}
			}
		}
	}
	close(stop)
	must(<-done)
	if rounds < children {
		t.Errorf("only %d messages went round while %d children ran", rounds, children)
	}
}
