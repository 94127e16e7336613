package softroce

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/ibcm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cmCore is the connection manager: librdmacm's ids and events over the agent of
// internal/ibcm. It outlives a device that is removed, with what is bound to none.
//
// One lock is for everything. It is never held while something waits: datagrams that
// the agent wants sent are sent after it is given back.
type cmCore struct {
	rand    func() uint64
	foreign *foreign // may be nil

	mu       sync.Mutex
	host     cmHost // nil: there is no device
	agent    *ibcm.Agent
	alarm    time.Duration // what the device was asked to wake us at
	alarmSet bool
	ports    cmPorts
	ids      map[*cmID]struct{}      // that are not closed
	channels map[*cmChannel]struct{} // the same
	byQPN    map[ib.QPN]*cmID        // accepted, not established
	closed   bool
}

var (
	_ manager   = (*cmCore)(nil)
	_ driver.CM = (*cmCore)(nil)
)

// newCMCore makes a manager without a device. rand gives unpredictable numbers.
func newCMCore(rand func() uint64) *cmCore {
	return &cmCore{
		rand:  rand,
		ports: cmPorts{owners: make(map[cmPort][]*cmID), rand: rand},
		ids:   make(map[*cmID]struct{}),
		byQPN: make(map[ib.QPN]*cmID),

		channels: make(map[*cmChannel]struct{}),
	}
}

// attach gives the manager a device, after it was made or after another was removed.
// Listeners on the wildcard address listen on the new device too.
func (m *cmCore) attach(h cmHost, guid ib.GUID) {
	m.mu.Lock()
	if m.closed || m.host != nil {
		m.mu.Unlock()
		return
	}
	m.host = h
	m.agent = ibcm.NewAgent(ibcm.Config{GUID: guid, Rand: m.rand, Admit: m.admit})
	families := m.wildcards()
	m.mu.Unlock()
	_, _ = openAll(h, families) // what is not there, or taken, is left out
}

// unlock gives the lock back after the agent may have had something to say: it handles
// events, sends packets and sets the alarm.
func (m *cmCore) unlock() {
	h, a := m.host, m.agent
	if a == nil {
		m.mu.Unlock()
		return
	}
	for {
		events := slices.Clone(a.Events())
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			m.handle(e)
		}
	}
	packets := slices.Clone(a.Packets())
	at, set := a.Deadline()
	if set != m.alarmSet || set && at != m.alarm {
		m.alarm, m.alarmSet = at, set
		h.wake(at, set)
	}
	m.mu.Unlock()
	for i := range packets {
		p := &packets[i]
		h.sendMAD(p.Local, p.Remote, p.MAD[:], p.TOS)
	}
}

// now is the device's time. The lock is held, and there is a device.
func (m *cmCore) now() time.Duration { return m.host.now() }

// receiveMAD takes a datagram that came to QP1.
func (m *cmCore) receiveMAD(local, remote netip.Addr, mad []byte) {
	m.mu.Lock()
	if m.agent != nil {
		if remote.Is6() && remote.IsLinkLocalUnicast() && remote.Zone() == "" {
			remote = remote.WithZone(local.Zone())
		}
		m.agent.Receive(m.now(), local, remote, mad)
	}
	m.unlock()
}

// advance is the alarm.
func (m *cmCore) advance() {
	m.mu.Lock()
	m.alarmSet = false
	if m.agent != nil {
		m.agent.Advance(m.now())
	}
	m.unlock()
}

// commEstablished says that data came to a queue pair that was not connected yet: the
// peer has our reply, though its ready-to-use message may be lost.
func (m *cmCore) commEstablished(qpn ib.QPN) {
	m.mu.Lock()
	if id := m.byQPN[qpn]; id != nil && id.conn != nil {
		_ = m.agent.CommEstablished(m.now(), id.conn) // too early or too late: nothing to do
	}
	m.unlock()
}

// addressesChanged says that the host may have new addresses: listeners on the wildcard
// address listen on them too.
func (m *cmCore) addressesChanged() {
	m.mu.Lock()
	h, families := m.host, m.wildcards()
	m.mu.Unlock()
	if h != nil {
		_, _ = openAll(h, families) // what is not there, or taken, is left out
	}
}

// deviceRemoved ends everything that is bound to the device. No datagram can be sent.
func (m *cmCore) deviceRemoved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.host, m.agent, m.alarmSet = nil, nil, false
	clear(m.byQPN)
	for id := range m.ids {
		id.removed()
	}
}

// close ends every connection with a word to its peer, and every channel.
func (m *cmCore) close() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.closed = true
	if m.agent != nil {
		m.agent.Shutdown(m.now())
	}
	for id := range m.ids {
		id.state, id.conn = idClosed, nil
	}
	clear(m.ids)
	clear(m.ports.owners)
	clear(m.byQPN)
	for ch := range m.channels {
		ch.closed, ch.queue = true, nil
		ch.notifier.close()
	}
	clear(m.channels)
	m.unlock()
}

