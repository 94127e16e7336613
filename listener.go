package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// Listener is a net.Listener. All methods may be called by several goroutines.
//
// Handshakes go on in the background, each within Config.HandshakeTimeout, so a peer that
// does not finish one delays nobody. A request that fails is refused and does not show in
// Accept; Trace.Refused tells of it.
type Listener struct {
	cfg     Config
	network string
	backlog int
	addr    Addr
	cm      *cm.Listener     // nil: there is no RDMA, see why
	tcp     *net.TCPListener // nil: no fallback
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

// maxHandshakes bounds the handshakes that go on at a time.
const maxHandshakes = 4096

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
func (l *Listener) Addr() net.Addr { return l.addr }

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
// it.
func (l *Listener) FD() (int, error) {
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
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return &net.OpError{Op: "close", Net: l.network, Addr: l.addr, Err: net.ErrClosed}
	}
	l.closed = true
	queue := l.queue
	l.queue = nil
	l.limit.stop()
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

// serveRDMA takes requests until the listener is closed.
func (l *Listener) serveRDMA() {
	for {
		if !l.admit() {
			return
		}
		req, err := l.cm.Accept(l.ctx)
		if err != nil {
			if tr := l.cfg.Trace; l.tcp != nil && tr != nil && tr.FellBack != nil && l.ctx.Err() == nil {
				tr.FellBack(l.addr.String(), err) // TCP goes on alone
			}
			l.done(err)
			return
		}
		select {
		case l.hands <- struct{}{}:
		case <-l.ctx.Done():
			req.Close()
			l.done(net.ErrClosed)
			return
		}
		go l.shake(req)
	}
}

// shake makes a connection of a request.
func (l *Listener) shake(req *cm.Request) {
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.HandshakeTimeout)
	peer := req.RemoteAddr()
	l.hold(req.Device())
	c, err := accept(ctx, &l.cfg, req)
	cancel()
	<-l.hands
	if err != nil {
		l.refused(peer, err)
		return
	}
	l.offer(c)
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

// serveTCP takes TCP connections until the listener is closed. Errors that pass, as that of
// too many descriptors, are waited out, as package net's users do.
func (l *Listener) serveTCP() {
	pause := time.Duration(0)
	for {
		if !l.admit() {
			return
		}
		t, err := l.tcp.AcceptTCP()
		if err == nil {
			pause = 0
			why := l.why
			if why == "" {
				why = "the peer asked for TCP"
			}
			l.offer(newTCPConn(t, &l.cfg, why))
			continue
		}
		if !passes(err) {
			l.done(err)
			return
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			timer.Stop()
		}
	}
}

// passes reports whether an error of accept is one that passes.
func passes(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.ECONNRESET} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
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
