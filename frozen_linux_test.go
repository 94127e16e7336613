package rdma_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestC291_FrozenPeer: an idle connection to a process that stands still ends with ETIMEDOUT,
// within the time of keep-alive. Who speaks rsockets asks the device alone, so a kernel's, which
// goes on, keeps the connection up, as with TCP; the embedded one stands still with its process.
func TestC291_FrozenPeer(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for keep-alive, some seconds")
	}
	if _, err := labEnd(1); err != nil { // what the lab keeps open is open
		t.Fatal(err)
	}
	rdmatest.CheckLeaks(t)
	server, _, lab := strings.Cut(os.Getenv(addressesEnv), ",")
	_, _, soft := strings.Cut(server, "@")
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			if !soft { // else its address is that of one process at a time
				t.Parallel()
			}
			r := peerRole{Network: map[bool]string{false: "rdma", true: "rsockets"}[m.compatible], Service: "echo"}
			p := startPeer(t, r)
			c := dialPeer(t, r, p).(*rdma.Conn)
			start := time.Now()
			writes(t, c, []byte("alive"))
			reads(t, c, []byte("alive"))
			const idle = time.Second
			if err := c.SetKeepAlivePeriod(idle); err != nil {
				t.Fatal(err)
			}
			if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer p.cmd.Process.Signal(syscall.SIGCONT)
			if m.compatible && lab && !soft {
				c.SetReadDeadline(time.Now().Add(4 * idle))
				_, err := c.Read(make([]byte, 1))
				isErr(t, "Read", err, os.ErrDeadlineExceeded)
				c.SetReadDeadline(time.Time{})
				p.cmd.Process.Signal(syscall.SIGCONT)
				writes(t, c, []byte("still"))
				reads(t, c, []byte("still"))
				return
			}
			_, err := c.Read(make([]byte, 1))
			isErr(t, "Read", err, syscall.ETIMEDOUT)
			// A second more for the questions, and a busy machine.
			if took := time.Since(start); took < idle || took > 2*idle+10*time.Second {
				t.Errorf("found after %v", took)
			}
			_, err = c.Write([]byte("x"))
			isErr(t, "Write", err, syscall.ETIMEDOUT)
			start = time.Now()
			c.Close()
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("Close took %v", took)
			}
		})
	}
}
