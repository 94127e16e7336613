package softroce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/netio"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire"
)

const (
	readBatch  = 16 // messages of one read
	drainBatch = 4  // of a read by somebody else than the reader

	// maxRounds bounds the batches that are handled before acknowledgements that
	// still wait are sent.
	maxRounds = 4

	// outputBytes is what a queue pair builds before it calls the socket: several
	// trains, so that a receiver which they wake finds the next one when it has handled
	// the first.
	outputBytes = 256 << 10
	idleSenders = 16 // buffers of that size which an endpoint keeps at most
)

// endpoints are the open sockets of the device, one for each local address.
type endpoints struct {
	d *device

	mu     sync.Mutex
	m      map[netip.Addr]*endpoint
	down   bool
	closed bool

	foreign atomic.Bool // see foreign
}

func (s *endpoints) init(d *device) {
	s.d = d
	s.m = make(map[netip.Addr]*endpoint)
}

// endpoint is an open local address: a socket and the goroutine that reads it.
type endpoint struct {
	d     *device
	addr  netip.Addr // with zone if it is link-local
	local netip.AddrPort
	conn  netio.Conn
	limit netio.Limits
	link  atomic.Bool // packets can go in and out
	done  chan struct{}
	role  role

	// rx is held while packets are handled, by the reader or by a timer that drains
	// the socket.
	rx      sync.Mutex
	ms      []netio.Message // of the reader
	drained []netio.Message // of who drains; made when first needed
	packet  wire.Packet
	waiting []*qp // queue pairs with acknowledgements that may travel with data
	woke    bool  // a completion of this turn woke somebody

	psn atomic.Uint32 // of QP1

	sendMu  sync.Mutex
	senders []*sender // not in use
}

// endpoint gives the endpoint of a local address, opening it if need be. The address
// must be one of the device, or a loopback address that is free. An address of
// another process gives an error that wraps *netio.InUseError.
func (d *device) endpoint(local netip.Addr) (*endpoint, error) {
	local = local.Unmap()
	s := &d.eps
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.m[local]; e != nil {
		return e, nil
	}
	if s.closed {
		return nil, d.err()
	}
	if err := checkAddr(local); err != nil {
		return nil, fmt.Errorf("softroce: local address: %w", err)
	}
	_, g, known := d.port.find(local)
	if !known {
		d.port.refresh()
		if _, g, known = d.port.find(local); !known && (!local.IsLoopback() || len(d.cfg.Addrs) > 0) {
			return nil, fmt.Errorf("softroce: %v is not an address of this device: %w", local, syscall.EADDRNOTAVAIL)
		}
	}
	if known {
		local = g.addr
		if e := s.m[local]; e != nil {
			return e, nil
		}
	}
	e, err := d.listen(local, g.mtu)
	if err != nil {
		return nil, err
	}
	e.link.Store(!s.down)
	s.m[local] = e
	if local.IsLoopback() {
		d.port.claim(local)
	}
	go e.run()
	return e, nil
}

// listen opens the socket of an address.
func (d *device) listen(local netip.Addr, mtu int) (*endpoint, error) {
	at := netip.AddrPortFrom(local, wire.Port)
	var conn netio.Conn
	if d.cfg.ListenPacket != nil {
		p, err := d.cfg.ListenPacket(at)
		if err != nil {
			return nil, fmt.Errorf("softroce: open %v: %w", at, err)
		}
		if mtu == 0 {
			mtu = d.port.linkMTU(maxLinkMTU)
		}
		conn = netio.Wrap(p, mtu)
	} else {
		var err error
		if conn, err = netio.Listen(at); err != nil {
			if taken := (*netio.InUseError)(nil); errors.As(err, &taken) {
				return nil, taken // says all
			}
			return nil, fmt.Errorf("softroce: open %v: %w", at, err)
		}
	}
	e := &endpoint{
		d:     d,
		addr:  local,
		local: at,
		conn:  conn,
		limit: conn.Limits(),
		done:  make(chan struct{}),
		// More than goroutines can send at the same time, as one that sends may lose its
		// processor meanwhile: those that are short would be garbage of 256 KiB each.
		senders: make([]*sender, 0, min(4*max(runtime.GOMAXPROCS(0), 2), idleSenders)),
	}
	e.limit.ReceiveSize = max(e.limit.ReceiveSize, maxPacket)
	e.limit.Segments = max(e.limit.Segments, 1)
	if e.limit.TrainBytes == 0 {
		e.limit.TrainBytes = maxPacket
	}
	e.ms = newMessages(readBatch, e.limit.ReceiveSize)
	e.initRole()
	return e, nil
}

func newMessages(n, size int) []netio.Message {
	ms := make([]netio.Message, n)
	buf := make([]byte, n*size)
	for i := range ms {
		ms[i].Buf = buf[i*size : i*size : (i+1)*size]
	}
	return ms
}

// holds reports whether this process has the address open.
func (d *device) holds(local netip.Addr) bool {
	local = local.Unmap()
	d.eps.mu.Lock()
	defer d.eps.mu.Unlock()
	if _, g, ok := d.port.find(local); ok {
		local = g.addr
	}
	return d.eps.m[local] != nil
}

