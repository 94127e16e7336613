package rdma_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestC295_NoQueuePair: a device that refuses the queue pair costs the one connection. A
// listener goes on, a dialer has an error, and both leave nothing behind (the fabric looks).
func TestC295_NoQueuePair(t *testing.T) {
	each(t, func(t *testing.T, l *rig) {
		refused := make(chan error, 2)
		l.server.Trace = &rdma.Trace{Refused: func(_ netip.AddrPort, err error) { refused <- err }}
		f := &faults{op: "create qp"}
		l.place.server = &faulty{l.place.server, f}
		ln := l.listen(t)
		defer ln.Close()
		for range 2 { // the first did not end it
			_, err := l.dialer().Dial("rdma", ln.Addr().String())
			isErr(t, "dial", err, syscall.ECONNREFUSED)
			isErr(t, "refused", <-refused, syscall.ENOMEM)
		}
		f.stop()
		s, c := l.connect(t, ln)
		closeBoth(s, c)
		client := l.place.client
		l.place.client = &faulty{client, &faults{op: "create qp"}}
		_, err := l.dialer().Dial("rdma", ln.Addr().String())
		isErr(t, "dial", err, syscall.ENOMEM)
		l.place.client = client
		s, c = l.connect(t, ln)
		closeBoth(s, c)
	})
}

// TestInline: a device that has not so much inline data, or none, carries the same stream.
func TestInline(t *testing.T) {
	for _, most := range []int{0, 32, 60, 1024} {
		for _, want := range []int{-1, 0, 200, 4096} {
			each(t, func(t *testing.T, l *rig) {
				l.server.Inline, l.client.Inline = want, want
				for _, p := range []*driver.Provider{&l.place.server, &l.place.client} {
					*p = &faulty{*p, &faults{inline: most, limited: true}}
				}
				s, c := l.pair(t)
				defer closeBoth(s, c)
				for _, n := range []int{1, 30, 64, 65, 200, 5000, 100} {
					writes(t, c, pattern(n, n))
					reads(t, s, pattern(n, n))
					writes(t, s, pattern(n, n))
					reads(t, c, pattern(n, n))
				}
				time.Sleep(time.Minute)
			})
		}
	}
}
