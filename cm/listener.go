package cm

import (
	"context"
	"iter"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config of Listen and Resolve; nil and zero fields mean the defaults.
type Config struct {
	PortSpace ib.PortSpace   // zero: TCP. Datagram services have no connections: use ID
	LocalAddr netip.AddrPort // Resolve only
	TOS       uint8
	ReuseAddr bool
	AFOnly    bool          // Listen only: [::] takes no IPv4 (ID.SetAFOnly)
	Backlog   int           // Listen only; zero: the system's limit
	Retry     time.Duration // Resolve: time for one try of an unanswered step; zero: 1 s, doubling
}

// check gives a Config without nil and with the defaults.
func (c *Config) check(op string) (Config, error) {
	if c == nil {
		c = &Config{}
	}
	cfg := *c
	if cfg.PortSpace == 0 {
		cfg.PortSpace = ib.PortSpaceTCP
	}
	if cfg.Retry == 0 {
		cfg.Retry = time.Second
	}
	switch {
	case datagram(cfg.PortSpace):
		return cfg, opError(op, wrong("cm: port space "+cfg.PortSpace.String()+" has no connections: use EventChannel.NewID or NewID"))
	case cfg.Retry < 0:
		return cfg, opError(op, wrong("cm: Config.Retry is negative"))
	case cfg.Backlog < 0:
		return cfg, opError(op, wrong("cm: Config.Backlog is negative"))
	}
	return cfg, nil
}

// options sets the options of an id.
func (c *Config) options(id *ID) error {
	if c.TOS != 0 {
		if err := id.SetTOS(c.TOS); err != nil {
			return err
		}
	}
	if c.ReuseAddr {
		return id.SetReuseAddr(true)
	}
	return nil
}

// Listener gives requests. It is not a net.Listener: a Request needs decisions
// (which queue pair, which receives) before it is a connection.
type Listener struct {
	ch *EventChannel // its own: requests stay in the system, and count there, until Accept
	id *ID
	d  *dispatcher // takes the events of the requests

	released atomic.Bool
}

// Listen binds and listens. The address is host:port; an empty host means every
// device; port 0 lets the system choose. A name is looked up, and its first address
// that can be bound is taken. It blocks for the look-up only.
func Listen(p verbs.Provider, addr string, cfg *Config) (*Listener, error) {
	c, err := cfg.check(opListen)
	if err != nil {
		return nil, err
	}
	addrs, port, err := lookup(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 { // [::] takes IPv4 as well; a host without IPv6 does not have it
		l, err := listen(p, netip.AddrPortFrom(netip.IPv6Unspecified(), port), &c)
		if err == nil || !isErrno(err, syscall.EAFNOSUPPORT, syscall.EADDRNOTAVAIL, syscall.EPROTONOSUPPORT) {
			return l, err
		}
		return listen(p, netip.AddrPortFrom(netip.IPv4Unspecified(), port), &c)
	}
	var errs addrErrors
	for _, a := range addrs {
		l, err := listen(p, a, &c)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, errs.err()
}

func listen(p verbs.Provider, a netip.AddrPort, c *Config) (*Listener, error) {
	d, err := acquire(p)
	if err != nil {
		return nil, err
	}
	l := &Listener{d: d}
	if l.ch, err = newRequests(p); err == nil {
		if l.id, err = l.ch.NewID(c.PortSpace); err == nil {
			err = c.options(l.id)
		}
	}
	if err == nil && c.AFOnly {
		err = l.id.SetAFOnly(true)
	}
	if err == nil {
		err = l.id.Bind(a)
	}
	if err == nil {
		err = l.id.Listen(c.Backlog)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// Addr gives the address that the listener is bound to, an Addr. If the host was empty
// its IP address is unspecified.
func (l *Listener) Addr() net.Addr {
	if l == nil || l.id == nil {
		return nil
	}
	return Addr{l.id.LocalAddr()}
}

// Accept waits for a request of a peer. It may be called by several goroutines. If ctx
// has ended it gives ctx's error and no request is lost. After Close the error wraps
// net.ErrClosed; verbs.ErrDeviceGone if the device of the address was removed.
//
// Requests that are not accepted wait in the system, which drops what is beyond the
// backlog without an answer, so that peers try again after seconds. One for which the process
// has no descriptor or no memory left is refused, and Accept gives the errno (EMFILE, ENFILE,
// ENOMEM); the next call waits for the next request.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	if l == nil || l.id == nil {
		return nil, opError(opRequest, wrong("cm: the listener is nil or zero"))
	}
	ev, err := l.id.nextRequest(ctx, l.ch, l.d)
	if err != nil {
		return nil, err
	}
	return newRequest(&ev), nil
}

// Requests waits for one request after the other. The last pair carries the error that
// ended it; breaking out is allowed at any time and loses nothing.
func (l *Listener) Requests(ctx context.Context) iter.Seq2[*Request, error] {
	return func(yield func(*Request, error) bool) { l.requests(ctx, yield) }
}

func (l *Listener) requests(ctx context.Context, yield func(*Request, error) bool) {
	for {
		r, err := l.Accept(ctx)
		if !yield(r, err) || err != nil {
			return
		}
	}
}

// FD gives a descriptor that is readable while Accept has something to look at, for
// programs with their own event loop. See EventChannel.FD.
func (l *Listener) FD() (int, error) {
	if l == nil || l.id == nil {
		return -1, opError(opRequest, wrong("cm: the listener is nil or zero"))
	}
	return l.ch.FD()
}

// Close stops listening and wakes who waits in Accept. Peers whose requests nobody
// took are rejected; requests that Accept gave can still be accepted. It does not
// block.
func (l *Listener) Close() error {
	if l == nil || l.id == nil {
		return opError(opClose, wrong("cm: the listener is nil or zero"))
	}
	return l.close()
}

func (l *Listener) close() error {
	var err error
	if l.id != nil {
		err = l.id.Close()
	}
	if l.ch != nil {
		l.ch.Close()
	}
	if l.released.CompareAndSwap(false, true) {
		l.d.release()
	}
	return err
}
