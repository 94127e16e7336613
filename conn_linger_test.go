package rdma_test

import (
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// TestC290_LingerCutShort: a Close that waits for a peer that does not read ends with
// SetLinger(0), and with nothing else; the peer sees a reset. Nothing needs that when Close is
// over.
func TestC290_LingerCutShort(t *testing.T) {
	cutShort := func(t *testing.T, l *rig) {
		s, c := l.pair(t)
		defer s.Close()
		if err := c.SetLinger(3600); err != nil {
			t.Fatal(err)
		}
		for n, err := c.TryWrite(pattern(64<<10, 0)); err != rdma.ErrWouldBlock; n, err = c.TryWrite(pattern(64<<10, 0)) {
			if err != nil {
				t.Fatal(n, err)
			}
			synctest.Wait()
		}
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		time.Sleep(time.Minute)
		isErr(t, "SetLinger(1) of one that closes", c.SetLinger(1), net.ErrClosed)
		time.Sleep(time.Minute)
		select {
		case err := <-closed:
			t.Fatalf("Close is over: %v", err)
		default:
		}
		start := time.Now()
		if err := c.SetLinger(0); err != nil {
			t.Errorf("SetLinger(0) of one that closes: %v", err)
		}
		if err := <-closed; err != nil || time.Since(start) > 2*time.Second {
			t.Errorf("Close ended after %v: %v", time.Since(start), err)
		}
		isErr(t, "SetLinger(0) of one that is closed", c.SetLinger(0), net.ErrClosed)
		_, err := s.WriteTo(io.Discard)
		if l.client.Compatible { // rsockets has no word for it
			return
		}
		isErr(t, "the peer", err, syscall.ECONNRESET)
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cutShort(t, &rig{place: onFabric(t), client: rdma.Config{Compatible: m.compatible}})
			})
		})
	}
}
