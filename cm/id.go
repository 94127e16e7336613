package cm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// ID is a communication identifier (struct rdma_cm_id): a listener, a request, or one
// end of a connection. Its methods start something; except where noted, the answer
// comes as an event of its channel. The methods of an id made by NewID wait for the
// answer instead.
//
// All methods may be called from any goroutine; calls on one id run one after the
// other. Once Close was called they give an error that wraps net.ErrClosed.
type ID struct {
	handle uint64
	p      verbs.Provider
	ps     ib.PortSpace
	drv    driver.CMID // calls with mu held
	user   atomic.Pointer[any]

	mu       sync.Mutex
	ch       *EventChannel // changes with the calls of both channels locked, too
	sync     *dispatcher   // of an id whose calls wait: who takes its events; a listener has a channel of its own
	own      bool          // ch is that channel
	limit    time.Duration // of such a call; zero: none
	state    state
	info     driver.CMInfo
	dev      *verbs.Device
	qp       *verbs.QP
	qpOwned  bool // made by CreateQP: Close closes it
	set      settings
	offer    driver.ConnParam // of the request, seen from this side
	private  []byte           // what the peer sent last
	param    ConnParam
	leaving  bool // Disconnect was called, or the peer's was answered
	gone     bool // the device was removed
	groups   []*membership
	opErr    error // why the last operation failed
	cause    error // of the end
	done     chan struct{}
	wake     chan struct{} // closed and forgotten when something happens
	closing  bool
	closed   chan struct{} // made by the first Close, closed when it is through
	closeErr error
}

// state of an ID. Those from stateIdle to stateRouteResolved are those of the side
// that connects.
type state uint8

const (
	stateIdle state = iota
	stateBound
	stateAddrQuery
	stateAddrResolved
	stateRouteQuery
	stateRouteResolved
	stateConnecting
	stateResponded // the peer accepted, and the queue pair is not in our hands: Establish is next
	stateListening
	stateRequest // of a peer, not answered
	stateAccepting
	stateConnected
	stateEnded
)

var stateNames = [...]string{
	"idle", "bound", "resolving the address", "address resolved", "resolving the route", "route resolved", "connecting",
	"waiting for Establish", "listening", "an unanswered request", "accepting", "connected", "ended",
}

func (s state) String() string { return stateNames[s] }

// pending reports whether an operation is in progress that an event will end.
func (s state) pending() bool {
	return s == stateAddrQuery || s == stateRouteQuery || s == stateConnecting || s == stateAccepting
}

// in reports whether s is one of some states.
func (s state) in(any ...state) bool {
	for _, a := range any {
		if s == a {
			return true
		}
	}
	return false
}

// stateError is ErrState with the reason.
type stateError struct {
	have state
	need string
}

func (e *stateError) Error() string { return fmt.Sprintf("cm: the id is %v; %s", e.have, e.need) }

func (e *stateError) Is(target error) bool { return target == ErrState || target == syscall.EINVAL }

// errorf makes an *OpError of a step on id. mu is held.
func (id *ID) errorf(op string, err error) error {
	if err == nil {
		return nil
	}
	e := &OpError{Op: op, Local: id.info.Local, Remote: id.info.Remote, Device: id.info.Device, Err: err}
	e.Hint = hint(op, id.ps, err)
	return e
}

// enter begins a call that is allowed in some states: it locks mu, and unlocks it if it
// gives an error. need says what the call needs, for the error.
func (id *ID) enter(op, need string, ok func(state) bool) error {
	if id == nil || id.drv == nil {
		return opError(op, wrong("cm: the id is nil or zero"))
	}
	id.mu.Lock()
	if err := id.refuse(need, ok); err != nil {
		err = id.errorf(op, err)
		id.mu.Unlock()
		return err
	}
	return nil
}

func (id *ID) refuse(need string, ok func(state) bool) error {
	switch {
	case id.closing:
		return net.ErrClosed
	case id.gone:
		return verbs.ErrDeviceGone
	case ok(id.state):
		return nil
	case id.state.pending():
		return ErrPending
	}
	return &stateError{have: id.state, need: need}
}

func anyState(state) bool { return true }

func one(states ...state) func(state) bool {
	return func(s state) bool { return s.in(states...) }
}

// refresh reads addresses and device from the driver. mu is held.
func (id *ID) refresh() { id.info = id.drv.Info() }

// PortSpace gives the port space that the id was made with.
func (id *ID) PortSpace() ib.PortSpace {
	if id == nil {
		return 0
	}
	return id.ps
}

