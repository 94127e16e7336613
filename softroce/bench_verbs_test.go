package softroce_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/softroce"
	"github.com/verbena-rdma/verbena/verbs"
)

func init() { softroce.PeerRoles["verbs-echo"] = echoVerbs }

// verbsEnd is one end of the exchange as a program of package verbs has it.
type verbsEnd struct {
	cq *verbs.CQ
	qp *verbs.QP
	mr *verbs.MR
}

func newVerbsEnd() (*verbsEnd, func(), error) {
	p, err := softroce.New(nil)
	if err != nil {
		return nil, nil, err
	}
	if _, err := softroce.Loopback(p); err != nil {
		return nil, nil, err
	}
	dev, err := verbs.Open(p, "")
	if err != nil {
		return nil, nil, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, nil, err
	}
	e := &verbsEnd{}
	if e.cq, err = dev.CreateCQ(256, nil); err != nil {
		return nil, nil, err
	}
	if e.mr, err = pd.Alloc(4096, ib.LocalWrite); err != nil {
		return nil, nil, err
	}
	if e.qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, MaxSendWR: 64, MaxRecvWR: 64}); err != nil {
		return nil, nil, err
	}
	end := func() {
		e.qp.Close()
		e.mr.Close()
		e.cq.Close()
		pd.Close()
		p.Close()
	}
	return e, end, nil
}

// meet exchanges the endpoints and joins.
func (e *verbsEnd) meet(w io.Writer, r *bufio.Reader) error {
	dev := e.qp.PD().Device()
	gids, err := dev.GIDs()
	if err != nil {
		return err
	}
	index := -1
	for _, g := range gids {
		if g.GID.Addr().IsLoopback() {
			index = g.Index
		}
	}
	mine, err := e.qp.Endpoint(1, index)
	if err != nil {
		return err
	}
	for range 32 {
		if err := e.recv(); err != nil {
			return err
		}
	}
	if err := json.NewEncoder(w).Encode(mine); err != nil {
		return err
	}
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	var theirs verbs.Endpoint
	if err := json.Unmarshal(line, &theirs); err != nil {
		return err
	}
	return e.qp.Join(theirs, nil)
}

func (e *verbsEnd) recv() error { return e.qp.PostRecv(verbs.Recv(1, e.mr.SGE(0, 64))) }
func (e *verbsEnd) send() error { return e.qp.PostSend(verbs.Send(2, e.mr.SGE(64, 64), 0)) }

func (e *verbsEnd) next(ctx context.Context) error {
	for {
		w, err := e.cq.Next(ctx)
		if err != nil {
			return err
		}
		if err := w.Err(); err != nil {
			return err
		}
		if w.Opcode.IsRecv() {
			return nil
		}
	}
}

func echoVerbs(in *bufio.Reader) error {
	e, _, err := newVerbsEnd()
	if err != nil {
		return err
	}
	if err := e.meet(os.Stdout, in); err != nil {
		return err
	}
	go func() {
		for e.next(context.Background()) == nil && e.recv() == nil && e.send() == nil {
		}
	}()
	fmt.Fprintln(os.Stdout, "ready")
	io.Copy(io.Discard, in)
	return nil
}

// BenchmarkVerbsPingPong64 is BenchmarkPingPongSend64 through package verbs, as a
// program has it: QP.PostSend and CQ.Next.
func BenchmarkVerbsPingPong64(b *testing.B) {
	e, end, err := newVerbsEnd()
	if err != nil {
		b.Fatal(err)
	}
	defer end()
	in, out := softroce.StartPeer(b, "verbs-echo")
	if err := e.meet(in, out); err != nil {
		b.Fatal(err)
	}
	if _, err := out.ReadString('\n'); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := e.send(); err != nil {
			b.Fatal(err)
		}
		if err := e.next(ctx); err != nil {
			b.Fatal(err)
		}
		if err := e.recv(); err != nil {
			b.Fatal(err)
		}
	}
}
