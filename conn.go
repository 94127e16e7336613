package rdma

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/stream"
	"github.com/verbena-rdma/verbena/internal/timers"
	"github.com/verbena-rdma/verbena/verbs"
)

// Conn is a byte stream, a net.Conn. All methods may be called from any goroutine. Reads
// may run beside writes; two reads, or two writes, wait for one another, so that the bytes
// of one Write stay together.
//
// Write copies into memory of the connection and returns, as with TCP: what it has taken
// may still be on its way, also after a deadline has passed or the connection was closed
// (see Close), and the caller's memory is free again. Read, Write, TryRead and TryWrite do
// not allocate.
//
// A connection costs memory and a queue pair, but neither a goroutine nor a thread nor,
// unless FD is called, a descriptor. Dialers and listeners make it; the calls of a nil or
// zero Conn give syscall.EINVAL. C programs know it as a socket of rsocket(7): Read is rrecv,
// Write rsend, CloseWrite rshutdown, Close rclose, FD what rpoll waits for.
type Conn struct {
	tcp *tcpConn // not nil: TCP carries it, and below only cfg, told and the locks are used

	cfg           *Config
	hub           *hub
	room          int // entries of the hub's queue
	cm            *cm.Conn
	qp            *verbs.QP
	local, remote net.Addr
	port          int

	rdMu, wrMu sync.Mutex // readers, writers: one at a time

	mu     sync.Mutex
	e      *stream.Engine // nil during the handshake
	live   bool           // requests may be posted
	queued bool           // at a listener: nobody has accepted it yet
	early  []verbs.WC     // completions that came before there was an engine
	mem    connMemory
	opts   connOptions
	maps   []mapping

	rd, wr, cl *waiter // who waits: a reader, a writer, Close
	rdl, wdl   deadline
	rdFire     func() // c.onReadDeadline, made once
	wrFire     func()
	timer      timers.Timer
	fires      time.Duration // when timer does, since epoch; zero: it does not run
	ready      readiness

	closed bool          // by the program
	over   bool          // the engine has come to its end
	failed bool          // the queue pair has failed
	cause  error         // why the connection is over, if not in order
	downBy bool          // somebody closes the queue pair
	isDown bool          // it is closed
	torn   bool          // and the hub has forgotten it
	tornC  chan struct{} // closed then, if somebody waits
	told   bool          // Trace.Closed was called
	wrote  time.Duration // when something was last written
	stats  Stats
}

// connOptions are those of Config that can be changed.
type connOptions struct {
	sendBuf   int
	recvBuf   int           // zero: see recvLimit
	linger    time.Duration // negative: not at all
	keepAlive stream.KeepAlive
}

var _ net.Conn = (*Conn)(nil)

// errInvalid is what calls of a nil or zero Conn or Listener give, as in package net.
var errInvalid error = syscall.EINVAL

// ok says that the connection was made by a dialer or listener.
func (c *Conn) ok() bool { return c != nil && (c.hub != nil || c.tcp != nil) }

// now gives the time as the machine of the stream wants it.
func now() time.Duration { return time.Since(epoch) }

// newConn makes a connection that has a queue pair, but no peer yet.
func newConn(cfg *Config, h *hub, room int) *Conn {
	c := &Conn{cfg: cfg, hub: h, room: room}
	c.opts = connOptions{sendBuf: cmp.Or(cfg.SendBuf, defaultSendBuf), recvBuf: cfg.RecvBuf, linger: cfg.Linger, keepAlive: keepAlive(cfg.KeepAlive)}
	c.rdFire, c.wrFire = c.onReadDeadline, c.onWriteDeadline
	c.timer.F = c.onTimer
	return c
}

// begin gives a connection its machine. Completions that came before are passed to it.
func (c *Conn) begin(e *stream.Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.e = e
	early := c.early
	c.early = nil
	if c.failed { // the queue broke during the handshake: see lost
		e.Fail(&errnoError{errno: syscall.ECONNRESET, cause: c.hub.err()})
	}
	for i := range early {
		c.take(&early[i])
	}
	if len(early) > 0 || c.failed {
		c.settle(nil)
	}
}

// start lets requests go: the queue pair is connected.
func (c *Conn) start(conn *cm.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cm = conn
	c.local, c.remote = Addr{conn.LocalAddr()}, Addr{conn.RemoteAddr()}
	c.port = conn.ID().Port()
	c.live = true
	if c.over { // before it began
		go c.teardown()
		return
	}
	c.settle(nil)
}

// completed takes completions of the queue pair; see hub.dispatch.
func (c *Conn) completed(wcs []verbs.WC, self *waiter) (woken int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.isDown:
		return 0 // what was polled before the queue pair was closed
	case c.e == nil:
		c.early = append(c.early, wcs...)
		return 0
	}
	for i := range wcs {
		c.take(&wcs[i])
	}
	return c.settle(self)
}