// UserData gives what SetUserData set; a new id of a request has none.
func (id *ID) UserData() any {
	if id == nil {
		return nil
	}
	if v := id.user.Load(); v != nil {
		return *v
	}
	return nil
}

// SetUserData ties a value to the id, for the handler of its events.
func (id *ID) SetUserData(v any) {
	if id != nil {
		id.user.Store(&v)
	}
}

// lock locks mu of an id that may be nil or zero.
func (id *ID) lock() bool {
	if id == nil || id.drv == nil {
		return false
	}
	id.mu.Lock()
	return true
}

// LocalAddr gives the address the id is bound to (rdma_get_local_addr,
// rdma_get_src_port); it is not valid before Bind, ResolveAddr or Listen.
func (id *ID) LocalAddr() netip.AddrPort {
	if !id.lock() {
		return netip.AddrPort{}
	}
	defer id.mu.Unlock()
	return id.info.Local
}

// RemoteAddr gives the peer's address (rdma_get_peer_addr, rdma_get_dst_port); it is
// not valid before ResolveAddr.
func (id *ID) RemoteAddr() netip.AddrPort {
	if !id.lock() {
		return netip.AddrPort{}
	}
	defer id.mu.Unlock()
	return id.info.Remote
}

// Device is nil before AddrResolved, set in a ConnectRequest. It
// is the process's shared one: what verbs.Open gives for that device.
func (id *ID) Device() *verbs.Device {
	if !id.lock() {
		return nil
	}
	defer id.mu.Unlock()
	return id.dev
}

// Port gives the port of the device, from 1; 0 before the device is known.
func (id *ID) Port() int {
	if !id.lock() {
		return 0
	}
	defer id.mu.Unlock()
	if id.dev == nil {
		return 0
	}
	return id.info.Port
}

// QP gives the queue pair that CreateQP or UseQP tied to the id, or nil.
func (id *ID) QP() *verbs.QP {
	if !id.lock() {
		return nil
	}
	defer id.mu.Unlock()
	return id.qp
}

// Private gives what the peer sent last: with its request, its accept, or its reject.
// IB and RoCE pad it with zeros, to 56, 196 and 148 bytes. The slice is shared with
// the event.
func (id *ID) Private() []byte {
	if !id.lock() {
		return nil
	}
	defer id.mu.Unlock()
	return id.private
}

// Param gives what the peer asked for in its request, or granted in its accept, seen
// from this side; see ConnParam.
func (id *ID) Param() ConnParam {
	if !id.lock() {
		return ConnParam{}
	}
	defer id.mu.Unlock()
	return id.param
}

// Err gives the cause of the end of the connection, or of the attempt to make one:
// io.EOF if the peer disconnected, net.ErrClosed if this side did, else the error of
// the event. It is nil before. It is what the queue pair's Err gives, unless that
// failed by itself.
func (id *ID) Err() error {
	if !id.lock() {
		return syscall.EINVAL
	}
	defer id.mu.Unlock()
	return id.cause
}

// Close disconnects if connected (rejects, if the id is an unanswered request), closes
// the queue pair if the id made it, and destroys the id (rdma_destroy_id). It does not
// wait for the peer; for the queue pair it waits as verbs.QP.Close does. No event of
// the id is given by a call of its channel that begins after Close has returned. A
// second Close waits for the first and gives the same.
func (id *ID) Close() error {
	if !id.lock() {
		return opError(opClose, wrong("cm: the id is nil or zero"))
	}
	if id.closing {
		closed := id.closed
		id.mu.Unlock()
		<-closed
		return id.closeErr
	}
	id.closing = true
	id.closed = make(chan struct{})
	table.remove(id.handle)
	connected := id.state.in(stateConnected, stateAccepting, stateResponded)
	id.end(net.ErrClosed, net.ErrClosed)
	if connected && !id.leaving && !id.gone {
		// Destroying the id would do it too, but only after the queue pair has gone.
		// An error means that the connection is gone, which is what is wanted.
		id.drv.Disconnect()
	}
	qp, owned, groups := id.qp, id.qpOwned, id.groups
	id.groups = nil
	id.signal()
	id.mu.Unlock()

	for _, g := range groups {
		table.remove(g.handle)
		if g.attached && !owned {
			qp.DetachMulticast(g.gid, g.lid)
		}
	}
	var errs []error
	if qp != nil {
		untie(qp)
		if owned {
			errs = append(errs, qp.Close())
		}
	}
	id.mu.Lock()
	err := id.drv.Close()
	if id.gone || errors.Is(err, verbs.ErrDeviceGone) || isErrno(err, syscall.EIO, syscall.ENODEV) {
		err = nil // with the device the system's part is gone as well
	}
	errs = append(errs, id.errorf(opClose, err))
	ch, own, d := id.ch, id.own, id.sync
	id.mu.Unlock()
	errs = append(errs, ch.drop(id))
	if own {
		errs = append(errs, ch.Close())
	}
	if d != nil {
		d.release()
	}
	id.closeErr = errors.Join(errs...)
	close(id.closed)
	return id.closeErr
}

