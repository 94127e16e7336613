package rdma_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// faults says which calls of a provider fail.
type faults struct {
	mu   sync.Mutex
	of   map[string]int  // calls so far
	op   string          // calls of this name fail …
	at   int             // … the first, the second, …; zero: all
	done bool            // none any more
	hook func(op string) // is told of each call before it is made
	log  []string        // the order of some calls

	limited bool // there are at most inline bytes of inline data
	inline  int
}

// call counts a call.
func (f *faults) call(op string) error {
	if f.hook != nil {
		f.hook(op)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[string]int{}
	}
	if !f.done {
		f.of[op]++
		switch op {
		case "accept", "connect", "post recv":
			f.log = append(f.log, op)
		}
		if op == f.op && (f.at == 0 || f.of[op] == f.at) {
			return syscall.ENOMEM
		}
	}
	return nil
}

// note adds to the log.
func (f *faults) note(format string, a ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, a...))
}

// stop ends the failing.
func (f *faults) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = true
}

// failed reports whether a call failed.
func (f *faults) failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of[f.op] >= f.at
}

// faulty is a provider whose calls can fail: those that make something, move a queue pair
// or an id, or post.
type faulty struct {
	driver.Provider
	f *faults
}

func (p *faulty) OpenDevice(name string) (driver.Context, error) {
	if err := p.f.call("open device"); err != nil {
		return nil, err
	}
	c, err := p.Provider.OpenDevice(name)
	if err != nil {
		return nil, err
	}
	return &faultyContext{c, p.f}, nil
}

func (p *faulty) OpenCM() (driver.CM, error) {
	if err := p.f.call("open cm"); err != nil {
		return nil, err
	}
	c, err := p.Provider.OpenCM()
	if err != nil {
		return nil, err
	}
	return &faultyCM{c, p.f}, nil
}

type faultyContext struct {
	driver.Context
	f *faults
}

func (c *faultyContext) AllocPD() (driver.PD, error) {
	if err := c.f.call("alloc pd"); err != nil {
		return nil, err
	}
	pd, err := c.Context.AllocPD()
	if err != nil {
		return nil, err
	}
	return &faultyPD{pd, c.f}, nil
}

func (c *faultyContext) CreateCompChannel() (driver.CompChannel, error) {
	if err := c.f.call("create channel"); err != nil {
		return nil, err
	}
	return c.Context.CreateCompChannel()
}

func (c *faultyContext) CreateCQ(cfg driver.CQConfig) (driver.CQ, error) {
	if err := c.f.call("create cq"); err != nil {
		return nil, err
	}
	cq, err := c.Context.CreateCQ(cfg)
	if err != nil {
		return nil, err
	}
	return &faultyCQ{cq, c.f}, nil
}

type faultyCQ struct {
	driver.CQ
	f *faults
}

func (c *faultyCQ) Resize(n int) error {
	if err := c.f.call("resize cq"); err != nil {
		return err
	}
	return c.CQ.(driver.Resizer).Resize(n)
}

func (c *faultyCQ) Arm(solicited bool) error {
	if err := c.f.call("arm cq"); err != nil {
		return err
	}
	return c.CQ.Arm(solicited)
}

type faultyPD struct {
	driver.PD
	f *faults
}

func (p *faultyPD) RegMR(b []byte, iova uint64, a ib.Access) (driver.MR, error) {
	if err := p.f.call("reg mr"); err != nil {
		return nil, err
	}
	mr, err := p.PD.RegMR(b, iova, a)
	p.f.note("region %v", a)
	if err == nil && a&ib.RemoteWrite != 0 {
		_, key := mr.Keys()
		p.f.note("expose %v", key)
		mr = &faultyMR{mr, p.f}
	}
	return mr, err
}

// faultyMR is one that a peer may write.
type faultyMR struct {
	driver.MR
	f *faults
}

func (m *faultyMR) Close() error {
	_, key := m.Keys()
	m.f.note("hide %v", key)
	return m.MR.Close()
}

func (p *faultyPD) CreateQP(cfg driver.QPConfig) (driver.QP, error) {
	if err := p.f.call("create qp"); err != nil {
		return nil, err
	}
	if p.f.limited && cfg.Cap.MaxInline > p.f.inline {
		return nil, syscall.EINVAL
	}
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(*faultyCQ).CQ, cfg.RecvCQ.(*faultyCQ).CQ
	qp, err := p.PD.CreateQP(cfg)
	if err != nil {
		return nil, err
	}
	return &faultyQP{qp, p.f}, nil
}

