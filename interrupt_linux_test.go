package rdma_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestC257_Interrupt: SIGINT ends a program whose goroutines are blocked in calls of ours as it
// ends any other: at once, if the program has no handler; and if it has one, when the program
// likes, and its peer sees the end of the stream.
func TestC257_Interrupt(t *testing.T) {
	rdmatest.CheckLeaks(t)
	for service, handled := range map[string]bool{"echo": false, "until interrupted": true} {
		t.Run(service, func(t *testing.T) {
			r := peerRole{Network: "rdma", Service: service}
			p := startPeer(t, r)
			c := dialPeer(t, r, p)
			c.SetDeadline(time.Now().Add(time.Minute))
			writes(t, c, []byte("hello"))
			reads(t, c, []byte("hello")) // and now it waits for more
			if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if !handled {
				var exit *exec.ExitError
				if err := p.cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
					t.Errorf("the process ended with %v, not by the signal", err)
				}
				c.(*rdma.Conn).SetLinger(0) // nobody is there to take anything
				return
			}
			if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
				t.Errorf("read %q, %v, want the end", got, err)
			}
			c.Close()
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("the process ended with %v", err)
			}
		})
	}
}

func init() {
	peerAlone["until interrupted"] = func() error {
		ctx, stop := signal.NotifyContext(bg, os.Interrupt)
		defer stop()
		ln, err := listenAs("rdma", "")
		if err != nil {
			return err
		}
		fmt.Println(ln.Addr())
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		accepting := make(chan error, 1)
		go func() {
			_, err := ln.Accept()
			accepting <- err
		}()
		reading := make(chan error, 1)
		go func() {
			_, err := io.Copy(c, c)
			reading <- err
		}()
		select {
		case <-ctx.Done():
		case err := <-accepting:
			return fmt.Errorf("before the signal Accept gives %v", err)
		case err := <-reading:
			return fmt.Errorf("before the signal Read gives %v", err)
		}
		if err := errors.Join(ln.Close(), c.Close()); err != nil {
			return err
		}
		<-accepting
		<-reading
		return nil
	}
}
