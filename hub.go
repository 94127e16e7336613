package rdma

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/timers"
	"github.com/verbena-rdma/verbena/verbs"
)

// hub is what connections on one device share: a protection domain, a completion queue,
// memory, and one goroutine that looks after all of them (hub_role.go). A connection
// costs neither goroutine nor thread nor descriptor.
//
// There is one for each device, and another beside it when its queue is full and cannot
// grow. A hub lives while somebody uses it: connections, and listeners.
type hub struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	mem arena

	role role
	wcs  [pollBatch]verbs.WC // of who has the role
	spin verbs.Spin          // the same: the policy of the queue

	timers timers.Queue // of the connections

	users  int  // under hubs.mu: connections, and those in the making
	room   int  // under hubs.mu: entries of the queue that are not reserved
	closed bool // under hubs.mu
	fds    atomic.Int32
	failed atomic.Pointer[error] // the queue broke

	mu      sync.Mutex
	conns   map[*Conn]struct{}
	free    *waiter // lists of those that nobody uses
	batches *batch
	lent    atomic.Int64 // bytes
}

const (
	pollBatch = 64
	firstCQ   = 256
)

// hubs are those of the process. The lock is held while a queue grows, so that of two
// connections that find it full one waits for the other.
var hubs struct {
	mu sync.Mutex
	m  map[*verbs.Device][]*hub
}

// acquireHub gives a hub of a device with room for n more entries in its completion
// queue. Each use ends with release.
func acquireHub(dev *verbs.Device, n int) (*hub, error) {
	hubs.mu.Lock()
	defer hubs.mu.Unlock()
	for _, h := range hubs.m[dev] {
		if h.failed.Load() == nil && (h.room >= n || h.grow(n)) {
			h.room -= n
			h.users++
			return h, nil
		}
	}
	h, err := newHub(dev, n)
	if err != nil {
		return nil, err
	}
	if hubs.m == nil {
		hubs.m = map[*verbs.Device][]*hub{}
	}
	hubs.m[dev] = append(hubs.m[dev], h)
	h.room -= n
	h.users++
	return h, nil
}

func newHub(dev *verbs.Device, n int) (*hub, error) {
	attr, err := dev.Attr()
	if err != nil {
		return nil, err
	}
	size := min(max(firstCQ, n), attr.MaxCQE)
	if size < n {
		return nil, fmt.Errorf("rdma: completion queues of %s have %d entries, a connection needs %d: use smaller queues (Config.SendQueue, RecvQueue)",
			dev.Info().Name, attr.MaxCQE, n)
	}
	h := &hub{dev: dev, conns: map[*Conn]struct{}{}}
	if h.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if h.cq, err = dev.CreateCQ(size, nil); err != nil {
		h.pd.Close()
		return nil, err
	}
	h.room = h.cq.Cap()
	h.timers.Start = epoch
	h.mem.init(h.pd)
	h.role.init(h)
	go h.serve()
	return h, nil
}

// grow makes the completion queue larger, if the device can. hubs.mu is held.
func (h *hub) grow(n int) bool {
	have := h.cq.Cap()
	want := have
	for want-have+h.room < n {
		want *= 2
	}
	limit := h.maxCQE()
	if want = min(want, limit); want-have+h.room < n {
		return false
	}
	if err := h.cq.Resize(want); err != nil {
		return false
	}
	h.room += h.cq.Cap() - have
	return true
}

func (h *hub) maxCQE() int {
	a, err := h.dev.Attr()
	if err != nil {
		return 0
	}
	return a.MaxCQE
}

// release ends a use that had n entries.
func (h *hub) release(n int) {
	hubs.mu.Lock()
	h.room += n
	h.users--
	last := h.users == 0
	hubs.mu.Unlock()
	if last {
		h.expire()
	}
}

// expire closes a hub that nobody uses.
func (h *hub) expire() {
	hubs.mu.Lock()
	if h.users > 0 || h.closed {
		hubs.mu.Unlock()
		return
	}
	h.closed = true
	h.forget()
	hubs.mu.Unlock()
	h.cq.Close() // ends serve
	h.role.recall()
	<-h.role.ended
	h.timers.Close()
	h.mem.close()
	h.pd.Close()
}

// forget lets the next connection make another hub. hubs.mu is held.
func (h *hub) forget() {
	all := hubs.m[h.dev]
	for i, x := range all {
		if x == h {
			all = append(all[:i:i], all[i+1:]...)
			break
		}
	}
	if len(all) == 0 {
		delete(hubs.m, h.dev)
		return
	}
	hubs.m[h.dev] = all
}

// add and remove say which connections there are.
func (h *hub) add(c *Conn) {
	h.mu.Lock()
	h.conns[c] = struct{}{}
	h.mu.Unlock()
	watchAsync(h.dev, c.cfg.Trace)
	if err := h.err(); err != nil {
		c.lost(err) // the queue broke before it knew of c
	}
}

func (h *hub) remove(c *Conn) {
	h.mu.Lock()
	_, was := h.conns[c]
	delete(h.conns, c)
	h.mu.Unlock()
	if was {
		unwatchAsync(h.dev, c.cfg.Trace)
	}
}

// fail ends the connections of a hub whose queue is broken or closed: no completion will
// tell them anything any more.
func (h *hub) fail(err error) {
	h.failed.CompareAndSwap(nil, &err)
	h.mu.Lock()
	all := make([]*Conn, 0, len(h.conns))
	for c := range h.conns {
		all = append(all, c)
	}
	h.mu.Unlock()
	for _, c := range all {
		c.lost(err)
	}
	hubs.mu.Lock()
	idle := h.users == 0
	if !h.closed {
		h.forget()
	}
	hubs.mu.Unlock()
	if idle {
		go h.expire()
	}
}

// err gives why the hub is of no use any more.
func (h *hub) err() error {
	if p := h.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// poll takes completions that are there, or waits for some, and hands them to their
// connections. The caller has the role; self is what it waits for, or nil. It gives how
// many others were woken.
func (h *hub) poll(self *waiter, block bool) (woken int, err error) {
	var n int
	if block {
		n, err = h.cq.Wait(context.Background(), h.wcs[:])
	} else {
		n, err = h.cq.Poll(h.wcs[:])
	}
	return h.dispatch(h.wcs[:n], self), err
}

// dispatch hands completions to their connections, those in a row with one taking of the
// lock.
func (h *hub) dispatch(wcs []verbs.WC, self *waiter) (woken int) {
	for len(wcs) > 0 {
		qp := wcs[0].QP
		n := 1
		for n < len(wcs) && wcs[n].QP == qp {
			n++
		}
		if c, ok := qp.UserData().(*Conn); ok {
			woken += c.completed(wcs[:n], self)
		}
		wcs = wcs[n:]
	}
	return woken
}

// look hands out completions that are there, if nobody else is about to.
func (h *hub) look() bool {
	if !h.role.claim() {
		return false
	}
	h.poll(nil, false)
	h.role.vacate()
	return true
}

// glance is look for who has other things to do: it does nothing if somebody has looked a
// moment ago. So a program that only writes hears of the peer's end in good time.
func (h *hub) glance() {
	if !h.role.held.Load() && time.Since(epoch)-time.Duration(h.role.since.Load()) > glanceAfter {
		h.look()
	}
}

const glanceAfter = 200 * time.Microsecond
