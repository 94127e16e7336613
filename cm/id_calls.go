package cm

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Bind binds to a local address (rdma_bind_addr). At once, no event. Port 0 lets the
// system choose one; LocalAddr tells. The unspecified addresses mean every device;
// [::] takes IPv4 as well, unless SetAFOnly. A link-local address needs its zone.
func (id *ID) Bind(a netip.AddrPort) error {
	if err := id.enter(opBind, "it can be bound once, before anything else", one(stateIdle)); err != nil {
		return err
	}
	defer id.mu.Unlock()
	a, err := normal(a)
	if err == nil {
		err = id.drv.BindAddr(a)
	}
	if err != nil {
		e := id.errorf(opBind, err).(*OpError)
		e.Local = a
		return e
	}
	id.state = stateBound
	id.refresh()
	return nil
}

// normal checks an address and gives the form that providers get: IPv4 as IPv4.
func normal(a netip.AddrPort) (netip.AddrPort, error) {
	ip := a.Addr()
	switch {
	case !ip.IsValid():
		return a, wrong("cm: the address is not valid")
	case ip.Is6() && (ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast()) && ip.Zone() == "":
		return a, wrong("cm: the link-local address " + ip.String() + " needs a zone: several interfaces may have it")
	}
	return netip.AddrPortFrom(ip.Unmap(), a.Port()), nil
}

// ResolveAddr finds the device and the local address towards dst (rdma_resolve_addr)
// → AddrResolved or AddrError. src may be the zero AddrPort. limit bounds the step;
// zero means one try. After AddrError the call may be repeated.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, limit time.Duration) error {
	if err := id.resolveAddr(src, dst, limit); err != nil {
		return err
	}
	return id.answer(opResolveAddr, stateAddrQuery)
}

func (id *ID) resolveAddr(src, dst netip.AddrPort, limit time.Duration) error {
	if err := id.enter(opResolveAddr, "an address is resolved once, before the route", one(stateIdle, stateBound)); err != nil {
		return err
	}
	defer id.mu.Unlock()
	dst, err := normal(dst)
	if err == nil && src != (netip.AddrPort{}) {
		src, err = normal(src)
	}
	if err == nil && limit < 0 {
		err = wrong("cm: the limit is negative")
	}
	if err == nil {
		err = id.drv.ResolveAddr(src, dst, limit)
	}
	if err != nil {
		e := id.errorf(opResolveAddr, err).(*OpError)
		e.Local, e.Remote = src, dst
		return e
	}
	id.begin(stateAddrQuery)
	id.refresh()
	if !id.info.Remote.IsValid() {
		id.info.Remote = dst // for errors, until the driver knows it
	}
	return nil
}

// begin enters the state of an operation in progress. mu is held.
func (id *ID) begin(s state) {
	id.state = s
	id.opErr = nil
}

// ResolveRoute finds the path (rdma_resolve_route) → RouteResolved or RouteError. The
// address must be resolved. limit bounds the step; zero means one try. After
// RouteError the call may be repeated.
func (id *ID) ResolveRoute(limit time.Duration) error {
	if err := id.resolveRoute(limit); err != nil {
		return err
	}
	return id.answer(opResolveRoute, stateRouteQuery)
}

func (id *ID) resolveRoute(limit time.Duration) error {
	if err := id.enter(opResolveRoute, "a route is resolved after the address, once", one(stateAddrResolved)); err != nil {
		return err
	}
	defer id.mu.Unlock()
	var err error
	if limit < 0 {
		err = wrong("cm: the limit is negative")
	} else {
		err = id.drv.ResolveRoute(limit)
	}
	if err != nil {
		return id.errorf(opResolveRoute, err)
	}
	id.begin(stateRouteQuery)
	return nil
}

