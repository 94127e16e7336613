package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// ListenConfig says how to listen, as net.ListenConfig does.
type ListenConfig struct {
	// Backlog is how many connections may wait for Accept; then no more handshakes are
	// begun. (Of those that are going on, at most 1024, as many may come on top.) Further
	// requests are left to the system, which drops what is too much, so that peers ask again.
	// Zero: 1024; at most 65535, and more means that. It must not be negative.
	Backlog int
	// Config says how connections are made. Nil: the defaults.
	Config *Config
}

const (
	defaultBacklog = 1024
	maxBacklog     = 65535
	// portTries is how often a listener on both networks looks for a port that is free on
	// both.
	portTries = 16
)

// Listen listens with the defaults. Networks: rdma, rdma4, rdma6. An empty host is every
// address of every device, with rdma4 and rdma6 of that family; of a name with several
// addresses it is one, of IPv4 if there is such a one; port 0 is a port that is free, which
// Listener.Addr gives.
func Listen(network, address string) (*Listener, error) {
	var lc ListenConfig
	return lc.listen(context.Background(), network, address)
}

// Listen gives a *Listener. ctx bounds the look-up of a name only.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	l, err := lc.listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (lc *ListenConfig) listen(ctx context.Context, network, address string) (*Listener, error) {
	cfg, err := lc.Config.settle()
	if err == nil && lc.Backlog < 0 {
		err = &ConfigError{"ListenConfig.Backlog", int64(lc.Backlog), "at most 65535, and zero for the default"}
	}
	if err != nil {
		return nil, opError("listen", network, nil, nil, err)
	}
	t, err := lookup(ctx, network, address, true)
	if err != nil {
		return nil, opError("listen", network, nil, nil, err)
	}
	l := &Listener{cfg: cfg, network: network, backlog: min(lc.Backlog, maxBacklog)}
	if l.backlog == 0 {
		l.backlog = defaultBacklog
	}
	l.init()
	if err := l.bindOne(&t); err != nil {
		return nil, err
	}
	l.start()
	return l, nil
}

// bindOne binds to one address of a name: as in package net to one of IPv4, if there is one;
// so localhost is 127.0.0.1, and not ::1, over which embedded devices of two processes cannot
// meet. The next one is for devices without the one before, and not for a port that is taken.
func (l *Listener) bindOne(t *target) error {
	addrs := slices.Clone(t.addrs)
	slices.SortStableFunc(addrs, func(a, b netip.AddrPort) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	var first error
	for _, a := range addrs {
		err := l.bind(t.family, t.host, a)
		if err == nil {
			return nil
		}
		if first == nil {
			first = opError("listen", l.network, nil, Addr{a}, err)
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return first
}

// bind opens what the configuration asks for on one address.
func (l *Listener) bind(f family, host string, a netip.AddrPort) error {
	if l.cfg.Fallback != TCPFallback {
		return l.bindRDMA(f, host, a)
	}
	tries := 1
	if a.Port() == 0 {
		tries = portTries
	}
	for try := 1; ; try++ {
		err := l.bindBoth(f, host, a)
		if err == nil || try >= tries || !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
}

// bindBoth opens TCP, and RDMA on the port that TCP got. If this host has no RDMA, TCP is
// all there is.
func (l *Listener) bindBoth(f family, host string, a netip.AddrPort) error {
	where := net.JoinHostPort(host, fmt.Sprint(a.Port()))
	if host != "" {
		where = a.String()
	}
	var lc net.ListenConfig
	t, err := lc.Listen(context.Background(), f.tcp(), where)
	if err != nil {
		return err
	}
	tcp := t.(*net.TCPListener)
	port := uint16(tcp.Addr().(*net.TCPAddr).Port)
	err = l.bindRDMA(f, host, netip.AddrPortFrom(a.Addr(), port))
	if errors.Is(err, syscall.EADDRINUSE) || passes(err) {
		tcp.Close() // there is RDMA; not to serve both, for ever, would be a surprise
		return err
	}
	l.tcp = tcp
	if err != nil {
		l.why = err.Error()
		l.addr = Addr{netip.AddrPortFrom(a.Addr(), port)}
		if tr := l.cfg.Trace; tr != nil && tr.FellBack != nil {
			tr.FellBack(l.addr.String(), err)
		}
	}
	return nil
}

// passes reports whether an error is of this moment, and says nothing of what a host has.
func passes(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// bindRDMA opens the RDMA side.
func (l *Listener) bindRDMA(f family, host string, a netip.AddrPort) error {
	p, err := l.cfg.provider()
	if err != nil {
		return err
	}
	devices, err := verbs.Devices(p)
	if err == nil && len(devices) == 0 {
		err = verbs.ErrNoDevice
	}
	if err != nil {
		return err
	}
	where := a.String()
	if host == "" && f == anyFamily {
		where = fmt.Sprintf(":%d", a.Port()) // [::], or 0.0.0.0 on hosts without IPv6
	}
	ln, err := cm.Listen(p, where, &cm.Config{TOS: l.cfg.TOS, AFOnly: f == onlyIPv6, Backlog: l.backlog})
	if a.Port() != 0 && errors.Is(err, syscall.EADDRNOTAVAIL) {
		// So the kernel calls a port that is taken, if one of the two has all addresses. If
		// the address can be had with another port, that is what it means.
		free := where[:strings.LastIndexByte(where, ':')] + ":0"
		if other, oerr := cm.Listen(p, free, nil); oerr == nil {
			other.Close()
			err = &errnoError{errno: syscall.EADDRINUSE, cause: errors.New("somebody listens on this port of all addresses, or of one of them")}
		}
	}
	if err != nil {
		return err
	}
	l.cm, l.addr = ln, Addr{ln.Addr().(cm.Addr).AddrPort}
	return nil
}