type faultyQP struct {
	driver.QP
	f *faults
}

func (q *faultyQP) Modify(a *driver.QPAttr, m ib.QPAttrMask) error {
	if err := q.f.call("modify qp"); err != nil {
		return err
	}
	if m&ib.AttrAccess != 0 {
		q.f.note("access %v", a.Access)
	}
	return q.QP.Modify(a, m)
}

func (q *faultyQP) CommitSend(n int) (int, error) {
	if err := q.f.call("post send"); err != nil {
		return 0, err
	}
	return q.QP.CommitSend(n)
}

func (q *faultyQP) CommitRecv(n int) (int, error) {
	if err := q.f.call("post recv"); err != nil {
		return 0, err
	}
	return q.QP.CommitRecv(n)
}

func (q *faultyQP) Close() error {
	q.f.note("close qp")
	return q.QP.Close()
}

type faultyCM struct {
	driver.CM
	f *faults
}

func (c *faultyCM) OpenChannel() (driver.CMChannel, error) {
	if err := c.f.call("open cm channel"); err != nil {
		return nil, err
	}
	ch, err := c.CM.OpenChannel()
	if err != nil {
		return nil, err
	}
	if _, ok := ch.(driver.Waiter); ok {
		return faultyWaiter{&faultyCMChannel{ch, c.f}}, nil
	}
	return &faultyCMChannel{ch, c.f}, nil
}

type faultyCMChannel struct {
	driver.CMChannel
	f *faults
}

// faultyWaiter is one that waits without a descriptor.
type faultyWaiter struct{ *faultyCMChannel }

func (c faultyWaiter) Wait(ctx context.Context) error { return c.CMChannel.(driver.Waiter).Wait(ctx) }

func (c *faultyCMChannel) Next() (driver.CMEvent, bool, error) {
	ev, ok, err := c.CMChannel.Next()
	if ev.Child != nil {
		ev.Child = &faultyID{ev.Child, c.f}
	}
	return ev, ok, err
}

func (c *faultyCMChannel) CreateID(handle uint64, ps ib.PortSpace, t ib.QPType) (driver.CMID, error) {
	if err := c.f.call("create id"); err != nil {
		return nil, err
	}
	id, err := c.CMChannel.CreateID(handle, ps, t)
	if err != nil {
		return nil, err
	}
	return &faultyID{id, c.f}, nil
}

type faultyID struct {
	driver.CMID
	f *faults
}

func (id *faultyID) BindAddr(a netip.AddrPort) error {
	if err := id.f.call("bind"); err != nil {
		return err
	}
	return id.CMID.BindAddr(a)
}

func (id *faultyID) ResolveAddr(src, dst netip.AddrPort, limit time.Duration) error {
	if err := id.f.call("resolve address"); err != nil {
		return err
	}
	return id.CMID.ResolveAddr(src, dst, limit)
}

func (id *faultyID) ResolveRoute(limit time.Duration) error {
	if err := id.f.call("resolve route"); err != nil {
		return err
	}
	return id.CMID.ResolveRoute(limit)
}

func (id *faultyID) InitQPAttr(s ib.QPState) (driver.QPAttr, ib.QPAttrMask, error) {
	if err := id.f.call("init attr"); err != nil {
		return driver.QPAttr{}, 0, err
	}
	return id.CMID.InitQPAttr(s)
}

func (id *faultyID) Listen(backlog int) error {
	if err := id.f.call("listen"); err != nil {
		return err
	}
	return id.CMID.Listen(backlog)
}

func (id *faultyID) Connect(p driver.ConnParam) error {
	if err := id.f.call("connect"); err != nil {
		return err
	}
	return id.CMID.Connect(p)
}

func (id *faultyID) Accept(p driver.ConnParam) error {
	if err := id.f.call("accept"); err != nil {
		return err
	}
	return id.CMID.Accept(p)
}

func (id *faultyID) Establish() error {
	if err := id.f.call("establish"); err != nil {
		return err
	}
	return id.CMID.Establish()
}

func (id *faultyID) Disconnect() error {
	if err := id.f.call("disconnect"); err != nil {
		return err
	}
	return id.CMID.Disconnect()
}

func (id *faultyID) Migrate(to driver.CMChannel) error {
	if err := id.f.call("migrate"); err != nil {
		return err
	}
	switch ch := to.(type) {
	case faultyWaiter:
		to = ch.CMChannel
	case *faultyCMChannel:
		to = ch.CMChannel
	}
	return id.CMID.Migrate(to)
}
