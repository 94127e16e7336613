package rdma

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cm"
)

// Dialer makes connections. Its methods are those of net.Dialer, so that it fits where a
// func(ctx, network, addr) (net.Conn, error) is wanted. The zero Dialer is ready. It may
// be used by several goroutines.
type Dialer struct {
	// Timeout bounds a dial, name look-up and all addresses included; zero: the connection
	// manager gives up after a minute or more for each address.
	Timeout time.Duration
	// Deadline is the same as a point in time. The earlier one counts.
	Deadline time.Time
	// LocalAddr is the address to come from: an Addr, a *net.TCPAddr, or anything whose
	// String is host:port. Nil: the system's choice. Its port may be 0.
	LocalAddr net.Addr
	// FallbackDelay is how long the addresses of one IP family are tried alone before
	// those of the other are tried beside them (RFC 8305). Zero: 300 ms; negative: one
	// after the other.
	FallbackDelay time.Duration
	// Config says how connections are made. Nil: the defaults.
	Config *Config
}

const (
	defaultFallbackDelay = 300 * time.Millisecond
	// leastShare is what each of several addresses gets of the time, if there is so much.
	leastShare = 2 * time.Second
)

// Dial connects to host:port with the defaults, and waits for that: for a minute or more if
// nobody answers. Networks: rdma, rdma4, rdma6. An empty host is this one. Errors are
// *net.OpError, as those of net.Dial.
func Dial(network, address string) (*Conn, error) {
	var d Dialer
	return d.dial(context.Background(), network, address)
}

// DialTimeout is Dial with a limit of time; zero means none.
func DialTimeout(network, address string, timeout time.Duration) (*Conn, error) {
	d := Dialer{Timeout: timeout}
	return d.dial(context.Background(), network, address)
}

// Dial gives a *Conn; see DialContext.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext gives a *Conn. If a name has several addresses they are tried in order, each
// with its share of the time, and those of the second IP family beside those of the first
// after FallbackDelay. The end of ctx ends the attempt, and has no effect once the
// connection is made; it must not be nil.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, address string) (*Conn, error) {
	if ctx == nil {
		panic("rdma: nil context")
	}
	cfg, err := d.Config.settle()
	if err != nil {
		return nil, opError("dial", network, d.LocalAddr, nil, err)
	}
	if end := d.end(time.Now()); !end.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	t, err := lookup(ctx, network, address, false)
	if err != nil {
		return nil, opError("dial", network, d.LocalAddr, nil, err)
	}
	a := attempt{cfg: &cfg, network: network, family: t.family}
	addrs := t.addrs
	if d.LocalAddr != nil {
		ap, ok := addrPortOf(d.LocalAddr)
		if !ok {
			return nil, opError("dial", network, d.LocalAddr, nil, &net.AddrError{Err: "unexpected local address", Addr: d.LocalAddr.String()})
		}
		a.local = ap
		if addrs = sameFamily(addrs, ap.Addr()); len(addrs) == 0 {
			return nil, opError("dial", network, d.LocalAddr, Addr{t.addrs[0]}, &net.AddrError{Err: "mismatched local address type", Addr: d.LocalAddr.String()})
		}
	}
	delay := d.FallbackDelay
	if delay == 0 {
		delay = defaultFallbackDelay
	}
	primaries, fallbacks := partition(addrs)
	if delay < 0 {
		primaries, fallbacks = addrs, nil
	}
	return a.parallel(ctx, primaries, fallbacks, delay)
}

// end gives the point in time at which a dial ends; zero: there is none.
func (d *Dialer) end(now time.Time) time.Time {
	end := d.Deadline
	if d.Timeout != 0 {
		if t := now.Add(d.Timeout); (end.IsZero() || t.Before(end)) && t.After(now) == (d.Timeout > 0) { // else it overflows
			end = t
		}
	}
	return end
}

func sameFamily(addrs []netip.AddrPort, a netip.Addr) []netip.AddrPort {
	if a.IsUnspecified() && a.Is6() { // see attempt.from
		return addrs
	}
	var same []netip.AddrPort
	for _, x := range addrs {
		if x.Addr().Is4() == a.Is4() {
			same = append(same, x)
		}
	}
	return same
}

// attempt is a dial whose target is looked up.
type attempt struct {
	cfg     *Config
	network string
	family  family
	local   netip.AddrPort // not valid: the system's choice
}