// Connect → Established, or Rejected, Unreachable, ConnectError (rdma_connect). It
// fails at once with ErrNoReceives if the queue pair has no receive posted. A nil p
// means the defaults. The system tries for a minute or more: close the id to withdraw.
//
// Without a queue pair of the id, p.QPN names one that the caller moves; then
// ConnectResponse comes instead of Established, see Establish.
func (id *ID) Connect(p *ConnParam) error {
	if err := id.connect(p); err != nil {
		return err
	}
	return id.answer(opConnect, stateConnecting)
}

func (id *ID) connect(p *ConnParam) error {
	if err := id.enter(opConnect, "connect needs a resolved route, and goes once", one(stateRouteResolved)); err != nil {
		return err
	}
	defer id.mu.Unlock()
	limit, err := deviceDepths(id.dev)
	if err != nil {
		return id.errorf(opConnect, err)
	}
	set, err := p.settle(opConnect, privateLimit(opConnect, id.ps), limit, nil)
	if err == nil {
		err = id.useQP(&set)
	}
	if err == nil {
		err = id.setAckTimeout(set.ackTimeout)
	}
	if err == nil {
		id.set = set
		id.set.conn.Private = nil // not ours
		err = id.drv.Connect(set.conn)
	}
	if err != nil {
		return id.errorf(opConnect, err)
	}
	id.begin(stateConnecting)
	return nil
}

// useQP puts the queue pair into the settings of a connection, and checks that it may
// be used. mu is held.
func (id *ID) useQP(s *settings) error {
	if id.qp == nil {
		if s.conn.QPN == 0 {
			return ErrNoQP
		}
		return nil
	}
	s.conn.QPN = id.qp.Num()
	s.conn.SRQ = id.qp.Config().SRQ != nil
	return checkReceives(id.qp, s.noReceives)
}

// checkReceives is ErrNoReceives for a connected queue pair with an empty receive
// queue. A shared receive queue is its owner's business.
func checkReceives(qp *verbs.QP, none bool) error {
	if none || !qp.Type().Connected() || qp.Config().SRQ != nil {
		return nil
	}
	if _, recv := qp.Outstanding(); recv == 0 {
		return ErrNoReceives
	}
	return nil
}

// Establish ends the making of a connection whose queue pair the caller moves
// (rdma_establish), after ConnectResponse: the attributes are those of QPAttr, RTR and
// RTS. At once, no event.
func (id *ID) Establish() error {
	if err := id.enter(opEstablish, "it comes after ConnectResponse, for a queue pair not tied to the id", one(stateResponded)); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if err := id.drv.Establish(); err != nil {
		return id.errorf(opEstablish, err)
	}
	id.state = stateConnected
	return nil
}

// Listen → ConnectRequest, one for each peer (rdma_listen). At once. Zero backlog: the
// system's limit. An id that is not bound listens on every device, on a port that the
// system chooses.
func (id *ID) Listen(backlog int) error {
	if err := id.enter(opListen, "it can listen once, bound or not, before anything else", one(stateIdle, stateBound)); err != nil {
		return err
	}
	waits := id.sync != nil && !id.own
	id.mu.Unlock()
	if backlog < 0 {
		return id.fail(opListen, wrong("cm: the backlog is negative"))
	}
	if waits {
		// Requests are fetched when GetRequest asks: they need a channel of their own.
		if err := id.toOwnChannel(); err != nil {
			return err
		}
	}
	err := id.listen(backlog)
	if err != nil && waits {
		id.toDispatcher()
	}
	return err
}

func (id *ID) listen(backlog int) error {
	if err := id.enter(opListen, "it can listen once, bound or not, before anything else", one(stateIdle, stateBound)); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if err := id.drv.Listen(backlog); err != nil {
		return id.errorf(opListen, err)
	}
	id.state = stateListening
	id.refresh()
	return nil
}

// Accept → Established (rdma_accept). See Connect for ErrNoReceives and p. Data may
// come before Established, and Disconnected may come in its place if the peer is quick.
//
// What the library refuses (parameters, no receives, no queue pair) leaves the request
// as it is. After any other error the id is of no more use: Close it. The peer that
// gave up meanwhile is such an error, as nothing else tells of it.
func (id *ID) Accept(p *ConnParam) error {
	if err := id.accept(p); err != nil {
		return err
	}
	return id.answer(opAccept, stateAccepting)
}

