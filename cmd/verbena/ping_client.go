package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// client is the side that pings. Its goroutine says what to do and waits; handlers,
// which may run in other goroutines, follow the exchange.
type client struct {
	o    *pingOptions
	p    *printer
	to   netip.AddrPort
	w    waiter
	ep   endpoint
	tcp  *tcpClient
	rdma *stats

	mu      sync.Mutex
	reached map[cm.EventType]bool
	err     error // the first failure
	closing bool  // ends are expected
	open    bool  // the queue's goroutine, or place in the loop, is there
	state   clientState
	begun   time.Time
	took    time.Duration // of the last exchange
}

func runClient(ctx context.Context, o *pingOptions, to netip.AddrPort, p *printer) error {
	defer p.flush()
	c := &client{o: o, p: p, to: to, rdma: newStats(), reached: map[cm.EventType]bool{}}
	c.ep.all = o.verbose
	return c.run(ctx)
}

func (c *client) run(ctx context.Context) (err error) {
	prov, what, err := provider()
	if err != nil {
		return err
	}
	ch, err := cm.NewEventChannel(prov)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ch.Close()) }()
	if c.w, err = waitModes[c.o.wait](ctx, ch, handlers{cm: c.onCM, async: c.onAsync}); err != nil {
		return err
	}
	defer c.w.close()
	if c.ep.id, err = ch.NewID(ib.PortSpaceTCP); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.connect(ctx); err != nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return fmt.Errorf("%v: %s", c.to, why(err, c.o.timeout))
	}
	c.p.linef("PING %v from %v on %s (%s): %d bytes, waiting with %s",
		c.to, c.ep.id.LocalAddr().Addr(), c.ep.id.Device().Info().Name, what, c.o.size, c.o.wait)
	noTCP := "switched off"
	if c.o.tcp {
		var err error
		if c.tcp, err = dialTCP(ctx, c.ep.id.LocalAddr().Addr(), c.to, c.o); err != nil {
			noTCP = err.Error()
		} else {
			defer c.tcp.close()
		}
	}
	started := time.Now()
	err = c.exchanges(ctx)
	if c.rdma.count() > 0 {
		c.summary(time.Since(started), noTCP)
	}
	switch {
	case ctx.Err() != nil && c.rdma.count() == 0:
		return errInterrupted
	case ctx.Err() != nil:
		return nil // stopped as wished
	case err != nil && c.rdma.count() == 0:
		return fmt.Errorf("%v: %s%s", c.to, why(err, c.o.timeout), hint(err))
	case err != nil:
		return fmt.Errorf("%v: after %d exchanges: %s", c.to, c.rdma.count(), why(err, c.o.timeout))
	}
	return nil
}

// hint says what to look at when a peer takes the connection and then not the first
// exchange.
func hint(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		return " before the first exchange: is it rping, or verbena ping -listen, with room for this size?"
	}
	return ""
}

// connect makes the connection.
func (c *client) connect(ctx context.Context) error {
	id := c.ep.id
	if err := id.ResolveAddr(netip.AddrPort{}, c.to, c.o.timeout); err != nil {
		return err
	}
	if err := c.await(ctx, cm.AddrResolved); err != nil {
		return err
	}
	if err := id.ResolveRoute(c.o.timeout); err != nil {
		return err
	}
	if err := c.await(ctx, cm.RouteResolved); err != nil {
		return err
	}
	q, err := c.w.queue(id.Device(), cqDepth, c.onWC, c.onEnd)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.open = true
	c.mu.Unlock()
	if err := c.ep.open(id, q, c.o.size, true); err != nil {
		return err
	}
	if err := id.Connect(&cm.ConnParam{ResponderResources: 1, InitiatorDepth: 1}); err != nil {
		return err
	}
	return c.await(ctx, cm.Established)
}

// await waits for an event of the connection manager.
func (c *client) await(ctx context.Context, t cm.EventType) error {
	var err error
	e := c.w.until(ctx, time.Now().Add(c.o.timeout), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		err = c.err
		return err != nil || c.reached[t]
	})
	return errors.Join(err, e)
}

