package cm_test

import (
	"context"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// world is a scripted provider with a device, and what tests need on it. At its end
// everything must be closed and the contract with the provider kept.
type world struct {
	t   testing.TB
	sp  *scripted.Provider
	p   verbs.Provider
	cm  *scripted.CM
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	mr  *verbs.MR

	mu      sync.Mutex
	closers []io.Closer
	ended   bool
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, sp: scripted.New(nil), cm: scripted.NewCM("fake0")}
	w.p = w.sp
	w.sp.SetCM(func() (driver.CM, error) { return w.cm, nil })
	var err error
	w.dev, err = verbs.Open(w.p, "fake0")
	must(t, err)
	w.pd, err = w.dev.AllocPD()
	must(t, err)
	w.cq, err = w.dev.CreateCQ(4096, nil)
	must(t, err)
	w.mr, err = w.pd.Alloc(4096, ib.LocalWrite)
	must(t, err)
	t.Cleanup(w.end)
	return w
}

// end closes what the test left and looks for what is not closed then.
func (w *world) end() {
	w.mu.Lock()
	closers, ended := w.closers, w.ended
	w.closers, w.ended = nil, true
	w.mu.Unlock()
	if ended {
		return
	}
	for i := len(closers) - 1; i >= 0; i-- {
		closers[i].Close()
	}
	for _, c := range []io.Closer{w.cq, w.mr, w.pd} {
		if err := c.Close(); err != nil {
			w.t.Errorf("close: %v", err)
		}
	}
	for _, s := range w.cm.Faults() {
		w.t.Errorf("connection manager: %s", s)
	}
	for _, s := range w.sp.Violations() {
		w.t.Errorf("provider: %s", s)
	}
	for _, s := range cm.Left(w.p, w.dev) {
		w.t.Errorf("left: %s", s)
	}
	for _, s := range w.dev.Objects() {
		w.t.Errorf("open: %s", s)
	}
}

func (w *world) closes(c io.Closer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closers = append(w.closers, c)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) channel() *cm.EventChannel {
	w.t.Helper()
	ch, err := cm.NewEventChannel(w.p)
	must(w.t, err)
	w.closes(ch)
	return ch
}

func (w *world) id(ch *cm.EventChannel) *cm.ID {
	w.t.Helper()
	id, err := ch.NewID(ib.PortSpaceTCP)
	must(w.t, err)
	w.closes(id)
	return id
}

// waiting gives an id whose calls wait.
func (w *world) waiting() *cm.ID {
	w.t.Helper()
	id, err := cm.NewID(w.p, ib.PortSpaceTCP)
	must(w.t, err)
	w.closes(id)
	return id
}

// listen gives an id that listens on an address of the device.
func (w *world) listen(ch *cm.EventChannel) *cm.ID {
	w.t.Helper()
	id := w.id(ch)
	must(w.t, id.Bind(someSrc))
	must(w.t, id.Listen(0))
	return id
}

// cmid gives the driver's id.
func (w *world) cmid(id *cm.ID) *scripted.CMID { return id.Driver().(*scripted.CMID) }

// want takes the next event and checks it. A nil id is any.
func (w *world) want(ch *cm.EventChannel, typ cm.EventType, id *cm.ID) cm.Event {
	w.t.Helper()
	ev, ok, err := ch.TryEvent()
	must(w.t, err)
	if !ok {
		w.t.Fatalf("no event, want %v", typ)
	}
	if ev.Type != typ || id != nil && ev.ID != id {
		w.t.Fatalf("event %v (%v) of %p, want %v of %p", ev.Type, ev.Err, ev.ID, typ, id)
	}
	if ev.Type == cm.ConnectRequest {
		w.closes(ev.ID)
	}
	return ev
}

func (w *world) none(ch *cm.EventChannel) {
	w.t.Helper()
	ev, ok, err := ch.TryEvent()
	must(w.t, err)
	if ok {
		w.t.Errorf("unexpected event %v (%v)", ev.Type, ev.Err)
	}
}

// routed gives an id that is ready to connect.
func (w *world) routed(ch *cm.EventChannel, dst netip.AddrPort) *cm.ID {
	w.t.Helper()
	id := w.id(ch)
	must(w.t, id.ResolveAddr(netip.AddrPort{}, dst, time.Second))
	w.want(ch, cm.AddrResolved, id)
	must(w.t, id.ResolveRoute(time.Second))
	w.want(ch, cm.RouteResolved, id)
	return id
}

