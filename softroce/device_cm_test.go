package softroce

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/internal/wire"
)

func TestC185_CommEstablished(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := newSide(t, n.provider(t, 1, addrA), addrA, sideConfig{}), newSide(t, n.provider(t, 2, addrB), addrB, sideConfig{})
		var m fakeManager
		b.ctx.d.attachManager(&m)
		for _, err := range []error{
			b.toRTR(b.qp, addrA, a.qp.Num(), path{}), a.toRTR(a.qp, addrB, b.qp.Num(), path{}), a.toRTS(a.qp, path{}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		rid := b.recv(0, 10)
		sentOK(t, a, a.send(0, 4, 0))
		ok(t, b.next(b.rcq), rid)
		if e := asyncTypes(t, b.ctx); len(e) != 1 || e[0] != ib.EventCommEst {
			t.Errorf("events %v", e)
		}
		if len(m.est) != 1 || m.est[0] != b.qp.Num() {
			t.Errorf("the connection manager was told %v", m.est)
		}
		f, ok := b.ctx.d.facts(b.qp.Num())
		if !ok || f.State != ib.StateRTR || f.Local != addrB || f.Remote != addrA || f.DestQPN != a.qp.Num() {
			t.Errorf("facts %+v", f)
		}
	})
}

// fakeManager records what the device tells it.
type fakeManager struct {
	est  []ib.QPN
	mads [][]byte
	from []netip.Addr
}

func (m *fakeManager) receiveMAD(local, remote netip.Addr, mad []byte) {
	m.mads = append(m.mads, bytes.Clone(mad))
	m.from = append(m.from, remote)
}
func (m *fakeManager) commEstablished(n ib.QPN) { m.est = append(m.est, n) }
func (m *fakeManager) deviceRemoved()           {}
func (m *fakeManager) addressesChanged()        {}
func (m *fakeManager) close()                   {}

func TestManagementDatagrams(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		a, b := n.provider(t, 1, addrA).dev, n.provider(t, 2, addrB).dev
		var m fakeManager
		if !b.attachManager(&m) || b.attachManager(&fakeManager{}) {
			t.Error("attach")
		}
		if _, err := b.endpoint(addrB); err != nil {
			t.Fatal(err)
		}
		mad := bytes.Repeat([]byte{0xA5}, madLen)
		var tos uint8
		n.setHook(func(_, _ netip.AddrPort, b []byte, t *uint8) bool { tos = *t; return true })
		if err := a.sendMAD(addrA, addrB, mad, 0x28); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(m.mads) != 1 || !bytes.Equal(m.mads[0], mad) || m.from[0] != addrA || tos != 0x28 {
			t.Errorf("got %d datagrams from %v with traffic class %#x", len(m.mads), m.from, tos)
		}
		if err := a.sendMAD(addrC, addrB, mad, 0); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("from an address that is not ours: %v", err)
		}
		if err := a.sendMAD(addrA, netip.Addr{}, mad, 0); err == nil {
			t.Error("to nowhere")
		}
		bad := forge(at(addrA), at(addrB), &wire.Packet{Opcode: gsiOp, PKey: 0xFFFF, DestQP: 1, DETH: wire.DETH{QKey: 5, SrcQP: 1}, Payload: mad})
		e, _ := a.endpoint(addrA)
		e.conn.(interface {
			Write(m []netio.Message) (int, error)
		}).Write([]netio.Message{{Buf: bad, Addr: at(addrB)}})
		synctest.Wait()
		if s := b.stats.snapshot(); len(m.mads) != 1 || s.DropManagement != 1 {
			t.Errorf("wrong Q_Key: %d datagrams, %+v", len(m.mads), s)
		}
	})
}
