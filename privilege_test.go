package rdma_test

import (
	"bytes"
	"testing"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestC332_Refused: a peer that takes itself the right to read and to do atomics is refused them
// by our end, also in the ring that it may write; and a peer of Verbena is told of no memory.
func TestC332_Refused(t *testing.T) {
	together(t)
	t.Run("verbena", func(t *testing.T) {
		besides(t, stream.Verbena, nil, func(_ *rig, p *rawPeer, bad *rdma.Conn) {
			if h := p.them; h.BufAddr != 0 || h.BufKey != 0 || h.SGLAddr != 0 || h.SGLKey != 0 {
				t.Errorf("the answer names memory: %+v", h)
			}
			p.cm.Close()
			bad.Close()
		})
	})
	for name, wr := range map[string]func(p *rawPeer, at ib.Remote) verbs.SendWR{
		"read":         func(p *rawPeer, at ib.Remote) verbs.SendWR { return verbs.Read(1, at, p.mr.SGE(0, 8), 0) },
		"compare-swap": func(p *rawPeer, at ib.Remote) verbs.SendWR { return verbs.CompareSwap(1, at, 0, 1, p.mr.SGE(0, 8), 0) },
		"fetch-add":    func(p *rawPeer, at ib.Remote) verbs.SendWR { return verbs.FetchAdd(1, at, 1, p.mr.SGE(0, 8), 0) },
	} {
		t.Run("rsockets/"+name, func(t *testing.T) {
			besides(t, stream.Compatible, nil, func(_ *rig, p *rawPeer, bad *rdma.Conn) {
				p.grasp()
				mine := bytes.Repeat([]byte{0xEE}, 8)
				copy(p.mr.Bytes(), mine)
				p.post(wr(p, ib.Remote{Addr: p.them.BufAddr, RKey: p.them.BufKey, Len: 8}))
				p.await(0)
				isErr(t, name, p.failed, ib.StatusRemInvReq.Err())
				if got := p.mr.Bytes()[:8]; !bytes.Equal(got, mine) {
					t.Errorf("it has got %x", got)
				}
				p.cm.Close()
				bad.Close()
			})
		})
	}
}

// grasp makes the queue pair anew, with what was agreed but for one thing: it issues reads and
// atomics.
func (p *rawPeer) grasp() {
	p.t.Helper()
	const first = ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccess
	init, err := p.qp.Query(first)
	if err != nil {
		p.t.Fatal(err)
	}
	init.State = ib.StateInit
	modify := func(a verbs.QPAttr, m ib.QPAttrMask, err error) {
		if err == nil {
			err = p.qp.Modify(&a, m)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	modify(verbs.QPAttr{State: ib.StateReset}, ib.AttrState, nil)
	modify(init, first, nil)
	modify(p.cm.ID().QPAttr(ib.StateRTR))
	last, m, err := p.cm.ID().QPAttr(ib.StateRTS)
	last.MaxRDAtomic = 1
	modify(last, m, err)
}
