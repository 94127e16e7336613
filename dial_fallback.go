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
)

// tcpDelay bounds the try of RDMA if TCP may take its place: a host without RDMA does not
// answer at all.
const tcpDelay = 2 * time.Second

// fallback is a dial that takes TCP if no address has RDMA: that of the first address might
// be had long before.
type fallback struct {
	*attempt
	ctx context.Context // of the program

	mu  sync.Mutex
	why map[netip.AddrPort]noRDMA
}

// noRDMA says why an address has no RDMA, and how long it took to know.
type noRDMA struct {
	err  error
	took time.Duration
}

func (f *fallback) dial(primaries, fallbacks []netip.AddrPort, delay time.Duration) (*Conn, error) {
	limit := tcpDelay
	if end, ok := f.ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	brief, cancel := context.WithTimeout(f.ctx, limit)
	defer cancel()
	c, err := f.race(brief, primaries, fallbacks, min(delay, limit/2), 0, f.rdma)
	if err != nil && f.ctx.Err() == nil {
		return f.race(f.ctx, primaries, fallbacks, delay, leastShare, f.tcp)
	}
	f.mu.Lock()
	why := f.why
	f.why = nil
	f.mu.Unlock()
	for _, x := range why { // nothing comes in their place
		f.connected(nil, x.took, x.err)
	}
	return c, err
}

// rdma tries one address within the time that RDMA has. The end of that is no deadline of the
// program, but the silence of the peer.
func (f *fallback) rdma(ctx context.Context, to netip.AddrPort) (*Conn, error) {
	start := time.Now()
	c, err := f.attempt.rdma(ctx, to)
	took := time.Since(start)
	switch {
	case err == nil || f.ctx.Err() != nil:
		f.connected(c, took, err)
		return c, err
	case errors.Is(err, context.DeadlineExceeded):
		err = &errnoError{errno: syscall.ETIMEDOUT, cause: fmt.Errorf("no answer in %v", took.Round(time.Millisecond))}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.why != nil { // else another address has won
		f.why[to] = noRDMA{err, took}
	}
	return nil, err
}

// tcp connects to one address over TCP.
func (f *fallback) tcp(ctx context.Context, to netip.AddrPort) (*Conn, error) {
	start := time.Now()
	f.mu.Lock()
	why, ok := f.why[to]
	f.mu.Unlock()
	if !ok {
		why.err = &errnoError{errno: syscall.ETIMEDOUT, cause: errors.New("others have taken the time for RDMA")}
	}
	if t := f.cfg.Trace; t != nil && t.FellBack != nil {
		t.FellBack(to.String(), why.err)
	}
	var d net.Dialer
	if f.local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(f.from(to))
	}
	var c *Conn
	t, err := d.DialContext(ctx, f.family.tcp(), to.String())
	if err != nil {
		err = neither(err, why.err)
	} else {
		c = newTCPConn(t.(*net.TCPConn), f.cfg, why.err.Error())
	}
	f.connected(c, why.took+time.Since(start), err)
	return c, err
}

// neither gives the error of a dial that got neither RDMA nor TCP. A program that has ended it
// is told that alone.
func neither(tcp, rdma error) error {
	if errors.Is(tcp, context.Canceled) {
		return context.Canceled
	}
	if op, ok := tcp.(*net.OpError); ok { // our own comes around it
		tcp = op.Err
	}
	if errors.Is(tcp, context.DeadlineExceeded) || errors.Is(tcp, os.ErrDeadlineExceeded) {
		tcp = timeoutError{}
	}
	return &neitherError{tcp: tcp, rdma: rdma}
}
