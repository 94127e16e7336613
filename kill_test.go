package rdma_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestC314_Kill: the peer process is killed. A connection that writes, or reads with
// keep-alive, ends with an error that says so, and no other.
func TestC314_Kill(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for retries, some seconds")
	}
	rdmatest.CheckLeaks(t)
	r := peerRole{Network: "rdma", Service: "echo"}
	p, other := startPeer(t, r), startPeer(t, r)
	c, d := dialPeer(t, r, p), dialPeer(t, r, other)
	for _, x := range []net.Conn{c, d} {
		writes(t, x, []byte("alive"))
		reads(t, x, []byte("alive"))
	}
	p.kill()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	var err error
	for err == nil {
		if _, err = c.Write([]byte("into the void")); err == nil {
			_, err = c.Read(make([]byte, 100))
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the kill: %v", err)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("a write to the dead succeeds")
	}
	start := time.Now()
	c.Close()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	writes(t, d, []byte("still"))
	reads(t, d, []byte("still"))
}