// exchanges pings until it is told to stop.
func (c *client) exchanges(ctx context.Context) error {
	for seq := 0; c.o.count == 0 || seq < c.o.count; seq++ {
		next := time.Now().Add(c.o.interval)
		if err := c.exchange(ctx, seq); err != nil {
			return err
		}
		if c.tcp != nil {
			c.tcp.exchange(seq)
		}
		if c.o.interval == 0 || seq+1 == c.o.count {
			continue
		}
		// The connection is watched meanwhile.
		err := c.w.until(ctx, next, func() bool { return c.failure() != nil })
		if err == nil {
			err = c.failure()
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return nil
}

// exchange does one exchange and takes its time.
func (c *client) exchange(ctx context.Context, seq int) error {
	data, target := c.ep.data.Bytes()[:c.o.size], c.ep.target.Bytes()[:c.o.size]
	fillPing(data, seq)
	clear(target)
	c.mu.Lock()
	c.state.begin()
	c.took = 0
	c.begun = time.Now()
	err := c.ep.qp.PostSend(c.ep.message(slotData))
	c.mu.Unlock()
	if err != nil {
		return errors.Join(c.failure(), err)
	}
	var took time.Duration
	err = c.w.until(ctx, c.begun.Add(c.o.timeout), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		took, err = c.took, c.err
		return took > 0 || err != nil
	})
	if took == 0 {
		return errors.Join(c.failure(), err)
	}
	if err := comparePing(target, data); err != nil {
		return err
	}
	c.rdma.add(took)
	if !c.o.quiet {
		c.p.linef("%d bytes from %v: seq=%d time=%s", c.o.size, c.to, seq, short(took))
	}
	return nil
}

func (c *client) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail remembers the first failure. c.mu is held.
func (c *client) fail(err error) {
	if c.err == nil && !c.closing {
		c.err = err
	}
}

func (c *client) onCM(ev cm.Event) {
	c.p.cm(&ev)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reached[ev.Type] = true
	switch ev.Type {
	case cm.AddrError, cm.RouteError, cm.ConnectError, cm.Unreachable, cm.Rejected, cm.DeviceRemoval:
		err := ev.Err
		if err == nil {
			err = fmt.Errorf("%v", ev.Type)
		}
		c.fail(err)
	case cm.Disconnected:
		c.fail(io.EOF)
	}
}

func (c *client) onAsync(ev verbs.AsyncEvent) {
	c.p.async(&ev)
	if ev.Type == ib.EventDeviceFatal {
		c.mu.Lock()
		c.fail(verbs.ErrDeviceGone)
		c.mu.Unlock()
	}
}

func (c *client) onWC(wcs []verbs.WC) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wcs {
		wc := &wcs[i]
		c.p.wc(wc)
		if wc.Err() != nil {
			c.fail(c.ep.cause(wc))
			continue
		}
		if wc.ID >= recvDepth || c.err != nil {
			continue
		}
		if err := c.received(wc); err != nil {
			c.fail(err)
		}
	}
	return true
}

// received goes on with the exchange.
func (c *client) received(wc *verbs.WC) error {
	act, err := c.state.received(int(wc.ByteLen))
	if err != nil {
		return err
	}
	if act == actFinished {
		c.took = max(time.Since(c.begun), 1)
	}
	if err := c.ep.receive(int(wc.ID)); err != nil {
		return err
	}
	if act == actSendNext {
		return c.ep.qp.PostSend(c.ep.message(slotTarget))
	}
	return nil
}

// onEnd: the queue gives no more completions.
func (c *client) onEnd(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = false
	if err != nil {
		c.fail(err)
	}
}

// close says goodbye, waits a moment for the answer, and frees everything.
func (c *client) close() error {
	c.mu.Lock()
	c.closing = true
	established, gone := c.reached[cm.Established], c.err != nil
	c.mu.Unlock()
	ctx, deadline := context.Background(), time.Now().Add(min(c.o.timeout, time.Second))
	if established && !gone && c.ep.id.Disconnect() == nil {
		// Without an answer the end is as good.
		_ = c.w.until(ctx, deadline, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.reached[cm.Disconnected]
		})
	}
	if c.ep.q != nil {
		c.ep.q.stop()
		_ = c.w.until(ctx, deadline, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return !c.open
		})
	}
	return c.ep.close()
}

// summary prints what was measured, also after a failure.
func (c *client) summary(took time.Duration, noTCP string) {
	c.p.linef("")
	c.p.linef("--- %v ping summary ---", c.to)
	c.p.linef("%d exchanges of %d bytes, compared byte for byte, in %s", c.rdma.count(), c.o.size, short(took))
	c.p.linef("%s", statsHead)
	c.p.linef("%s", c.rdma.row("RDMA"))
	if c.tcp != nil && c.tcp.stats.count() > 0 {
		c.p.linef("%s", c.tcp.stats.row("TCP"))
		c.p.linef("the median over RDMA is %.2f times that over TCP",
			float64(c.rdma.quantile(50))/float64(max(c.tcp.stats.quantile(50), 1)))
	}
	if c.tcp != nil && c.tcp.err != nil && !errors.Is(c.tcp.err, context.Canceled) {
		noTCP = why(c.tcp.err, c.o.timeout)
	} else if c.tcp != nil {
		return
	}
	c.p.linef("%-6s %s", "TCP", noTCP)
}