func (id *ID) accept(p *ConnParam) error {
	if err := id.enter(opAccept, "only a request can be accepted, once", one(stateRequest)); err != nil {
		return err
	}
	defer id.mu.Unlock()
	limit, err := deviceDepths(id.dev)
	if err != nil {
		return id.errorf(opAccept, err)
	}
	set, err := p.settle(opAccept, privateLimit(opAccept, id.ps), limit, &id.offer)
	if err == nil {
		err = id.useQP(&set)
	}
	if err == nil {
		err = id.setAckTimeout(set.ackTimeout)
	}
	if err != nil {
		return id.errorf(opAccept, err)
	}
	if id.qp != nil && id.qp.Type().Connected() {
		id.qp.OnRecv(id.dataCame)
		err = id.ready(&set)
	}
	gaveUp := ""
	if err == nil {
		if err = id.drv.Accept(set.conn); isErrno(err, syscall.EINVAL, syscall.ENOTCONN, syscall.ECONNABORTED, syscall.ECONNRESET) {
			gaveUp = "the peer has given up meanwhile"
		}
	}
	if err != nil {
		// The request is used up. If the peer still waits it shall not do so for long.
		id.drv.Reject(nil)
		e := id.errorf(opAccept, err).(*OpError)
		if gaveUp != "" {
			e.Hint = gaveUp
		}
		id.end(e, e)
		id.signal()
		return e
	}
	id.set = set
	id.set.conn.Private = nil
	id.begin(stateAccepting)
	if datagram(id.ps) {
		id.state = stateConnected // nothing more will come
	}
	return nil
}

// Reject answers no, with up to 148 bytes (rdma_reject). At once; Close the id
// afterwards. The peer sees Rejected with reason ib.RejectConsumer.
func (id *ID) Reject(private []byte) error {
	if err := id.enter(opReject, "only a request can be rejected, once", one(stateRequest)); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if err := checkPrivate(opReject, private, privateLimit(opReject, id.ps)); err != nil {
		return id.errorf(opReject, err)
	}
	err := id.drv.Reject(private)
	id.leaving = true
	id.end(errRejected, errRejected)
	id.signal()
	return id.errorf(opReject, err)
}

// errRejected is the cause of the end of a request that this side refused.
var errRejected = wrong("cm: this side rejected the request")

// Disconnect → Disconnected on both sides (rdma_disconnect). The queue pair is failed
// at once, with net.ErrClosed as its cause: wait for completions that matter before.
// A connection that is gone already, and one that was rejected, is no error, unless it went
// with its device: then it is verbs.ErrDeviceGone. A connection that is being made is
// withdrawn with Close.
func (id *ID) Disconnect() error {
	waits, err := id.disconnect()
	if err != nil || !waits {
		return err
	}
	return id.awaitEnd(opDisconnect)
}

// disconnect reports also whether Disconnected is still to come.
func (id *ID) disconnect() (coming bool, err error) {
	if err := id.enter(opDisconnect, "there is no connection", one(stateConnected, stateAccepting, stateResponded, stateEnded)); err != nil {
		return false, err
	}
	defer id.mu.Unlock()
	if id.state == stateEnded {
		return false, nil
	}
	if id.leaving {
		return true, nil
	}
	id.leaving = true
	if id.qp != nil {
		id.qp.OnError(nil)
		id.qp.FailWith(net.ErrClosed)
	}
	err = id.drv.Disconnect()
	if err != nil {
		// Nothing will come: this is the end.
		id.end(net.ErrClosed, nil)
		id.signal()
		if isErrno(err, syscall.EINVAL, syscall.ENOTCONN) {
			return false, nil // the connection is gone: that is what was wanted
		}
		return false, id.errorf(opDisconnect, err)
	}
	return true, nil
}