// OpenChannel opens a channel of events.
func (m *cmCore) OpenChannel() (driver.CMChannel, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil, cmFail("open channel", "device is closed", net.ErrClosed)
	case m.host == nil:
		return nil, cmGone("open channel")
	}
	ch := &cmChannel{core: m}
	ch.notifier.init(m.foreign)
	m.channels[ch] = struct{}{}
	return ch, nil
}

// cmChannel is a queue of events (struct rdma_event_channel). All its fields are under
// the lock of the core.
type cmChannel struct {
	core     *cmCore
	notifier notifier
	queue    []cmQueued
	closed   bool
}

// cmQueued is an event that was not fetched.
type cmQueued struct {
	id *cmID // whose it is: for a request the listener
	ev driver.CMEvent
}

var (
	_ driver.CMChannel = (*cmChannel)(nil)
	_ driver.Waiter    = (*cmChannel)(nil)
)

// FD gives a descriptor that is readable exactly while Next has an event.
func (ch *cmChannel) FD() (int, error) { return ch.notifier.descriptor() }

// Wait waits until Next has an event, the channel is closed, or ctx ends.
func (ch *cmChannel) Wait(ctx context.Context) error { return ch.notifier.wait(ctx) }

// Next takes one event. It never blocks.
func (ch *cmChannel) Next() (driver.CMEvent, bool, error) {
	m := ch.core
	m.mu.Lock()
	defer m.mu.Unlock()
	if ch.closed {
		return driver.CMEvent{}, false, net.ErrClosed
	}
	if len(ch.queue) == 0 {
		return driver.CMEvent{}, false, nil
	}
	q := ch.queue[0]
	ch.queue[0] = cmQueued{}
	ch.queue = ch.queue[1:]
	ch.settle()
	q.id.queued--
	q.ev.Handle = q.id.handle
	if q.ev.Type == ib.CMConnectRequest {
		// Who fetches a request makes room for another.
		q.id.unfetched--
		q.ev.Child.(*cmID).fetched = true
	}
	return q.ev, true, nil
}

// settle sets the level of the notifier.
func (ch *cmChannel) settle() {
	if len(ch.queue) > 0 {
		ch.notifier.set()
		return
	}
	ch.queue = nil
	if !ch.closed {
		ch.notifier.clear()
	}
}

// post queues an event of id. The lock is held.
func (ch *cmChannel) post(id *cmID, ev driver.CMEvent) {
	ch.queue = append(ch.queue, cmQueued{id, ev})
	id.queued++
	ch.settle()
}

// take removes the events of id and gives them.
func (ch *cmChannel) take(id *cmID) (events []cmQueued) {
	if id.queued == 0 {
		return nil
	}
	kept := ch.queue[:0]
	for _, q := range ch.queue {
		if q.id == id {
			events = append(events, q)
		} else {
			kept = append(kept, q)
		}
	}
	clear(ch.queue[len(kept):])
	ch.queue = kept
	id.queued = 0
	ch.settle()
	return events
}

// CreateID makes an id whose events come from the channel.
func (ch *cmChannel) CreateID(handle uint64, ps ib.PortSpace, t ib.QPType) (driver.CMID, error) {
	const op = "create id"
	m := ch.core
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case ch.closed, m.closed:
		return nil, cmFail(op, "channel is closed", net.ErrClosed)
	case ps == ib.PortSpaceTCP && (t == ib.RC || t == 0):
	case ps == ib.PortSpaceUDP && (t == ib.UD || t == 0):
	case ps == ib.PortSpaceTCP, ps == ib.PortSpaceUDP:
		return nil, cmFail(op, "queue pair type does not fit the port space", syscall.EINVAL)
	default:
		return nil, notHere(op, portSpaceName(ps))
	}
	id := m.newID(ch)
	id.handle = handle
	id.space = ps
	return id, nil
}

// Close ends the channel. Requests that nobody fetched are rejected; the ids stay, and
// give no more events.
func (ch *cmChannel) Close() error {
	m := ch.core
	m.mu.Lock()
	if ch.closed {
		m.mu.Unlock()
		return nil
	}
	ch.closed = true
	for _, q := range ch.queue {
		q.id.queued--
		m.unseen(q)
	}
	ch.queue = nil
	delete(m.channels, ch)
	m.unlock()
	ch.notifier.close()
	return nil
}

// unseen ends what an event stood for that nobody will fetch.
func (m *cmCore) unseen(q cmQueued) {
	if q.ev.Type == ib.CMConnectRequest {
		q.id.unfetched--
		m.end(q.ev.Child.(*cmID))
	}
}
