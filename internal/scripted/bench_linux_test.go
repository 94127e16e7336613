package scripted_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/scripted"
	"github.com/verbena-rdma/verbena/internal/unix"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// way is how a program waits.
type way struct {
	name       string
	descriptor bool // the provider has nothing but descriptors, as the kernel
	poll       bool // the program sleeps in poll(2) itself
}

var ways = []way{{"Go", false, false}, {"Poller", true, false}, {"FD", true, true}, {"FDOfGo", false, true}}

// bench is a scripted device and connection manager with one object of each kind.
type bench struct {
	testing.TB
	way
	p   *scripted.Provider
	man *scripted.CM
	dev *verbs.Device
	ctx *scripted.Context

	pd  *verbs.PD
	ch  *verbs.CompChannel
	sch *scripted.Channel
	cq  *verbs.CQ
	scq *scripted.CQ
	qp  *verbs.QP
	sqp *scripted.QP
	cmc *cm.EventChannel
	smc *scripted.CMChannel
	id  *cm.ID

	raws map[*cm.ID]*scripted.CMID
}

func newBench(t testing.TB, w way) *bench {
	t.Helper()
	b := &bench{TB: t, way: w, raws: map[*cm.ID]*scripted.CMID{}}
	b.p = scripted.New(&scripted.Config{Descriptors: w.descriptor, PollErrors: true})
	b.man = scripted.NewCM("fake0")
	b.man.Descriptors, b.man.PollErrors = w.descriptor, true
	b.p.SetCM(func() (driver.CM, error) { return b.man, nil })
	var err error
	b.dev, err = verbs.Open(b.p, "")
	b.ok(err)
	b.ctx = b.p.Device("").Context()
	b.pd, err = b.dev.AllocPD()
	b.ok(err)
	b.ch, err = b.dev.CreateCompChannel()
	b.ok(err)
	b.sch = b.ctx.Channel(0)
	b.cq, b.scq = b.queue()
	b.qp, b.sqp = b.pair(b.cq)
	b.cmc, err = cm.NewEventChannel(b.p)
	b.ok(err)
	b.smc = b.man.Channels()[0]
	b.id = b.newID()
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{b.qp, b.cq, b.ch, b.pd, b.id, b.cmc} {
			b.ok(c.Close())
		}
		for _, v := range append(b.p.Violations(), b.man.Faults()...) {
			t.Errorf("contract: %s", v)
		}
	})
	return b
}

func (b *bench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) queue() (*verbs.CQ, *scripted.CQ) {
	b.Helper()
	cq, err := b.dev.CreateCQ(64, &verbs.CQConfig{Channel: b.ch})
	b.ok(err)
	return cq, b.ctx.CQ(-1)
}

func (b *bench) pair(cq *verbs.CQ) (*verbs.QP, *scripted.QP) {
	b.Helper()
	qp, err := b.pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 4, MaxRecvWR: 16})
	b.ok(err)
	b.ok(qp.Modify(&verbs.QPAttr{State: ib.StateInit, Port: 1}, ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccess))
	for i := range 16 {
		b.ok(qp.PostRecv(verbs.RecvWR{ID: uint64(i)}))
	}
	return qp, b.ctx.QP(-1)
}

func (b *bench) newID() *cm.ID {
	b.Helper()
	before := b.man.IDs()
	id, err := b.cmc.NewID(ib.PortSpaceTCP)
	b.ok(err)
	for _, s := range b.man.IDs() {
		if !slices.Contains(before, s) {
			b.raws[id] = s
		}
	}
	return id
}

// raw gives the driver's id.
func (b *bench) raw(id *cm.ID) *scripted.CMID { return b.raws[id] }

// source is something that gives events, or completions.
type source struct {
	name   string
	event  func(ctx context.Context) (string, error) // waits
	try    func() (string, bool, error)
	fd     func() (int, error)
	next   func()        // the device gives what event gives as "next"
	glitch func()        // it is readable without an event
	stray  []func()      // events about nothing that exists, or without a cause; event skips them
	odd    []func()      // events that are given all the same, as "odd"
	retire func() func() // closes an object, and gives what posts an event about it
	failed func()        // the descriptor reports an error, and nothing says why
}