// end records the end of what the id did, once, and fails the queue pair: the cause is
// set before anything can be seen of it. opErr is what an operation in progress gives;
// one that was done before, unnoticed by who waits for it, keeps its result. mu is held.
func (id *ID) end(cause, opErr error) {
	if id.state == stateEnded {
		return
	}
	if id.state.pending() {
		id.opErr = opErr
	}
	id.state = stateEnded
	id.cause = cause
	if id.qp != nil {
		id.qp.OnError(nil)
		id.qp.OnRecv(nil)
		id.qp.FailWith(cause)
	}
	if id.done != nil {
		close(id.done)
	}
}

// signal wakes who waits for the id. mu is held.
func (id *ID) signal() {
	if id.wake != nil {
		close(id.wake)
		id.wake = nil
	}
}

// ended gives a channel that is closed when the connection has ended.
func (id *ID) ended() <-chan struct{} {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.done == nil {
		id.done = make(chan struct{})
		if id.state == stateEnded {
			close(id.done)
		}
	}
	return id.done
}

// Migrate moves the id and its pending events to another channel (rdma_migrate_id).
// At once; what was fetched before stays with who fetched it. With a nil channel the
// id becomes one whose calls wait, as those that NewID makes; an id that is one
// already gives ErrState. A channel of another provider is an error.
func (id *ID) Migrate(to *EventChannel) error {
	if id == nil || id.drv == nil {
		return opError(opMigrate, wrong("cm: the id is nil or zero"))
	}
	if to == nil {
		return id.migrateSync()
	}
	if err := to.check(opMigrate); err != nil {
		return err
	}
	if to.p != id.p {
		return id.fail(opMigrate, wrong("cm: the channel is one of another provider"))
	}
	return id.move(to, nil, false, false)
}

// fail makes an *OpError of id without mu held.
func (id *ID) fail(op string, err error) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.errorf(op, err)
}

// migrateSync makes an id whose calls wait. A listener gets a channel of its own, as
// its requests stay in the system until somebody asks for one.
func (id *ID) migrateSync() error {
	if err := id.enter(opMigrate, "its calls wait already", func(state) bool { return id.sync == nil }); err != nil {
		return err
	}
	listening := id.state == stateListening
	id.mu.Unlock()
	d, err := acquire(id.p)
	if err != nil {
		return err
	}
	to := d.ch
	if listening {
		if to, err = newRequests(id.p); err != nil {
			d.release()
			return err
		}
	}
	if err := id.move(to, d, listening, true); err != nil {
		if listening {
			to.Close()
		}
		d.release()
		return err
	}
	return nil
}

// move moves the id to a channel; d becomes who takes the events (of the id, or of
// those it begets), and own says that the channel is the id's. fresh: the id must not
// have a dispatcher yet, and takes over the caller's use of d.
func (id *ID) move(to *EventChannel, d *dispatcher, own, fresh bool) error {
	for {
		id.mu.Lock()
		from := id.ch
		id.mu.Unlock()
		unlock := lockCalls(from, to)
		id.mu.Lock()
		if id.ch != from { // another move was faster
			id.mu.Unlock()
			unlock()
			continue
		}
		err := id.refuse("", anyState)
		if err == nil && fresh && id.sync != nil {
			err = &stateError{have: id.state, need: "its calls wait already"}
		}
		if err == nil && to.isClosed() {
			err = net.ErrClosed
		}
		if err == nil && from != to {
			err = id.drv.Migrate(to.drv)
		}
		if err != nil {
			err = id.errorf(opMigrate, err)
			id.mu.Unlock()
			unlock()
			return err
		}
		oldOwn, oldD := id.own, id.sync
		id.ch, id.sync, id.own = to, d, own
		if from != to {
			to.add(id)
		}
		id.mu.Unlock()
		unlock()
		if from != to {
			from.drop(id)
			if oldOwn {
				from.Close()
			}
		}
		if oldD != nil && oldD != d {
			oldD.release()
		}
		return nil
	}
}
