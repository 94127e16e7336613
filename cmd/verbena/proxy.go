package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rdma "github.com/verbena-rdma/verbena"
)

var proxyCommand = &command{
	name:  "proxy",
	args:  "-listen NET://ADDR -to NET://ADDR [-flags]",
	short: "carry an unmodified TCP service over RDMA",
	run:   runProxy,
}

const proxyText = `
Proxy takes connections on one address and carries each to another one. Two of them
carry a TCP service over RDMA, and neither its clients nor its server change:

  verbena proxy -listen rdma://10.0.0.1:7000 -to tcp://127.0.0.1:6379      at the server
  verbena proxy -listen tcp://127.0.0.1:6379 -to rdma://10.0.0.1:7000      at the client

NET is tcp, tcp4, tcp6, rdma, rdma4 or rdma6. An end of one direction (half close) is
passed on as such, and a connection that is reset or cannot be made is a reset to the
other side. A peer that reads slowly, or not at all for a while, loses nothing. An
interrupt stops listening, and gives the connections -grace to end.

Whoever reaches the address of -listen reaches the service behind -to: RDMA neither
encrypts nor knows who asks.`

// proxyOptions are the flags of proxy, checked.
type proxyOptions struct {
	listen, to endpointURL
	max        int
	timeout    time.Duration // of a dial
	keepAlive  time.Duration
	idle       time.Duration // 0: for ever
	grace      time.Duration
	verbose    bool
}

func runProxy(ctx context.Context, e *env, args []string) error {
	var o proxyOptions
	fs := e.flags()
	listen := fs.String("listen", "", "take connections on `NET://ADDR`; without host all addresses")
	to := fs.String("to", "", "carry them to `NET://ADDR`")
	fs.IntVar(&o.max, "max", 1024, "carry at most `COUNT` connections at a time; further ones are reset")
	fs.DurationVar(&o.timeout, "timeout", 10*time.Second, "give up a connection to -to that takes longer")
	fs.DurationVar(&o.keepAlive, "keepalive", 15*time.Second, "ask a silent peer for a sign of life after `DURATION`; a dead one is found in about twice that")
	fs.DurationVar(&o.idle, "idle", 0, "reset a connection that has carried nothing for `DURATION`, or up to twice that; 0: never")
	fs.DurationVar(&o.grace, "grace", 5*time.Second, "how long connections may go on after an interrupt, and what is left of one that has broken")
	fs.BoolVar(&o.verbose, "v", false, "show every connection")
	if err := e.parse(fs, args, proxyText); err != nil {
		return err
	}
	if err := o.check(*listen, *to, fs.Args()); err != nil {
		return err
	}
	return newProxy(&o, e.stdout).run(ctx)
}

func (o *proxyOptions) check(listen, to string, rest []string) (err error) {
	wrong := func(format string, args ...any) error { return &usageError{text: fmt.Sprintf(format, args...)} }
	switch {
	case len(rest) > 0:
		return wrong("arguments that it does not take: %s", strings.Join(rest, " "))
	case listen == "" || to == "":
		return wrong("say where to listen (-listen NET://ADDR) and where to carry connections to (-to NET://ADDR)")
	case o.max < 1:
		return wrong("-max %d: at least 1", o.max)
	case o.timeout <= 0:
		return wrong("-timeout %v: more than 0", o.timeout)
	case o.keepAlive < time.Second:
		return wrong("-keepalive %v: at least 1s", o.keepAlive)
	case o.idle < 0:
		return wrong("-idle %v: at least 0", o.idle)
	case o.grace < 0:
		return wrong("-grace %v: at least 0", o.grace)
	}
	if o.listen, err = parseEndpointURL(listen); err != nil {
		return wrong("-listen %v", err)
	}
	if o.to, err = parseEndpointURL(to); err != nil {
		return wrong("-to %v", err)
	}
	if host, port, _ := net.SplitHostPort(o.to.addr); host == "" || port == "0" {
		return wrong("-to %s: it needs a host and a port", to)
	}
	return nil
}

