package cm

import (
	"context"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Route is the way to a peer: the device is known, the connection is not made.
type Route struct{ h half }

// resolveTries is how often an unanswered step is tried: with the time of one try
// doubling from 1 s, a minute for each address if the context has no deadline.
const resolveTries = 6

// Resolve finds device and path to a host:port. Names are resolved by Go's
// resolver, and all addresses of a name are tried, one after the other. The context
// bounds everything; if it has a deadline, each address gets its share of the time. An
// empty host means this host.
func Resolve(ctx context.Context, p verbs.Provider, addr string, cfg *Config) (*Route, error) {
	c, err := cfg.check(opResolveAddr)
	if err != nil {
		return nil, err
	}
	addrs, port, err := lookup(ctx, addr)
	if err == nil && ctx.Err() != nil {
		err = opError(opResolveAddr, ctx.Err()) // the kernel's answer may be faster than a look at ctx
	}
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		addrs = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)}
	}
	if src := c.LocalAddr.Addr(); src.IsValid() {
		addrs = sameFamily(addrs, src)
		if len(addrs) == 0 {
			return nil, &OpError{Op: opResolveAddr, Local: c.LocalAddr, Err: wrong("cm: " + addr + " has no address of the family of Config.LocalAddr")}
		}
	}
	return resolve(ctx, p, addrs, &c)
}

// resolve tries addresses in order.
func resolve(ctx context.Context, p verbs.Provider, addrs []netip.AddrPort, c *Config) (*Route, error) {
	var errs addrErrors
	for i, a := range addrs {
		id, err := resolveOne(ctx, p, a, c, len(addrs)-i)
		if err == nil {
			return &Route{half{id: id}}, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errs.err()
}

func sameFamily(addrs []netip.AddrPort, a netip.Addr) []netip.AddrPort {
	var same []netip.AddrPort
	for _, x := range addrs {
		if x.Addr().Is4() == a.Unmap().Is4() {
			same = append(same, x)
		}
	}
	return same
}

// resolveOne resolves one address; left counts it and those after it.
func resolveOne(ctx context.Context, p verbs.Provider, dst netip.AddrPort, c *Config, left int) (*ID, error) {
	if dst.Addr().IsUnspecified() { // this host, as package net has it
		lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if dst.Addr().Is6() {
			lo = netip.IPv6Loopback()
		}
		dst = netip.AddrPortFrom(lo, dst.Port())
	}
	ctx, cancel := share(ctx, left)
	defer cancel()
	id, err := NewID(p, c.PortSpace)
	if err != nil {
		return nil, err
	}
	if err = c.options(id); err == nil {
		err = retry(ctx, c.Retry, func(limit time.Duration) error {
			if err := id.resolveAddr(c.LocalAddr, dst, limit); err != nil {
				return err
			}
			return id.await(ctx, opResolveAddr, func() (bool, error) { return id.state != stateAddrQuery, id.opErr })
		})
	}
	if err == nil {
		err = retry(ctx, c.Retry, func(limit time.Duration) error {
			if err := id.resolveRoute(limit); err != nil {
				return err
			}
			return id.await(ctx, opResolveRoute, func() (bool, error) { return id.state != stateRouteQuery, id.opErr })
		})
	}
	if err != nil {
		id.Close()
		return nil, err
	}
	return id, nil
}

// retry tries a step that nobody answered again, with doubling limits.
func retry(ctx context.Context, limit time.Duration, try func(limit time.Duration) error) error {
	for n := 1; ; n++ {
		err := try(limit)
		if err == nil || n == resolveTries || ctx.Err() != nil || !isErrno(err, syscall.ETIMEDOUT) {
			return err
		}
		limit *= 2
	}
}

// share gives a part of the time that ctx leaves to one of several addresses, but not
// less than two seconds of it.
func share(ctx context.Context, left int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || left <= 1 {
		return context.WithCancel(ctx)
	}
	all := time.Until(end)
	part := max(all/time.Duration(left), 2*time.Second)
	if part >= all {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, part)
}

// ID gives the id below, for what this floor does not have; its calls wait. It is nil
// for a nil Route.
func (r *Route) ID() *ID {
	if r == nil {
		return nil
	}
	return r.h.id
}

// Device gives the device towards the peer: what the queue pair needs is to be made on
// it.
func (r *Route) Device() *verbs.Device { return r.ID().Device() }

// Port gives the port of the device, from 1.
func (r *Route) Port() int { return r.ID().Port() }

// RemoteAddr gives the address that was resolved.
func (r *Route) RemoteAddr() netip.AddrPort { return r.ID().RemoteAddr() }

// LocalAddr gives the address from which the connection will come.
func (r *Route) LocalAddr() netip.AddrPort { return r.ID().LocalAddr() }

// CreateQP makes the queue pair, ready for receives. Post them before Connect. See
// ID.CreateQP.
func (r *Route) CreateQP(pd *verbs.PD, cfg verbs.QPConfig) (*verbs.QP, error) {
	return r.ID().CreateQP(pd, cfg)
}

// Connect connects and waits. If ctx ends, the attempt is withdrawn and everything
// that the route made is closed before Connect returns: memory named in posted
// receives is the caller's again. So it is after every other failure. It can be called
// once: a new try needs a new Route and a new queue pair. Without a deadline the
// connection manager gives up after a minute or more.
func (r *Route) Connect(ctx context.Context, p *ConnParam) (*Conn, error) {
	if r == nil {
		return nil, opError(opConnect, wrong("cm: the route is nil"))
	}
	if err := r.h.begin(opConnect); err != nil {
		return nil, err
	}
	id := r.h.id
	err := id.fail(opConnect, ctx.Err())
	if err == nil {
		if err = id.connect(p); err == nil {
			err = id.await(ctx, opConnect, func() (bool, error) { return id.state != stateConnecting, id.opErr })
		}
	}
	return r.h.finish(opConnect, err)
}

// Close gives the route up and closes what it made, unless it became a connection. A
// call of Connect in progress fails. It is idempotent.
func (r *Route) Close() error {
	if r == nil {
		return opError(opClose, wrong("cm: the route is nil"))
	}
	return r.h.close()
}
