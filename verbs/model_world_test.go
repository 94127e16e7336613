package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing/synctest"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/model"
	"github.com/verbena-rdma/verbena/internal/scripted"
)

// setup says what is explored: queues on one channel, and how many completions each gets.
type setup struct {
	completions []int // by queue
	threads     func(w *world)
	lie         func(w *world, op string, queue int) // before a call of the provider
	config      scripted.Config
	before      int            // completions that each queue has in the beginning
	shared      bool           // a queue has several consumers
	partly      bool           // not all completions have to be seen
	ended       func(w *world) // called when nothing can happen any more
	glitches    int            // signs without an event that the device may give
	whole       bool           // no reduction
	fine        bool           // threads stop after calls of the provider, too
	alike       bool           // the queues and their threads may be swapped
}

// world is one run: the code of this package on a scripted device.
type world struct {
	s    *model.Sched
	cfg  setup
	p    *scripted.Provider
	dev  *Device
	ch   *CompChannel
	sch  *scripted.Channel
	cqs  []*CQ
	scqs []*scripted.CQ
	qps  []*QP
	sqps []*scripted.QP

	begun     bool
	ctx       context.Context
	cancel    context.CancelFunc
	pushed    []int
	got       [][]uint64     // by queue
	alone     map[string]int // threads that alone use a queue
	errs      []error        // what ended a thread
	closedCh  bool           // Close of the channel has returned
	closedCQ  []atomic.Bool
	wrong     []error       // found by threads
	edge      chan struct{} // full from when the channel begins to be readable
	awaits    []bool        // what the loop takes as armed
	dozing    bool          // the loop sleeps
	news      chan struct{} // of a Consumer
	consuming bool
	woke      bool // Wake was called
	glitched  int
}

var completes = [...]string{"complete0", "complete1"}

func (c setup) program(name string) model.Program {
	return model.Program{Name: name, Start: func(s *model.Sched) model.World { return newWorld(s, c) }}
}