// take passes one completion. mu is held.
func (c *Conn) take(wc *verbs.WC) {
	switch {
	case c.failed:
	case wc.Status != ib.StatusSuccess:
		c.broke(wc.Status)
	case wc.Opcode.IsRecv():
		c.live = true
		c.e.Received(now(), stream.Arrival{Opcode: wc.Opcode, HasImm: wc.Flags&ib.WithImm != 0, Imm: wc.Imm, Len: wc.ByteLen})
	default:
		c.e.Sent(now(), wc.ID)
	}
}

// broke follows the first failed completion: all that came before it has been passed, so
// this is where the stream ends. mu is held.
func (c *Conn) broke(st ib.Status) {
	c.failed = true
	err := c.qp.Err()
	if err == io.EOF || st == ib.StatusWRFlush && err == nil {
		c.e.Disconnected()
		return
	}
	errno := syscall.ECONNRESET
	var ce *verbs.CompletionError
	if errors.As(err, &ce) && (ce.Status == ib.StatusRetryExc || ce.Status == ib.StatusRNRRetryExc) {
		errno = syscall.ETIMEDOUT // the peer's device does not answer
	}
	c.e.Fail(&errnoError{errno: errno, cause: err})
}

// lost follows the end of the hub's completion queue.
func (c *Conn) lost(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed || c.isDown {
		return
	}
	c.failed = true
	if c.e == nil {
		return // begin sees it, if the connection manager does not
	}
	c.e.Fail(&errnoError{errno: syscall.ECONNRESET, cause: err})
	c.settle(nil)
}

// settle does what every call of the machine asks for: posts what it wants posted, wakes
// whom its events concern, and sees to timer and descriptor. self is the waiter of the
// caller, if it has the role of the hub. It gives how many goroutines it has woken. mu is
// held.
func (c *Conn) settle(self *waiter) (woken int) {
	c.post()
	ev := c.e.Events()
	for ev&memoryEvents != 0 {
		c.adjust(ev)
		c.post()
		ev = ev&^memoryEvents | c.e.Events()
	}
	if ev&(stream.Failed|stream.Finished) != 0 && !c.over {
		c.finish()
	}
	if ev != 0 {
		if c.rd != nil && (ev&stream.Readable != 0 || c.over) && c.hub.wake(c.rd, self) {
			woken++
		}
		if c.wr != nil && (ev&stream.Writable != 0 || c.over) && c.hub.wake(c.wr, self) {
			woken++
		}
		if c.cl != nil && c.over && c.hub.wake(c.cl, self) {
			woken++
		}
	}
	c.schedule()
	c.showReady()
	return woken
}

// finish notes that the machine is at its end, and has the queue pair closed. mu is held.
func (c *Conn) finish() {
	c.over = true
	if !c.closed { // what happens to an end that the program wants is no news
		c.cause = ended(c.e.Err())
	}
	if !c.closed && c.cm != nil {
		go c.teardown()
	}
}

// schedule sets the timer. One that fires too early looks again. mu is held.
func (c *Conn) schedule() {
	d, ok := c.e.Deadline()
	if len(c.mem.send.b) > firstSend && c.idleSend() && (!ok || d > c.wrote+sendIdle) {
		d, ok = c.wrote+sendIdle, true // see shrink
	}
	if !ok || c.over || c.fires != 0 && c.fires <= d {
		return
	}
	t := now()
	c.fires = max(d, t+1)
	c.hub.timers.Set(&c.timer, c.fires)
}

func (c *Conn) onTimer(time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fires = 0
	if c.over || c.isDown {
		return
	}
	if c.e.GivesUp(now()) { // the answer may be in the queue
		c.mu.Unlock()
		c.hub.look()
		c.mu.Lock()
		if c.over || c.isDown {
			return
		}
	}
	c.e.Advance(now())
	c.shrink()
	c.settle(nil)
}

// teardown closes the queue pair; it may wait for the device, up to a second. What has been
// received stays, until the program closes the connection.
func (c *Conn) teardown() {
	c.mu.Lock()
	switch {
	case c.torn:
	case c.downBy: // a channel, as locks make the time of a synctest bubble stand still
		if c.tornC == nil {
			c.tornC = make(chan struct{})
		}
		torn := c.tornC
		c.mu.Unlock()
		<-torn
		c.mu.Lock()
	default:
		c.downBy = true
		c.mu.Unlock()
		c.cm.Close()
		c.mu.Lock()
		c.isDown = true
		c.hub.timers.Stop(&c.timer)
		c.mu.Unlock()
		c.hub.remove(c)
		c.mu.Lock()
		c.torn = true
		if c.tornC != nil {
			close(c.tornC)
		}
	}
	cause := c.cause
	c.mu.Unlock()
	c.tell(cause)
}