// Notify tells the connection manager of an event of the queue pair (rdma_notify);
// only ib.EventCommEst has a meaning: data came before Established, which is as good.
// The library does so itself when the first receive completes, or when somebody reads
// that event of the device (verbs.Device.Async). An id that is connected already is no
// error.
func (id *ID) Notify(ev ib.EventType) error {
	if err := id.enter(opNotify, "there is no connection", one(stateConnected, stateAccepting)); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if ev != ib.EventCommEst {
		return id.errorf(opNotify, wrong("cm: only COMM_EST can be notified, not "+ev.String()))
	}
	if id.state == stateConnected {
		return nil
	}
	err := id.drv.Notify(ev)
	if isErrno(err, syscall.EISCONN) {
		err = nil
	}
	return id.errorf(opNotify, err)
}

// dataCame is Notify when a receive has completed. An error means that the connection
// is up, or gone.
func (id *ID) dataCame() { id.Notify(ib.EventCommEst) }

// levelID is the level of the options below (RDMA_OPTION_ID); then their names.
const (
	levelID          = 0
	optionTOS        = 0
	optionReuseAddr  = 1
	optionAFOnly     = 2
	optionAckTimeout = 3
)

// SetTOS sets the type of service, or traffic class, of the path. Before ResolveRoute,
// Listen or Accept.
func (id *ID) SetTOS(tos uint8) error {
	return id.setOption("the type of service is set before the route is resolved",
		one(stateIdle, stateBound, stateAddrQuery, stateAddrResolved, stateRequest), optionTOS, []byte{tos})
}

// SetReuseAddr allows several ids to be bound to one address; only one of them can
// listen (it is SO_REUSEADDR, not SO_REUSEPORT). It can be switched on at any time, off
// only before Bind.
func (id *ID) SetReuseAddr(on bool) error {
	ok := anyState
	if !on {
		ok = one(stateIdle)
	}
	return id.setOption("it can be switched off only before the id is bound", ok, optionReuseAddr, optionInt(on))
}

// SetAFOnly says that a listener on [::] takes no IPv4. Before Listen.
func (id *ID) SetAFOnly(on bool) error {
	return id.setOption("the address family is fixed before listening", one(stateIdle, stateBound), optionAFOnly, optionInt(on))
}

// SetAckTimeout sets how long the queue pair waits for an acknowledgement before it
// sends again, rounded up to 4.096 µs × 2^n; zero means for ever. Reliable connections
// only, before Connect or Accept, and on the id that connects or accepts: a listener
// does not pass it on.
func (id *ID) SetAckTimeout(d time.Duration) error {
	if d < 0 {
		return id.refuseArg(opOption, wrong("cm: the ack time-out is negative"))
	}
	return id.setOption("the ack time-out is set before connect or accept",
		one(stateIdle, stateBound, stateAddrQuery, stateAddrResolved, stateRouteQuery, stateRouteResolved, stateRequest),
		optionAckTimeout, []byte{ib.AckTimeout(d)})
}

// refuseArg is fail for an id that may be nil or zero.
func (id *ID) refuseArg(op string, err error) error {
	if id == nil || id.drv == nil {
		return opError(op, wrong("cm: the id is nil or zero"))
	}
	return id.fail(op, err)
}

func (id *ID) setAckTimeout(d time.Duration) error {
	if d == 0 {
		return nil
	}
	return id.drv.SetOption(levelID, optionAckTimeout, []byte{ib.AckTimeout(d)})
}

func (id *ID) setOption(need string, ok func(state) bool, name int, value []byte) error {
	if err := id.enter(opOption, need, ok); err != nil {
		return err
	}
	defer id.mu.Unlock()
	return id.errorf(opOption, id.drv.SetOption(levelID, name, value))
}

// optionInt is an option of C type int.
func optionInt(on bool) []byte {
	b := make([]byte, 4)
	if on {
		binary.NativeEndian.PutUint32(b, 1)
	}
	return b
}

// param of the peer, seen from this side, into the id. mu is held.
func (id *ID) setPeer(c *driver.ConnParam, private []byte) {
	id.private = private
	id.param = paramOf(c, private)
}