// endpointURL is NET://HOST:PORT.
type endpointURL struct{ network, addr string }

func (u endpointURL) String() string { return u.network + "://" + u.addr }
func (u endpointURL) isRDMA() bool   { return strings.HasPrefix(u.network, "rdma") }

var proxyNetworks = []string{"tcp", "tcp4", "tcp6", "rdma", "rdma4", "rdma6"}

func parseEndpointURL(s string) (endpointURL, error) {
	network, addr, ok := strings.Cut(s, "://")
	if !ok || !slices.Contains(proxyNetworks, network) {
		return endpointURL{}, fmt.Errorf("%q: want NET://HOST:PORT with NET one of %s", s, strings.Join(proxyNetworks, ", "))
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return endpointURL{}, fmt.Errorf("%q: want NET://HOST:PORT: %v", s, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return endpointURL{}, fmt.Errorf("%q: %q is no port number", s, port)
	}
	return endpointURL{network, addr}, nil
}

// duplex is what both networks have.
type duplex interface {
	net.Conn
	CloseWrite() error
	SetLinger(sec int) error
	SetKeepAliveConfig(net.KeepAliveConfig) error
}

var (
	_ duplex = (*net.TCPConn)(nil)
	_ duplex = (*rdma.Conn)(nil)
)

// proxy carries connections from one listener to one address.
type proxy struct {
	o   *proxyOptions
	log *log.Logger

	carried, failed atomic.Int64 // connections that have ended
	quiet           complaints
	resets          chan struct{} // a place for each that goes on in the background

	mu    sync.Mutex
	links map[*link]bool
	wg    sync.WaitGroup
}

func newProxy(o *proxyOptions, out io.Writer) *proxy {
	return &proxy{o: o, log: log.New(out, "", log.LstdFlags), links: map[*link]bool{}, resets: make(chan struct{}, maxResets)}
}

var errStopped = errors.New("the proxy was stopped")

// run carries connections until ctx ends, or nothing can be taken any more.
func (p *proxy) run(ctx context.Context) error {
	ln, err := p.open(ctx)
	if err != nil {
		return err
	}
	note := ""
	if p.o.listen.isRDMA() || p.o.to.isRDMA() {
		_, what, err := provider()
		if err != nil {
			return errors.Join(err, ln.Close())
		}
		note = " (RDMA by " + what + ")"
	}
	p.log.Printf("listening on %s://%v, carrying to %v%s, at most %d connections", p.o.listen.network, ln.Addr(), p.o.to, note, p.o.max)
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	// Links outlive ctx by the grace.
	linkCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	err = p.accept(linkCtx, ln)
	if stop() {
		ln.Close()
	}
	if ctx.Err() != nil {
		err = nil
	}
	p.drain(cancel)
	p.log.Printf("ended: %d connections carried, %d failed", p.carried.Load(), p.failed.Load())
	return err
}

// open listens.
func (p *proxy) open(ctx context.Context) (net.Listener, error) {
	u := p.o.listen
	if u.isRDMA() {
		cfg := p.config()
		cfg.Trace = &rdma.Trace{Refused: func(peer netip.AddrPort, err error) {
			if !peer.IsValid() {
				p.complain("%v; trying again", err)
				return
			}
			p.complain("%v: not accepted: %v", peer, err)
		}}
		return (&rdma.ListenConfig{Config: cfg}).Listen(ctx, u.network, u.addr)
	}
	return (&net.ListenConfig{}).Listen(ctx, u.network, u.addr)
}

// config: a peer may take its time to read what is left, see link.end.
func (p *proxy) config() *rdma.Config {
	return &rdma.Config{KeepAlive: p.o.keepAlive, Linger: math.MaxInt64}
}

// dial makes the second half of a link.
func (p *proxy) dial(ctx context.Context) (duplex, error) {
	u := p.o.to
	var c net.Conn
	var err error
	if u.isRDMA() {
		c, err = (&rdma.Dialer{Timeout: p.o.timeout, Config: p.config()}).DialContext(ctx, u.network, u.addr)
	} else {
		c, err = (&net.Dialer{Timeout: p.o.timeout}).DialContext(ctx, u.network, u.addr)
	}
	if err != nil {
		return nil, err
	}
	return c.(duplex), nil
}

// maxTCPKeepAlive is the longest time that Linux takes.
const maxTCPKeepAlive = 32767 * time.Second

// keep has dead peers of silent connections found; of others see link.watch.
func (p *proxy) keep(c duplex) error {
	d := p.o.keepAlive
	if _, ok := c.(*net.TCPConn); ok {
		d = min(d, maxTCPKeepAlive)
	}
	return c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: d, Interval: max(d/4, time.Second), Count: 4})
}

