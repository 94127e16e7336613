package rdma_test

import (
	"syscall"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/rdmatest"
)

// TestC300_ListenScarce: a host that has RDMA, but no memory for it just now, is not one
// without RDMA: Listen fails, and can be called again.
func TestC300_ListenScarce(t *testing.T) {
	rdmatest.CheckLeaks(t)
	p := onLoopback(t)
	for _, op := range []string{"open cm", "create id", "bind", "listen"} {
		f := &faults{op: op}
		cfg := &rdma.Config{Provider: &faulty{p.server, f}, Fallback: rdma.TCPFallback}
		ln, err := (&rdma.ListenConfig{Config: cfg}).Listen(t.Context(), "rdma", p.address)
		if err == nil {
			ln.Close()
		}
		isErr(t, op, err, syscall.ENOMEM)
		f.stop()
		if ln, err = (&rdma.ListenConfig{Config: cfg}).Listen(t.Context(), "rdma", p.address); err != nil {
			t.Fatal(err)
		}
		ln.Close()
	}
}
