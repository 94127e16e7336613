package rdmatest

import (
	"net/netip"
	"sync"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
)

// ConnPair gives two ends of a stream, over a fabric of their own: a has dialled and b was
// accepted. They are closed when the test ends. It works in a testing/synctest bubble.
func ConnPair(t testing.TB) (a, b *rdma.Conn) {
	t.Helper()
	f := NewFabric(t, 0)
	ln, err := (&rdma.ListenConfig{Config: &rdma.Config{Provider: f.Host(pairAddrs[1])}}).
		Listen(t.Context(), "rdma", netip.AddrPortFrom(pairAddrs[1], 0).String())
	if err != nil {
		t.Fatalf("pair: listen: %v", err)
	}
	defer ln.Close()
	c, err := (&rdma.Dialer{Config: &rdma.Config{Provider: f.Host(pairAddrs[0])}}).DialContext(t.Context(), "rdma", ln.Addr().String())
	if err != nil {
		t.Fatalf("pair: dial: %v", err)
	}
	a = c.(*rdma.Conn)
	t.Cleanup(func() { a.Close() })
	if c, err = ln.Accept(); err != nil { // it is there: the handshake is over
		t.Fatalf("pair: accept: %v", err)
	}
	b = c.(*rdma.Conn)
	t.Cleanup(func() { // each waits for the other's word
		var both sync.WaitGroup
		both.Go(func() { a.Close() })
		b.Close()
		both.Wait()
	})
	return a, b
}