// loopback gives a loopback address of this process: one that it holds, else one of the
// configuration, else a private one, which it takes.
func (d *device) loopback() (netip.Addr, error) {
	d.eps.mu.Lock()
	for a := range d.eps.m {
		if a.IsLoopback() && a.Is4() {
			d.eps.mu.Unlock()
			return a, nil
		}
	}
	d.eps.mu.Unlock()
	if len(d.cfg.Addrs) > 0 {
		return d.configuredLoopback()
	}
	var first error
	for n := range loopbackTries {
		a := netio.PrivateLoopback(n)
		_, err := d.endpoint(a)
		if err == nil {
			return a, nil
		}
		if first == nil {
			first = err
		}
		var used *netio.InUseError
		if !errors.As(err, &used) {
			break
		}
	}
	// Hosts other than Linux have only this one.
	a := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if _, err := d.endpoint(a); err != nil {
		return netip.Addr{}, errors.Join(first, err)
	}
	return a, nil
}

const loopbackTries = 16

// configuredLoopback is loopback where the configuration names the addresses: it takes
// one of those.
func (d *device) configuredLoopback() (netip.Addr, error) {
	err := fmt.Errorf("softroce: none of the configured addresses is one of the loopback: %w", syscall.EADDRNOTAVAIL)
	for _, a := range d.port.configured() {
		if a.IsLoopback() && a.Is4() {
			if _, err = d.endpoint(a); err == nil {
				return a, nil
			}
		}
	}
	return netip.Addr{}, err
}

// setLink takes all sockets off the network, or back on; those whose address the device
// has lost stay off.
func (s *endpoints) setLink(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = !up
	s.relink()
}

// relink brings the sockets in line with the link and the addresses. s.mu is held.
func (s *endpoints) relink() {
	for _, e := range s.m {
		_, _, has := s.d.port.find(e.addr)
		e.link.Store(has && !s.down)
	}
}

// close closes all sockets; their goroutines have ended when it returns.
func (s *endpoints) close() {
	s.mu.Lock()
	s.closed = true
	all := make([]*endpoint, 0, len(s.m))
	for _, e := range s.m {
		all = append(all, e)
	}
	clear(s.m)
	s.mu.Unlock()
	for _, e := range all {
		e.conn.Close()
		e.handBack()
	}
	for _, e := range all {
		<-e.done
		e.rx.Lock() // another goroutine may have the role
		e.waiting = nil
		e.rx.Unlock()
	}
}

// run is the endpoint's own goroutine.
func (e *endpoint) run() {
	defer close(e.done)
	failures := 0
	for {
		e.role.looks.Store(0)
		n, err := e.read()
		switch {
		case err == nil:
			failures = 0
			if e.turn(n, nil) {
				e.vacate()
				if !e.resigned() {
					e.stand()
				}
				e.settle()
			}
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			e.role.conn.Resume() // meant for one who had the role before
		default:
			// Nothing that is known comes here. Do not spin should it stay.
			e.d.stats.readErrors.Add(1)
			failures++
			if e.d.err() != nil {
				return
			}
			time.Sleep(time.Duration(min(failures, 100)) * time.Millisecond)
		}
	}
}

// turn handles a batch that was read, and what came meanwhile, and sends what the
// queue pairs then have to say. Acknowledgements may stay owed: if what the caller waits
// for is there, or if the endpoint's goroutine, which waits for nothing, is to leave the
// role to whom it woke, which the result says.
func (e *endpoint) turn(n int, until condition) (yield bool) {
	e.rx.Lock()
	defer e.rx.Unlock()
	for round := 0; n > 0; round++ {
		e.receive(e.ms[:n])
		if until != nil {
			if until.level() {
				e.woke = false
				return false
			}
		} else if e.yields() {
			e.woke = false
			return true
		}
		if len(e.waiting) == 0 || round == maxRounds {
			break
		}
		if e.woke {
			// Let who was woken post an answer: the acknowledgement travels with it.
			e.woke = false
			runtime.Gosched()
			if !e.owing() {
				break
			}
		}
		// More packets may make one acknowledgement do for all.
		n, _ = e.conn.TryRead(e.ms)
	}
	e.acknowledge()
	return false
}

// condition is what a goroutine waits for.
type condition interface{ level() bool }

// settle sends the acknowledgements that are still owed.
func (e *endpoint) settle() {
	e.rx.Lock()
	if len(e.waiting) > 0 {
		e.acknowledge()
	}
	e.rx.Unlock()
}

// drain handles what is in the socket without waiting, for a timer that wants to know
// whether its answer is there. It gives the number of messages.
func (e *endpoint) drain() (total int) {
	e.rx.Lock()
	defer e.rx.Unlock()
	if e.drained == nil {
		e.drained = newMessages(drainBatch, e.limit.ReceiveSize)
	}
	for range maxDrains {
		n, err := e.conn.TryRead(e.drained)
		if n == 0 || err != nil {
			break
		}
		e.receive(e.drained[:n])
		total += n
	}
	e.acknowledge()
	return total
}

// maxDrains bounds the work of a timer under a flood.
const maxDrains = 64

// sender is what building and sending needs: buffers that travel from one queue pair
// to the next.
type sender struct {
	out  transport.Output
	msgs []netio.Message
}

func (e *endpoint) takeSender() *sender {
	e.sendMu.Lock()
	var s *sender
	if n := len(e.senders); n > 0 {
		s = e.senders[n-1]
		e.senders = e.senders[:n-1]
	}
	e.sendMu.Unlock()
	if s == nil {
		s = &sender{
			out: transport.Output{
				Buf:  make([]byte, 0, outputBytes),
				Ends: make([]int, 0, 128),
				Max:  outputBytes,
			},
			msgs: make([]netio.Message, 0, 32),
		}
	}
	return s
}

func (e *endpoint) giveSender(s *sender) {
	e.sendMu.Lock()
	if len(e.senders) < cap(e.senders) {
		e.senders = append(e.senders, s)
	}
	e.sendMu.Unlock()
}
