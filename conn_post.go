package rdma

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/verbs"
)

// batch is room for requests on their way from the machine to the queue pair. The hub has
// a few, so that a connection needs none of its own.
type batch struct {
	next *batch
	ops  [batchLen]stream.Op
	wrs  [batchLen]verbs.SendWR
	more [batchLen][1]verbs.SGE
	recv [batchLen]verbs.RecvWR
}

const batchLen = 8

func (h *hub) getBatch() *batch {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.batches
	if b == nil {
		return &batch{}
	}
	h.batches, b.next = b.next, nil
	return b
}

func (h *hub) putBatch(b *batch) {
	h.mu.Lock()
	b.next, h.batches = h.batches, b
	h.mu.Unlock()
}

// post posts what the machine wants posted: receives first, as a request may promise them
// to the peer. mu is held.
func (c *Conn) post() {
	if c.failed || c.isDown {
		return
	}
	b := c.hub.getBatch()
	err := c.postRecvs(b)
	if err == nil && c.live {
		err = c.postSends(b)
	}
	c.hub.putBatch(b)
	if err != nil && !c.over {
		c.e.Fail(err)
	}
}

func (c *Conn) postRecvs(b *batch) error {
	for {
		n := 0
		for n < batchLen {
			var r stream.Recv
			if !c.e.NextRecv(&r) {
				break
			}
			b.recv[n] = verbs.RecvWR{ID: r.ID}
			if r.Loc.Region != stream.NoRegion {
				b.recv[n].Local = c.mem.sge(r.Loc)
			}
			n++
		}
		if n == 0 {
			return nil
		}
		if _, err := c.qp.PostRecvList(b.recv[:n]); err != nil {
			return err
		}
		if n < batchLen {
			return nil
		}
	}
}

func (c *Conn) postSends(b *batch) error {
	for {
		n := 0
		t := now()
		for n < batchLen && c.e.Next(t, &b.ops[n]) {
			c.request(b, n)
			n++
		}
		if n == 0 {
			return nil
		}
		c.stats.Messages += uint64(n)
		if _, err := c.qp.PostSendList(b.wrs[:n]); err != nil {
			return err
		}
		if n < batchLen {
			return nil
		}
	}
}

// request makes the i-th request of a batch.
func (c *Conn) request(b *batch, i int) {
	op, wr := &b.ops[i], &b.wrs[i]
	*wr = verbs.SendWR{ID: op.ID, Opcode: op.Opcode, Imm: op.Imm}
	if op.Signaled {
		wr.Flags |= ib.Signaled
	}
	if op.Opcode != ib.OpSendImm && op.Opcode != ib.OpSend {
		wr.Remote = ib.Remote{Addr: op.Remote, RKey: op.RKey, Len: uint32(op.Len())}
	}
	switch {
	case op.DataN > 0 && op.DataN <= c.mem.inline:
		wr.Data = op.Data[:op.DataN]
		wr.Flags |= ib.Inline
	case op.DataN > 0:
		off := op.Stage * stream.MaxData
		copy(c.mem.stage.b[off:], op.Data[:op.DataN])
		wr.Local = c.mem.stage.sge(off, op.DataN)
	default:
		if op.N > 0 {
			wr.Local = c.mem.sge(op.Segs[0])
		}
		if op.N > 1 {
			b.more[i][0] = c.mem.sge(op.Segs[1])
			wr.More = b.more[i][:]
		}
		if op.Inline {
			wr.Flags |= ib.Inline
		}
	}
}