// sources gives the four of a bench.
func (b *bench) sources() []source {
	completions := source{
		name: "CQ",
		event: func(ctx context.Context) (string, error) {
			_, err := b.cq.Next(ctx)
			return "next", err
		},
		try: func() (string, bool, error) {
			for {
				_, ok, err := b.ch.TryEvent()
				if err != nil {
					return "", false, err
				}
				if !ok {
					break
				}
			}
			var dst [1]verbs.WC
			n, err := b.cq.Poll(dst[:])
			if n == 0 && err == nil {
				var ready bool
				if ready, err = b.cq.Arm(ib.NotifyAny); ready {
					n, err = b.cq.Poll(dst[:])
				}
			}
			return "next", n > 0, err
		},
		fd:     b.ch.FD,
		next:   func() { b.sqp.CompleteRecv(1, scripted.Received(8), false) },
		glitch: b.sch.Glitch,
		stray: []func(){
			func() { b.sch.Post(b.scq.Handle()) }, // an empty queue
			func() { b.sch.Post(0) }, func() { b.sch.Post(12345) }, func() { b.sch.Post(^uint64(0)) },
		},
		retire: b.retireQueue,
		failed: b.sch.PollError,
	}
	channel := completions
	channel.name = "CompChannel"
	channel.event = func(ctx context.Context) (string, error) {
		cq, err := b.ch.Event(ctx)
		return b.queueName(cq), err
	}
	channel.try = func() (string, bool, error) {
		cq, ok, err := b.ch.TryEvent()
		return b.queueName(cq), ok, err
	}
	channel.next = func() {
		if _, err := b.cq.Arm(ib.NotifyAny); err != nil {
			b.Error(err)
		}
		b.sqp.CompleteRecv(1, scripted.Received(8), false)
	}
	channel.stray = channel.stray[1:]
	channel.odd = []func(){func() { b.sch.Post(b.scq.Handle()) }} // for nothing, but of a queue

	async := b.dev.Async()
	name := func(ev verbs.AsyncEvent) string {
		if ev.Type == ib.EventPortActive {
			return "next"
		}
		return fmt.Sprintf("odd %v %v %v", ev.CQ != nil, ev.QP != nil, ev.SRQ != nil)
	}
	events := source{
		name: "AsyncEvents",
		event: func(ctx context.Context) (string, error) {
			ev, err := async.Event(ctx)
			return name(ev), err
		},
		try: func() (string, bool, error) {
			ev, ok, err := async.TryEvent()
			return name(ev), ok, err
		},
		fd:     async.FD,
		next:   func() { b.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventPortActive, Port: 1}) },
		glitch: b.ctx.AsyncQueue().Glitch,
		odd: []func(){
			func() { b.ctx.PostAsync(driver.AsyncEvent{Type: 200, Handle: b.scq.Handle()}) },
			func() { b.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventQPFatal, Handle: 12345}) },
			func() { b.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventCQErr, Handle: ^uint64(0)}) },
		},
		retire: b.retirePair,
		failed: b.ctx.AsyncQueue().PollError,
	}
	cmName := func(ev cm.Event) string {
		if ev.Type == cm.AddrChange {
			return "next"
		}
		return fmt.Sprintf("odd %v", ev.ID != nil)
	}
	manager := source{
		name: "CM",
		event: func(ctx context.Context) (string, error) {
			ev, err := b.cmc.Event(ctx)
			return cmName(ev), err
		},
		try: func() (string, bool, error) {
			ev, ok, err := b.cmc.TryEvent()
			return cmName(ev), ok, err
		},
		fd:     b.cmc.FD,
		next:   func() { b.raw(b.id).Post(driver.CMEvent{Type: cm.AddrChange}) },
		glitch: func() { b.smc.Spurious(1) },
		stray: []func(){
			func() { b.smc.Post(driver.CMEvent{Type: cm.Disconnected}) },
			func() { b.smc.Post(driver.CMEvent{Type: cm.Established, Handle: 12345}) },
			func() { b.smc.Post(driver.CMEvent{Type: cm.AddrChange, Handle: ^uint64(0)}) },
		},
		odd:    []func(){func() { b.raw(b.id).Post(driver.CMEvent{Type: 99}) }},
		retire: b.retireID,
		failed: b.smc.PollError,
	}
	return []source{completions, channel, events, manager}
}

func (b *bench) queueName(cq *verbs.CQ) string {
	if cq == b.cq {
		return "next"
	}
	return fmt.Sprintf("odd %p", cq)
}

