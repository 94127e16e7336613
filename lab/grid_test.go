package lab_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// gridCase is one cell of the grid: a pair of queue pairs that transfers everything there
// is, in both directions.
type gridCase struct {
	MTU  int
	V6   bool
	Seed uint64
	Soon bool // give up soon: there will be another try
	Bad  bool // the network loses, repeats or delays packets
}

func (c gridCase) limit() time.Duration {
	if c.Soon {
		return stepLimit / 3
	}
	return stepLimit
}

// grid is one side of it. Both sides know the script; they only tell each other where
// their memory is, and when they are ready. Each of them checks every byte of its memory.
type grid struct {
	p    verbs.Provider
	v4   netip.Addr
	v6   netip.Addr
	side int // 0: begins
	conn net.Conn
	enc  *json.Encoder
	dec  *json.Decoder
	step time.Duration // how long the other side may need
}

func newGrid(p verbs.Provider, v4, v6 string, side int, c net.Conn) *grid {
	return &grid{p, netip.MustParseAddr(v4), netip.MustParseAddr(v6), side, c, json.NewEncoder(c), json.NewDecoder(c), stepLimit}
}

// stepLimit is how long the other side may need for one step, over the worst network and on a
// machine that has much else to do. A case takes a second or two.
const stepLimit = 45 * time.Second

// frame is what the sides exchange.
type frame struct {
	Err   string
	Late  bool // the error is a wait in vain
	Alone bool // the error is errAlone
	Value json.RawMessage
}

// error is what the other side says with it.
func (f frame) error() error {
	err := fmt.Errorf("the other side: %s", f.Err)
	switch {
	case f.Late:
		err = fmt.Errorf("%w, %w", err, context.DeadlineExceeded)
	case f.Alone:
		err = fmt.Errorf("%w, %w", err, errAlone)
	}
	return err
}

// errAlone is that of a requester whose queue pair is in the error state although no request
// has failed: what comes first after successes is a flush, or nothing.
var errAlone = errors.New("the queue pair has failed by itself")

// isLate reports an error that says no more than that time is over.
func isLate(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// stall is the error of a turn that did not come to its end, with nothing wrong in what came:
// it took too long, or its requester failed by itself.
type stall struct {
	active int // the side whose requests it is about
	err    error
}

func (s *stall) Error() string { return s.err.Error() }
func (s *stall) Unwrap() error { return s.err }

// swap gives the other side a value and gets its. It is the barrier between the steps: no
// side goes on before the other is there. An error given instead is the end of both.
func (g *grid) swap(mine, theirs any) error {
	b, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	g.conn.SetDeadline(time.Now().Add(g.step))
	sent := make(chan error, 1) // both sides write first
	go func() { sent <- g.enc.Encode(frame{Value: b}) }()
	var f frame
	if err := errors.Join(g.dec.Decode(&f), <-sent); err != nil {
		return fmt.Errorf("the other side: %w", err)
	}
	if f.Err != "" {
		return f.error()
	}
	return json.Unmarshal(f.Value, theirs)
}

// tell has the other side end with an error of this one.
func (g *grid) tell(err error) {
	g.conn.SetDeadline(time.Now().Add(tellLimit))
	g.enc.Encode(frame{Err: err.Error(), Late: isLate(err), Alone: errors.Is(err, errAlone)})
}

const tellLimit = 5 * time.Second

// hear gives the error with which the other side has ended, if it says so.
func (g *grid) hear() error {
	g.conn.SetDeadline(time.Now().Add(tellLimit))
	for {
		var f frame
		if g.dec.Decode(&f) != nil {
			return nil
		}
		if f.Err != "" {
			return f.error()
		}
	}
}

func (g *grid) barrier() error {
	var x bool
	return g.swap(true, &x)
}

// gridDepth bounds the requests of a script.
const gridDepth = 128

// run does a case.
func (g *grid) run(ctx context.Context, c gridCase) (err error) {
	g.step = c.limit()
	defer func() { g.step = stepLimit }()
	ctx, cancel := context.WithTimeout(ctx, g.step)
	defer cancel()
	defer func() {
		if err != nil {
			err = g.ended(err)
		}
	}()
	d, err := verbs.Open(g.p, "")
	if err != nil {
		return err
	}
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	script := newScript(c)
	mr, err := pd.Alloc(script.memory(), ib.LocalWrite|ib.RemoteWrite|ib.RemoteRead|ib.RemoteAtomic)
	if err != nil {
		return err
	}
	defer mr.Close()
	cq, err := d.CreateCQ(2*gridDepth, nil)
	if err != nil {
		return err
	}
	defer cq.Close()
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: gridDepth, MaxRecvWR: gridDepth, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInline: inlineSize})
	if err != nil {
		return err
	}
	defer qp.Close()
	if err := g.join(d, qp, c); err != nil {
		return err
	}
	var peer ib.Remote
	if err := g.swap(mr.Remote(0, mr.Len()), &peer); err != nil {
		return err
	}
	for active := range 2 {
		x := &turn{script: script, of: c, qp: qp, cq: cq, mr: mr, peer: peer, active: active == g.side, turn: active, side: g.side}
		if err := g.play(ctx, x); err != nil {
			return turnError(active, err)
		}
	}
	return nil
}