// parallel tries two lists of addresses: the second one after a delay, or when the first
// has failed.
func (a *attempt) parallel(ctx context.Context, primaries, fallbacks []netip.AddrPort, delay time.Duration) (*Conn, error) {
	if a.cfg.Fallback == TCPFallback {
		f := &fallback{attempt: a, ctx: ctx, why: map[netip.AddrPort]noRDMA{}}
		return f.dial(primaries, fallbacks, delay)
	}
	return a.race(ctx, primaries, fallbacks, delay, leastShare, a.one)
}

// try connects to one address.
type try func(context.Context, netip.AddrPort) (*Conn, error)

// race does so in one way. The loser is closed. least is what each address has of the time.
func (a *attempt) race(ctx context.Context, primaries, fallbacks []netip.AddrPort, delay, least time.Duration, one try) (*Conn, error) {
	if len(fallbacks) == 0 {
		return a.serial(ctx, primaries, least, one)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		c       *Conn
		err     error
		primary bool
	}
	results := make(chan result)
	returned := make(chan struct{})
	defer close(returned)
	run := func(addrs []netip.AddrPort, primary bool) {
		c, err := a.serial(ctx, addrs, least, one)
		select {
		case results <- result{c, err, primary}:
		case <-returned:
			if c != nil {
				c.abort()
			}
		}
	}
	go run(primaries, true)
	timer := time.NewTimer(delay)
	defer timer.Stop()
	running, started := 1, false
	var first error
	for {
		select {
		case <-timer.C:
			if !started {
				started = true
				running++
				go run(fallbacks, false)
			}
		case r := <-results:
			if r.err == nil {
				return r.c, nil
			}
			running--
			if first == nil || r.primary {
				first = r.err
			}
			if !started {
				started = true
				running++
				go run(fallbacks, false)
			}
			if running == 0 {
				return nil, first
			}
		}
	}
}

// serial tries addresses in order, and gives the first error if none works.
func (a *attempt) serial(ctx context.Context, addrs []netip.AddrPort, least time.Duration, one try) (*Conn, error) {
	var first error
	for i, to := range addrs {
		if err := ctx.Err(); err != nil {
			if first == nil {
				first = a.fail(to, err)
			}
			break
		}
		part, cancel := share(ctx, len(addrs)-i, least)
		c, err := one(part, to)
		cancel()
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = a.fail(to, err)
		}
	}
	return nil, first
}

// share gives one of several addresses its part of the time that ctx leaves.
func share(ctx context.Context, left int, least time.Duration) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || left <= 1 {
		return ctx, func() {}
	}
	all := time.Until(end)
	return context.WithTimeout(ctx, min(max(all/time.Duration(left), least), all))
}

// from gives the local address for one target: the wildcard [::] stands for both families,
// as it does to package net.
func (a *attempt) from(to netip.AddrPort) netip.AddrPort {
	if to.Addr().Is4() && a.local.Addr() == netip.IPv6Unspecified() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), a.local.Port())
	}
	return a.local
}

func (a *attempt) fail(to netip.AddrPort, err error) error {
	var source net.Addr
	if a.local.IsValid() {
		source = Addr{a.local}
	}
	return opError("dial", a.network, source, Addr{to}, err)
}

// one tries one address over RDMA.
func (a *attempt) one(ctx context.Context, to netip.AddrPort) (*Conn, error) {
	start := time.Now()
	c, err := a.rdma(ctx, to)
	a.connected(c, time.Since(start), err)
	return c, err
}

// connected tells what has become of an address.
func (a *attempt) connected(c *Conn, took time.Duration, err error) {
	if t := a.cfg.Trace; t != nil && t.Connected != nil {
		t.Connected(c, took, err)
	}
}

// rdma connects to one address over RDMA.
func (a *attempt) rdma(ctx context.Context, to netip.AddrPort) (*Conn, error) {
	if to.Port() == 0 {
		return nil, &errnoError{errno: syscall.ECONNREFUSED, cause: errors.New("nobody listens on port 0")}
	}
	start := time.Now()
	p, err := a.cfg.provider()
	var route *cm.Route
	if err == nil {
		route, err = cm.Resolve(ctx, p, to.String(), &cm.Config{LocalAddr: a.from(to), TOS: a.cfg.TOS})
	}
	if t := a.cfg.Trace; t != nil && t.Resolved != nil {
		name := ""
		if err == nil {
			name = route.Device().Info().Name
		}
		t.Resolved(to, name, time.Since(start), err)
	}
	if err != nil {
		return nil, err
	}
	return connect(ctx, a.cfg, route)
}