// reuse makes an object, ends it, and makes others until one is in its place. It gives that
// one, and the handle of the first. Tests that run meanwhile may take the place for
// themselves: then it begins anew.
func reuse[T any](b *bench, make func() (T, uint64), end func(T)) (next T, closed uint64) {
	b.Helper()
	for range 50 {
		old, closed := make()
		end(old)
		for range 100 {
			v, h := make()
			if h == closed {
				b.Fatalf("handle %#x came twice", h)
			}
			if uint32(h) == uint32(closed) {
				return v, closed
			}
			end(v)
		}
	}
	b.Fatal("the place of a handle is not used again")
	panic("unreachable")
}

// retireQueue closes a queue and makes another in its place.
func (b *bench) retireQueue() func() {
	next, h := reuse(b, func() (*verbs.CQ, uint64) {
		cq, scq := b.queue()
		return cq, scq.Handle()
	}, func(cq *verbs.CQ) { b.ok(cq.Close()) })
	_, err := next.Arm(ib.NotifyAny)
	b.ok(err)
	b.Cleanup(func() { b.ok(next.Close()) })
	return func() { b.sch.Post(h) }
}

func (b *bench) retirePair() func() {
	next, h := reuse(b, func() (*verbs.QP, uint64) {
		qp, sqp := b.pair(b.cq)
		return qp, sqp.Handle()
	}, func(qp *verbs.QP) { b.ok(qp.Close()) })
	b.Cleanup(func() {
		if next.Err() != nil {
			b.Errorf("an event of a closed queue pair hit its successor: %v", next.Err())
		}
		b.ok(next.Close())
	})
	return func() { b.ctx.PostAsync(driver.AsyncEvent{Type: ib.EventQPFatal, Handle: h, Port: 1}) }
}

func (b *bench) retireID() func() {
	next, h := reuse(b, func() (*cm.ID, uint64) {
		id := b.newID()
		return id, b.raw(id).Handle()
	}, func(id *cm.ID) { b.ok(id.Close()) })
	b.Cleanup(func() { b.ok(next.Close()) })
	return func() { b.smc.Post(driver.CMEvent{Type: cm.DeviceRemoval, Handle: h}) }
}

// wait waits in the bench's way for what source gives next.
func (b *bench) wait(ctx context.Context, s source) (string, error) {
	if !b.poll {
		return s.event(ctx)
	}
	for {
		got, ok, err := s.try()
		if ok || err != nil {
			return got, err
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		fd, err := s.fd()
		if err != nil {
			return "", err
		}
		fds := []unix.PollFD{{Fd: int32(fd), Events: unix.PollIn}}
		if _, err := unix.Poll(fds, time.Millisecond); err != nil {
			return "", err
		}
	}
}

// asleep starts to wait, and comes back when the waiter sleeps, most likely.
func (b *bench) asleep(s source) <-chan string {
	done := make(chan string, 1)
	go func() {
		got, err := b.wait(b.limit(), s)
		if err != nil {
			got = err.Error()
		}
		done <- got
	}()
	time.Sleep(2 * time.Millisecond)
	return done
}

func (b *bench) limit() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	b.Cleanup(cancel)
	return ctx
}

func (b *bench) want(s source, want string) {
	b.Helper()
	if got, err := b.wait(b.limit(), s); err != nil || !strings.HasPrefix(got, want) {
		b.Errorf("got %q, %v; want %s", got, err, want)
	}
}

// nothing checks that there is nothing, in every way that one can ask.
func (b *bench) nothing(s source) {
	b.Helper()
	if got, ok, err := s.try(); ok || err != nil {
		b.Errorf("there is %q, %v", got, err)
	}
}

// each runs f for every source and way.
func each(t *testing.T, f func(b *bench, s source)) {
	t.Parallel()
	for _, w := range ways {
		for i, s := range newBench(t, w).sources() {
			t.Run(s.name+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, w)
				f(b, b.sources()[i])
			})
		}
	}
}

// begin starts to wait; sleeping: and comes back when the queue is armed and was found empty.
func (b *bench) begin(s source, sleeping bool) <-chan string {
	done := make(chan string, 1)
	go func() {
		got, err := b.wait(b.limit(), s)
		if err != nil {
			got = err.Error()
		}
		done <- got
	}()
	for sleeping && !b.scq.Asleep() {
		runtime.Gosched()
	}
	return done
}
