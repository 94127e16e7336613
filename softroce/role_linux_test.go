package softroce

import (
	"runtime"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/netio"
)

// naps counts reads in the kernel that found something.
type naps struct {
	netio.Blocking
	found int
}

func (c *naps) ReadBlocking(ms []netio.Message, limit time.Duration) (int, error) {
	n, err := c.Blocking.ReadBlocking(ms, limit)
	if n > 0 {
		c.found++
	}
	return n, err
}

// TestNaps: who waits for answers that come soon tries to sleep in the socket itself.
func TestNaps(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	}
	e := echoed(t)
	pingPong(t, e, 1)
	ep := e.qp.peer.Load().e
	c := &naps{Blocking: ep.conn.(netio.Blocking)}
	for end := time.Now().Add(10 * time.Second); c.found == 0; {
		for range 64 {
			pingPong(t, e, 1)
			if e.cq.from.Load() == ep && ep.conn != netio.Conn(c) && ep.role.claim() {
				ep.conn, ep.role.conn = c, c
				ep.vacate()
			}
		}
		if time.Now().After(end) {
			t.Fatal("nobody has napped")
		}
	}
}
