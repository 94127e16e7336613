package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// maxClients bounds what strangers can make a server hold: about 70 KiB each.
const maxClients = 256

// server serves any number of clients, each with a session of its own.
type server struct {
	o  *pingOptions
	p  *printer
	e  *env
	w  waiter
	ln *cm.ID

	mu       sync.Mutex
	sessions map[*session]bool
	served   int
	failed   int
}

func runServer(ctx context.Context, e *env, o *pingOptions, at netip.AddrPort) error {
	s := &server{o: o, e: e, p: newPrinter(e.stdout, o.verbose, true), sessions: map[*session]bool{}}
	return s.run(ctx, at, func(what string) {
		tcp := "; the same over TCP"
		if !o.tcp {
			tcp = ""
		}
		s.p.linef("serving on %v (%s), up to %d bytes, waiting with %s%s", s.ln.LocalAddr(), what, o.size, o.wait, tcp)
	})
}

// portTries is how many free ports of RDMA are tried until TCP has the same one free.
const portTries = 16

// listen makes the listener, and one of TCP on the same port. If there is none for TCP it says so,
// and gives nil.
func (s *server) listen(ch *cm.EventChannel, at netip.AddrPort, tcp func(netip.AddrPort, *pingOptions) (*tcpServer, error)) (t *tcpServer, err error) {
	for try := 1; ; try++ {
		if s.ln, err = ch.NewID(ib.PortSpaceTCP); err != nil {
			return nil, err
		}
		if err = s.ln.Bind(at); err == nil {
			err = s.ln.Listen(0)
		}
		if err != nil {
			return nil, errors.Join(err, s.ln.Close())
		}
		if !s.o.tcp {
			return nil, nil
		}
		if t, err = tcp(s.ln.LocalAddr(), s.o); err == nil {
			return t, nil
		}
		if at.Port() != 0 || try == portTries || !errors.Is(err, syscall.EADDRINUSE) {
			fmt.Fprintf(s.e.stderr, "verbena ping: no TCP beside RDMA: %v\n", err)
			return nil, nil
		}
		if err = s.ln.Close(); err != nil {
			return nil, err
		}
	}
}

// run listens, calls ready, and serves until ctx ends.
func (s *server) run(ctx context.Context, at netip.AddrPort, ready func(what string)) (err error) {
	prov, what, err := provider()
	if err != nil {
		return err
	}
	ch, err := cm.NewEventChannel(prov)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ch.Close()) }()
	if s.w, err = waitModes[s.o.wait](ctx, ch, handlers{cm: s.onCM, async: s.onAsync}); err != nil {
		return err
	}
	defer s.w.close() // ends the sessions
	t, err := s.listen(ch, at, listenTCP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.ln.Close()) }()
	if t != nil {
		defer t.close()
	}
	ready(what)
	for {
		err := s.w.until(ctx, time.Now().Add(s.o.timeout), func() bool { return false })
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			s.summary()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		s.probe()
	}
}

// probe asks clients that have been silent whether they live.
func (s *server) probe() {
	s.mu.Lock()
	var list []*session
	for c := range s.sessions {
		list = append(list, c)
	}
	s.mu.Unlock()
	for _, c := range list {
		c.probe(s.o.timeout)
	}
}

func (s *server) onCM(ev cm.Event) {
	s.p.cm(&ev)
	if ev.Type != cm.ConnectRequest {
		return // an end shows in the completions, behind what came before
	}
	if err := s.accept(ev.ID); err != nil {
		s.complain(ev.ID.RemoteAddr(), "not accepted: "+why(err, s.o.timeout))
		s.mu.Lock()
		s.failed++
		s.mu.Unlock()
	}
}

func (s *server) onAsync(ev verbs.AsyncEvent) { s.p.async(&ev) }

// complain says what went wrong with a client.
func (s *server) complain(who netip.AddrPort, what string) {
	s.p.linef("%v: %s", who, what)
}

var errFull = errors.New("too many clients")