// accept takes connections until the listener is closed. What passes, as the want of
// descriptors or of memory, is waited out; a listener of RDMA does so itself.
func (p *proxy) accept(ctx context.Context, ln net.Listener) error {
	var pause time.Duration
	for {
		c, err := ln.Accept()
		if err == nil {
			pause = 0
			p.begin(ctx, c.(duplex))
			continue
		}
		if errors.Is(err, net.ErrClosed) || p.o.listen.isRDMA() {
			return err
		}
		p.complain("%v; trying again", err)
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		time.Sleep(pause)
	}
}

// begin starts a link, if there may be one more.
func (p *proxy) begin(ctx context.Context, c duplex) {
	l := &link{p: p, near: c, begun: time.Now()}
	p.mu.Lock()
	full := len(p.links) >= p.o.max
	if !full {
		p.links[l] = true
		p.wg.Add(1)
	}
	p.mu.Unlock()
	if full {
		p.failed.Add(1)
		p.complain("%v: reset: there are %d connections already (-max)", c.RemoteAddr(), p.o.max)
		p.refuse(c)
		return
	}
	go func() {
		defer p.wg.Done()
		l.run(ctx)
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
}

// maxResets bounds the refusals under way: one over RDMA may take a second if the peer is
// dead. More hold up the listener, whose backlog is bounded as well.
const maxResets = 64

// refuse resets a connection that is not carried.
func (p *proxy) refuse(c duplex) {
	p.resets <- struct{}{}
	p.wg.Go(func() {
		reset(c)
		<-p.resets
	})
}

// drain waits for the links, and resets those that are left after the grace.
func (p *proxy) drain(cancel context.CancelFunc) {
	p.mu.Lock()
	n := len(p.links)
	p.mu.Unlock()
	if n > 0 {
		p.log.Printf("stopping: %d connections have %v to end", n, p.o.grace)
	}
	late := time.AfterFunc(p.o.grace, func() {
		cancel()
		p.mu.Lock()
		links := make([]*link, 0, len(p.links))
		for l := range p.links {
			links = append(links, l)
		}
		p.mu.Unlock()
		for _, l := range links {
			go l.abort(errStopped)
		}
	})
	p.wg.Wait()
	late.Stop()
}

// complain logs what went wrong, but not more than a reader can take.
func (p *proxy) complain(format string, args ...any) {
	ok, lost := p.quiet.allow(time.Now())
	if lost > 0 {
		p.log.Printf("%d more complaints are not shown", lost)
	}
	if ok {
		p.log.Printf(format, args...)
	}
}

// complaints bounds the lines that peers can cause.
type complaints struct {
	mu    sync.Mutex
	since time.Time
	n     int
}

// perSecond is how many complaints are shown.
const perSecond = 10

// allow reports whether there may be one now, and how many were not shown before.
func (c *complaints) allow(now time.Time) (ok bool, lost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.since) >= time.Second {
		lost = max(c.n-perSecond, 0)
		c.since, c.n = now, 0
	}
	c.n++
	return c.n <= perSecond, lost
}
