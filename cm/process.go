package cm

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// process does what an event asks for and makes what the user sees of it; false: the
// event is for nobody. The calls of ch are locked.
func (ch *EventChannel) process(raw *driver.CMEvent) (Event, bool) {
	if raw.Type == ConnectRequest && raw.Child == nil && raw.Status != 0 {
		return ch.lost(syscall.Errno(-raw.Status))
	}
	id, group := table.get(raw.Handle)
	if id == nil {
		dropChild(raw)
		return Event{}, false
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.closing {
		dropChild(raw)
		return Event{}, false
	}
	defer id.signal()
	ev := Event{Type: raw.Type, ID: id, Err: statusError(raw, id.ps), Private: raw.Private}
	ok := true
	switch raw.Type {
	case AddrResolved, AddrError:
		id.addrResolved(ch, &ev)
	case RouteResolved, RouteError:
		id.routeResolved(&ev)
	case ConnectRequest:
		if ok = ch.request(&ev, id, raw); !ok {
			return ch.lost(ev.Err)
		}
	case ConnectResponse:
		ok = id.responded(&ev, raw)
	case Established:
		ok = id.established(&ev, raw)
	case MulticastJoin, MulticastError:
		ok = id.joined(&ev, raw, group)
	case AddrChange, TimewaitExit:
		// For information.
	default:
		if terminal(raw.Type) {
			ok = id.terminated(&ev, raw)
		} else {
			id.unexpected(&ev)
		}
	}
	return ev, ok
}

// dropChild refuses a request whose listener is gone.
func dropChild(raw *driver.CMEvent) {
	if raw.Child != nil {
		raw.Child.Close()
	}
}

// expect checks that an event is the answer to the operation in progress. If it is
// not, an operation in progress fails, rather than waits for what will not come.
func (id *ID) expect(ev *Event, s state) bool {
	if id.state == s {
		return true
	}
	id.unexpected(ev)
	return false
}

// unexpected wakes who waits with an error. An event that nobody knows says nothing of
// a connection that stands, so that goes on.
func (id *ID) unexpected(ev *Event) {
	if ev.Err == nil {
		ev.Err = fmt.Errorf("%w %v while the id is %v", errUnexpected, ev.Type, id.state)
	}
	switch id.state {
	case stateAddrQuery:
		id.state, id.opErr = stateBound, ev.Err
	case stateRouteQuery:
		id.state, id.opErr = stateAddrResolved, ev.Err
	case stateConnecting, stateAccepting:
		id.end(ev.Err, ev.Err)
	}
}

func (id *ID) addrResolved(ch *EventChannel, ev *Event) {
	if !id.expect(ev, stateAddrQuery) {
		return
	}
	if ev.Type == AddrResolved && ev.Err == nil {
		id.refresh()
		ev.Err = id.openDevice(ch)
	} else if ev.Err == nil {
		ev.Err = errFailed
	}
	if ev.Err != nil {
		ev.Type = AddrError
		id.state, id.opErr = stateBound, ev.Err
		return
	}
	id.state = stateAddrResolved
}

// openDevice takes the process's device of the name that the driver gives. mu is held,
// and the calls of ch are locked.
func (id *ID) openDevice(ch *EventChannel) (err error) {
	name := id.info.Device
	if name == "" {
		return syscall.ENODEV // seen from systems with a device that they cannot use
	}
	// A DeviceInfo finds the open device without listing all devices, as Open does.
	if info, ok := ch.devices[name]; ok {
		if id.dev, err = info.Open(); err == nil {
			return nil
		}
	}
	if id.dev, err = verbs.Open(id.p, name); err != nil {
		return err
	}
	if ch.devices == nil {
		ch.devices = map[string]verbs.DeviceInfo{}
	}
	ch.devices[name] = id.dev.Info()
	return nil
}

func (id *ID) routeResolved(ev *Event) {
	if !id.expect(ev, stateRouteQuery) {
		return
	}
	if ev.Type == RouteError && ev.Err == nil {
		ev.Err = errFailed
	}
	if ev.Err != nil {
		ev.Type = RouteError
		id.state, id.opErr = stateAddrResolved, ev.Err
		return
	}
	id.state = stateRouteResolved
	id.refresh()
}

// lost makes an event of a request that was refused as this process lacks something. It is
// for a listener that has the channel for itself; others hear nothing of such a request, nor
// does a listener of one that was refused for another reason.
func (ch *EventChannel) lost(err error) (Event, bool) {
	if !ch.requests || !isErrno(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM) {
		return Event{}, false
	}
	return Event{Type: ConnectRequest, Err: err}, true
}

// request makes the id of a peer's request. If it cannot be made the peer is refused.
func (ch *EventChannel) request(ev *Event, listener *ID, raw *driver.CMEvent) bool {
	if raw.Child == nil {
		return false
	}
	child := &ID{p: listener.p, ps: listener.ps, drv: raw.Child, ch: ch, state: stateRequest, offer: raw.Conn}
	child.mu.Lock() // the table shows it before it is complete
	defer child.mu.Unlock()
	child.refresh()
	if err := child.openDevice(ch); err != nil {
		raw.Child.Close()
		ev.Err = err
		return false
	}
	child.setPeer(&raw.Conn, raw.Private)
	child.handle = table.add(child, nil)
	raw.Child.SetHandle(child.handle)
	ch.add(child)
	ev.ID, ev.Listener, ev.Param = child, listener, child.param
	return true
}

// responded brings up this side's queue pair when the peer has accepted, and tells the
// peer. For a queue pair that is not ours its owner does.
func (id *ID) responded(ev *Event, raw *driver.CMEvent) bool {
	if id.state == stateEnded {
		return false
	}
	if !id.expect(ev, stateConnecting) {
		return true
	}
	id.setPeer(&raw.Conn, raw.Private)
	ev.Param = id.param
	if ev.Err == nil && id.qp == nil {
		id.state = stateResponded
		return true
	}
	if ev.Err == nil {
		ev.Err = id.ready(&id.set)
	}
	if ev.Err == nil {
		ev.Err = id.drv.Establish()
	}
	if ev.Err != nil {
		ev.Type = ConnectError
		id.drv.Reject(nil) // the peer shall not wait; it may know already
		id.end(ev.Err, ev.Err)
		return true
	}
	ev.Type = Established
	id.connected()
	return true
}

// connected enters the state of a connection that stands. mu is held.
func (id *ID) connected() {
	id.state = stateConnected
	if id.qp == nil {
		return
	}
	id.qp.OnRecv(nil)
	if id.sync != nil {
		// Nobody need be reading its completions, and Conn.Done is to tell of every end.
		// A program with a channel has completions for that.
		id.qp.OnError(id.qpFailed)
	}
}

// qpFailed ends a connection whose queue pair failed by itself, and tells the peer.
func (id *ID) qpFailed() {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.closing || id.sync == nil || id.state != stateConnected {
		return
	}
	cause := id.qp.Err()
	if !id.leaving {
		id.leaving = true
		id.drv.Disconnect() // an error means that it has gone already
	}
	id.end(cause, cause)
	id.signal()
}

func (id *ID) established(ev *Event, raw *driver.CMEvent) bool {
	switch id.state {
	case stateEnded, stateConnected:
		return false // Disconnected was faster, or it is the second
	case stateAccepting:
		ev.Private = nil // the peer's last message has none, and no parameters
	default:
		if !id.expect(ev, stateConnecting) {
			return true
		}
		id.setPeer(&raw.Conn, raw.Private)
	}
	if ev.Err != nil {
		ev.Type = ConnectError
		id.end(ev.Err, ev.Err)
		return true
	}
	id.connected()
	ev.Param = id.param
	ev.UD = UDParam(raw.UD)
	return true
}

// terminated ends the connection, or the attempt. Only the first end counts; the
// removal of the device is news all the same, once.
func (id *ID) terminated(ev *Event, raw *driver.CMEvent) bool {
	if ev.Err == nil && ev.Type != Disconnected && ev.Type != DeviceRemoval {
		ev.Err = errFailed
	}
	again := id.state == stateEnded
	if ev.Type == DeviceRemoval {
		if id.gone {
			return false
		}
		again = false
		id.gone = true
		if id.dev != nil {
			// The device's own answer tells package verbs, which wakes who waits for
			// completions and events of it, also without a connection.
			defer id.dev.Attr()
		}
	}
	if again {
		return false
	}
	if ev.Type == Rejected {
		id.private = raw.Private
	} else {
		ev.Private = nil
	}
	cause := endCause(ev.Type, ev.Err, id.leaving)
	opErr := cause
	if ev.Type == Disconnected {
		if !id.leaving {
			// The queue pair is failed below, so there is nothing to wait for: the
			// peer gets its answer now, not when the program comes to it.
			defer id.drv.Disconnect()
			id.leaving = true
		}
		if id.state == stateAccepting {
			// The peer's last message of the handshake was overtaken by its first of
			// the end: there was a connection, and data of it may be waiting.
			opErr = nil
		}
	}
	id.end(cause, opErr)
	return true
}
