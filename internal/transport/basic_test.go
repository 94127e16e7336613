package transport

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// §9.7.2, §9.7.5: one packet, one acknowledgement.
func TestSendOnly(t *testing.T) {
	t.Parallel()
	x := newScript(t, nil)
	x.b.recv(1, 0, 64)
	x.a.send(7, "hello")
	x.a.wantPacket(wire.RCSendOnly, 0, "ack")
	x.deliver()
	x.b.wantRecv(1, ib.StatusSuccess, 5)
	x.b.wantBytes(0, []byte("hello"))
	if p := x.b.wantAck(0, wire.AckNoLimit); p.AETH.MSN != 1 {
		t.Errorf("MSN %d, want 1", p.AETH.MSN)
	}
	x.deliver()
	x.a.wantDone(7, ib.StatusSuccess)
}

// C-091, C-095: every size around the MTU, both directions of data.
func TestSizes(t *testing.T) {
	t.Parallel()
	for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
		for _, n := range []int{0, 1, 2, 3, 4, mtu.Bytes() - 1, mtu.Bytes(), mtu.Bytes() + 1, 2 * mtu.Bytes(), 5*mtu.Bytes() + 3, 30000} {
			t.Run(fmt.Sprintf("mtu=%d,n=%d", mtu.Bytes(), n), func(t *testing.T) {
				t.Parallel()
				x := newScript(t, &setup{mtu: mtu})
				want := pattern(x.a.buf[:n], uint64(n))
				x.b.recv(1, 0, 30000)
				x.a.post(req{id: 1, op: ib.OpSend, sgl: []driver.SGE{x.a.sge(0, n)}})
				x.run()
				x.b.wantRecv(1, ib.StatusSuccess, n)
				x.a.wantDone(1, ib.StatusSuccess)
				x.b.wantBytes(0, want)

				x.a.post(req{id: 2, op: ib.OpWrite, to: 30001, sgl: []driver.SGE{x.a.sge(0, n)}})
				x.run()
				x.a.wantDone(2, ib.StatusSuccess)
				x.b.wantBytes(30001, want)

				x.a.post(req{id: 3, op: ib.OpRead, to: 30001, sgl: []driver.SGE{x.a.sge(30003, n)}})
				x.run()
				if c := x.a.wantDone(3, ib.StatusSuccess); int(c.ByteLen) != n {
					t.Errorf("READ of %d bytes says %d", n, c.ByteLen)
				}
				x.a.wantBytes(30003, want)
			})
		}
	}
}
