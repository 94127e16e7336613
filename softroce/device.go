package softroce

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/timers"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// manager is the connection manager of a device, as the device sees it. Its methods may
// be called from several goroutines at once. They are called without locks, except
// receiveMAD and commEstablished, which hold up the reader of an address while they
// run: they must not wait for anything that the reader has to do.
type manager interface {
	// receiveMAD takes a management datagram that came to QP1: 256 bytes, which are
	// not kept. ICRC and Q_Key have been checked, nothing else.
	receiveMAD(local, remote netip.Addr, mad []byte)

	// commEstablished says that the first packet of its peer came to a queue pair.
	commEstablished(qpn ib.QPN)

	// deviceRemoved says that the device is gone; no datagram follows.
	deviceRemoved()

	// addressesChanged says that addresses of the device came or went.
	addressesChanged()

	// close ends everything. It is called while datagrams can still be sent; nothing of
	// the device is used after it returns.
	close()
}

// device is the embedded device: what its openings and the connection manager share.
//
// Locks are taken in the order endpoint.rx, qp.mu, cq.mu, then the leaves (queues of
// events, timers, tables). No lock but endpoint.rx is held while a manager is called,
// and none but leader.mu, which says that somebody waits, while a goroutine waits.
type device struct {
	cfg     *Config
	guid    ib.GUID
	stats   counters
	foreign *foreign // of the provider
	timers  timers.Queue
	news    timers.Timer // addresses have changed
	qps     registry
	port    port
	eps     endpoints
	window  windows

	memMu      sync.Mutex // around all that changes regions and windows
	memory     *mem.Table
	windows    map[uint64]*mem.Window // by handle
	lastWindow uint64

	rngMu sync.Mutex
	rng   *rand.ChaCha8

	cm atomic.Pointer[manager]

	mu       sync.Mutex
	contexts map[*deviceContext]struct{}

	waiting atomic.Int64  // goroutines that wait for completions
	domains atomic.Uint32 // protection domains numbered so far
	objects [objectKinds]atomic.Int64
	state   atomic.Uint32
}

// States of a device.
const (
	deviceUp uint32 = iota
	deviceGone
	deviceClosed
)

func newDevice(cfg *Config, seed [32]byte) *device {
	d := &device{
		cfg:      cfg,
		rng:      rand.NewChaCha8(seed),
		contexts: make(map[*deviceContext]struct{}),
	}
	d.timers.Start = time.Now()
	d.news.F = d.onNews
	// A locally administered EUI-64, new for each process: peers know connections by
	// GUID and number, and must not take ours for those of a predecessor.
	d.guid = ib.GUID(d.rand64()&^(1<<56) | 1<<57)
	d.memory = mem.NewTable(d.rand32)
	d.qps.init(d.rand32())
	d.port.init(d)
	d.eps.init(d)
	d.window.init()
	return d
}

// now is the time since the device was made. Its clock never stands still or jumps.
func (d *device) now() time.Duration { return d.timers.Now() }

// schedule calls f of t at the time at, once, without locks; see timers.Queue.Set.
func (d *device) schedule(t *timers.Timer, at time.Duration) { d.timers.Set(t, at) }

// cancel takes t back; f may be running at this moment.
func (d *device) cancel(t *timers.Timer) { d.timers.Stop(t) }

// rand32 and rand64 give unpredictable numbers, or repeatable ones with Config.Seed.
func (d *device) rand32() uint32 { return uint32(d.rand64()) }

func (d *device) rand64() uint64 {
	var b [8]byte
	d.rngMu.Lock()
	d.rng.Read(b[:])
	d.rngMu.Unlock()
	return binary.LittleEndian.Uint64(b[:])
}

// attachManager says who takes the datagrams of QP1. It reports false if there is one
// already.
func (d *device) attachManager(m manager) bool { return d.cm.CompareAndSwap(nil, &m) }

func (d *device) managerOrNil() manager {
	if m := d.cm.Load(); m != nil {
		return *m
	}
	return nil
}

// err says why the device takes no calls; nil: it does.
func (d *device) err() error {
	switch d.state.Load() {
	case deviceUp:
		return nil
	case deviceGone:
		return driver.ErrDeviceGone
	}
	return net.ErrClosed
}

// remove is the end by unplugging, close the end by the owner.
func (d *device) remove() { d.end(deviceGone) }
func (d *device) close()  { d.end(deviceClosed) }

func (d *device) end(s uint32) {
	m := d.managerOrNil()
	if m != nil && s == deviceClosed {
		m.close() // says goodbye to its peers, while it can
	}
	if !d.state.CompareAndSwap(deviceUp, s) {
		d.state.CompareAndSwap(deviceGone, s)
		return
	}
	if m != nil && s == deviceGone {
		m.deviceRemoved()
	}
	for _, q := range d.qps.all() {
		q.fail()
	}
	d.eps.close()
	d.timers.Close()
	for _, c := range d.openings() {
		c.end(s == deviceGone, d.err())
	}
}

// openings gives the openings of the device at this moment.
func (d *device) openings() []*deviceContext {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*deviceContext, 0, len(d.contexts))
	for c := range d.contexts {
		all = append(all, c)
	}
	return all
}

// tell gives events of the port to who is concerned.
func (d *device) tell(events []ib.EventType) {
	for _, e := range events {
		d.raise(e)
	}
	if slices.Contains(events, ib.EventGIDChange) {
		// Who asked for the addresses may have locks.
		d.schedule(&d.news, 0)
	}
}

// onNews tells the connection manager that addresses have changed.
func (d *device) onNews(time.Duration) {
	if m := d.managerOrNil(); m != nil {
		m.addressesChanged()
	}
}

// raise gives an event that concerns the device or its port to all openings.
func (d *device) raise(t ib.EventType) {
	for _, c := range d.openings() {
		c.async.post(driver.AsyncEvent{Type: t, Port: portNumber})
	}
}

// qpFacts is what the connection manager wants to know of a queue pair.
type qpFacts struct {
	Type          ib.QPType
	State         ib.QPState
	Local, Remote netip.Addr // not valid before RTR
	DestQPN       ib.QPN
}

// facts gives the facts of a queue pair by its number.
func (d *device) facts(n ib.QPN) (qpFacts, bool) {
	q := d.qps.find(n)
	if q == nil {
		return qpFacts{}, false
	}
	return q.facts()
}
