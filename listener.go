package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// Listener is a net.Listener. All methods may be called by several goroutines; only Accept and
// AcceptRDMA wait. Listen makes it; the calls of a nil or zero Listener give syscall.EINVAL.
//
// Handshakes go on in the background, each within Config.HandshakeTimeout, so a peer that
// does not finish one delays nobody. A request that fails is refused and does not show in
// Accept; Trace.Refused tells of it. What keeps the system from giving requests, as too many
// open files or no memory, does not end the listener: it tries again, at first after 5 ms and
// at last once a second.
//
// A connection that nobody has accepted yet costs no more than an idle one, whatever its peer
// sends, and their number is bounded (ListenConfig.Backlog).
type Listener struct {
	cfg     Config
	network string
	backlog int
	addr    Addr
	cm      requests // nil: there is no RDMA, see why
	tcp     sockets  // nil: no fallback
	why     string

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	hands  chan struct{} // a place for each handshake

	mu     sync.Mutex
	cond   sync.Cond // the queue, the deadline, the end, room in the queue
	queue  []*Conn
	limit  deadline
	fire   func() // l.onDeadline, made once
	err    error  // why there are no more connections; nil: there may be
	closed bool
	alive  int                    // goroutines that bring connections
	hubs   map[*verbs.Device]*hub // held, so that they are there for the next connection
	ready  readiness
}

// ok says that Listen made the listener.
func (l *Listener) ok() bool { return l != nil && l.cancel != nil }

// requests is a *cm.Listener, and sockets a *net.TCPListener.
type requests interface {
	Accept(context.Context) (*cm.Request, error)
	Close() error
}

type sockets interface {
	AcceptTCP() (*net.TCPConn, error)
	Close() error
}

const (
	// maxHandshakes bounds the handshakes that go on at a time. Each costs what an idle
	// connection does (docs/streams.md), for HandshakeTimeout if the peer falls silent.
	maxHandshakes = 1024
	// minPause and maxPause bound the wait for an obstacle to pass.
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

func (l *Listener) init() {
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.hands = make(chan struct{}, maxHandshakes)
	l.cond.L = &l.mu
	l.fire = l.onDeadline
}

// start begins to take connections.
func (l *Listener) start() {
	if l.cm != nil {
		l.alive++
		go l.serveRDMA()
	}
	if l.tcp != nil {
		l.alive++
		go l.serveTCP()
	}
}

// Addr gives the address that the listener is bound to, an Addr. If the host was empty its
// IP address is unspecified; to dial that means this host.
func (l *Listener) Addr() net.Addr {
	if !l.ok() {
		return nil
	}
	return l.addr
}

// Accept waits for the next connection and gives it, a *Conn. After Close the error wraps
// net.ErrClosed, after the deadline os.ErrDeadlineExceeded.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptRDMA()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptRDMA is Accept with the type of the connection, which may be one over TCP if
// Config.Fallback allows that.
func (l *Listener) AcceptRDMA() (*Conn, error) {
	if !l.ok() {
		return nil, errInvalid
	}
	c, err := l.take()
	if err == nil && c.tcp == nil {
		c.accepted()
	}
	return c, err
}

// take waits for a connection in the queue.
func (l *Listener) take() (*Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, l.fail(net.ErrClosed)
		case l.limit.expired():
			return nil, l.fail(os.ErrDeadlineExceeded)
		case len(l.queue) > 0:
			c := l.queue[0]
			l.queue[0] = nil
			l.queue = l.queue[1:]
			if len(l.queue) == 0 {
				l.queue = nil
			}
			l.changed()
			return c, nil
		case l.err != nil:
			return nil, l.fail(l.err)
		}
		l.cond.Wait()
	}
}

func (l *Listener) fail(err error) error {
	return &net.OpError{Op: "accept", Net: l.network, Addr: l.addr, Err: err}
}

// changed makes everybody look again. mu is held.
func (l *Listener) changed() {
	l.ready.set(len(l.queue) > 0 || l.closed || l.err != nil, false)
	l.cond.Broadcast()
}

// SetDeadline sets a deadline for Accept, for calls that block as well; the zero Time means
// none.
func (l *Listener) SetDeadline(t time.Time) error {
	if !l.ok() {
		return errInvalid
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return &net.OpError{Op: "set", Net: l.network, Addr: l.addr, Err: net.ErrClosed}
	}
	l.limit.set(t, l.fire)
	l.cond.Broadcast()
	return nil
}

func (l *Listener) onDeadline() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit.passed(l.fire) {
		l.cond.Broadcast()
	}
}

// FD gives a descriptor for programs with their own event loop: readable exactly while
// Accept would not block, its deadline left aside. The first call makes it; Close closes
// it. Elsewhere than on Linux the error wraps errors.ErrUnsupported.
func (l *Listener) FD() (int, error) {
	if !l.ok() {
		return -1, errInvalid
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return -1, l.fail(net.ErrClosed)
	}
	fd, err := l.ready.get(len(l.queue) > 0 || l.err != nil, false)
	if err != nil {
		return -1, l.fail(err)
	}
	return fd, nil
}

