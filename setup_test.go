package rdma_test

import (
	"net/netip"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

// TestC295_NoQueuePair: a device that refuses the queue pair, here because the queues that
// were asked for are too long, costs the one connection. A listener goes on, a dialer has an
// error, and both leave nothing behind (the fabric looks).
func TestC295_NoQueuePair(t *testing.T) {
	const tooLong = 65534 // the device takes 32768
	for name, cfg := range map[string]rdma.Config{"send": {SendQueue: tooLong}, "receive": {RecvQueue: tooLong}} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, l *rig) {
				refused := make(chan error, 2)
				l.server, l.client = withMode(cfg, l.server), withMode(rdma.Config{}, l.client)
				l.server.Trace = &rdma.Trace{Refused: func(_ netip.AddrPort, err error) { refused <- err }}
				ln := l.listen(t)
				defer ln.Close()
				for range 2 { // the first did not end it
					if c, err := l.dialer().Dial("rdma", ln.Addr().String()); err == nil {
						c.Close()
						t.Fatal("connected")
					}
					if err := <-refused; err == nil {
						t.Error("refused without an error")
					}
				}
				time.Sleep(time.Minute)
				l.server, l.client = withMode(rdma.Config{}, l.client), withMode(cfg, l.client)
				other := l.listen(t)
				defer other.Close()
				if c, err := l.dialer().Dial("rdma", other.Addr().String()); err == nil {
					c.Close()
					t.Fatal("connected")
				}
			})
		})
	}
}

// withMode gives cfg with the protocol of another.
func withMode(cfg, of rdma.Config) rdma.Config {
	cfg.Compatible = of.Compatible
	return cfg
}