// tell calls Trace.Closed, once.
func (c *Conn) tell(cause error) {
	c.mu.Lock()
	first := !c.told
	c.told = true
	c.mu.Unlock()
	if t := c.cfg.Trace; first && t != nil && t.Closed != nil {
		t.Closed(c, cause)
	}
}

// LocalAddr and RemoteAddr give the ends of the connection, also after Close. They are of
// type Addr, and *net.TCPAddr if TCP carries the connection.
func (c *Conn) LocalAddr() net.Addr {
	if !c.ok() {
		return nil
	}
	if c.tcp != nil {
		return c.tcp.LocalAddr()
	}
	return c.local
}

// RemoteAddr: see LocalAddr.
func (c *Conn) RemoteAddr() net.Addr {
	if !c.ok() {
		return nil
	}
	if c.tcp != nil {
		return c.tcp.RemoteAddr()
	}
	return c.remote
}

// fail wraps the error of a call. io.EOF and ErrWouldBlock stay what they are.
func (c *Conn) fail(op string, err error) error {
	if err == nil || err == io.EOF || err == ErrWouldBlock {
		return err
	}
	return &net.OpError{Op: op, Net: "rdma", Source: c.local, Addr: c.remote, Err: err}
}

// errPipe is what writing gives for ever after an end.
var errPipe = &errnoError{errno: syscall.EPIPE}

// ended turns an error of the machine into that of the system for which it stands.
func ended(err error) error {
	var proto *stream.ProtocolError
	var have *errnoError
	switch {
	case err == nil || err == io.EOF:
		return err
	case errors.Is(err, stream.ErrShutdown), errors.Is(err, stream.ErrPeerClosed):
		return errPipe
	case errors.As(err, &have):
		return have
	case errors.Is(err, stream.ErrKeepAlive), errors.Is(err, stream.ErrLinger):
		return &errnoError{errno: syscall.ETIMEDOUT, cause: err}
	case errors.As(err, &proto):
		return &errnoError{errno: syscall.EPROTO, cause: err}
	case errors.Is(err, stream.ErrReset):
		var why *stream.PeerError
		if errors.As(err, &why) {
			return &errnoError{errno: syscall.ECONNRESET, cause: err}
		}
		return ErrTruncated
	}
	return &errnoError{errno: syscall.ECONNRESET, cause: err}
}

// SetDeadline sets both deadlines; see SetReadDeadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// SetReadDeadline sets the deadline of Read, for calls that block as well; the zero Time
// means none. A call that fails because of it gives an error that wraps
// os.ErrDeadlineExceeded, and loses nothing.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline sets the deadline of Write. A Write that fails because of it may have
// written a part, whose length it gives.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

func (c *Conn) setDeadlines(t time.Time, read, write bool) error {
	if !c.ok() {
		return errInvalid
	}
	if c.tcp != nil {
		switch {
		case read && write:
			return c.tcp.SetDeadline(t)
		case read:
			return c.tcp.SetReadDeadline(t)
		}
		return c.tcp.SetWriteDeadline(t)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.fail("set", net.ErrClosed)
	}
	if read {
		c.rdl.set(t, c.rdFire)
		if c.rdl.over && c.rd != nil {
			c.hub.wake(c.rd, nil)
		}
	}
	if write {
		c.wdl.set(t, c.wrFire)
		if c.wdl.over && c.wr != nil {
			c.hub.wake(c.wr, nil)
		}
	}
	c.showReady()
	return nil
}

// showReady has the descriptor, if there is one, tell what is so. mu is held.
func (c *Conn) showReady() {
	if c.ready.open {
		c.ready.set(c.readable(), c.writable())
	}
}

func (c *Conn) onReadDeadline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rdl.passed(c.rdFire) && c.rd != nil {
		c.hub.wake(c.rd, nil)
	}
	c.showReady()
}

func (c *Conn) onWriteDeadline() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wdl.passed(c.wrFire) && c.wr != nil {
		c.hub.wake(c.wr, nil)
	}
	c.showReady()
}

// pause waits until somebody wakes the waiter in slot. mu is given up meanwhile.
func (c *Conn) pause(slot **waiter) {
	w := c.hub.newWaiter()
	*slot = w
	c.stats.Sleeps++
	c.mu.Unlock()
	c.hub.wait(w, c.cfg.Spin)
	c.mu.Lock()
	*slot = nil
	c.stats.Wakeups++
	c.hub.freeWaiter(w)
}

// limits gives the error of a call that may not begin. mu is held.
func (c *Conn) limits(d *deadline) error {
	switch {
	case c.closed:
		return net.ErrClosed
	case d.expired():
		return os.ErrDeadlineExceeded
	}
	return nil
}
