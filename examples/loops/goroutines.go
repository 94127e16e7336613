package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// goroutines waits with a goroutine for each source. None holds a thread while it waits,
// and arming, draining and acknowledging are the library's business.
type goroutines struct {
	ctx context.Context
	end context.CancelCauseFunc
	wg  sync.WaitGroup
	mu  sync.Mutex // the server is for one at a time
	s   *server
}

func serveGoroutines(ctx context.Context, s *server) error {
	g := &goroutines{s: s}
	g.ctx, g.end = context.WithCancelCause(ctx)
	s.added = func(d *device) error {
		g.wg.Go(func() { g.end(g.completions(d)) })
		g.wg.Go(func() { g.end(g.async(d)) })
		return nil
	}
	g.wg.Go(func() { g.end(g.connections()) })
	g.wg.Go(g.sockets)
	<-g.ctx.Done() // the first error, or the end of the program, ends all
	s.tcp.Close()
	g.wg.Wait()
	return ended(context.Cause(g.ctx))
}

func (g *goroutines) connections() error {
	for ev, err := range g.s.ch.Events(g.ctx) {
		if err != nil {
			return err
		}
		g.mu.Lock()
		g.s.onCM(ev)
		g.mu.Unlock()
	}
	return nil
}

func (g *goroutines) completions(d *device) error {
	for wc, err := range d.cq.Completions(g.ctx) {
		if err != nil {
			return err
		}
		g.mu.Lock()
		g.s.onWC(wc)
		g.mu.Unlock()
	}
	return nil
}

func (g *goroutines) async(d *device) error {
	for ev, err := range d.dev.Async().Events(g.ctx) {
		if err != nil {
			return err
		}
		g.mu.Lock()
		g.s.onAsync(ev)
		g.mu.Unlock()
	}
	return nil
}

// sockets serves TCP as everybody does.
func (g *goroutines) sockets() {
	for {
		c, err := g.s.tcp.Accept()
		if err != nil {
			return
		}
		g.wg.Go(func() { echo(g.ctx, c) })
	}
}

func echo(ctx context.Context, c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	io.Copy(c, c)
}

// ended makes the wanted end no error.
func ended(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