// Close stops listening. Accept calls that block fail; connections that nobody has
// accepted are reset; accepted ones live on. A second call gives an error, as with TCP.
func (l *Listener) Close() error {
	if !l.ok() {
		return errInvalid
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return &net.OpError{Op: "close", Net: l.network, Addr: l.addr, Err: net.ErrClosed}
	}
	l.closed = true
	queue := l.queue
	l.queue = nil
	l.limit.set(time.Time{}, nil)
	l.cond.Broadcast()
	l.ready.close()
	l.mu.Unlock()
	l.cancel()
	var errs []error
	if l.cm != nil {
		errs = append(errs, l.cm.Close())
	}
	if l.tcp != nil {
		errs = append(errs, l.tcp.Close())
	}
	for _, c := range queue {
		c.abort()
	}
	l.letHubsGo()
	return opError("close", l.network, nil, l.addr, errors.Join(errs...))
}

// serveRDMA takes requests until the listener is closed or its device is gone.
func (l *Listener) serveRDMA() {
	var o obstacle
	for {
		if !l.admit() {
			return
		}
		select { // a request in our hands is one that the system does not drop
		case l.hands <- struct{}{}:
		case <-l.ctx.Done():
			l.done(net.ErrClosed)
			return
		}
		req, err := l.cm.Accept(l.ctx)
		if err == nil {
			o.gone()
			go l.shake(req)
			continue
		}
		<-l.hands
		if l.ended(err) {
			if tr := l.cfg.Trace; l.tcp != nil && tr != nil && tr.FellBack != nil && l.ctx.Err() == nil {
				tr.FellBack(l.addr.String(), err) // TCP goes on alone
			}
			l.done(err)
			return
		}
		o.wait(l, err)
	}
}

// ended reports whether an error of accept is the last one, and not one of this request or
// of this moment.
func (l *Listener) ended(err error) bool {
	return l.ctx.Err() != nil || errors.Is(err, net.ErrClosed) || errors.Is(err, verbs.ErrDeviceGone)
}

// obstacle is what keeps a network from giving requests for some time: too many
// descriptors, no memory, a peer that has given up.
type obstacle struct{ pause time.Duration }

func (o *obstacle) gone() { o.pause = 0 }

// wait lets it pass, longer each time.
func (o *obstacle) wait(l *Listener, err error) {
	l.refused(netip.AddrPort{}, err)
	o.pause = min(max(2*o.pause, minPause), maxPause)
	timer := time.NewTimer(o.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ctx.Done():
	}
}

// shake makes a connection of a request.
func (l *Listener) shake(req *cm.Request) {
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.HandshakeTimeout)
	peer := req.RemoteAddr()
	l.hold(req.Device())
	c, err := accept(ctx, &l.cfg, req)
	cancel()
	if err != nil {
		l.refused(peer, err)
	} else {
		l.offer(c)
	}
	<-l.hands
}

// hold keeps the hub of a device while the listener lives.
func (l *Listener) hold(dev *verbs.Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.hubs[dev]; l.closed || h != nil && h.err() == nil {
		return
	}
	h, err := acquireHub(dev, 0)
	if err != nil {
		return // who needs it will say so
	}
	if old := l.hubs[dev]; old != nil {
		go old.release(0)
	}
	if l.hubs == nil {
		l.hubs = map[*verbs.Device]*hub{}
	}
	if l.hubs[dev] == nil {
		watchAsync(dev, l.cfg.Trace)
	}
	l.hubs[dev] = h
}

func (l *Listener) letHubsGo() {
	l.mu.Lock()
	all := l.hubs
	l.hubs = nil
	l.mu.Unlock()
	for dev, h := range all {
		unwatchAsync(dev, l.cfg.Trace)
		h.release(0)
	}
}

func (l *Listener) refused(peer netip.AddrPort, err error) {
	if t := l.cfg.Trace; t != nil && t.Refused != nil && l.ctx.Err() == nil {
		t.Refused(peer, err)
	}
}

// serveTCP takes TCP connections until the listener is closed.
func (l *Listener) serveTCP() {
	var o obstacle
	for {
		if !l.admit() {
			return
		}
		t, err := l.tcp.AcceptTCP()
		switch {
		case err == nil:
			o.gone()
			why := l.why
			if why == "" {
				why = "the peer asked for TCP"
			}
			l.offer(newTCPConn(t, &l.cfg, why))
		case l.ended(err):
			l.done(err)
			return
		default:
			o.wait(l, err)
		}
	}
}

// admit waits for room in the queue; false: the listener is closed.
func (l *Listener) admit() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) >= l.backlog && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		l.alive--
	}
	return !l.closed
}

// offer puts a connection into the queue, or resets it if there is no queue any more.
func (l *Listener) offer(c *Conn) {
	if t := l.cfg.Trace; t != nil && t.Accepted != nil {
		t.Accepted(c)
	}
	l.mu.Lock()
	ok := !l.closed
	if ok {
		l.queue = append(l.queue, c)
		l.changed()
	}
	l.mu.Unlock()
	if !ok {
		c.abort()
	}
}

// done notes that one of the networks gives no more connections. When the last one does
// not, Accept fails with its error.
func (l *Listener) done(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alive--
	if l.alive > 0 && !l.closed {
		return
	}
	if l.err == nil && !l.closed {
		l.err = fmt.Errorf("the listener has ended: %w", err)
	}
	l.changed()
}