// accept makes a session for a request, or closes it.
func (s *server) accept(id *cm.ID) error {
	c := &session{s: s, peer: id.RemoteAddr(), begun: time.Now(), last: time.Now()}
	c.state.limit = s.o.size
	c.ep.all, c.ep.id = s.o.verbose, id
	s.mu.Lock()
	full := len(s.sessions) >= maxClients
	if !full {
		s.sessions[c] = true
	}
	s.mu.Unlock()
	if full {
		return errors.Join(errFull, id.Close()) // rejects
	}
	q, err := s.w.queue(id.Device(), cqDepth, c.onWC, c.onEnd)
	if err != nil {
		s.mu.Lock()
		delete(s.sessions, c)
		s.mu.Unlock()
		return errors.Join(err, id.Close())
	}
	// From here on the end of the queue closes everything. The lock keeps the first
	// completion waiting until the session is whole.
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.ep.open(id, q, s.o.size, false)
	if err == nil {
		err = id.Accept(&cm.ConnParam{ResponderResources: 1, InitiatorDepth: 1})
	}
	if err != nil {
		c.silent = true
		q.stop()
	}
	return err
}

func (s *server) summary() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.p.linef("")
	s.p.linef("clients: %d served, %d failed", s.served, s.failed)
}

// session is one client of a server.
type session struct {
	s     *server
	peer  netip.AddrPort
	begun time.Time

	mu      sync.Mutex
	ep      endpoint
	state   serverState
	err     error
	last    time.Time // something came
	probing bool
	silent  bool // its end is told already
}

func (c *session) onWC(wcs []verbs.WC) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = time.Now()
	for i := range wcs {
		wc := &wcs[i]
		c.s.p.wc(wc)
		var err error
		if wc.Err() != nil {
			err = c.ep.cause(wc)
		} else {
			err = c.completed(wc)
		}
		if err != nil {
			c.err = err
			return false
		}
	}
	return true
}

// completed goes on with the exchange.
func (c *session) completed(wc *verbs.WC) error {
	var act action
	var err error
	switch wc.ID {
	case idRead:
		act, err = c.state.read(c.ep.data.Bytes()[:c.state.size])
	case idSend, idWrite:
		return nil
	case idProbe:
		c.probing = false
		return nil
	default:
		slot := int(wc.ID)
		act, err = c.state.received(c.ep.slot(slot)[:wc.ByteLen])
		if err == nil {
			err = c.ep.receive(slot)
		}
	}
	if err != nil {
		return err
	}
	at, n := c.state.at, c.state.size
	switch act {
	case actRead:
		return c.ep.qp.PostSend(verbs.Read(idRead, at, c.ep.data.SGE(0, n), ib.Signaled))
	case actGoOn:
		return c.ep.qp.PostSend(c.ep.message(slotGoOn))
	case actWriteGoOn:
		// Requests arrive in order: the client has the data when it gets the message.
		_, err := c.ep.qp.PostSendList([]verbs.SendWR{
			verbs.Write(idWrite, at, c.ep.data.SGE(0, n), 0),
			c.ep.message(slotGoOn),
		})
		return err
	}
	return nil
}

// probe writes nothing to a client that has been silent for a while: if it is gone the
// write fails, and with it the session.
func (c *session) probe(silence time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ep.qp == nil || c.probing || time.Since(c.last) < silence {
		return
	}
	c.probing = c.ep.qp.PostSend(verbs.Write(idProbe, ib.Remote{}, verbs.SGE{}, ib.Signaled)) == nil
}

// onEnd tells how the session ended, and closes it.
func (c *session) onEnd(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	ended := errors.Is(c.err, io.EOF) || c.err == nil || errors.Is(c.err, net.ErrClosed)
	s := c.s
	if !c.silent {
		// Before the line that tells of it: who reads it and asks for the sum finds it there.
		s.mu.Lock()
		if ended {
			s.served++
		} else {
			s.failed++
		}
		s.mu.Unlock()
		took := short(time.Since(c.begun))
		if ended {
			s.p.linef("%v: %d exchanges in %s", c.peer, c.state.done, took)
		} else {
			s.complain(c.peer, fmt.Sprintf("%s, after %d exchanges in %s", why(c.err, s.o.timeout), c.state.done, took))
		}
	}
	if err := c.ep.close(); err != nil {
		s.complain(c.peer, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, c)
}