// turnError is the error of a turn.
func turnError(active int, err error) error {
	err = fmt.Errorf("side %d is active: %w", active, err)
	if isLate(err) || errors.Is(err, errAlone) {
		return &stall{active, err}
	}
	return err
}

// ended tells the other side why this one ends. Who waits in vain may do so because the other
// has found a fault: then that is the error.
func (g *grid) ended(err error) error {
	g.tell(err)
	if isLate(err) {
		theirs := g.hear()
		var s *stall
		switch {
		case theirs == nil || isLate(theirs):
		case errors.Is(theirs, errAlone) && errors.As(err, &s):
			return &stall{s.active, theirs}
		default:
			return theirs
		}
	}
	return err
}

// play does one direction.
func (g *grid) play(ctx context.Context, x *turn) error {
	x.fill()
	if !x.active {
		if err := x.receive(); err != nil {
			return err
		}
	}
	if err := g.barrier(); err != nil {
		return err
	}
	if x.active {
		if err := x.post(); err != nil {
			return err
		}
	}
	if err := x.complete(ctx); err != nil {
		return err
	}
	if err := g.barrier(); err != nil { // a write is seen by nobody but him who posted it
		return err
	}
	if err := x.check(); err != nil {
		return err
	}
	return g.barrier()
}

// join connects the queue pairs, with the path MTU of the case.
func (g *grid) join(d *verbs.Device, qp *verbs.QP, c gridCase) error {
	a := g.v4
	if c.V6 {
		a = g.v6
	}
	gids, err := d.GIDs()
	if err != nil {
		return err
	}
	for _, e := range gids {
		if e.GID.Addr() != a || e.Type != ib.GIDTypeRoCEv2 {
			continue
		}
		mine, err := qp.Endpoint(e.Port, e.Index)
		if err != nil {
			return err
		}
		want := ib.MTUFromBytes(c.MTU)
		if mine.MTU < want {
			return fmt.Errorf("path MTU %v at most, the case needs %v", mine.MTU, want)
		}
		mine.MTU = want
		var peer verbs.Endpoint
		if err := g.swap(mine, &peer); err != nil {
			return err
		}
		if err := qp.Join(peer, &verbs.PathOptions{MaxRDAtomic: 4, MaxDestRDAtomic: 4, NoReceives: true,
			Timeout: 268 * time.Millisecond, // a slow machine is no lost packet
			Access:  ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic}); err != nil {
			return err
		}
		got, err := qp.Query(ib.AttrPathMTU)
		if err == nil && got.PathMTU != want {
			err = fmt.Errorf("path MTU %v, want %v", got.PathMTU, want)
		}
		return err
	}
	return fmt.Errorf("the device has no GID for %v: %v", a, gids)
}

// gridPeer is the side in the guest, with the kernel's device: it does the cases that the
// other side names, until there are no more.
func gridPeer(ctx context.Context, addr string) error {
	p, err := ibverbs.New()
	if err != nil {
		return err
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	return newGrid(p, "10.9.0.2", "fd00:9::2", 1, c).follow(ctx)
}

func (g *grid) follow(ctx context.Context) error {
	for {
		var c gridCase
		if err := g.swap(true, &c); err != nil {
			return err
		}
		if c.MTU == 0 {
			return nil
		}
		if err := g.run(ctx, c); err != nil {
			return err
		}
	}
}

// lead has both sides do a case; one without MTU is the end.
func (g *grid) lead(ctx context.Context, c gridCase) error {
	var x bool
	if err := g.swap(c, &x); err != nil || c.MTU == 0 {
		return err
	}
	return g.run(ctx, c)
}