var smallQP = verbs.QPConfig{MaxSendWR: 4, MaxRecvWR: 4}

// create makes a queue pair with CreateQP of an ID, a Request or a Route.
func (w *world) create(f func(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)) *verbs.QP {
	w.t.Helper()
	qp, err := w.tryCreate(f)
	must(w.t, err)
	return qp
}

func (w *world) tryCreate(f func(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)) (*verbs.QP, error) {
	cfg := smallQP
	cfg.SendCQ = w.cq
	return f(w.pd, cfg)
}

func (w *world) post(qp *verbs.QP) {
	w.t.Helper()
	must(w.t, qp.PostRecv(verbs.Recv(1, w.mr.SGE(0, 64))))
}

func (w *world) bareQP(id *cm.ID) *verbs.QP {
	w.t.Helper()
	return w.create(id.CreateQP)
}

// qp makes the id's queue pair, with a receive.
func (w *world) qp(id *cm.ID) *verbs.QP {
	w.t.Helper()
	qp := w.bareQP(id)
	w.post(qp)
	return qp
}

// spareQP gives a queue pair that belongs to no id.
func (w *world) spareQP() *verbs.QP {
	w.t.Helper()
	qp := w.create(w.pdCreate)
	w.closes(qp)
	return qp
}

func (w *world) pdCreate(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error) {
	return pd.CreateQP(cfg)
}

// link is an established connection of the lower floor.
type link struct {
	a, b     *cm.ID
	ach, bch *cm.EventChannel
}

func (w *world) pair(ap, bp *cm.ConnParam) link {
	w.t.Helper()
	c := link{ach: w.channel(), bch: w.channel()}
	l := w.listen(c.bch)
	c.a = w.routed(c.ach, l.LocalAddr())
	w.qp(c.a)
	must(w.t, c.a.Connect(ap))
	c.b = w.want(c.bch, cm.ConnectRequest, nil).ID
	must(w.t, l.Close())
	w.qp(c.b)
	must(w.t, c.b.Accept(bp))
	w.want(c.ach, cm.Established, c.a)
	w.want(c.bch, cm.Established, c.b)
	return c
}

// ---- the upper floor

func (w *world) listener() *cm.Listener {
	w.t.Helper()
	l, err := cm.Listen(w.p, "10.0.0.1:0", nil)
	must(w.t, err)
	w.closes(l)
	return l
}

// resolve gives a route to a listener, which may be one on every device.
func (w *world) resolve(ctx context.Context, l *cm.Listener) *cm.Route {
	w.t.Helper()
	a := l.Addr().(cm.Addr).AddrPort
	if a.Addr().IsUnspecified() {
		a = netip.AddrPortFrom(anyDst.Addr(), a.Port())
	}
	r, err := cm.Resolve(ctx, w.p, a.String(), nil)
	must(w.t, err)
	w.closes(r)
	return r
}

// conns connects to a listener.
func (w *world) conns(l *cm.Listener) (a, b *cm.Conn) {
	w.t.Helper()
	ctx := w.t.Context()
	got := make(chan *cm.Conn)
	go func() {
		defer close(got)
		req, err := l.Accept(ctx)
		if err != nil {
			w.t.Error(err)
			return
		}
		defer req.Close()
		w.post(w.create(req.CreateQP))
		c, err := req.Accept(ctx, nil)
		if err != nil {
			w.t.Error(err)
			return
		}
		got <- c
	}()
	r := w.resolve(ctx, l)
	w.post(w.create(r.CreateQP))
	a, err := r.Connect(ctx, nil)
	must(w.t, err)
	w.closes(a)
	if b = <-got; b == nil {
		w.t.FailNow()
	}
	w.closes(b)
	return a, b
}

func (w *world) yield() { runtime.Gosched() }

// scriptedQP gives the provider's part of a queue pair.
func (w *world) scriptedQP(qp *verbs.QP) *scripted.QP {
	for i := 0; ; i++ {
		if q := w.sp.Device("").Context().QP(i); q.Num() == qp.Num() {
			return q
		}
	}
}