func must2[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newWorld(s *model.Sched, c setup) *world {
	w := &world{s: s, cfg: c, alone: map[string]int{}, edge: make(chan struct{}, 1)}
	cfg := c.config
	cfg.Gate = w.gate
	w.p = scripted.New(&cfg)
	w.dev = must2(must2(Devices(w.p))[0].OpenPrivate())
	w.dev.SetRecheck(-1) // there is nothing to rescue
	sctx := w.p.Device("").Context()
	pd := must2(w.dev.AllocPD())
	w.ch = must2(w.dev.CreateCompChannel())
	w.sch = sctx.Channel(-1)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for _, n := range c.completions {
		cq := must2(w.dev.CreateCQ(8, &CQConfig{Channel: w.ch}))
		w.cqs, w.scqs = append(w.cqs, cq), append(w.scqs, sctx.CQ(-1))
		qp := must2(pd.CreateQP(QPConfig{SendCQ: cq, MaxSendWR: 1, MaxRecvWR: max(n, 1)}))
		a := QPAttr{State: ib.StateInit, Port: 1}
		if err := qp.Modify(&a, ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccess); err != nil {
			panic(err)
		}
		for i := range n {
			if err := qp.PostRecv(RecvWR{ID: uint64(i)}); err != nil {
				panic(err)
			}
		}
		w.qps, w.sqps = append(w.qps, qp), append(w.sqps, sctx.QP(-1))
	}
	if err := pd.Close(); err != nil {
		panic(err)
	}
	n := len(w.cqs)
	w.pushed, w.got, w.closedCQ = make([]int, n), make([][]uint64, n), make([]atomic.Bool, n)
	w.awaits = make([]bool, n)
	w.ch.mu.Stop = w.stop
	if c.fine {
		w.ch.park.SetStop(w.stop)
	}
	for q := range w.cqs {
		for range min(c.before, c.completions[q]) {
			w.complete(q)
		}
	}
	w.begun = true
	c.threads(w)
	return w
}

// gate is called before the calls of the provider.
func (w *world) gate(op string, handle uint64) {
	if !w.begun || !w.s.Running() || !w.cfg.fine && strings.HasPrefix(op, "after ") {
		return
	}
	q := w.queue(handle)
	note := ""
	if q >= 0 && !w.cfg.alike {
		note = fmt.Sprint(q)
	}
	w.s.Gate(op, note)
	if w.cfg.lie != nil && !strings.HasPrefix(op, "after ") && w.s.Running() {
		w.cfg.lie(w, op, q)
	}
}

func (w *world) queue(handle uint64) int {
	return slices.IndexFunc(w.cqs, func(cq *CQ) bool { return cq.handle == handle })
}

// stop is called before a lock of the channel is taken, and when it was let go.
func (w *world) stop(lock bool) {
	if !w.s.Running() || !lock && !w.cfg.fine {
		return
	}
	var pc [1]uintptr
	runtime.Callers(3, pc[:])
	f, _ := runtime.CallersFrames(pc[:]).Next()
	op := "unlock "
	if lock {
		op = "lock "
	}
	w.s.Gate(op+f.Function[strings.LastIndexByte(f.Function, '.')+1:], "")
}

// ready says whether a thread that uses some queues may go on from a gate: not if it would
// ask for a lock that is held by one that has stopped.
func (w *world) ready(cqs ...*CQ) func(op string) bool {
	return func(op string) bool {
		switch op {
		case "lock begin", "lock end", "lock Kick", "lock Close": // the parker's, which nobody holds at a gate
			return true
		}
		if strings.HasPrefix(op, "lock ") && !tryLock(&w.ch.mu.Mutex) {
			return false
		}
		switch op {
		case "start", "call", "lock enlist", "lock sleep", "lock claim", "unlock enlist", "unlock sleep", "unlock claim":
			for _, cq := range cqs {
				if !tryLock(&cq.mu) {
					return false
				}
			}
		}
		return true
	}
}

func (w *world) index(cq *CQ) int { return slices.Index(w.cqs, cq) }

func tryLock(mu interface {
	TryLock() bool
	Unlock()
}) bool {
	if mu.TryLock() {
		mu.Unlock()
		return true
	}
	return false
}

// waits starts a thread that waits for n completions of a queue.
func (w *world) waits(name string, q, n int) {
	cq := w.cqs[q]
	i := len(w.errs)
	w.errs = append(w.errs, nil)
	w.alone[name] = q
	w.s.Go(name, w.ready(cq), func() {
		for range n {
			w.s.Gate("call", "")
			over := w.closedCQ[q].Load()
			wc, err := cq.Next(w.ctx)
			if err != nil {
				w.errs[i] = err
				return
			}
			if over {
				w.wrong = append(w.wrong, errors.New("a completion of a queue that was closed"))
			}
			w.got[q] = append(w.got[q], wc.ID)
		}
	})
}

// closes starts a thread that closes the channel, or a queue.
func (w *world) closes(q int) {
	w.errs = append(w.errs, nil)
	if q < 0 {
		w.s.Go("close", w.ready(), func() {
			if err := w.ch.Close(); err != nil {
				w.wrong = append(w.wrong, err)
			}
			w.closedCh = true
		})
		return
	}
	w.s.Go("close", w.ready(w.cqs[q]), func() {
		if err := w.cqs[q].Close(); err != nil {
			w.wrong = append(w.wrong, err)
		}
		w.closedCQ[q].Store(true)
	})
}

// Actions: the device completes a request, or gives a sign of nothing.
func (w *world) Actions() []model.Action {
	var all []model.Action
	for i, n := range w.cfg.completions {
		if w.pushed[i] < n {
			all = append(all, model.Action{Name: completes[i], Do: func() { w.complete(i) }})
		}
	}
	if w.glitched < w.cfg.glitches {
		all = append(all, model.Action{Name: "glitch", Do: func() { w.glitched++; w.sign(w.sch.Glitch) }})
	}
	return all
}

func (w *world) complete(q int) {
	w.sign(func() {
		w.pushed[q]++
		w.sqps[q].CompleteRecv(1, scripted.Received(8), false)
	})
}

// sign does what may make the channel readable, and notes the edge.
func (w *world) sign(f func()) {
	before := w.sch.Readable()
	f()
	if !before && w.sch.Readable() {
		select {
		case w.edge <- struct{}{}:
		default:
		}
	}
}

// Reduce: a look at a queue, or its arming, depends on the completions of that queue only,
// and these on it only, as long as neither fires nor an event of it is on its way, and
// nobody else uses the queue.
func (w *world) Reduce(steps []model.Action) []model.Action {
	if w.cfg.whole {
		return steps
	}
	queue := w.sch.Queue()
	if slices.ContainsFunc(steps, func(s model.Action) bool { return s.Op == "after next event" }) {
		return steps // it has yet to say that a queue is not armed any more
	}
	for _, s := range steps {
		q, ok := w.alone[s.Name]
		if !ok || !strings.HasSuffix(s.Op, "poll") && !strings.HasSuffix(s.Op, "arm") || slices.Contains(queue, w.cqs[q].handle) {
			continue
		}
		if more := w.pushed[q] < w.cfg.completions[q]; more && w.scqs[q].Armed() {
			continue
		}
		return slices.DeleteFunc(slices.Clone(steps), func(o model.Action) bool { return o.Name != s.Name && o.Name != completes[q] })
	}
	return steps
}

// State describes a run. If the queues are alike, that of the run with queues and threads
// swapped is the same.
func (w *world) State(at []string) string {
	order := make([]int, len(w.cqs))
	for i := range order {
		order[i] = i
	}
	a := w.describe(at, order)
	if !w.cfg.alike {
		return a
	}
	slices.Reverse(order)
	swapped := slices.Clone(at)
	swapped[0], swapped[1] = at[1], at[0]
	return min(a, w.describe(swapped, order))
}

func (w *world) describe(at []string, order []int) string {
	var b strings.Builder
	place := make([]int, len(order))
	for i, q := range order {
		place[q] = i
	}
	waiter := func(x *waiter) string {
		if x == nil {
			return "-"
		}
		q := slices.Index(w.cqs, x.cq)
		return fmt.Sprint(place[q], ".", slices.Index(x.cq.waiters, x))
	}
	for _, q := range order {
		cq, scq := w.cqs[q], w.scqs[q]
		fmt.Fprint(&b, w.pushed[q], scq.Len(), scq.Armed(), cq.armed.Load(), cq.staged.len(), len(cq.pending), cq.shut, cq.closed(),
			w.awaits[q], cq.nudge.Load(), cq.byUser, cq.soft, len(w.got[q]), w.closedCQ[q].Load(), ' ')
		for _, x := range cq.waiters {
			fmt.Fprint(&b, x.woken, x.following, len(x.c), ',')
		}
		b.WriteByte('|')
	}
	for _, h := range w.sch.Queue() {
		fmt.Fprint(&b, place[w.queue(h)])
	}
	ch := w.ch
	fmt.Fprint(&b, '|', waiter(ch.leader), ' ')
	for x := ch.follow; x != nil; x = x.next {
		fmt.Fprint(&b, waiter(x), ',')
	}
	got := -1
	if ch.got != nil {
		got = place[slices.Index(w.cqs, ch.got)]
	}
	fmt.Fprint(&b, ch.events, ch.parked, got, ch.fault, len(ch.soft), ch.closed(), w.closedCh, ch.park.State(), w.glitched, w.sch.Readable(), len(w.edge), w.dozing, w.woke, w.consuming, len(w.news))
	for _, a := range at {
		b.WriteByte('|')
		b.WriteString(a)
	}
	for _, e := range w.errs {
		fmt.Fprint(&b, e != nil)
	}
	return b.String()
}

// Check holds what must be true in each state.
func (w *world) Check(asleep bool) error {
	if len(w.wrong) > 0 {
		return w.wrong[0]
	}
	for q, ids := range w.got {
		for i, id := range ids {
			if w.cfg.shared && slices.Index(ids, id) == i {
				continue // who took the first need not be the first to say so
			}
			if id != uint64(i) {
				return fmt.Errorf("queue %d gave %v: not each completion once and in order", q, ids)
			}
		}
	}
	if !asleep {
		return nil
	}
	// Nobody moves. A queue that somebody waits for must be empty.
	for q, cq := range w.cqs {
		n := w.scqs[q].Len() + cq.staged.len() + len(cq.pending)
		if len(cq.waiters) > 0 && n > 0 {
			return fmt.Errorf("a lost wake-up: a thread sleeps, and queue %d has %d completions", q, n)
		}
		if len(cq.waiters) > 0 && cq.nudge.Load() {
			return fmt.Errorf("a lost wake-up: a thread sleeps, and Wake of queue %d was called", q)
		}
		if w.dozing && !cq.closed() && n > 0 {
			return fmt.Errorf("a lost wake-up: the loop sleeps, and queue %d has %d completions (%d events wait)", q, n, w.sch.Queued())
		}
		if cq.shut && len(cq.waiters) > 0 {
			return fmt.Errorf("a thread sleeps for queue %d, which is closed", q)
		}
	}
	if w.ch.closed() && w.consuming {
		return errors.New("a loop sleeps on a channel that is closed")
	}
	if w.ch.closed() && (w.ch.parked > 0 || w.ch.events > 0) {
		return errors.New("a thread sleeps on a channel that is closed")
	}
	return nil
}

// End closes everything.
func (w *world) End(complete bool) error {
	if complete {
		if w.cfg.ended != nil {
			w.cfg.ended(w)
		}
		closing := w.ch.closed() || w.cfg.partly
		for q, n := range w.cfg.completions {
			closing = closing || w.cqs[q].closed()
			if !closing && len(w.got[q]) != n {
				w.wrong = append(w.wrong, fmt.Errorf("%d of %d completions of queue %d came", len(w.got[q]), n, q))
			}
		}
		for _, err := range w.errs {
			if err != nil && !(closing && errors.Is(err, net.ErrClosed)) {
				w.wrong = append(w.wrong, err)
			}
		}
	}
	w.cancel()
	synctest.Wait()
	for i := range w.qps {
		w.wrong = append(w.wrong, w.qps[i].Close())
	}
	for i := range w.cqs {
		w.wrong = append(w.wrong, w.cqs[i].Close())
	}
	w.wrong = append(w.wrong, w.ch.Close(), w.dev.Close())
	for _, v := range w.p.Violations() {
		w.wrong = append(w.wrong, errors.New("contract: "+v))
	}
	if n := w.p.Open(); n > 0 {
		w.wrong = append(w.wrong, fmt.Errorf("%d objects are left", n))
	}
	return errors.Join(w.wrong...)
}

// outcome is what a user sees at the end of a run, and where its threads are.
func (w *world) outcome() string {
	return fmt.Sprint(w.got, w.errs, w.ch.parked, w.ch.events, w.dozing, w.sch.Queued())
}
