package rdma_test

import (
	"net"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// TestOpErrors: errors of Dial and Listen are *net.OpErrors that name what was asked for, also
// where the cause is one of package net, as the embedded device sends over UDP.
func TestOpErrors(t *testing.T) {
	p := onLoopback(t)
	const nowhere = "[fe80::1%nosuch]:7471"
	for _, fallback := range []rdma.Fallback{rdma.NoFallback, rdma.TCPFallback} {
		cfg := &rdma.Config{Provider: p.client, Fallback: fallback}
		_, err := (&rdma.Dialer{Config: cfg, Timeout: 10 * time.Second}).Dial("rdma", nowhere)
		if op, ok := err.(*net.OpError); !ok || op.Op != "dial" || op.Net != "rdma" || op.Addr == nil || op.Addr.String() != nowhere {
			t.Errorf("Dial, fallback %d: %T: %v", fallback, err, err)
		}
		_, err = (&rdma.ListenConfig{Config: cfg}).Listen(t.Context(), "rdma", nowhere)
		if op, ok := err.(*net.OpError); !ok || op.Op != "listen" || op.Addr == nil || op.Addr.String() != nowhere {
			t.Errorf("Listen, fallback %d: %T: %v", fallback, err, err)
		}
	}
}
